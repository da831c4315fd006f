"""Ranges of releases: what they hold, what a recipe is then judged by."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.every import every

from validator import cli
from validator.check import checking
from validator.errors import RecipeError
from validator.knowledge import releases, tables
from validator.knowledge.releases import ReleaseRange
from validator.machine.installed_packages import InstalledPackages
from validator.recipe.recipe_file import parse_recipe
from validator.run.schedule import warmup_steps
from validator.run.settings import run_of_values


@pytest.mark.parametrize(
    ("wanted", "version", "held"),
    [
        (None, "0.9.5", True),
        ("0.9.5", "0.9.5", True),
        ("0.9.5", "0.9.4", False),
        (">=0.9.4", "0.9.4", True),
        (">=0.9.4", "0.9.10", True),
        (">0.9.4", "0.9.4", False),
        ("<5", "4.57.1", True),
        ("<5", "5.0.0", False),
        ("<=5", "5.0.0", True),
        ("!=5.0", "5.0.0", False),
        (">=0.9.3, <0.9.5", "0.9.4", True),
        (">=0.9.3, <0.9.5", "0.9.5", False),
        (4.57, "4.57.0", True),
        (">=5.0.0rc1", "5.0.0", True),
        (">=0.9.4", "0.9.6.dev0", True),
        ("<0.9.6", "0.9.6.dev0+g1a2b3c", False),
    ],
)
def test_a_range_holds(wanted: object, version: str, held: bool) -> None:
    assert releases.range_admits(wanted, version) is held


@pytest.mark.parametrize(
    "wanted", ["", "newest", ">=", ">=x.1", "~=0.9", [1], "0.9.*", ">=0.9.4," * 30, ">=" + "9" * 199]
)
def test_what_is_no_range_is_said_so(wanted: object) -> None:
    with pytest.raises(RecipeError, match="no range of releases"):
        releases.range_admits(wanted, "0.9.5")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({}, ["0.9.5/5.6.0"]),
        ({"machine": "x"}, ["0.9.5/5.6.0"]),
        ({"llamafactory": ">=0.9.4"}, ["0.9.5/5.6.0", "0.9.4/4.57.1"]),
        ({"llamafactory": "0.9.3"}, ["0.9.3/4.52.4"]),
        ({"transformers": "<5"}, ["0.9.5/4.57.1", "0.9.4/4.57.1", "0.9.3/4.52.4"]),
        ({"llamafactory": ">=0.9.5", "transformers": "<5"}, ["0.9.5/4.57.1"]),
        # none of the tables: the nearest at or below it in its major release, else the nearest above
        ({"transformers": "4.57.3"}, ["0.9.5/4.57.1"]),
        ({"transformers": "5.1.0"}, ["0.9.5/5.0.0"]),
        ({"transformers": ">=5.1, <5.2"}, ["0.9.5/5.0.0"]),
        ({"transformers": "4.55.4"}, ["0.9.5/4.57.1", "0.9.4/4.52.4"]),
        ({"llamafactory": "0.9.5", "transformers": "4.56.2"}, ["0.9.5/4.57.1"]),
        ({"transformers": "4.51.0"}, ["0.9.4/4.52.4", "0.9.3/4.52.4"]),
        ({"transformers": "4.50.0"}, ["0.9.3/4.52.4"]),
    ],
)
def test_the_releases_of_a_recipe(header: dict[str, str], expected: list[str]) -> None:
    assert [releases.pair_name(pair) for pair in ReleaseRange(header).required_pairs] == expected


@pytest.mark.parametrize(
    ("header", "limit", "held"),
    [
        ({}, "transformers 4.54.0", False),
        ({"machine": "x"}, "llamafactory 0.9.4", False),
        ({"llamafactory": "0.9.3"}, "llamafactory 0.9.4", True),
        ({"llamafactory": "0.9.3"}, "transformers 4.54.0", True),
        ({"llamafactory": "0.9.4"}, "transformers 4.54.0", False),
        ({"transformers": "4.57.1"}, "transformers 4.54.0", False),
        ({"transformers": ">=4.52"}, "transformers 4.54.0", True),
        # none of the tables: what it says, not what it is judged as
        ({"transformers": "4.55.4"}, "transformers 4.54.0", False),
        ({"transformers": "4.55.4"}, "transformers 4.56.0", True),
        ({"transformers": "4.48.3"}, "transformers 4.49.0", True),
        ({"transformers": "4.50.3"}, "transformers 4.49.0", False),
        ({"transformers": "new"}, "transformers 4.49.0", False),
    ],
)
def test_a_recipe_may_run_with_a_release_before_another(header: dict[str, str], limit: str, held: bool) -> None:
    assert ReleaseRange(header).requires(until=limit) is held


@pytest.mark.parametrize(("asked", "reached"), [("5.5.0", True), ("5.4.0", True), ("5.3.0", False), (">=5.3", True)])
def test_a_release_between_those_of_the_tables_reaches_the_bounds_below_it(asked: str, reached: bool) -> None:
    assert ReleaseRange({"transformers": asked}).requires("transformers 5.4.0") is reached


def test_a_release_between_those_of_the_tables_admits_what_it_is_judged_as() -> None:
    assert ReleaseRange({"transformers": "4.57.3"}).possible_pairs == [("0.9.5", "4.57.1")]
    assert not ReleaseRange({"transformers": "4.57.3"}).requires(since="transformers 5.0.0")


@pytest.mark.parametrize(
    "header",
    [{"transformers": "4.40.0"}, {"transformers": "5.7.0"}, {"llamafactory": "0.9.3", "transformers": "4.57"}],
)
def test_a_release_that_llamafactory_does_not_take_is_not_judged_as_another(header: dict[str, str]) -> None:
    with pytest.raises(RecipeError, match="no release in the tables fits"):
        _ = ReleaseRange(header).required_pairs


def test_a_range_without_a_release_names_those_there_are() -> None:
    with pytest.raises(RecipeError, match=r"fits llamafactory >=2; there are 0\.9\.5 with 5\.6\.0"):
        _ = ReleaseRange({"llamafactory": ">=2"}).required_pairs


@pytest.mark.parametrize(
    ("header", "since", "until", "held"),
    [
        ({}, "", "", True),
        ({}, "transformers 5.0.0", "", True),
        ({"transformers": "<5"}, "transformers 5.0.0", "", False),
        ({"llamafactory": ">=0.9.3"}, "llamafactory 0.9.4", "", True),
        ({"llamafactory": "0.9.3"}, "llamafactory 0.9.4", "", False),
        ({"llamafactory": "?"}, "llamafactory 0.9.4", "", True),
        ({}, "", "transformers 5.0.0", False),
        ({"transformers": "<5"}, "", "transformers 5.0.0", True),
        ({"llamafactory": "0.9.4"}, "", "llamafactory 0.9.4", False),
        ({"llamafactory": ">=0.9.3"}, "", "llamafactory 0.9.4", True),
        ({"llamafactory": "?"}, "", "llamafactory 0.9.4", False),
        ({"llamafactory": "0.9.4"}, "transformers 4.53.0", "llamafactory 0.9.5", True),
        ({"llamafactory": ">=0.9.3", "transformers": "<4.53"}, "transformers 4.53.0", "llamafactory 0.9.5", False),
        ({"llamafactory": "0.9.5"}, "transformers 4.53.0", "llamafactory 0.9.5", False),
    ],
)
def test_a_rule_holds_between_two_releases(header: dict[str, str], since: str, until: str, held: bool) -> None:
    assert ReleaseRange(header).requires(since, until) is held


def test_the_releases_seen_are_those_of_the_tables() -> None:
    assert (
        releases.verified_release("llamafactory"),
        releases.verified_release("transformers"),
    ) == releases.newest_pair()
    generated = {package: version for name in ("deepspeed", "values") for package, version in _source(name).items()}
    assert {package: releases.verified_release(package) for package in generated} == generated


def _source(name: str) -> dict[str, str]:
    return {package: version.partition("+")[0] for package, version in tables.json_table(name)["source"].items()}


def test_what_is_installed_is_compared_with_the_range() -> None:
    installed = {"llamafactory": "0.9.3", "transformers": "4.52.4"}
    assert list(ReleaseRange({"llamafactory": ">=0.9.4"}).excluded(installed)) == [
        "the recipe is for llamafactory >=0.9.4, and 0.9.3 is installed here"
    ]
    assert list(ReleaseRange({}).excluded(installed)) == []
    assert list(ReleaseRange({"llamafactory": "new"}).excluded(installed)) == []


def test_training_starts_with_a_release_in_the_range_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "x.yaml"
    text = "model_name_or_path: Qwen/Qwen3-8B\ndataset: a\ndo_train: true\ntemplate: qwen3\nbf16: true\n"
    recipe.write_text(f'# /// recipe\n# llamafactory: ">=0.9.4"\n# ///\n{text}dataset_dir: ONLINE\noutput_dir: out\n')
    monkeypatch.setattr(InstalledPackages, "versions", lambda _self, _names: {"llamafactory": "0.9.3"})
    done = CliRunner().invoke(cli.group, ["train", str(recipe)])
    assert done.exit_code == 1
    assert "0.9.3 is installed here" in str(done.exception or "") + done.output


@pytest.mark.parametrize(
    ("torch", "older"),
    [("2.7.1", True), ("2.7", True), ("2.6.0+cu124", True), (">=2.6", True), ("<2.8", True), ("2.8.0", False),
     ("2.10", False), (">=2.8", False), (2.7, True), (None, False), ("new", False)],
)  # fmt: skip
def test_the_default_optimizer_is_that_of_the_oldest_torch(torch: object, older: bool) -> None:
    assert ReleaseRange({"torch": torch}).requires(until="torch 2.8.0") is older
    assert run_of_values({}, header={"torch": torch}).args.get("optim") == (
        "adamw_torch" if older else "adamw_torch_fused"
    )
    assert run_of_values({"optim": "lomo"}, header={"torch": torch}).args.get("optim") == "lomo"


@pytest.mark.parametrize(
    ("values", "five", "four"),
    [
        ({"warmup_ratio": 0.03}, 30, 30),
        ({"warmup_ratio": 0.0301}, 31, 31),
        ({"warmup_steps": 20}, 20, 20),
        ({"warmup_steps": 0.03}, 30, 0),
        ({"warmup_steps": 20, "warmup_ratio": 0.1}, 100, 20),
        ({"warmup_steps": 20, "warmup_ratio": 0.0}, 0, 20),
        ({"warmup_steps": 0, "warmup_ratio": 0.1}, 100, 100),
        ({"warmup_ratio": 1.0}, 1, 1000),
        ({}, 0, 0),
    ],
)
def test_warmup_by_release(values: dict[str, float], five: int, four: int) -> None:
    """As TrainingArguments.get_warmup_steps of transformers 5.6.0 and 4.57.1 gives for 1,000 steps."""
    for version, steps in (("5.6.0", five), ("4.57.1", four)):
        assert warmup_steps(run_of_values(values, {"transformers": version}, None), 1000) == steps


@pytest.mark.parametrize(
    ("text", "header", "code", "says"),
    [
        ("use_eaft_loss: true", {"llamafactory": ">=0.9.4"}, "SCH001", "0.9.4, which the recipe allows"),
        ("group_by_length: true", {}, "SCH001", "train_sampling_strategy"),
        ("group_by_length: true", {"llamafactory": "0.9.4"}, "SCH006", "gone since transformers 5.2.0"),
        ("use_cache: true", {"llamafactory": ">=0.9.3"}, "SCH001", "0.9.4"),
        ("warmup_steps: 0.1", {"llamafactory": "0.9.4"}, "SCH003", "0.1, not a whole number"),
        ("warmup_ratio: 0.1", {"transformers": ">=5"}, "SCH006", "warmup_steps"),
    ],
)
def test_keys_by_release(text: str, header: dict[str, str], code: str, says: str) -> None:
    document = parse_recipe("x.yaml", f"model_name_or_path: Qwen/Qwen3-8B\n{text}\n")
    document.header = header
    found = [d for d in checking.check_document(document).diagnostics if d.code.startswith("SCH")]
    assert [d.code for d in found] == [code]
    assert says in found[0].message


ROOT = Path(cli.__file__).parent
_PACKAGE = r"(?:llama-?factory|transformers|deepspeed|accelerate|peft|trl|datasets|bitsandbytes|omegaconf|torch)(?:'s)?"
# A number with a package's name before it, as the end of a citation, or in three parts (an address has four).
_RELEASE = re.compile(
    rf"(?i)\b{_PACKAGE},? (?:release |since |below |from |[<>=]+ ?)?v?\d+\.\d{{1,2}}\b|, v?\d+\.\d+(?:\.\d+)?\)|"
    r"\b(?:seen|tried) with \d+\.\d+|(?<!\d\.)\bv?\d+\.\d+\.\d+\b(?!\.\d)|\bv\d+\.\d+\b"
)
# Where a release is itself the fact: file, words, why.
FACTS = [
    ("__init__.py", '"0.2.0"', "our own"),
    ("run/quantization.py", "0.9.4", "since when checkpoints are loaded in their own format"),
    ("run/schedule.py", "transformers 5.0.0", "since when a share may stand as warmup_steps"),
    ("run/fsdp.py", "with transformers 5.0 and later, at least up to", "since when 4-bit weights stay on every device"),
    ("run/fsdp.py", "transformers 4.55 to 4.57", "those that LLaMA-Factory admits and that take them back"),
    ("run/fsdp.py", "4.57.6 and 5.6.0", "what was seen"),
    ("run/multimodal.py", "transformers 5.0.0", "since when gradients of the towers' embeddings are asked for"),
    ("rules/optimizer_choice.py", "torch 2.8", "since when the default optimizer is another"),
    ("rules/dataset_columns.py", "0.9.4", "since when `openai` is known"),
    ("rows/entry_inference.py", "0.9.4", "since when `openai` is known"),
    ("rules/data_processing.py", "0.9.4", "TRA616 is about the release before"),
    ("rules/data_processing.py", '`llamafactory: ">=0.9.5"` in the header block', "TRA616 is about the release before"),
    ("rules/data_processing.py", '`# llamafactory: ">=0.9.5"` into the header', "TRA616 is about the release before"),
    ("rules/no_effect.py", "LLaMA-Factory 0.9.4, which never turns it on", "TRA805 is about this release"),
    ("rules/no_effect.py", "0.9.4 has the key", "TRA805 is about this release"),
    ("rules/no_effect.py", "0.9.5 turns it on", "the release after it"),
    ("rules/no_effect.py", '`llamafactory: ">=0.9.5"` in the header block', "the release after it"),
    ("rules/no_effect.py", "LLaMA-Factory 0.9.4, which the recipe allows", "TRA805 is about this release"),
    ("rules/no_effect.py", '`# llamafactory: ">=0.9.5"` into the header', "the release after it"),
    ("rules/loss_choice.py", "0.8.6 to 0.9.6", "the range that PPO's trainer asks for"),
    ("rules/loss_choice.py", "LLaMA-Factory 0.9.3 with its own trl", "the last with PPO"),
    ("rules/multimodal_models.py", "transformers 4.50 to 5.6", "which were read and tried with pan and scan"),
    ("rules/loss_choice.py", "between 0.9.3 and 0.9.4", "since when LLaMA-Factory needs another trl"),
    ("rules/loss_choice.py", "from trl 0.20 on", "since when"),
    ("rules/loss_choice.py", "DeepSpeed 0.16", "since when PPO cannot accumulate under it"),
    ("rules/loss_choice.py", "DeepSpeed 0.15.4", "the last one before"),
    ("rules/number_formats.py", "LLaMA-Factory 0.9.4", "since when weights in FP8 are unpacked"),
    ("rules/deepspeed_and_recipe.py", "since 0.16.5", "since when"),
    ("rules/deepspeed_file.py", "0.19.0", "since when buffers of gradients are safe"),
    ("rules/model_support.py", "transformers below 4.48", "the range that the patch asks for"),
    ("rules/rule.py", "transformers 5.0.0", "the form of a bound"),
    ("output/sarif.py", "2.1.0", "a format's, no package's"),
    ("physics/step_time.py", "processor of transformers 5.6", "what was measured"),
    ("physics/optimizer_time.py", "measurement of DeepSpeed 0.18.4", "what was measured"),
    ("rules/deepspeed_and_recipe.py", "0.15.2 to 0.18.9", "the range that loses gradients"),
    ("rules/deepspeed_and_recipe.py", "DeepSpeed 0.19", "since when it keeps them"),
    ("rules/resume_rules.py", "DeepSpeed 0.18", "since when states of stage 0 are not loaded"),
    ("rules/number_formats.py", "transformers 5.6", "since when subclasses stay as they are"),
    ("rules/number_formats.py", "transformers 5.2", "the last one before"),
    ("run/quantization.py", "transformers 5.6", "since when subclasses stay as they are"),
    ("knowledge/families.py", "transformers since 5.6", "since when subclasses stay as they are"),
    ("knowledge/families.py", "Grouped matmuls need torch 2.9", "since when torch has them, or transformers its own"),
    ("knowledge/families.py", '"torch 2.9"', "the same"),
    ("rows/token_estimate.py", "dashscope 2.0.2", "what the weights were fitted to"),
    ("knowledge/releases.py", "such as", "the form of a bound or a range"),
    ("knowledge/releases.py", "5.6 for 5.6.0", "the form of a number"),
    ("doctor/torch_build.py", "`2.8.0+cu128`", "the form of a number"),
    ("doctor/ascend_software.py", "8.0 of 8.0.RC3", "the form of a number"),
    ("doctor/host_checks.py", "seen with torch 2.13", "what was measured"),
    ("run/node_demand.py", "measured with torch 2.13", "what was measured"),
    ("knowledge/path_keys.py", "LLaMA-Factory 0.9.5 (hparams/)", "where the keys were read"),
    ("knowledge/path_keys.py", "transformers 5.6 (training_args.py)", "where the keys were read"),
    ("run/dataset_registry.py", "not known before LLaMA-Factory 0.9.4", "since when `openai` is known"),
    ("run/hyperparameters.py", "transformers 5.2 and later", "since when the key has another name"),
    ("rows/json_rows.py", "tried with pyarrow 26.0.1", "what was tried"),
    ("run/launch_command.py", "550.40.07", "the driver that accelerate compares with"),
    ("submit/kubernetes.py", "at v2.2", "where the fields were read"),
    ("submit/kubernetes.py", "which v2.1 has not", "since when a job can be written as it is"),
    ("submit/kubernetes.py", "v2.3 added the grace period", "since when a pod of a TrainJob gets time to end"),
    ("submit/kubernetes.py", "at v1.9", "where the fields were read"),
    ("rules/launch_environment.py", "real runs, torch 2.13", "what was seen"),
    ("doctor/start_checks.py", "seen with 2.60", "what was seen"),
    ("submit/skypilot.py", "of 0.14.1", "where the keys were read"),
    ("submit/skypilot.py", "came with 0.10.0", "since when it has the network tier and secrets"),
    ("rules/model_support.py", "torch 2.9", "the series that LLaMA-Factory refuses"),
    ("rules/model_support.py", "torch 2.10", "the first behind it"),
    ("rules/deepspeed_releases.py", "LLaMA-Factory up to 0.9.4", "the last that asks for a release of DeepSpeed"),
    ("rules/deepspeed_releases.py", "LLaMA-Factory 0.9.5", "the first that takes all"),
    ("rules/deepspeed_releases.py", "# llamafactory: 0.9.5", "the first that takes all"),
    ("rules/deepspeed_releases.py", "DeepSpeed 0.17.6", "since when gradients of bf16 are summed in bf16"),
    ("rules/deepspeed_releases.py", "DeepSpeed 0.16.4", "since when weights are split over devices"),
    ("run/deepspeed.py", "deepspeed 0.17.6", "since when stage 0 has all states on every device"),
    ("run/deepspeed.py", "deepspeed 0.18.5", "until when it has them in any case"),
    ("run/deepspeed.py", "up to 0.17.5", "the last that sums gradients of bf16 in fp32"),
]


def _written(path: Path) -> Iterator[str]:
    """The lines of texts and comments that write a release, but for the bounds of a rule."""
    tokens = list(tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline))
    for at, token in enumerate(tokens):
        bound = token.type == tokenize.STRING and tokens[at - 2].string in ("since", "until")
        if token.type in (tokenize.STRING, tokenize.COMMENT) and not bound:
            yield from (line for line in token.string.split("\n") if _RELEASE.search(line))


@pytest.mark.sample(one_in=3, whole_for=["release/constraints.txt", "pyproject.toml", "validator/data/*"])
def test_a_release_is_written_in_one_place() -> None:
    lines = [(path.relative_to(ROOT).as_posix(), line) for path in ROOT.rglob("*.py") for line in _written(path)]
    assert [at for at in lines if not any(at[0] == name and words in at[1] for name, words, _ in FACTS)] == []


@every([(name, words) for name, words, _ in FACTS])
def test_each_fact_about_a_release_is_still_written(name: str, words: str) -> None:
    assert any(words in line for line in _written(ROOT / name))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("# LLaMA-Factory 0.9.5 does so (parser.py)", 1),
        ("# as it does (parser.py, v0.9.5)", 1),
        ("# as it does (modeling.py, 4.0)", 1),
        ("'the first line\\n'\n'needs transformers below 4.48'", 1),
        ("rule(since='transformers 4.53.0', until='llamafactory 0.9.5')", 0),
        ("rule(key='transformers 4.53.0')", 1),
        ("address = 'http://127.0.0.1:8265'", 0),
        ("momentum = 0.95  # DeepSpeed's 0.001, of 0.9 and 1.5, GaLore (arXiv 2403.03507)", 0),
    ],
)
def test_a_written_release_is_seen(tmp_path: Path, text: str, written: int) -> None:
    (tmp_path / "a.py").write_text(f"{text}\n")
    assert len(list(_written(tmp_path / "a.py"))) == written
