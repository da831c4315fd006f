"""`plan`, `explain` and `check` ask the same levers, so that none of them denies what another one offers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from support import following

from validator.advise import changes
from validator.knowledge import devices, models
from validator.levers import search
from validator.plan.new_recipe import EVALUATION_TOO_LARGE, NewRecipe
from validator.plan.search import blocking_findings, find_plans
from validator.recipe.recipe_file import parse_recipe
from validator.rules.all_rules import RULES
from validator.rules.problems import accepts_changes, run_rules
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve

pytestmark = [
    pytest.mark.usefixtures("from_the_root"),
    pytest.mark.sample(one_in=3, whole_for=["validator/plan/*", "validator/levers/*"]),
]

MACHINES = [("1xrtx-4090", 64.0), ("1xrtx-3090", 256.0), ("2xrtx-4090", 128.0), ("8xv100-32g", 256.0),
            ("1xa100-40g", 170.0), ("1xa100-80g", 24.0), ("4xa100-40g", 300.0), ("8xascend-910b-32g", 100.0),
            ("1xascend-910b-32g", 190.0), ("1xmi300x-192g", 24.0), ("8xrtx-4090", 200.0)]  # fmt: skip
# What the request decides: a plan for a method and a length changes neither.
ASKED_FOR = {"cutoff_len", "finetuning_type", "quantization_bit"}


def can_be_made_to_fit(run: RunSettings) -> bool:
    """Whether the run fits, or one of the nearest changes makes it fit that keeps what was asked for."""
    accepts = accepts_changes(run, warnings=False)
    fitting = search.cheapest_options(run, "fits", accepts)
    return predict(run).verdict_at_longest == "fits" or any(not ASKED_FOR & {*option.set} for option in fitting)


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
@pytest.mark.parametrize(("machine", "ram"), MACHINES)
def test_plan_and_explain_agree_on_whether_anything_fits(machine: str, ram: float, method: str) -> None:
    for model, stage in product(("qwen7b", "qwen32b"), ("sft", "pt")):
        start = NewRecipe(models.find_model(model), devices.parse_machine(machine, ram), method, stage=stage,
                          no_evaluation=EVALUATION_TOO_LARGE)  # fmt: skip
        if not blocking_findings(start):
            plans = find_plans(start, [method], [start.length])
            assert bool(plans) == can_be_made_to_fit(replace(start, micro_batch=4).run), (model, stage)


def test_a_memory_saving_optimizer_is_planned_in_continued_pre_training() -> None:
    """`explain` has offered it there from the start."""
    start = NewRecipe(models.find_model("qwen7b"), devices.parse_machine("1xrtx-4090", 64.0), "full", stage="pt")
    assert [plan.draft.optimizer for plan in find_plans(start, ["full"], [2048])] == ["badam"]


# Machine, what else the recipe says, and the code that names what `explain` has for memory to spare.
WASTE = [
    ("8xa100-80g", "deepspeed: deepspeed/ds_z3.json", "TRA921"),
    ("4xa100-80g", "finetuning_type: full\ndeepspeed: deepspeed/ds_z3_offload.json", "TRA921"),
    ("8xa100-80g", "model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\nper_device_train_batch_size: 1\n"
     "gradient_accumulation_steps: 16", "TRA923"),
    ("1xh200-141g", "model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct\ntemplate: qwen2_vl\ncutoff_len: 1024", "TRA924"),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "more", "code"), WASTE)
def test_check_names_of_wasted_time_what_explain_offers(machine: str, more: str, code: str) -> None:
    text = following.recipe(machine, "lora", 1024, more).replace(
        "# ///\nmodel", "# samples: 100000\n# lengths: 200\n# ///\nmodel"
    )
    run = resolve(parse_recipe("x.yaml", text))
    (said,) = [message for found, _, message, _ in run_rules(RULES, run) if found.code == code]
    offered = [", ".join(f"`{line}`" for line in change.settings()) for change in changes.uses_of_free_memory(run)]
    assert any(settings in said for settings in offered), (said, offered)
