"""Models that hear, too: a sound in each sequence, as LLaMA-Factory's collator hands it over."""

from __future__ import annotations

from typing import Any

import torch

from validator.simulate.known import values_known

# Of one second, and the most that a sound has (transformers, WhisperFeatureExtractor).
_FRAMES, _LONGEST = 100, 3000


def batch(config: Any, seconds: int, sequences: int) -> dict[str, torch.Tensor]:
    """One of so many seconds in each sequence; nothing where there is none."""
    if not seconds:
        return {}
    frames = min(seconds * _FRAMES, _LONGEST)
    with values_known(0):
        mask = torch.tensor([[int(frame < frames) for frame in range(_LONGEST)]] * sequences)
        return {
            "input_features": torch.empty((sequences, config.audio_config.num_mel_bins, _LONGEST)),
            "feature_attention_mask": mask,
        }
