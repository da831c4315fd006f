"""Laws of a recipe that an engineer who trains models would start, on every file of the catalogue; each law with an
edit of a recipe that breaks it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import pytest
import yaml
from support.every import every

from validator.check import checking
from validator.finding import Severity
from validator.knowledge.tables import yaml_table
from validator.plan import answer
from validator.recipe.recipe_file import Document, parse_recipe
from validator.run.schedule import save_interval
from validator.run.settings import RunSettings, resolve
from validator.run.training_time import predict_training_time

pytestmark = pytest.mark.usefixtures("from_the_root")

ROOT = Path(__file__).parents[2]
PATHS = sorted(path for path in (ROOT / "recipes").glob("*.yaml") if not path.stem.startswith("tiny-"))
# Rows of field reports, which are answered whatever their age or hours.
REPORTED = {
    Path(row["file"]).stem
    for row in yaml.safe_load((ROOT / "tests" / "fixtures" / "fields.yaml").read_text("utf-8"))
    if row["file"].startswith("recipes/")
}
LONGEST_RUN, SHORT_RUN = 72.0, 1.0  # hours
NEW = "2025-06"
HEAD = ["# For", "# Why", "# Change first", "# Another"]


def has_a_head(document: Document, _: RunSettings) -> bool:
    """Four or five lines below the header block: what for, why, what to change first, another recipe, what it needs."""
    lines = document.text.partition("# ///\n\n")[2].partition("\n\n")[0].splitlines()
    words = [line.partition(":")[0] for line in lines]
    return words in (HEAD, [*HEAD, "# Needs"])


def states_the_rows_of_its_data(_: Document, job: RunSettings) -> bool:
    """`rows` are those that are published of the data that the file names."""
    return bool(job.args.flag("streaming")) or job.header.get("rows") == job.data.published_rows


def states_the_lengths_of_its_data(_: Document, job: RunSettings) -> bool:
    return bool(job.args.flag("streaming")) or job.declared.lengths.typical is not None


def recommends_the_published_count(_: Document, job: RunSettings) -> bool:
    return job.guidance is not None and job.declared.samples == job.guidance.recommended.samples


def saves_before_the_end(_: Document, job: RunSettings) -> bool:
    timed = predict_training_time(job)
    if timed is None or timed.run is None or timed.steps is None or timed.run.expected < SHORT_RUN * 3600:
        return True
    return 2 * save_interval(job, timed.steps) <= timed.steps


def takes_published_values(document: Document, _: RunSettings) -> bool:
    return not found(document) & {"TRA418", "TRA419"}


def warms_up(document: Document, _: RunSettings) -> bool:
    return not found(document) & {"TRA417", "TRA421"}


def evaluates_or_says_why_not(document: Document, job: RunSettings) -> bool:
    return job.evaluation.runs or "\n# nothing is held back: " in document.text


def keeps_thoughts(document: Document, _: RunSettings) -> bool:
    return not found(document) & {"TRA618", "TRA619"}


def starts_plainly_on_one_device(_: Document, job: RunSettings) -> bool:
    return job.batch.world_size > 1 or job.deepspeed is None


def ends_within_three_days(_: Document, job: RunSettings) -> bool:
    timed = predict_training_time(job)
    return timed is None or timed.hours is None or timed.hours.expected <= LONGEST_RUN


LAWS: dict[Callable[[Document, RunSettings], bool], tuple[str, str]] = {
    has_a_head: (r"# Why: .*\n", ""),
    states_the_rows_of_its_data: (r"# rows: .*", "# rows: 7"),
    states_the_lengths_of_its_data: (r"# lengths: .*\n", ""),
    recommends_the_published_count: (r"# samples: .*", "# samples: 5"),
    saves_before_the_end: (r"save_steps: .*", "save_steps: 50000"),
    takes_published_values: (r"learning_rate: .*", "learning_rate: 1.0e-2"),
    warms_up: (r"warmup_ratio: .*", "warmup_steps: 0"),
    evaluates_or_says_why_not: (r"eval_strategy: .*", "eval_strategy: 'no'"),
    keeps_thoughts: (r"enable_thinking: .*", "enable_thinking: true"),
    starts_plainly_on_one_device: (r"(?m)^stage: ", "deepspeed: deepspeed/ds_z2.json\nstage: "),
    ends_within_three_days: (r"num_train_epochs: .*", "num_train_epochs: 9000"),
}
# What a row of a field report is spared.
SPARED = {ends_within_three_days, starts_plainly_on_one_device, has_a_head}
# Laws that do not hold for what `plan` writes: it is for data of one's own, and for whatever model is asked for.
OF_PUBLIC_DATA = {states_the_rows_of_its_data, states_the_lengths_of_its_data}
PLANNED = [law for law in LAWS if law not in {*SPARED, *OF_PUBLIC_DATA}]


@cache
def read(path: Path) -> tuple[Document, RunSettings]:
    """A recipe of the catalogue and what it comes to."""
    document = parse_recipe(str(path.relative_to(ROOT)), path.read_text("utf-8"))
    return document, resolve(document)


def found(document: Document) -> set[str]:
    """Codes of everything that `check` finds."""
    return {each.code for each in checking.check_document(document).diagnostics}


def broken(path: Path) -> list[str]:
    """The laws that a recipe breaks."""
    document, job = read(path)
    laws = [law for law in LAWS if path.stem not in REPORTED or law not in SPARED]
    return [law.__name__ for law in laws if not law(document, job)]


@every(PATHS)
def test_a_recipe_breaks_no_law(path: Path) -> None:
    assert broken(path) == []


@pytest.mark.parametrize("method", ["lora", "full", "qlora"])
@pytest.mark.parametrize(
    ("model", "machine"),
    [
        ("qwen3-4b", "1xrtx-5090"),
        ("qwen3-8b", "2xrtx-4090"),
        ("qwen3-32b", "8xa100-80g"),
        ("llama3.1-8b", "2x8xh100-80g"),
        ("qwen7b", "8xascend-910b-64g"),
    ],
)
def test_a_plan_that_is_written_breaks_no_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, machine: str, method: str
) -> None:
    monkeypatch.chdir(tmp_path)
    best = answer.find_answer(model, machine, method=method).best
    if best is None:
        assert (model, method) in {("qwen7b", "qlora"), ("qwen3-8b", "full")}
        return
    answer.write_best_plan(best, Path("mine.yaml"))
    document = parse_recipe("mine.yaml", Path("mine.yaml").read_text("utf-8"))
    job = resolve(document)
    assert [law.__name__ for law in PLANNED if not law(document, job)] == []
    assert "TRA423" not in found(document)
    assert {
        each.code for each in checking.check_document(document).diagnostics if each.severity is not Severity.NOTE
    } == set()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_law_is_broken_by_an_edit(law: Callable[[Document, RunSettings], bool]) -> None:
    path = ROOT / "recipes" / "qwen3-8b-4090x1-qlora.yaml"
    pattern, instead = LAWS[law]
    text, edits = re.subn(pattern, instead, path.read_text("utf-8"), count=1)
    assert edits
    document = parse_recipe("recipes/edited.yaml", text)
    assert law(*read(path))
    assert not law(document, resolve(document))


def test_no_two_recipes_save_to_one_folder() -> None:
    folders = Counter(read(path)[1].args.get("output_dir") for path in PATHS)
    assert max(folders.values()) == 1


def test_most_recipes_train_a_model_of_the_last_year_and_a_half() -> None:
    new = [path for path in PATHS if released(read(path)[1]) >= NEW]
    assert len(new) >= 0.6 * len(PATHS)


def released(job: RunSettings) -> str:
    """The month in which the model of a recipe was published."""
    assert job.model
    assert job.model.id
    entry = yaml_table("models")[job.model.id]
    own = (entry.get("overrides") or {}).get(job.model.name, {})
    return str(own.get("released", entry["released"]))


def test_hours_are_a_narrow_band_on_one_node() -> None:
    """Bands of models that nobody has published times of, such as Qwen3.5, are the wide ones."""
    jobs = [job for _, job in map(read, PATHS) if job.machine and job.machine.nodes == 1]
    bands = [timed.hours for job in jobs if (timed := predict_training_time(job)) and timed.hours]
    ratios = [band.high / band.low for band in bands]
    assert median(ratios) <= 2.5
    assert max(ratios) <= 4.5


def test_a_pair_names_each_other() -> None:
    pairs = [(path, read(path)[1].args.get("adapter_name_or_path")) for path in PATHS]
    for after, adapter in ((path, name) for path, name in pairs if name):
        before = ROOT / "recipes" / f"{Path(adapter).name}.yaml"
        assert read(before)[1].args.get("output_dir") == adapter
        assert f"\n# Needs: the adapter of {before.stem}, trained first" in read(after)[0].text
        assert f"; {after.stem} goes on from this adapter.\n" in read(before)[0].text


@pytest.mark.parametrize(("vendor", "names"), [("ascend", "torch_npu with its CANN"), ("amd", "a torch for ROCm")])
def test_recipes_name_the_software_of_their_devices(vendor: str, names: str) -> None:
    """What `pip install ".[train]"` does not bring stands at their head."""
    texts = [document.text for document, job in map(read, PATHS) if job.machine and job.machine.device.vendor == vendor]
    assert texts
    assert all(re.search(rf"(?m)^# Needs: .*{names} \(docs/howto/install\.md\)", text) for text in texts)
