"""A new recipe as the text of a file: header block, launch command, headings, and comments on settings that trade one
thing for another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator import __version__
from validator.knowledge.devices import Machine
from validator.knowledge.guidance import memory_savers
from validator.knowledge.tables import yaml_table
from validator.plan.new_recipe import NewRecipe
from validator.recipe.yaml_writer import format_scalar
from validator.run import recipe_labels
from validator.run.launch_command import DEFAULT_MASTER_PORT, Launch

# What the first line of a recipe calls the method, and the stage.
_METHOD_WORDS = {"lora": "LoRA", "qlora": "QLoRA (4 bits)", "full": "full", "freeze": "last-layers"}
_STAGE_WORDS = {
    "sft": "fine-tuning",
    "dpo": "DPO",
    "kto": "KTO",
    "rm": "reward modelling",
    "pt": "continued pre-training",
}
_HEADINGS = {"model_name_or_path": "model", "stage": "method", "dataset": "dataset", "output_dir": "output",
             "per_device_train_batch_size": "train", "val_size": "eval"}  # fmt: skip


def render_recipe(draft: NewRecipe, planned: bool = True, head: Sequence[str] = ()) -> str:
    """Return the recipe as the text of a file: header block, the lines of `head` as comments, then the settings under
    LLaMA-Factory's headings. `planned`: True if the header block shall name `plan` as the recipe's origin."""
    lines = ["# /// recipe", *(f"# {key}: {value}" for key, value in _header_lines(draft, planned)), "# ///"]
    lines += [*(["", *(f"# {line}" for line in head)] if head else []), *_launch_remark(draft)]
    for key, value in draft.run.args.values.items():
        if key == "logging_steps":
            lines += ["", "### output", f"output_dir: {draft.output}"]
        if key in _HEADINGS:
            lines += ["", f"### {_HEADINGS[key]}"]
        lines += _setting_lines(key, value, _setting_remark(draft, key))
    if draft.why_not_evaluated:
        lines.append(f"# nothing is held back: {draft.why_not_evaluated}")
    return "\n".join(lines) + "\n"


def _launch_remark(draft: NewRecipe) -> Iterator[str]:
    """Yield the launch command as comment lines if torchrun starts the run in a way that needs more than
    `llamafactory-cli train`: several nodes, or DeepSpeed on one device. `lmf-recipes explain` prints the same
    command."""
    launch, command = Launch(draft.run), f"llamafactory-cli train recipes/{draft.name}.yaml"
    if launch.launcher != "torchrun":
        return
    environments = (" ".join(f"{name}={value}" for name, value in each.items())
                    for each in (launch.start_env, launch.node_env()))  # fmt: skip
    variables = [words for words in environments if words]
    if launch.nodes > 1:
        yield from ("", f"# On each node, with its NODE_RANK from 0 to {launch.nodes - 1}:")
        yield from (f"#   {words} \\" for words in variables)
        yield f"#   NODE_RANK=0 MASTER_ADDR=ADDRESS_OF_NODE_0 MASTER_PORT={DEFAULT_MASTER_PORT} \\"
        yield f"#   {command}"
    elif launch.devices == 1 and draft.run.uses_deepspeed:
        yield from ("", "# DeepSpeed wants torchrun, which one device does not get unasked:")
        yield f"#   {' '.join([*variables, command])}"


def _header_lines(draft: NewRecipe, planned: bool) -> Iterator[tuple[str, Any]]:
    yield "summary", format_scalar(_summary(draft))
    yield "machine", draft.machine
    machine, header = draft.machine, draft.run.header
    optional = {
        "host_ram_gib": machine.host_ram_gib and f"{machine.host_ram_gib:g}",
        "network": machine.network,
        "price": machine.price,
        "samples": _samples(draft),
        "rows": header.get("rows") or _own_rows(draft),
        "lengths": header.get("lengths"),
        "packages": draft.packages and f"[{', '.join(draft.packages)}]",
        "transformers": draft.transformers,
    }
    yield from ((field, value) for field, value in optional.items() if value)
    if prediction := recipe_labels.stated_prediction(draft.run):
        yield "predicted", recipe_labels.prediction_line(prediction)
    if planned:
        yield "origin", f"plan of llamafactory-recipes {__version__}"


def _samples(draft: NewRecipe) -> str | None:
    remark = recipe_labels.SAMPLES_REMARK if _own_rows(draft) and not draft.samples else ""
    return f"{draft.planned_samples}{remark}" if draft.planned_samples else None


def _own_rows(draft: NewRecipe) -> str | None:
    rows = draft.run.data.local_rows if draft.own_datasets else None
    return f"{rows}{recipe_labels.ROWS_REMARK}" if rows else None


def _summary(draft: NewRecipe) -> str:
    """Return one line that says what the recipe trains, on which machine and how."""
    what = f"{_METHOD_WORDS[draft.method]} {_STAGE_WORDS[draft.stage]} of {recipe_labels.model_title(draft.model)}"
    return ", ".join([f"{what} on {_machine_words(draft.machine)}", *_memory_savings(draft)])


def _memory_savings(draft: NewRecipe) -> Iterator[str]:
    zero = draft.run.deepspeed
    if draft.sharding == "fsdp":
        yield "FSDP"
    if zero:
        names = {"offload_optimizer": "the optimizer", "offload_param": "the weights"}
        away = " and ".join(name for key, name in names.items() if zero.offload(key))
        yield f"ZeRO-{zero.stage}" + (f" with {away} in host memory" if away else "")
    if draft.optimizer:
        yield memory_savers()[draft.optimizer].title
    if draft.length >= recipe_labels.LONG_CONTEXT:
        yield f"samples of up to {draft.length // 1024}k tokens"


def _machine_words(machine: Machine) -> str:
    kind = machine.device.name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("AMD Instinct ")
    kind = kind.replace(",", "")
    each = f"{machine.devices} x {kind}" if machine.devices > 1 else f"one {kind}"
    return f"{machine.nodes} servers of {each}" if machine.nodes > 1 else each


def _setting_remark(draft: NewRecipe, key: str) -> str:
    """Return the comment to write after a setting of the new recipe, such as what the setting costs or needs. The text
    is empty for a setting that needs no comment."""
    kept = "the best by eval_loss, and the last" if draft.evaluates else "none is known to be the best"
    shards_nothing = draft.machine.world == 1 and draft.sharding == "ds_z2.json"
    remarks = {
        "enable_thinking": "answers keep their thoughts, and an empty one is never trained"
        + ("" if draft.stage == "rm" else f"; if yours have none, {draft.model.family.without_thoughts}"),
        "default_system": "LLaMA-Factory's own asks in every sample for thoughts",
        "save_steps": "of the run" if draft.save_steps < 1 else "the end: one before it would take a tenth of the run",
        "save_total_limit": kept,
        "enable_liger_kernel": "a loss that never holds all logits; needs the package liger-kernel",
        "disable_gradient_checkpointing": "faster; remove it for longer samples",
        "flash_attn": "needs the package flash-attn" if draft.machine.device.vendor != "ascend" else "",
        "pure_bf16": "weights and gradients in bf16: half the memory, and small updates are rounded away",
        "lora_target": draft.model.family.lora_remark,
        "warmup_ratio": "not warmup_steps: transformers 4 takes no share there",
        "ddp_timeout": "reading a large model on every node can take longer than the default half hour",
        "freeze_trainable_layers": "the last two; each more costs 16 bytes a parameter",
        "gradient_accumulation_steps": "updated layer by layer at every step; raise the micro batch instead"
        if draft.optimizer in ("galore", "apollo")
        else "",
        "dataset": "short samples, to try it; put your long ones here"
        if draft.length >= recipe_labels.LONG_CONTEXT and not (draft.own_datasets or draft.extra)
        else "",
        "create_new_adapter": "merges that adapter, also into the reference; chat and export with both, that one first",
        "packing": "several samples in a sequence, which leaves no padding",
        "neat_packing": "samples in a sequence do not see each other",
        "streaming": "reads while it trains, instead of downloading and tokenizing everything first",
        "max_steps": f"{draft.run.batch.effective_batch * draft.length:,} tokens each",
        "image_max_pixels": f"larger pictures are scaled down to it{_image_tokens_remark(draft)}",
        "freeze_vision_tower": "" if _tower_stays_frozen(draft) else "false trains the tower, too",
        "deepspeed": "its launch by torchrun wastes less memory on varied lengths" if shards_nothing else "",
        "val_size": "held back and measured at each checkpoint",
    }
    return f"  # {remark}" if (remark := remarks.get(key)) else ""


def _tower_stays_frozen(draft: NewRecipe) -> bool:
    """True if the recipe trains an adapter, and PEFT refuses adapters in the model's vision or audio towers (rule
    TRA919)."""
    refused = {"wrapped", "tower_clash"} & yaml_table("composites").get(draft.model.kind, {}).keys()
    return draft.method != "full" and bool(refused)


def _image_tokens_remark(draft: NewRecipe) -> str:
    """Return how many tokens an image of `image_max_pixels` becomes, as text for a comment. An empty string for towers
    whose number of tokens does not grow with the pixels."""
    areas = (
        tower.patch_size**2 * tower.merge
        for tower in draft.model.arch.towers
        if tower.patch_size and not tower.fixed_tokens
    )
    return "".join(f": some {draft.run.args.number('image_max_pixels') / area:.0f} tokens" for area in areas)


def _setting_lines(key: str, value: Any, remark: str) -> list[str]:
    if isinstance(value, Mapping):
        return [
            f"{key}:",
            *(
                f"  {name}: [{', '.join(format_scalar(word, in_brackets=True) for word in words)}]"
                for name, words in value.items()
            ),
        ]
    return [f"{key}: {format_scalar(value)}{remark}"]
