"""What each publication of step times counts as an iteration, and the software it ran; read by times.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import rows
from accuracy_time.cards import ATTAINED
from rows import Stack


@dataclass(frozen=True)
class Source:
    """What a publication counts as an iteration, and the software it ran, by the prefix of its row ids."""

    stack: Stack
    counts: Literal["step", "micro"] = "step"  # sec_per_iter is of an optimizer step, or of one micro batch
    whole: bool = False  # the whole run was timed: start-up and validation are in it
    network: float = 0.0  # bytes/s between nodes, one node and direction, as the source states it; 0: it does not
    kernels: bool = False  # norms, rotation and activations are fused kernels, apart from the loss
    flash: bool = False  # its attention is a flash kernel, which its rows do not say
    attention: float = 1.0  # what that kernel reaches, over FlashAttention-2
    reentrant: bool = True  # checkpointing computes layers again as a whole
    scatter: float = 0.0  # standard deviation of the logarithm of its samples' lengths
    doubt: str = ""  # what the publication leaves open and could change the figure by more than a tenth


GBIT = 1e9 / 8
SOURCES: Mapping[str, Source] = {
    "fms": Source(rows.STACKS["fms"]),
    # Its longest of 2, 4 and 8 samples are 1.28, 1.54 and 1.81 times the mean one in the mean.
    "fmsorca": Source(rows.STACKS["fmsorca"], scatter=0.5),
    "peftmm": Source(rows.STACKS["peftmm"]),
    "hfperf": Source(Stack("transformers run_clm", full="amp")),
    "swiftex": Source(rows.STACKS["swiftex"], doubt="the script's header states it, rounded"),
    "dsex": Source(Stack("DeepSpeedExamples bf16_master_weight")),
    "titan": Source(Stack("torchtitan", full="amp", peer=False), network=3200 * GBIT, reentrant=False),
    "titanperf": Source(Stack("torchtitan", full="amp", peer=False), network=3200 * GBIT, reentrant=False),
    "ktrans": Source(Stack("ktransformers", peer=False)),
    "foundry": Source(
        Stack("llm-foundry (Composer, FSDP)", loss="fused", full="amp", peer=False),
        network=1600 * GBIT,
        kernels=True,
        flash=True,
        attention=0.5,  # Triton's of the first generation, which takes ALiBi's biases (arXiv 2307.08691 compares them)
        reentrant=False,  # activation_checkpointing_reentrant: false
    ),
    "mlperf": Source(Stack("MLPerf Training", peer=False)),
    "nemo": Source(Stack("NeMo", peer=False), network=3200 * GBIT),
    "automodel": Source(
        Stack("NeMo Automodel", adapter="engine", dropout=True, peer=False),
        network=3200 * GBIT,
        kernels=True,
        doubt="adapters by kernels of its own",
    ),
    "mindspeed": Source(
        Stack("MindSpeed-LLM (Megatron)", peer=False),
        network=1600 * GBIT,
        kernels=True,
        doubt="batch and parallelism are the script's of that commit",
    ),
    "xtuner": Source(Stack("xtuner"), kernels=True),
    # 51 Gbit/s is what its own all-reduce reached over 16 nodes (experiments/bandwidth), of four adapters of 100.
    "bigsci": Source(Stack("BigScience, HF Trainer + DeepSpeed"), network=51 * GBIT / ATTAINED),
    "swift": Source(Stack("ms-swift examples", dropout=True, bins=True)),
    "lithubt": Source(rows.STACKS["lithub"], whole=True),
    "alpacalora": Source(Stack("alpaca-lora", dropout=True), doubt="hours of a progress bar"),
    "fsdpqlora": Source(Stack("fsdp_qlora (answer.ai)", loss="shifted", adapter="engine", dropout=True)),
    # peft before 0.12 gave adapters the precision of the weights beside them
    "qwenreadme": Source(Stack("Qwen README", loss="shifted", adapter="engine", dropout=True)),
    "phill4": Source(Stack("philschmid's notebooks (TRL)"), reentrant=False),
    "torchtune": Source(Stack("torchtune", adapter="engine", peer=False)),
    "thunder": Source(Stack("litgpt pre-training", full="amp", untied=True, peer=False)),
    "tinyllama": Source(Stack("TinyLlama", loss="fused", full="amp", peer=False), kernels=True),
    "colossal": Source(Stack("Colossal-AI", peer=False), doubt="batch and recomputation assumed"),
    "ktfull": Source(Stack("LLaMA-Factory, ZeRO-3 beside KTransformers")),
    "internlm": Source(Stack("InternLM", loss="fused", peer=False), network=400 * GBIT, kernels=True, flash=True),
    "hfblog": Source(Stack("Hugging Face blog", loss="shifted")),
    "hfwhole": Source(Stack("Hugging Face blog, whole runs", loss="shifted", dropout=True), whole=True),
    "rocm": Source(Stack("ROCm blogs (TRL)", full="pure", adapter="pure", loss="shifted", dropout=True)),
    "woniu": Source(Stack("woniu_llm_projects", dropout=True), whole=True),
    "phil24": Source(Stack("philschmid's notebooks of 2024 (TRL)", loss="shifted", dropout=True)),
}
