"""What one does with the result of a run: commands to chat with it, to merge an adapter into its base model, and to
train it further."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from validator.escaping import shell_quote
from validator.launch.local_launch import result_files
from validator.run import checkpoints
from validator.run.settings import RunSettings

_ADAPTER_METHODS = ("lora", "oft")
# Keys of a recipe that decide how its base model and its tokenizer are loaded.
_KEYS_OF_MODEL = (
    *("template", "trust_remote_code", "model_revision", "cache_dir", "rope_scaling"),
    *("resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config"),
)
_ADAPTER_FILE = "adapter_model.safetensors"
_WHOLE_MODEL_FILES = ("model.safetensors", "model.safetensors.index.json")


def next_steps(run: RunSettings, output: Path, overrides: Sequence[str]) -> list[str]:
    """Return a line for each thing to do with the result in `output`, with its command; empty if the run left no
    weights that LLaMA-Factory can load by itself. `overrides`: the words of the command line that changed the
    recipe."""
    names = {path.name for path in result_files(output)}
    commands = dict(_commands(run, output, names)) if run.task.trains and run.task.stage != "rm" else {}
    more = _command_for_more_epochs(run, overrides)
    return [f"{what:<6} {command}" for what, command in {**commands, **({"more": more} if more else {})}.items()]


def _commands(run: RunSettings, output: Path, names: set[str]) -> Iterator[tuple[str, str]]:
    is_adapter = run.task.method in _ADAPTER_METHODS
    if not names & ({_ADAPTER_FILE} if is_adapter else {*_WHOLE_MODEL_FILES}):
        return
    words = _words_of_model(run, output, is_adapter)
    quantized = {"quantization_bit": str(run.quantization.bits), "quantization_method": run.quantization.method}
    chat = {**words, **quantized} if run.quantization.quantizes_at_load else words
    if run.task.stage != "pt":  # which has no template to talk by
        yield "chat", _command_line("chat", chat)
    if is_adapter and run.quantization.checkpoint is None:  # an adapter cannot be merged into a quantized checkpoint
        yield "merge", _command_line("export", {**words, "export_dir": f"{output}-merged"})


def _words_of_model(run: RunSettings, output: Path, is_adapter: bool) -> dict[str, str]:
    """Return the keys and values by which LLaMA-Factory loads the trained model. Adapters that the run started from and
    merged come before its own (model/adapter.py, _setup_lora_tuning)."""
    name = str(run.args.get("model_name_or_path"))
    place = run.workspace.find(name)
    words = {"model_name_or_path": str(place[0].absolute()) if place else name} if is_adapter else {}
    if is_adapter:
        earlier = run.args.words("adapter_name_or_path")
        merged = earlier if run.args.flag("create_new_adapter") else earlier[:-1]
        places = (run.workspace.find(each) for each in merged)
        paths = [str(at[0].absolute()) if at else each for each, at in zip(merged, places, strict=True)]
        words |= {"adapter_name_or_path": ",".join([*paths, str(output)]), "finetuning_type": run.task.method}
    else:
        words |= {"model_name_or_path": str(output)}
    for key in _KEYS_OF_MODEL:
        value = run.args.get(key) if run.args.is_set(key) else None
        if value is not None and not isinstance(value, dict):
            listed = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words[key] = listed.lower() if isinstance(value, bool) else listed
    return words


def _command_line(command: str, words: Mapping[str, str]) -> str:
    options = (f"--{key} {shell_quote(value)}" for key, value in words.items())
    return f"llamafactory-cli {command} {' '.join(options)}"


def _command_for_more_epochs(run: RunSettings, overrides: Sequence[str]) -> str:
    """Return the command that goes on from the last checkpoint for as many epochs again; an empty string if the run has
    no checkpoint to go on from, or is bounded by its steps."""
    epochs = run.args.number("num_train_epochs")
    if run.args.number("max_steps") > 0 or checkpoints.resume_checkpoint(replace(run)) is None:
        return ""
    kept = [each for each in overrides if not each.startswith("num_train_epochs=")]
    words = [run.workspace.recipe, *kept, f"num_train_epochs={2 * epochs:g}"]
    return f"lmf-recipes train {' '.join(map(shell_quote, words))}"
