"""No memory is judged of a run whose model something else splits or keeps, so that none is called too large for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.check.checking import check_file

RECIPE = """model_name_or_path: Qwen/Qwen3-32B
stage: sft
do_train: true
finetuning_type: full
dataset: x/y
dataset_dir: ONLINE
template: qwen3
output_dir: out
bf16: true
"""
TENSOR_PARALLEL = (
    '{"train_batch_size": "auto", "zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 4}}'
)
RUNS = {
    "megatron": ("train.yaml", "tensor_model_parallel_size: 4\n", "Megatron (mcore_adapter) is not judged"),
    "ktransformers": ("train.yaml", "use_kt: true\n", "KTransformers is not judged"),
    "autotp": ("train.yaml", "deepspeed: tp.json\n", "tensor parallelism is not judged"),
    "fsdp by its name": ("qwen3_full_FSDP2.yaml", "", "named after FSDP, and no `# accelerate: FILE` says how"),
    "plain": ("train.yaml", "", ""),
    "fsdp in the recipe": ("qwen3_fsdp.yaml", "fsdp: full_shard auto_wrap\n", ""),
    "one device a weight": ("train.yaml", "deepspeed: one.json\n", ""),
}


@pytest.mark.parametrize(("name", "more", "reason"), RUNS.values(), ids=RUNS)
def test_another_engine(name: str, more: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tp.json").write_text(TENSOR_PARALLEL)
    Path("one.json").write_text(TENSOR_PARALLEL.replace("4", "1"))
    Path(name).write_text(RECIPE + more)
    report = check_file(name, "8xa100-80g", 2048.0)
    assert [each.reason for each in report.unjudged] == ([reason] if reason else [])
    assert (report.verdict == "unknown") == bool(reason)
    assert not reason or "FIT001" not in {each.code for each in report.diagnostics}
