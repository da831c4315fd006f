"""The nearest changes: each lowers what it says, fits where it says, and is judged as if it were written."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from validator.advise import changes
from validator.job import job
from validator.job.job import GIB
from validator.judge import check
from validator.read.override import with_overrides
from validator.read.recipe import Document, load, parse
from validator.rules import engine

ROOT = Path(__file__).parent.parent
BODY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: {method}
lora_target: all
template: qwen
cutoff_len: 2048
output_dir: saves/x
bf16: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
"""
ORDER = ["fits", "tight", "exceeds", "unknown"]


def resolved(machine: str, method: str, ram: float | None = 1024, more: str = "") -> job.Job:
    return job.resolve(parse(str(ROOT / "recipes" / "x.yaml"), BODY.format(method=method) + more), machine, ram)


JOBS = [
    ("8xa100-80g", "full", ""), ("1xrtx-4090", "full", ""), ("1xrtx-4090", "lora", ""),
    ("8xascend-910b-64g", "full", ""),
    ("8xv100-32g", "lora", ""), ("2x8xa100-80g", "full", "deepspeed: deepspeed/ds_z3.json\n"), ("1xt4-16g", "lora", ""),
    ("8xa100-40g", "full", "deepspeed: deepspeed/ds_z2.json\n"), ("1xa100-80g", "lora", "quantization_bit: 4\n"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(("machine", "method", "more"), JOBS)
def test_each_change_is_what_it_says(machine: str, method: str, more: str) -> None:
    before = resolved(machine, method, more=more)
    assert before.device_memory is not None
    assert before.host_memory is not None
    for change in changes.nearest(before):
        written = BODY.format(method=method) + more
        words = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in change.set.items()
        ]
        document = with_overrides(parse(str(ROOT / "recipes" / "x.yaml"), written), words)
        after = job.resolve(document, machine, 1024)
        assert after.device_memory is not None
        assert after.host_memory is not None
        assert change.device_gib == pytest.approx(after.device_memory.expected / GIB)
        assert change.verdict == after.verdict
        less = after.device_memory.expected < before.device_memory.expected
        assert less or after.host_memory.expected < before.host_memory.expected
        assert after.effective_batch == before.effective_batch


@pytest.mark.parametrize(("machine", "method", "more"), JOBS)
def test_those_that_fit_come_first(machine: str, method: str, more: str) -> None:
    found = [ORDER.index(change.verdict) for change in changes.nearest(resolved(machine, method, more=more))]
    assert found == sorted(found)
    assert len(found) <= 5


def test_the_nearest_fitting_change() -> None:
    change = changes.fitting(resolved("8xa100-80g", "full"))
    assert change is not None
    assert change.verdict == "fits"
    assert "deepspeed" in change.set
    assert str(change).startswith("`deepspeed: deepspeed/ds_z")
    assert "GiB per device" in str(change)


def test_none_where_nothing_helps() -> None:
    # 32 billion parameters on 16 GiB.
    text = BODY.format(method="full").replace("7B", "72B")
    assert changes.fitting(job.resolve(parse("x.yaml", text), "1xt4-16g", 64)) is None


def test_none_for_an_unknown_model() -> None:
    assert changes.nearest(job.resolve(parse("x.yaml", "model_name_or_path: none/such\n"))) == []


def test_no_kernels_for_nvidia_alone_on_ascend_and_no_4_bit_where_it_does_not_run() -> None:
    for change in changes.nearest(resolved("8xascend-910b-64g", "lora"), limit=100):
        assert not {"enable_liger_kernel", "quantization_bit"} & set(change.set)


def test_every_zero_file_that_is_proposed_exists() -> None:
    proposed = {c.set["deepspeed"] for m, k, t in JOBS for c in changes.nearest(resolved(m, k, more=t), 100)
                if "deepspeed" in c.set}  # fmt: skip
    assert len(proposed) > 2
    assert all((ROOT / name).is_file() for name in proposed)


def applied(document: Document, change: changes.Change) -> Document:
    """As a user would write it on the command line."""
    spelled = {True: "true", False: "false", None: "null"}
    words = [f"{key}={spelled.get(value, value)}" for key, value in change.set.items()]
    return with_overrides(document, words)


SMALLER = [("1xt4-16g", 1024.0), ("1xrtx-3090", 64.0), ("4xv100-32g", 1024.0), ("8xascend-910b-32g", 64.0),
           ("2x8xrtx-3090", 1024.0)]  # fmt: skip
DECIDES = ("stage", "finetuning_type", "deepspeed", "quantization_bit", "fsdp", "use_galore", "use_apollo", "use_badam")
REFUSED = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/refused/*.yaml"))


def kinds() -> list[str]:
    """A recipe for each combination of what decides which changes there are."""
    paths = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("recipes/*.yaml"))
    values = {path: load(str(ROOT / path)).values for path in paths}
    firsts = {str([values[path].get(key) for key in DECIDES]): path for path in reversed(paths)}
    return sorted(firsts.values())


# Each as it is where it is refused, else on a smaller machine.
TOO_LARGE = [*((path, None, None) for path in REFUSED),
             *((path, *machine) for path, machine in zip(kinds(), cycle(SMALLER)))]  # fmt: skip


def refusals(document: Document, machine: str | None, ram: float | None) -> set[tuple[str, str]]:
    """Errors other than memory and this repository's own conventions."""
    found = check.check_document(document, machine, ram).diagnostics
    return {(d.code, str(d.key)) for d in found if d.severity == "error" and d.code[:3] not in ("FIT", "CUR")}


@pytest.mark.parametrize(("path", "machine", "ram"), TOO_LARGE)
def test_no_change_brings_an_error(path: str, machine: str | None, ram: float | None) -> None:
    document = load(path)
    before = job.resolve(document, machine, ram)
    known = refusals(document, machine, ram)
    for change in changes.nearest(before) if before.verdict in ("tight", "exceeds") else ():
        after = applied(document, change)
        assert refusals(after, machine, ram) <= known, change.set
        assert job.resolve(after, machine, ram).verdict == change.verdict


def test_most_of_them_do_not_fit() -> None:
    verdicts = [job.resolve(load(path), machine, ram).verdict for path, machine, ram in TOO_LARGE]
    assert sum(verdict in ("tight", "exceeds") for verdict in verdicts) > 0.7 * len(verdicts)


def test_optimizers_of_full_tuning_go_when_adapters_or_an_engine_come() -> None:
    for key in ("use_galore", "use_apollo", "use_badam"):
        before = resolved("8xrtx-4090", "full", more=f"{key}: true\noptim: adamw_torch\n")
        found = changes.nearest(before, limit=100)
        assert any("deepspeed" in change.set for change in found)
        assert any(change.set.get("finetuning_type") == "lora" for change in found)
        assert all(change.set[key] is False for change in found if {"deepspeed", "finetuning_type"} & set(change.set))


def test_what_exists_already_is_no_reason_to_hold_a_change_back() -> None:
    before = resolved("1xrtx-4090", "full", more="fp16: true\n")
    assert engine.errors(before)
    assert changes.nearest(before)


def test_a_quantized_model_that_is_loaded_whole_may_be_sharded_unquantized() -> None:
    text = BODY.format(method="lora").replace("7B", "72B").replace("size: 4", "size: 1")
    more = "quantization_bit: 4\ndeepspeed: deepspeed/ds_z3.json\n"
    change = changes.fitting(job.resolve(parse("x.yaml", text + more), "8xv100-32g", 1024))
    assert change is not None
    assert change.set["quantization_bit"] is None
