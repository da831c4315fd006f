"""Every recipe: clean by our own check, accepted by LLaMA-Factory's own parser, and in the form users copy."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.every import every
from support.real_parser import Parser

from validator.check import checking
from validator.finding import Severity
from validator.knowledge import tables
from validator.recipe.recipe_file import load_recipe
from validator.run.launch_command import Launch, omp_threads
from validator.run.prediction import predict
from validator.run.recipe_labels import catalogue_name
from validator.run.settings import RunSettings, resolve

pytestmark = pytest.mark.usefixtures("from_the_root")

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
# Each epoch takes a day or so.
ONE_EPOCH = {"llama3.3-70b-3090x2-qlora-fsdp", "llama3.3-70b-4090x2-qlora-fsdp"}
CURATED = [path for path in RECIPES if not path.stem.startswith("tiny-")]
SECTIONS = ["model", "method", "dataset", "output", "train", "eval"]
RATES = yaml.load((tables.DATA_FOLDER / "rates.yaml").read_text("utf-8"), yaml.CSafeLoader)["rates"]

each = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def described(path: Path) -> RunSettings:
    """The recipe resolved: once for all tests, which only read it."""
    return resolve(load_recipe(relative(path)))


@each
def test_is_clean(path: Path) -> None:
    found = checking.check_file(relative(path)).diagnostics
    assert [d for d in found if d.severity is not Severity.NOTE] == []


@every(RECIPES)
def test_fits_its_machine(path: Path) -> None:
    assert predict(described(path)).verdict == "fits"


@every(CURATED)
def test_name_follows_from_the_contents(path: Path) -> None:
    derived = catalogue_name(described(path))
    assert derived
    assert path.stem == derived or path.stem.startswith(f"{derived}-")


@every(RECIPES)
def test_saves_under_its_own_name(path: Path) -> None:
    assert described(path).args.values["output_dir"] == f"saves/{path.stem}"


@every(RECIPES)
def test_sections_are_llamafactorys(path: Path) -> None:
    sections = SECTIONS if described(path).evaluation.runs else SECTIONS[:-1]
    assert re.findall(r"(?m)^### (\w+)$", path.read_text("utf-8")) == sections


@every(CURATED)
def test_settings_that_users_copy(path: Path) -> None:
    values = described(path).args.values
    assert not {"max_samples", "overwrite_output_dir", "warmup_steps", "resume_from_checkpoint"} & set(values)
    assert values.get("ddp_timeout", 0) <= 7200
    measured = values.get("eval_steps", 0) / values["save_steps"]
    assert measured == pytest.approx(round(measured))
    assert 1 <= values["save_total_limit"] <= 20
    assert values["lr_scheduler_type"] == "cosine"
    assert 0 < values["warmup_ratio"] < 0.1
    assert 0.5 <= values["max_grad_norm"] <= 1.0
    assert values["cutoff_len"] % 8 == 0
    assert values["report_to"] == "none"


def guidance(recipe: RunSettings) -> dict[str, Any]:
    """The entry of rates.yaml for a recipe: that of its own optimizer where there is one."""
    assert recipe.model
    bits = ("8bit" if recipe.args.get("optim") == "adamw_8bit" else "bf16") if recipe.args.flag("pure_bf16") else None
    saver = next((name for name in ("galore", "apollo", "badam") if recipe.args.flag(f"use_{name}")), bits)
    rules = [rule for rule in RATES if (rule["stage"], rule["method"]) == (recipe.task.stage, recipe.task.method)]
    rules = [
        rule for rule in rules if rule.get("optimizer") == saver and rule["from_billions"] <= recipe.model.billions
    ]
    found: dict[str, Any] = max(rules, key=lambda rule: rule["from_billions"])
    return found


@every(CURATED)
def test_rate_and_batch_follow_the_guidance(path: Path) -> None:
    recipe = described(path)
    rule = guidance(recipe)
    low, default, high = (rule["batch"][bound] for bound in ("low", "default", "high"))
    assert recipe.args.get("learning_rate") == rule["learning_rate"]["default"]
    assert (low or default) <= recipe.batch.effective_batch <= (high or default)
    usual = recipe.args.get("num_train_epochs") == rule["epochs"]["default"]
    assert usual or recipe.args.is_set("max_steps") or path.stem in ONE_EPOCH


def test_every_zero_file_is_used_by_a_recipe() -> None:
    """But for the first two, by which a run with all weights on each device gains nothing, for those that lose
    gradients (PAR023) with the many micro batches of a recipe's batch, and for twins with the other kind of memory."""
    used = {load_recipe(relative(path)).values.get("deepspeed") for path in RECIPES}
    used |= {f"deepspeed/{name}.json" for name in ("ds_z0", "ds_z1", "ds_z2_offload", "ds_z2_offload_nopin")}
    used |= {str(name).replace("_nopin", "") for name in used} | {"deepspeed/ds_z3_offload_nopin.json"}
    assert {relative(path) for path in (ROOT / "deepspeed").glob("*.json")} <= used


@every(CURATED)
def test_says_its_command_where_it_needs_more_than_llamafactory_cli(path: Path) -> None:
    recipe = described(path)
    assert recipe.machine
    said = re.findall(r"(?m)^#   (.+)$", path.read_text("utf-8"))
    lines = Launch(recipe).printed_commands(relative(path), ())
    needed = recipe.machine.nodes > 1 or (recipe.machine.devices == 1 and recipe.deepspeed) or omp_threads(recipe)
    assert " ".join(line.removesuffix("\\").strip() for line in said) == (lines[0] if needed else "")


BROKEN = "broken.yaml"


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory, parser: Parser) -> dict[str, dict[str, Any]]:
    """What LLaMA-Factory's parser made of each recipe, by file name, and of one with a misspelt key."""
    broken = tmp_path_factory.mktemp("broken") / BROKEN
    broken.write_text(CURATED[0].read_text("utf-8") + "learning_rat: 1\n", "utf-8")
    return {Path(row["path"]).name: row for row in parser(ROOT, *map(relative, RECIPES), broken)}


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.sample(one_in=3)
@each
def test_llamafactory_accepts_it(path: Path, parsed: dict[str, dict[str, Any]]) -> None:
    found, values = parsed[path.name], described(path).args.values
    assert "error" not in found, found["error"]
    assert found["deepspeed"] == values.get("deepspeed")
    assert found["warmup"] == int(values.get("warmup_steps") or math.ceil(1000 * values["warmup_ratio"]))
    assert found["compute_dtype"] == ("torch.float16" if values.get("fp16") else "torch.bfloat16")


@pytest.mark.slow
@pytest.mark.real
def test_llamafactory_refuses_a_misspelt_key(parsed: dict[str, dict[str, Any]]) -> None:
    assert "learning_rat" in parsed[BROKEN]["error"]


@pytest.mark.slow
@pytest.mark.real
def test_accelerate_reads_its_launch_file() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    read = load_config_from_file(str(ROOT / "accelerate" / "fsdp.yaml"))
    recipe = load_recipe("recipes/qwen3-8b-a100-full-fsdp.yaml").values
    assert read.distributed_type.value == "FSDP"
    assert [read.fsdp_config["fsdp_transformer_layer_cls_to_wrap"]] == recipe["fsdp_config"][
        "transformer_layer_cls_to_wrap"
    ]
