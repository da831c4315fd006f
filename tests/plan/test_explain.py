"""The fixed JSON structure of `explain`, and that its numbers are those of the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator.advise import explanation as advise_explanation
from validator.advise.explanation import SampleNumbers, TargetMachine
from validator.check.checking import check_document
from validator.commands.explain import command
from validator.errors import RecipeError
from validator.finding import Report, Severity
from validator.output import explain_text, json_output
from validator.output.findings import format_findings, format_findings_json
from validator.physics.estimate import GIB, HostTerm
from validator.recipe.recipe_file import load_recipe, load_with_overrides, parse_recipe
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve
from validator.run.variants import with_arguments

pytestmark = [
    pytest.mark.usefixtures("from_the_root"),
    pytest.mark.sample(one_in=3, whole_for=["validator/advise/*", "validator/output/*"]),
]

ROOT = Path(__file__).parents[2]
HEAD = "# /// recipe\n# machine: 2x8xa100-80g\n# host_ram_gib: 2048\n# samples: 5000\n# ///\n"
BODY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: tiny_demo
template: qwen
cutoff_len: 2048
output_dir: saves/x
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
save_total_limit: 2
"""


def resolved(text: str) -> RunSettings:
    return resolve(parse_recipe("recipes/x.yaml", text))


def test_the_fixed_shape() -> None:
    found = json.loads(json_output.format_json(advise_explanation.explain(resolved(HEAD + BODY))))
    assert list(found) == [
        "path", "machine", "model", "verdict", "device_gib", "host_gib", "disk_gib", "time", "samples", "changes",
        "command", "spare", "diagnostics", "left_out", "command_problem", "releases", "enough_for_tokens", "older",
        "simulated", "simulation", "cost", "packages", "assumes",
    ]  # fmt: skip
    assert list(found["machine"]) == ["nodes", "devices", "device", "device_gib", "usable_gib", "host_ram_gib"]
    assert list(found["model"]) == ["name", "parameters", "trainable_parameters"]
    assert list(found["device_gib"]) == ["allocated", "low", "expected", "high", "terms", "few_measurements_of", "peak"]
    assert list(found["host_gib"]) == ["low", "expected", "high", "terms"]
    assert list(found["disk_gib"]) == ["checkpoint", "checkpoints", "total"]
    assert list(found["time"])[:5] == ["step_seconds", "tokens_per_second", "hours", "device_hours", "bottleneck"]
    assert list(found["time"]["step_seconds"]) == ["low", "expected", "high", "terms"]
    assert list(found["time"]["hours"]) == ["low", "expected", "high"]
    assert list(found["samples"]) == ["recommended", "found", "sure", "found_exact"]
    assert {tuple(change) for change in found["changes"]} == {
        ("set", "device_gib", "host_gib", "verdict", "note", "first", "environment", "time_ratio")
    }


@pytest.mark.parametrize(
    ("machine", "settings", "packages"),
    [
        ("8xascend-910b-64g", "deepspeed: deepspeed/ds_z3.json", ["torch-npu", "deepspeed<=0.18.4"]),
        ("8xa100-80g", "deepspeed: deepspeed/ds_z3.json", ["deepspeed<=0.18.4"]),
        ("8xa100-80g", "predict_with_generate: true", ["jieba", "nltk", "rouge-chinese"]),
        ("8xa100-80g", "bf16: true", []),
    ],
)
def test_what_a_run_needs_is_listed(machine: str, settings: str, packages: list[str]) -> None:
    text = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
    run = resolve(parse_recipe("x.yaml", f"{text}{settings}\n"), machine)
    explanation = advise_explanation.explain(run)
    assert [each.requirement for each in explanation.packages] == packages


def test_numbers_are_the_jobs_own_in_gib() -> None:
    one = resolved(HEAD + BODY)
    explanation = advise_explanation.explain(one)
    device, model = explanation.device_gib, explanation.model
    memory = predict(one).device_memory
    assert memory
    assert device
    assert model
    assert device.expected == memory.expected / GIB
    assert device.low <= device.expected <= device.high
    assert sum(device.terms.values()) == pytest.approx(device.allocated, abs=0.1)
    assert list(device.terms.values()) == sorted(device.terms.values(), reverse=True)
    assert model.parameters == 7_615_616_512
    # rank 8 on the seven linear layers of each block: 8 x (inputs + outputs), summed
    sizes = 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944)
    assert model.trainable_parameters == 28 * 8 * sizes


def test_thin_evidence_is_said() -> None:
    ascend = advise_explanation.explain(resolved(HEAD.replace("2x8xa100-80g", "8xascend-910b-64g") + BODY))
    assert ascend.device_gib
    assert ascend.device_gib.few_measurements_of == ["this kind of device"]
    assert "few measurements of this kind of device are public" in explain_text.format_explanation(ascend)
    common = advise_explanation.explain(resolved(HEAD.replace("2x8xa100-80g", "8xa100-80g") + BODY))
    assert common.device_gib
    assert common.device_gib.few_measurements_of == []
    assert "few measurements" not in explain_text.format_explanation(common)


