"""Ways to train all parameters on one device without AdamW's 16 bytes a parameter."""

from __future__ import annotations

from collections.abc import Mapping

Setting = bool | int | float | str

# The least approximate first: AdamW in 16 bits, then optimizers with the settings of LLaMA-Factory's own examples
# (examples/extras), all of them with `pure_bf16`. GaLore and APOLLO refuse the fused AdamW; layer by layer they update
# without accumulation.
SAVERS: Mapping[str, Mapping[str, Setting]] = {
    "bf16": {},
    "galore": {"use_galore": True, "galore_layerwise": True, "galore_target": "all", "galore_rank": 128,
               "galore_scale": 2.0, "optim": "adamw_torch"},
    "apollo": {"use_apollo": True, "apollo_layerwise": True, "apollo_target": "all", "apollo_rank": 128,
               "apollo_scale": 32.0, "apollo_scale_type": "channel", "optim": "adamw_torch"},
    "badam": {"use_badam": True, "badam_mode": "layer", "badam_switch_mode": "ascending",
              "badam_switch_interval": 50},
}  # fmt: skip
