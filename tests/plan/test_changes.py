"""The nearest changes: the cheapest that fit come first, and each, followed to the letter, gives what it promises."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, product
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import clean_recipe, following

from validator.advise import changes
from validator.advise.changes import Change
from validator.catalogue.bundled_recipes import locate_recipe
from validator.check import checking
from validator.commands import copy
from validator.finding import Severity
from validator.levers import options
from validator.physics.estimate import GIB
from validator.recipe.recipe_file import load_recipe, load_with_overrides, parse_recipe
from validator.rules.problems import find_problems
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve

pytestmark = [
    pytest.mark.usefixtures("from_the_root"),
    pytest.mark.sample(one_in=3, whole_for=["validator/advise/*", "validator/levers/*"]),
]

ROOT = Path(__file__).parents[2]


def resolved(machine: str, method: str, ram: float = 1024, more: str = "") -> RunSettings:
    return resolve(parse_recipe(str(ROOT / "recipes" / "x.yaml"), following.recipe(machine, method, ram, more)))


def followed(folder: Path, text: str) -> list[Change]:
    """The nearest changes, each of them followed and true."""
    return following.promises(folder, text, changes.nearest_changes, Severity.ERROR)[1]


JOBS = [
    ("8xa100-80g", "full", ""), ("1xrtx-4090", "full", ""), ("1xrtx-4090", "lora", ""),
    ("8xascend-910b-64g", "full", ""),
    ("8xv100-32g", "lora", ""), ("2x8xa100-80g", "full", "deepspeed: deepspeed/ds_z3.json\n"), ("1xt4-16g", "lora", ""),
    ("8xa100-40g", "full", "deepspeed: deepspeed/ds_z2.json\n"), ("1xa100-80g", "lora", "quantization_bit: 4\n"),
]  # fmt: skip
Z2, Z3, OFFLOAD = ({"deepspeed": f"deepspeed/ds_{name}.json"} for name in ("z2", "z3", "z3_offload"))
SAVED = ("finetuning_type", "use_badam", "use_galore", "use_apollo")
LORA = {"finetuning_type": "lora", "lora_target": "all"}


def batch(micro: int, accumulation: int) -> dict[str, int]:
    return {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}


# Machine, host memory, method, what else the recipe says, and the cheapest change that fits.
CHEAPEST: list[tuple[str, float, str, str, Mapping[str, object]]] = [
    # one card: half the micro batch with expandable segments and liger, no shorter samples and no offload
    ("1xrtx-3090", 64, "lora", "cutoff_len: 8192", {**batch(2, 4), **Z2, "enable_liger_kernel": True}),
    ("1xrtx-4090", 64, "lora", "cutoff_len: 4096\nenable_liger_kernel: true", batch(1, 8)),
    # one sample at a time is evaluated, before anything of the training is changed
    ("1xrtx-4090", 64, "lora", "per_device_train_batch_size: 1\nenable_liger_kernel: true\ncutoff_len: 1024\n"
     "val_size: 0.02\neval_strategy: steps", {"per_device_eval_batch_size": 1}),
    ("1xa100-40g", 64, "lora", "per_device_train_batch_size: 1\nval_size: 0.02\ndo_eval: true",
     {"per_device_eval_batch_size": 1}),
    # recomputation, where a smaller micro batch does not do
    ("1xa100-40g", 64, "lora", "disable_gradient_checkpointing: true", {**batch(1, 8), **Z2}),
    ("1xa100-40g", 64, "lora", "disable_gradient_checkpointing: true\ncutoff_len: 8192",
     {**batch(1, 8), **Z2, "disable_gradient_checkpointing": False}),
    # 4-bit weights where nothing cheaper does, before ZeRO-3; ZeRO-3 where bitsandbytes does not run
    ("1xv100-16g", 64, "lora", "bf16: null\nfp16: true", {**batch(2, 4), **Z2, "quantization_bit": 4}),
    ("8xv100-16g", 512, "lora", "bf16: null\nfp16: true", {**batch(1, 8), "quantization_bit": 4}),
    ("8xascend-910b-32g", 512, "lora", "cutoff_len: 4096", {**batch(1, 8), "cutoff_len": 2048, **Z3}),
    # full fine-tuning on several devices: ZeRO-2, ZeRO-3, offload, adapters
    ("8xa100-80g", 1024, "full", "", Z2),
    ("8xa100-40g", 1024, "full", "", {**batch(1, 8), **Z2}),
    ("8xrtx-5090", 1024, "full", "per_device_train_batch_size: 1", Z3),
    ("8xrtx-4090", 1024, "full", "", {**batch(2, 4), **OFFLOAD}),
    ("8xrtx-4090", 96, "full", "", {**batch(1, 8), **LORA}),
    # on one: 16-bit states, then adapters, before other optimizers and offload
    ("1xa100-80g", 256, "full", "", {**batch(2, 4), "pure_bf16": True, "bf16": False}),
    ("1xrtx-4090", 256, "full", "", {**batch(1, 8), **Z2, **LORA}),
    ("1xascend-910b-32g", 64, "full", "", {**batch(1, 8), "cutoff_len": 1024, **LORA}),
    # adapters need none of the offload that full fine-tuning needed
    ("8xrtx-4090", 96, "full", "deepspeed: deepspeed/ds_z3_offload_all.json\nper_device_train_batch_size: 1",
     {**LORA, **Z3}),
    # less offload where the host is too small
    ("8xa100-80g", 96, "full", "deepspeed: deepspeed/ds_z3_offload_all.json", Z2),
]  # fmt: skip


@pytest.mark.sample(one_in=4)
@pytest.mark.parametrize(("machine", "ram", "method", "more", "cheapest"), CHEAPEST)
def test_the_cheapest_that_fits_comes_first(
    tmp_path: Path, machine: str, ram: float, method: str, more: str, cheapest: Mapping[str, object]
) -> None:
    before = resolved(machine, method, ram, more)
    assert predict(before).verdict in ("tight", "exceeds")
    first = changes.nearest_changes(before)[0]
    assert (first.verdict, first.set) == ("fits", cheapest)
    assert changes.change_advice(before) == f"set {first}"
    followed(tmp_path / "x", following.recipe(machine, method, ram, more))


@pytest.mark.parametrize(("machine", "method", "more"), JOBS)
def test_nothing_in_a_change_could_be_left_out(machine: str, method: str, more: str) -> None:
    before = resolved(machine, method, more=more)
    near = changes.nearest_changes(before)
    assert len(near) <= 5
    assert len({change.verdict for change in near}) == 1 or predict(before).verdict == "fits"
    for one, other in product(near, near):
        assert one is other or not one.set.items() <= other.set.items() or predict(before).verdict == "fits"


def test_a_job_that_fits_is_shown_what_saves_memory_easily() -> None:
    before = resolved("1xh200-141g", "lora", more="disable_gradient_checkpointing: true\ncutoff_len: 512")
    assert predict(before).verdict == "fits"
    near = changes.nearest_changes(before)
    assert [*batch(2, 4)] in [[*change.set] for change in near]
    assert {"disable_gradient_checkpointing": False} in [change.set for change in near]
    assert all(change.verdict == "fits" for change in near)
    assert not {"finetuning_type", "cutoff_len", "quantization_bit"} & {key for change in near for key in change.set}
    memory = predict(before).device_memory
    assert memory
    for change in near:
        assert change.device_gib * GIB < memory.expected


def test_an_optimizer_that_keeps_the_batch_comes_before_those_that_cannot_accumulate() -> None:
    near = changes.nearest_changes(resolved("1xa100-40g", "full", more="per_device_train_batch_size: 1"), limit=100)
    order = [next((key for key in change.set if key in SAVED), None) for change in near]
    assert [key for key in dict.fromkeys(order) if key] == list(SAVED)


def too_large() -> RunSettings:
    """72 billion parameters for 16 GiB."""
    return resolve(parse_recipe("x.yaml", following.BODY.format(method="full").replace("7B", "72B")), "1xt4-16g", 64)


def test_where_nothing_fits_the_nearest_are_shown() -> None:
    near = changes.nearest_changes(too_large())
    assert {change.verdict for change in near} == {"exceeds"}
    assert changes.change_advice(too_large()) == "no change makes it fit, `lmf-recipes explain` shows the nearest"


def test_no_two_of_the_nearest_need_the_same_of_what_is_exceeded() -> None:
    before = resolve(parse_recipe("x.yaml", clean_recipe.FOUR_BITS), "1xa100-40g", 128)
    assert predict(before).device_verdict == "exceeds"
    near = changes.nearest_changes(before)  # others need less of host memory, of which there is enough
    assert len(near) == 1
    both = changes.nearest_changes(too_large())  # less of the one for more of the other
    assert [change.host_gib > 64 for change in both] == [True, False]


def test_it_is_said_where_the_best_are_tight() -> None:
    before = resolved("1xrtx-3090", "lora", 16, "cutoff_len: 8192\n")
    assert predict(before).verdict_at_longest == "exceeds"
    assert predict(before).host_verdict == "tight"
    assert {change.verdict for change in changes.nearest_changes(before)} == {"tight"}
    assert changes.change_advice(before).startswith(
        "nothing fits with a margin; it is tight if you set `per_device_train_b"
    )


def test_none_for_an_unknown_model() -> None:
    assert changes.nearest_changes(resolve(parse_recipe("x.yaml", "model_name_or_path: none/such\n"))) == []


def test_no_kernels_for_nvidia_alone_on_ascend_and_no_4_bit_where_it_does_not_run() -> None:
    for more in ("", "cutoff_len: 16384\n", "cutoff_len: 65536\n"):
        for change in changes.nearest_changes(resolved("8xascend-910b-64g", "lora", more=more), limit=100):
            assert not {"enable_liger_kernel", "quantization_bit"} & set(change.set)


def test_nothing_is_offloaded_to_memory_that_the_device_shares() -> None:
    for method in ("lora", "full"):
        near = changes.nearest_changes(resolved("1xgb10-128g", method, more="cutoff_len: 32768"), limit=100)
        assert near
        assert not any("offload" in str(change.set.get("deepspeed")) for change in near)


@pytest.mark.parametrize("machine", ["1xmi300x-192g", "1xascend-910b-64g"])
def test_one_device_without_expandable_segments_is_not_sent_to_torchrun(machine: str) -> None:
    for more in ("cutoff_len: 8192", "cutoff_len: 16384", "cutoff_len: 32768"):
        near = changes.nearest_changes(resolved(machine, "lora", more=more), limit=100)
        assert not any(change.set.get("deepspeed") == "deepspeed/ds_z2.json" for change in near)


def test_optimizers_of_full_tuning_go_when_adapters_or_an_engine_come() -> None:
    for key in ("use_galore", "use_apollo", "use_badam"):
        before = resolved("8xrtx-4090", "full", more=f"{key}: true\noptim: adamw_torch\n")
        near = changes.nearest_changes(before, limit=100)
        assert any("deepspeed" in change.set for change in near)
        assert any(change.set.get("finetuning_type") == "lora" for change in near)
        assert all(change.set[key] is False for change in near if {"deepspeed", "finetuning_type"} & set(change.set))


@pytest.mark.parametrize(
    ("machine", "ram", "method", "more"),
    [
        ("1xrtx-3090", 64, "lora", "cutoff_len: 8192"),
        ("8xa100-80g", 64, "full", "per_device_train_batch_size: 1048576\ndataloader_num_workers: 4"),
        ("1xt4-16g", 64, "full", "model_name_or_path: Qwen/Qwen2.5-72B-Instruct\nper_device_train_batch_size: 64"),
        ("1xa100-80g", 512, "full", "cutoff_len: 131072\ndisable_gradient_checkpointing: true"),
    ],
)
def test_the_search_ends_soon(machine: str, ram: float, method: str, more: str) -> None:
    before = resolved(machine, method, ram, more)
    changes.nearest_changes(before)
    assert len(before.derived) < 450  # of 0.3 ms each


def test_a_micro_batch_is_halved_step_by_step_to_one() -> None:
    def sizes(micro: int) -> list[tuple[int, int]]:
        ways = options.smaller_micro_batch(resolved("1xrtx-3090", "lora", more=f"per_device_train_batch_size: {micro}"))
        return [(way.set["per_device_train_batch_size"], way.set["gradient_accumulation_steps"]) for way in ways]  # type: ignore[misc]

    assert sizes(8) == [(4, 4), (2, 8), (1, 16)]
    assert sizes(6) == [(3, 4), (1, 12)]
    assert sizes(1) == []
    assert sizes(1024)[0] == (64, 32)


def test_what_exists_already_is_no_reason_to_hold_a_change_back() -> None:
    before = resolved("1xrtx-4090", "full", more="fp16: true\n")
    assert find_problems(before, warnings=False)
    assert changes.nearest_changes(before)


def test_a_quantized_model_that_is_loaded_whole_may_be_sharded_unquantized() -> None:
    text = following.BODY.format(method="lora").replace("7B", "72B").replace("size: 4", "size: 1")
    more = "quantization_bit: 4\ndeepspeed: deepspeed/ds_z3.json\n"
    near = changes.nearest_changes(resolve(parse_recipe("x.yaml", text + more), "8xv100-32g", 1024))
    assert near[0].verdict == "fits"
    assert near[0].set["quantization_bit"] is None


# Advice followed to the letter, in a fresh folder.

SMALLER = [("1xt4-16g", 1024.0), ("1xrtx-3090", 64.0), ("4xv100-32g", 1024.0), ("8xascend-910b-32g", 64.0),
           ("2x8xrtx-3090", 1024.0), ("1xrtx-4090", 256.0), ("8xa100-40g", 512.0)]  # fmt: skip
LARGER = ("", "cutoff_len: 8192", "per_device_train_batch_size: 16", "disable_gradient_checkpointing: true")
DECIDES = ("stage", "finetuning_type", "deepspeed", "quantization_bit", "fsdp", "use_galore", "use_apollo", "use_badam")
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
REFUSED = sorted((ROOT / "tests" / "fixtures" / "refused").glob("*.yaml"))


def kinds() -> list[Path]:
    """A recipe for each combination of what decides which changes there are."""
    values = {path: load_recipe(str(path)).values for path in RECIPES}
    return sorted({str([values[path].get(key) for key in DECIDES]): path for path in reversed(RECIPES)}.values())


def cases(recipes: Sequence[Path]) -> Iterator[tuple[Path, following.Machine | None, str]]:
    """Each recipe as it is where it is refused; else on smaller machines, or asked for more."""
    yield from ((path, None, "") for path in REFUSED)
    for path, machine, more in zip(recipes, cycle(SMALLER), cycle(LARGER[::-1])):
        yield path, machine, ""
        yield path, None, more


def seen(path: Path, machine: following.Machine | None, more: str) -> str:
    text = path.read_text("utf-8")
    text = following.targeted(text, machine) if machine else text
    return following.written(text, more) if more else text


@pytest.mark.sample(one_in=10)
@pytest.mark.parametrize(("path", "machine", "more"), [*cases(kinds())])
def test_advice_followed_to_the_letter_keeps_its_promise(
    tmp_path: Path, path: Path, machine: following.Machine | None, more: str
) -> None:
    followed(tmp_path / "x", seen(path, machine, more))


@pytest.mark.sample(one_in=5, whole_for=["validator/advise/*", "validator/levers/*"])
@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES[1::16], ids=lambda path: path.stem)
def test_advice_on_many_machines_keeps_its_promise(tmp_path: Path, path: Path) -> None:
    asked = [*product(SMALLER, ("",)), *product((None,), LARGER)]
    for number, (machine, more) in enumerate(asked):
        followed(tmp_path / str(number), seen(path, machine, more))


def test_most_of_them_do_not_fit() -> None:
    verdicts = [predict(resolve(parse_recipe(str(case[0]), seen(*case)))).verdict for case in cases(kinds())]
    assert sum(verdict in ("tight", "exceeds") for verdict in verdicts) > 0.6 * len(verdicts)


def test_advice_on_a_name_of_the_catalogue_holds_in_a_fresh_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, asked = "qwen3-8b-a100-full", ("2xrtx-3090", 512.0)
    _, before = checking.check_recipe(load_with_overrides(*locate_recipe(name)), *asked)
    first = changes.nearest_changes(before)[0]
    assert first.first == [f"lmf-recipes copy {name} .", "lmf-recipes copy ds_z3_offload.json ."]
    for command in first.first:
        assert CliRunner().invoke(copy.command, shlex.split(command)[2:]).exit_code == 0
    text = (tmp_path / f"{name}.yaml").read_text("utf-8")
    for setting in first.settings():
        text = following.written(text, setting)
    (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    _, after = checking.check_recipe(load_recipe(f"{name}.yaml"), *asked)
    following.is_as_promised(after, first)
    assert changes.nearest_changes(before)[0].first == []  # both are there now


def test_no_copy_is_advised_of_a_recipe_that_is_not_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, copied in (("recipes", True), ("saves", False)):
        one = parse_recipe(str(ROOT / place / "x.yaml"), following.recipe("8xa100-80g", "full"))
        first = changes.nearest_changes(resolve(one))[0].first
        assert ("lmf-recipes copy x ." in first) == copied


# Every sentence, by the row of a job to which it is said.
SENTENCES: dict[str, tuple[str, float, str, str]] = {
    "same effective batch in smaller steps": ("1xrtx-4090", 64, "lora", ""),
    "evaluates one sample at a time, with the same result":
        ("1xa100-40g", 64, "lora", "per_device_train_batch_size: 1\nval_size: 0.02\neval_strategy: steps"),
    "shards nothing on one device, but torchrun turns on PyTorch's expandable segments": ("1xrtx-3090", 64, "lora", ""),
    "shards optimizer state and gradients": ("8xa100-80g", 1024, "full", ""),
    "fuses the loss; needs the liger-kernel package": ("1xrtx-3090", 64, "lora", "cutoff_len: 8192"),
    "activations computed twice, about a third slower":
        ("1xa100-40g", 64, "lora", "disable_gradient_checkpointing: true\ncutoff_len: 8192"),
    "fewer processes on the host; samples may come slower":
        ("8xa100-80g", 80, "lora", "dataloader_num_workers: 16\nper_device_train_batch_size: 1"),
    "longer samples are cut": ("1xrtx-3090", 64, "lora", "cutoff_len: 8192"),
    "adapters in every layer, so that every layer is recomputed":
        ("1xrtx-4090", 64, "lora",
         "model_name_or_path: Qwen/Qwen3.5-4B\ntemplate: qwen3_5_nothink\nlora_target: q_proj,v_proj"),
    "base weights in 4 bit; slower, slightly less accurate; needs the bitsandbytes package":
        ("8xv100-16g", 512, "lora", "bf16: null\nfp16: true"),
    "base weights in half precision, which ZeRO-3 spreads while it reads them":
        ("8xrtx-3090", 512, "lora", "model_name_or_path: Qwen/Qwen2.5-32B-Instruct\nquantization_bit: 8"),
    "shards the weights too; more communication": ("8xrtx-5090", 1024, "full", "per_device_train_batch_size: 1"),
    "optimizer state in host memory; slower steps": ("1xa100-80g", 256, "full", ""),
    "optimizer state in unlocked host memory; slower still": ("1xa100-80g", 170, "full", ""),
    "weights sharded, optimizer state in host memory; slower steps": ("8xrtx-4090", 1024, "full", ""),
    "weights sharded, optimizer state in unlocked host memory; slower still": ("8xrtx-4090", 200, "full", ""),
    "weights and optimizer state in host memory; very slow steps": ("1xrtx-4090", 256, "full", ""),
    "the same in unlocked host memory, of which it needs least; the slowest": ("1xrtx-4090", 190, "full", ""),
    "weights and AdamW's states in 16 bits; small updates may be lost": ("1xa100-80g", 256, "full", ""),
    "gradients projected to rank 128; an optimizer step for each sample":
        ("1xa100-40g", 64, "full", "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2"),
    "one layer trained at a time": ("1xrtx-4090", 256, "full", ""),
    "trains adapters instead of all weights, at about ten times the learning rate": ("8xrtx-4090", 96, "full", ""),
    "; nothing offloaded: much faster steps":
        ("1xrtx-4090", 64, "full", "deepspeed: deepspeed/ds_z2_offload.json\nper_device_train_batch_size: 1"),
    "; base weights in 4 bit": ("1xt4-16g", 64, "full", "bf16: null\nfp16: true"),
}  # fmt: skip


@pytest.mark.sample(one_in=4)
@pytest.mark.parametrize("sentence", SENTENCES)
def test_each_sentence_holds(tmp_path: Path, sentence: str) -> None:
    machine, ram, method, more = SENTENCES[sentence]
    near = followed(tmp_path / "x", following.recipe(machine, method, ram, more))
    assert any(sentence in change.note for change in near), [change.note for change in near]


def test_there_is_no_sentence_beside_them() -> None:
    moved = {options.SHARDING, options.MICRO_BATCH, options.TRAINED}  # names of levers, which nobody is told
    joiners = {" and ", " with "}  # between settings in a message
    assert following.sentences(for_free_memory=False) - moved - joiners == set(SENTENCES)


def test_data_sets_that_are_not_here_do_not_stand_against_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\ndo_train: true\ndataset: mine\ntemplate: qwen\nbf16: true\n"
    before = resolve(
        parse_recipe("x.yaml", f"{text}finetuning_type: lora\nper_device_train_batch_size: 8\n"), "1xa100-40g"
    )
    assert predict(before).verdict_at_longest == "exceeds"
    assert [change.verdict for change in changes.nearest_changes(before, limit=1)] == ["fits"]


MIXTURE = """# /// recipe
# machine: 1xa100-80g
# host_ram_gib: 256
# transformers: {release}
# ///
model_name_or_path: mistralai/Mixtral-8x7B-Instruct-v0.1
do_train: true
finetuning_type: lora
quantization_bit: {bits}
dataset: mine
template: mistral
bf16: true
"""


@pytest.mark.parametrize(
    ("release", "bits", "named"), [("5.6.0", 4, True), (">=4.57", 4, True), ("5.6.0", "null", False)]
)
def test_the_release_with_which_four_bits_reach_the_experts_comes_first(
    release: str, bits: object, named: bool
) -> None:
    """Followed, it fits."""
    before = resolve(parse_recipe("x.yaml", MIXTURE.format(release=f'"{release}"', bits=bits)))
    after = resolve(parse_recipe("x.yaml", MIXTURE.format(release="4.57.1", bits=bits)))
    said = changes.change_advice(before)
    assert said.startswith("write `# transformers: 4.57.1` into the header block and install it (") is named
    assert (predict(after).verdict_at_longest == "fits") is named
    memory = predict(after).device_memory
    if named and memory:
        assert f"({memory.expected / GIB:.1f} GiB per device)" in said