def test_machine_and_commands() -> None:
    explanation = advise_explanation.explain(resolved(HEAD + BODY), ["max_steps=1"])
    machine = explanation.machine
    assert machine
    assert machine == TargetMachine(2, 8, "a100-80g", 80.0, machine.usable_gib, 2048.0)
    assert 78 < (machine.usable_gib or 0) < 80
    assert len(explanation.command) == 2
    assert all(line.endswith("llamafactory-cli train recipes/x.yaml max_steps=1") for line in explanation.command)


def test_samples_are_counted_where_they_are_local() -> None:
    rows = len(json.loads((ROOT / "data" / "tiny_demo.json").read_text()))
    assert advise_explanation.explain(resolved(HEAD + BODY)).samples == SampleNumbers(5000, rows)
    for name in ("alpaca_gpt4_en", "tiny_demo,alpaca_gpt4_en", "tiny_demo,none_such"):
        explanation = advise_explanation.explain(resolved(HEAD + BODY.replace("tiny_demo", name)))
        assert explanation.samples.found is None, name


def test_without_machine() -> None:
    explanation = advise_explanation.explain(resolved(BODY))
    assert explanation.machine is None
    assert explanation.verdict == "unknown"
    assert explanation.device_gib
    assert explanation.device_gib.expected > 10


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "model_name_or_path: none/such\n", "model `none/such` is not known"),
        (HEAD + "stage: sft\n", "names no model"),
        (HEAD.replace("8x", "0x") + BODY, "1 to 4096 nodes"),
    ],
)
def test_nothing_is_explained_of_what_is_not_known(text: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        advise_explanation.explain(resolved(text))


LORA = "recipes/qwen3-8b-4090x1-lora.yaml"


def asked(*words: str) -> tuple[int, str]:
    """Exit code and standard output of `explain` for that recipe."""
    done = CliRunner().invoke(command, [LORA, "--full", *words])
    return done.exit_code, done.stdout


# Overrides, a machine with its host memory, and the codes above the verdict.
ASKED: list[tuple[list[str], str | None, float | None, list[str]]] = [
    ([], None, None, []),
    (["cutoff_len=8k"], None, None, ["SCH002"]),
    (["cutoff_length=8192"], None, None, ["SCH001"]),
    (["stage=ppo", "load_best_model_at_end=false"], None, None, ["TRA501", "TRA502"]),
    (["learning_rate=1"], None, None, []),
    (["cutoff_len=8192", "per_device_train_batch_size=4"], None, None, []),
    (["deepspeed=no_such.json"], None, None, ["PTH001"]),
    ([], "8xa100-80g", None, []),
    ([], "1xt4-16g", 4, ["DEV001"]),
]


@pytest.mark.parametrize(("overrides", "machine", "ram", "codes"), ASKED)
def test_errors_and_exit_code_are_those_of_check(
    overrides: list[str], machine: str | None, ram: float | None, codes: list[str]
) -> None:
    findings = check_document(load_with_overrides(LORA, overrides), machine, ram)
    options = [*(["--machine", machine] if machine else []), *(["--host-ram", str(ram)] if ram else [])]
    code, shown = asked(*overrides, *options)
    assert code == (1 if findings.count(Severity.ERROR) else 0)
    lines, below = shown[: shown.index(f"{LORA}\n")].splitlines(), shown[shown.index(f"{LORA}\n") :]
    assert [line.rpartition("[")[2] for line in lines if line.endswith("]")] == [f"{code}]" for code in codes]
    assert set(lines) <= set(format_findings(Report("", [findings])).splitlines())
    assert ("will not run" in below) == bool(codes)
    assert ("\nrun:\n" in below) == (code == 0)


def test_json_has_the_diagnostics_of_check() -> None:
    wrong = ["cutoff_len=8k", "cutoff_length=1"]
    answer = json.loads(asked(*wrong, "--format", "json")[1])
    judged = json.loads(format_findings_json(Report("", [check_document(load_with_overrides(LORA, wrong))])))
    assert answer["diagnostics"] == judged["files"][0]["diagnostics"]
    assert {each["code"] for each in answer["diagnostics"] if each["severity"] == "error"} == {"SCH001", "SCH002"}
    assert (answer["command"], answer["command_problem"]) == ([], None)
    assert sorted(answer["left_out"]) == ["cutoff_len", "cutoff_length"]


def test_a_refused_value_counts_as_what_it_plainly_means() -> None:
    quoted, plain = (
        json.loads(asked(word, "--format", "json")[1]) for word in ('cutoff_len="4096"', "cutoff_len=4096")
    )
    assert quoted["device_gib"] == plain["device_gib"]
    assert quoted["left_out"] == plain["left_out"] == []


def test_text_rounds_once_and_json_has_two_decimals() -> None:
    host = advise_explanation.explain(
        resolved((ROOT / "tests/fixtures/recipes/llama3.2-1b-4090x1-full-offload.yaml").read_text("utf-8"))
    ).host_gib
    assert host
    assert f"{round(host.expected, 2):.1f}" != f"{host.expected:.1f}"
    name = "tests/fixtures/recipes/llama3.2-1b-4090x1-full-offload.yaml"
    assert (
        f": {host.expected:.1f} GiB expected, {host.low:.1f} to "
        in CliRunner().invoke(command, [name, "--full"]).stdout
    )
    sizes = json.loads(CliRunner().invoke(command, [name, "--format", "json"]).stdout)
    assert sizes["host_gib"]["expected"] == round(host.expected, 2)
    assert sizes["host_gib"]["terms"]["master_weights"] == round(host.terms[HostTerm.MASTER], 2)
    assert all(change["device_gib"] == round(change["device_gib"], 2) for change in sizes["changes"] + sizes["spare"])


def test_no_command_for_standard_input() -> None:
    shown = CliRunner().invoke(command, ["-"], input=Path(LORA).read_text("utf-8"))
    assert shown.exit_code == 0
    assert shown.stdout.endswith("\nrun: llamafactory-cli reads a recipe from a file; save it first\n")


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["qwen3-8b-a100x4-lora"], "qwen3-8b-a100x4-lora"),
        (["qwen3-8b-a100x4-lora", "cutoff_len=1024"], "qwen3-8b-a100x4-lora cutoff_len=1024"),
        (["qwen3-8b-a100x4-lora", "deepspeed=deepspeed/ds_z3.json"],
         f"qwen3-8b-a100x4-lora deepspeed={ROOT}/deepspeed/ds_z3.json"),
        (["mine.yaml"], "mine.yaml"),
        (["mine.yaml", "run_name=it's mine"], """mine.yaml 'run_name=it'"'"'s mine'"""),
    ],
)  # fmt: skip
def test_the_short_form_ends_with_the_command_as_one_would_type_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    body = HEAD.replace("2x8xa100-80g", "1xa100-80g") + BODY
    Path("mine.yaml").write_text(f"{body}dataset_dir: ONLINE\n".replace("tiny_demo", "own/set"), "utf-8")
    shown = CliRunner().invoke(command, words).stdout.splitlines()
    assert shown[-1] == f"run: lmf-recipes train {typed}"


