"""TRA930 and TRA931: inputs that a model's class reads in training, and that the stage or the template does not hand to
it (data/stage_inputs.yaml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.rows.dataset_attr import MODALITIES
from validator.rules import subjects
from validator.rules.rule import ERROR, WARNING, Findings, rule
from validator.run.settings import RunSettings

# Inputs beside token ids that two stages hand to the model; the others hand on all that the template's plugin makes.
# pt: train/pt/workflow.py, run_pt; kto: train/kto/trainer.py, CustomKTOTrainer.forward.
_TEXT_INPUTS = frozenset({"attention_mask", "labels"})
_INPUTS_OF_STAGE = {
    "pt": _TEXT_INPUTS,
    "kto": frozenset(
        {"attention_mask", "token_type_ids", "pixel_values", "image_sizes", "image_grid_thw"}
        | {"aspect_ratio_ids", "aspect_ratio_mask", "cross_attention_mask"}
    ),
}
# What kto drops of films and sounds.
_KTO_DROPS = {"videos": "films", "audios": "sounds"}


@rule("TRA930", ERROR, about=subjects.model)
def input_not_given(run: RunSettings, model: Model) -> Findings:
    """The model's class asks for an input that the stage or the template does not give.

    Why: stage pt hands on token ids and their mask alone, kto a list of inputs, and a template for text nothing of what
    a model that sees wants. Some classes refuse to train without: "`token_type_ids` is required as a model input when
    training" (PaliGemma with transformers 5, Gemma 3 with the first releases of it), "`mm_token_type_ids` is missing"
    (kto with Qwen-VL and GLM-V and newer releases, also on texts, to which LLaMA-Factory adds a blank picture;
    LLaMA-Factory issue 10817). The first step ends, after the data is tokenized and the model loaded on every rank
    (seen in runs of tiny models).
    Source: llamafactory/train/pt/workflow.py:run_pt, llamafactory/train/kto/trainer.py:CustomKTOTrainer.forward,
    llamafactory/data/mm_plugin.py:BasePlugin.get_mm_inputs
    Fix: what the message names: another stage, another transformers release, or the model's own template.
    """
    for key, cause, row in _inputs_lacking(run, model):
        if "ends" in row:
            found = f'{cause} gives {model.kind} no `{row["input"]}`, and the first step ends with "{row["ends"]}"'
            yield key, f"{found}; {_remedy(model, key, row)}"
            return


@rule("TRA931", WARNING, about=subjects.model)
def input_lost(run: RunSettings, model: Model) -> Findings:
    """The stage or the template leaves out an input of the model, and the run goes on without it.

    Why: nothing tells. PaliGemma with transformers 4 masks no later tokens unless it gets token types and labels, so
    that the loss falls to nothing. kto hands on no films and no sounds, and Qwen2.5-VL then makes places in one
    dimension of pictures: the model trains on answers about what it has not seen. No stage tells ERNIE 4.5 VL which
    tokens are pictures, so that the experts of texts compute them.
    Source: llamafactory/train/pt/workflow.py:run_pt, llamafactory/train/kto/trainer.py:CustomKTOTrainer.forward
    Fix: what the message names: another stage, another transformers release, or the model's own template.
    """
    rows = list(_inputs_lacking(run, model))
    if any("ends" in row for _, _, row in rows):
        return
    for key, cause, row in rows:
        yield key, f"{cause} gives {model.kind} no `{row['input']}`: {row['loses']}; {_remedy(model, key, row)}"
    if run.task.stage == "kto" and run.task.trains:
        for column, media in _KTO_DROPS.items():
            names = _datasets_with(run, column) if column == "audios" or _sees_films_apart(model) else []
            if names:
                sets = ", ".join(f"`{name}`" for name in names)
                found = f"stage kto does not give the model the {media} of {sets}"
                yield "stage", f"{found}, so it trains on answers about what it has not seen; use `stage: dpo`"


def _inputs_lacking(run: RunSettings, model: Model) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield each input that the model's class reads in this run and does not get: the key to blame, its value as text
    for a message, and the input's row of data/stage_inputs.yaml."""
    table = yaml_table("stage_inputs")
    if not run.task.trains or run.task.stage == "ppo" or model.kind not in table:
        return
    for row in table[model.kind]:
        key = _key_to_blame(run, row)
        if key and _is_read(run, model, row):
            name = run.task.stage if key == "stage" else run.args.get("template")
            yield key, f"{key} {name}" if name else "a recipe without `template`", row


def _key_to_blame(run: RunSettings, row: Mapping[str, Any]) -> str:
    """Return the recipe's key, `stage` or `template`, that keeps the input of a row from the model. An empty string if
    the model gets the input."""
    stage, given = run.task.stage, _INPUTS_OF_STAGE.get(run.task.stage)
    if "stages" in row:
        return "stage" if stage in row["stages"] else ""
    if given is not None and row["input"] not in given:
        return "stage"
    is_unknown = run.template is None and run.args.is_set("template")
    return "" if row["input"] in _TEXT_INPUTS or run.template_media or is_unknown else "template"


def _is_read(run: RunSettings, model: Model, row: Mapping[str, Any]) -> bool:
    """True if the model's class reads the input of a row in this run, by what the row says of releases, model and
    data."""
    spared = getattr(model.arch, row["unless"]) if "unless" in row else False
    spared |= row.get("flash") is False and run.uses_flash_attention
    if spared or not run.releases.requires(row.get("since", ""), row.get("until", "")):
        return False
    if row["beside"] == "anything":
        return True
    if row["beside"] == "pictures":
        return run.task.stage != "pt" and "image" in run.template_media
    return any(_datasets_with(run, column) for column in row["beside"].split())


def _datasets_with(run: RunSettings, column: str) -> list[str]:
    """Return the names of the training data sets that have a column of this kind (images, videos, audios) which the
    template reads."""
    if MODALITIES[column] not in run.template_media or run.data.is_tokenized:
        return []
    return [one.name for one in run.data.datasets if one.attr.columns.get(column)]


def _sees_films_apart(model: Model) -> bool:
    """True if the model's class takes films as an input of their own, not among the pictures."""
    return bool(model.modules) and "films" in yaml_table("composites")[model.kind]


def _remedy(model: Model, key: str, row: Mapping[str, Any]) -> str:
    own = next(iter(model.family.templates), None)
    return (
        f"write `template: {model.template or own}`" if key == "template" and (model.template or own) else row["remedy"]
    )