def test_each_key_stands_once_in_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    zero3 = "deepspeed=deepspeed/ds_z3.json"
    answer = json.loads(CliRunner().invoke(command, ["qwen3-8b-a100x4-lora", zero3, "--format", "json"]).stdout)
    (line,) = answer["command"]
    assert line.count("deepspeed=") == 1
    assert f" deepspeed={ROOT / 'deepspeed' / 'ds_z3.json'}" in line


@pytest.mark.parametrize(("machine", "splits"), [("2xa100-80g", True), ("1xa100-80g", False)])
def test_no_command_that_the_launcher_would_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, splits: bool
) -> None:
    folder = tmp_path / "my runs"
    (folder / "below").mkdir(parents=True)
    (folder / "inner").mkdir()
    (folder / "inner" / "x.yaml").write_text(f"# /// recipe\n# machine: {machine}\n# ///\n{BODY}dataset_dir: data\n")
    (folder / "inner" / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(folder / "inner")
    assert (
        advise_explanation.explain(resolve(load_recipe("x.yaml"))).command[0].endswith("llamafactory-cli train x.yaml")
    )
    spaced = advise_explanation.explain(resolve(load_recipe("x.yaml")), ["output_dir=my saves/x"])
    assert ("`output_dir=my saves/x` holds a space" in explain_text.format_explanation(spaced)) == splits
    for place, way in (("", "inner/"), ("below", "../inner/")):  # the data have a path without a space
        monkeypatch.chdir(folder / place)
        (line,) = advise_explanation.explain(resolve(load_recipe(f"{way}x.yaml"))).command
        assert line.endswith(f" {way}x.yaml dataset_dir={way}data")


def test_experts_are_explained_for_each_release() -> None:
    body = BODY.replace("Qwen/Qwen2.5-7B-Instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1")
    answer = advise_explanation.explain(
        resolved("# /// recipe\n# machine: 1xa100-80g\n# ///\nquantization_bit: 4\n" + body)
    )
    newest, older = answer.releases
    assert (newest.verdict, older.verdict, answer.verdict) == ("exceeds", "fits", "tight")
    assert newest.expected > 2 * older.expected
    lines = explain_text.format_explanation(answer)
    assert "depends on the release of transformers: exceeds with the newest" in lines
    assert f"with transformers {older.transformers}, which runs experts one by one" in lines
    assert f"fits with `# transformers: {older.transformers}` in the header block" in lines


def timed(*words: str) -> dict[str, Any]:
    found = CliRunner().invoke(command, ["recipes/qwen3-8b-a100-full.yaml", "--format", "json", *words])
    assert found.exit_code == 0, found.output
    return dict(json.loads(found.stdout))


@pytest.mark.parametrize(
    ("release", "model", "newer"),
    [
        ("4.57.1", "Qwen/Qwen3-30B-A3B", "5.6.0"), ('">=4.55"', "Qwen/Qwen3-30B-A3B", "5.6.0"),
        ("5.6.0", "Qwen/Qwen3-30B-A3B", None), ("4.57.1", "Qwen/Qwen3-32B", None),
    ],
)  # fmt: skip
def test_a_release_that_runs_experts_together_is_named(release: str, model: str, newer: str | None) -> None:
    head = HEAD.replace("2x8xa100-80g", "8xa100-80g").replace("# samples", f"# transformers: {release}\n# samples")
    body = BODY.replace("Qwen/Qwen2.5-7B-Instruct", model).replace("template: qwen", "template: qwen3")
    body += "deepspeed: deepspeed/ds_z2.json\n"  # in plain DDP experts with LoRA stop with the older releases
    found = advise_explanation.explain(resolved(head + body))
    assert found.time
    faster = found.time.faster_release
    assert (faster and faster.newer) == newer
    assert not faster or faster.newer_seconds < faster.older_seconds / 2
    assert ("which runs experts together" in explain_text.format_explanation(found)) == (newer is not None)


def test_time_is_said_with_its_cost_and_energy_where_asked() -> None:
    plain, all_of_it = timed(), timed("--price", "2 EUR", "--energy")
    assert plain["cost"] is plain["time"]["energy_kwh"] is None
    hours, cost, energy = all_of_it["time"]["hours"], all_of_it["cost"], all_of_it["time"]["energy_kwh"]
    assert hours == plain["time"]["hours"]
    assert cost["currency"] == "EUR"
    assert all(cost[each] == pytest.approx(2 * 8 * hours[each], rel=1e-3) for each in ("low", "expected", "high"))
    assert all(energy[each] <= 8 * 0.4 * hours[each] * 1.001 for each in ("low", "expected", "high"))
    assert all_of_it["time"]["device_hours"] == pytest.approx(8 * hours["expected"], rel=1e-3)
    assert all_of_it["time"]["bottleneck"] in all_of_it["time"]["step_seconds"]["terms"]


def test_terms_and_parts_sum_to_what_is_expected() -> None:
    time = timed()["time"]
    assert sum(time["step_seconds"]["terms"].values()) == pytest.approx(time["step_seconds"]["expected"], rel=2e-3)
    assert sum(time["parts"].values()) == pytest.approx(time["hours"]["expected"], rel=2e-3)


def test_a_network_joins_nodes() -> None:
    several = ("--machine", "2x8xa100-80g")
    fast, slow = (timed(*several, "--network", name)["time"] for name in ("8xinfiniband-200g", "ethernet-10g"))
    assert fast["hours"]["expected"] < slow["hours"]["expected"]
    assert not any("between nodes" in each for each in fast["assumed"])
    assert any("between nodes" in each for each in timed(*several)["time"]["assumed"])


@pytest.mark.parametrize("words", [("--network", "wifi"), ("--price", "cheap")])
def test_a_network_or_price_that_is_none_is_wrong_usage(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(command, ["recipes/qwen3-8b-a100-full.yaml", *words]).exit_code == 2


def test_changes_say_what_they_cost_in_time_on_the_same_samples() -> None:
    one = resolved(HEAD.replace("2x8xa100-80g", "1xrtx-4090") + BODY + "flash_attn: fa2\n")
    changes = advise_explanation.explain(one, energy=False).changes
    assert changes
    assert all(change.time_ratio for change in changes)
    run = resolved(HEAD.replace("2x8xa100-80g", "8xa100-80g") + BODY)
    present = advise_explanation.explain(run)
    known = {tuple(change.set): change for change in present.spare}
    assert known["cutoff_len",].time_ratio is None  # nobody knows how much longer samples would be
    faster = known["disable_gradient_checkpointing",]
    changed = advise_explanation.explain(with_arguments(run, faster.set))
    assert present.time and present.time.hours and changed.time and changed.time.hours  # noqa: PT018
    assert faster.time_ratio == pytest.approx(changed.time.hours.expected / present.time.hours.expected)  # saves, too
    ratios = [change.time_ratio or 1.0 for change in present.spare]
    assert ratios == sorted(ratios)
