"""PTH001 to PTH008, PTH012, PTH013, PTH016, PTH017, PTH028 and PTH029: whether a recipe's paths and model names lead
to something that can be used.

Data sets are judged in dataset_files, results of earlier runs in resume_rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from validator.errors import RecipeError
from validator.finding import Edit, Fix, Verdict
from validator.knowledge import models, unknown_models
from validator.knowledge.models import Model
from validator.knowledge.path_keys import ADAPTER_KEYS, MODEL_KEYS, PATH_KEYS, READ_KEYS
from validator.recipe import safe_read
from validator.recipe.known_folders import catalogue_root
from validator.recipe.safe_read import read_json
from validator.recipe.suggestions import suggest
from validator.rules import subjects
from validator.rules.missing_paths import has_variable, if_elsewhere, is_missing
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule, set_value
from validator.rules.subjects import PlaceIn, in_json_setting
from validator.run import model_files
from validator.run.dataset_registry import REGISTRY_FILE
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.launch_command import Launch
from validator.run.named_paths import named_paths, outputs
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.trained_model import find_earlier_adapter, is_local_name

_VERDICT_WORDS: Mapping[Verdict, str] = {"fits": "fits", "tight": "is tight", "exceeds": "exceeds memory"}
_WHOLE_MODEL_KEYS = [key for key in MODEL_KEYS if key.name != "reward_model"]  # that one is an adapter by default
_JSON_FILE_KEYS = [key for key in PATH_KEYS if key.name in ("fsdp_config", "accelerator_config")]


@rule("PTH001", ERROR)
def deepspeed_missing(run: RunSettings) -> Findings:
    """The DeepSpeed file does not exist.

    Why: every process stops while the arguments are parsed, after some 20 seconds of imports under torchrun: "Expected
    a string path to an existing deepspeed config". Memory is judged by the stage that the name tells; if it tells
    none, memory is judged only if all of LLaMA-Factory's own files lead to the same verdict.
    Source: accelerate/utils/deepspeed.py:HfDeepSpeedConfig.__init__
    Fix: name an existing file; relative paths count from the working directory, not from the recipe.
    """
    name = _deepspeed_file_name(run)
    if name and is_missing(run, name, "file"):
        missing = f"`{name}` does not exist in the working directory, nor in a folder above the recipe"
        yield "deepspeed", f"{missing}{assumption(run, 'deepspeed')}{_deepspeed_file_remedy(run, name)}"


def assumption(run: RunSettings, key: str) -> str:
    """Return, as text to append to a message, what stands for a missing DeepSpeed file or an unknown model when the run
    is judged, such as `; memory is judged as …`. An empty string if nothing stands for it. `key`:
    `deepspeed` or `model_name_or_path`."""
    prediction = predict(run)
    if key == "deepspeed" and run.deepspeed and run.deepspeed.is_assumed:
        return f"; memory is judged as under {run.deepspeed.words}, as its name says"
    if key == "deepspeed" and prediction.outcomes_of_missing_file:
        return _verdicts_by_stock_file(prediction.outcomes_of_missing_file.verdicts)
    guessed = assumed_model(run) if key == "model_name_or_path" else ""
    return f"; until then memory is judged as {guessed}" if guessed else ""


def _verdicts_by_stock_file(verdicts: Mapping[str, Verdict]) -> str:
    """Return the memory verdicts of the run with each of LLaMA-Factory's own DeepSpeed files, as text for a message."""
    first, *further_verdicts = set(verdicts.values())
    if not further_verdicts:
        return f"; its name tells no stage, but with each of LLaMA-Factory's own files the run {_VERDICT_WORDS[first]}"
    by_verdict = {
        each: [words for words, run_verdict in verdicts.items() if run_verdict == each] for each in verdicts.values()
    }
    several = (f"the run {_VERDICT_WORDS[verdict]} with {', '.join(words)}" for verdict, words in by_verdict.items())
    return f"; its name tells no stage: {', '.join(several)}"


def assumed_model(run: RunSettings) -> str:
    """Return, as text for a message, the known model by which the recipe's model is judged, and how it was recognized
    (by its name, or by another recipe). An empty string if the recipe's model is itself known, or if the header block
    names its base."""
    model = run.model
    if model is None or model.identified_by not in ("name", "run", "recipe"):
        return ""
    quantized = f", quantized by {model.quantized}" if model.quantized else ""
    known_from = f"as `{model.identified_from}` starts from that model and writes to this folder"
    why = {"name": "by its name", "run": known_from, "recipe": f"by {model.identified_from}"}
    return f"{model.name}{quantized}, {why[model.identified_by]}"


def _deepspeed_file_remedy(run: RunSettings, name: str) -> str:
    """Return how to get a DeepSpeed file that does not exist, as text to append to a message: a `copy` command if the
    catalogue has the file, or a similar name that exists."""
    file, zero = Path(name).name, run.deepspeed
    if zero and zero.is_assumed:  # the catalogue's file of the same stage and offload
        offload = "_offload_all" if zero.offload("offload_param") else "_offload" if zero.offloads else ""
        file = f"ds_z{zero.stage}{offload}.json"
    if safe_read.path_kind(catalogue_root() / "deepspeed" / file) == "file":
        if predict(run).device_verdict == "exceeds":  # FIT001 proposes a change, maybe to another file
            which = f"the DeepSpeed file that the change for memory names, or {file} if it names none"
            return f"; run `lmf-recipes copy FILE .` with {which}, and set `deepspeed: deepspeed/FILE`"
        there = run.workspace.find(f"deepspeed/{file}")
        copy = "" if there and there[1] else f"run `lmf-recipes copy {file} .`, and "
        return f"; {copy}set `deepspeed: deepspeed/{file}`"
    existing_files = (safe_read.glob_folder(folder, "deepspeed/*.json") for folder in run.workspace.folders)
    near = suggest(file, {path.name for paths in existing_files for path in paths}).replace("`", "`deepspeed/", 1)
    return near or "; write the path of a file that exists"


@rule("PTH002", NOTE)
def found_from_elsewhere(run: RunSettings) -> Findings:
    """A relative path leads to a file beside the recipe, and not, or to another one, from the working directory.

    Why: LLaMA-Factory takes relative paths from the working directory, whatever the recipe's own folder is. The files
    beside the recipe are judged, and `lmf-recipes train` starts with them.
    Source: llamafactory/hparams/parser.py:read_args
    Fix: start from the folder named, write the path absolute, or use `lmf-recipes train`, which does that for you.
    """
    paths = dict(_relative_paths(run))
    found = {key: location for key, path in paths.items() if (location := _location(run, key, path))}
    if places := {key: place for key, (place, is_here) in found.items() if not is_here}:
        key, place = next(iter(places.items()))
        wanted = Path(paths[key])
        folder = place.parents[len(wanted.parts) - 1]
        others = f" (and what `{'`, `'.join(list(places)[1:])}` names)" if len(places) > 1 else ""
        taken = f"is taken from `{folder}`, and the working directory has another"
        found_here = taken if safe_read.path_kind(Path.cwd() / wanted) else "is not in the working directory"
        text = f"`{wanted}`{others} {found_here}; start the run in `{folder}`"
        yield key, text, _fix_from_working_directory(run, places)


@rule("PTH003", ERROR, about=subjects.deepspeed_file)
def deepspeed_unreadable(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed configuration is not a JSON object.

    Why: every process stops while the arguments are parsed.
    Source: accelerate/utils/deepspeed.py:HfDeepSpeedConfig.__init__
    Fix: correct the place named; JSON has no comments, no trailing commas and only double quotes.
    """
    value, why = run.args.get("deepspeed"), zero.problem
    if why and isinstance(value, str) and (value.startswith("{") or run.workspace.find(value)):
        invalid = "is not valid JSON" in why
        also = "; JSON has no comments and no trailing commas" if invalid else "; name a DeepSpeed JSON file"
        yield at(), f"{why}{also}"


@rule("PTH004", ERROR)
def path_not_expanded(run: RunSettings) -> Findings:
    """A path to be read holds `~` or a variable, which LLaMA-Factory does not expand.

    Why: the path is taken letter by letter and does not exist; only `output_dir` expands `~`.
    Source: llamafactory/hparams/parser.py:read_args, transformers/training_args.py:TrainingArguments.__post_init__
    Fix: write the path out.
    """
    for key, path in named_paths(run, READ_KEYS):
        if has_variable(path) and not run.workspace.find(path):
            why = "does not exist, because LLaMA-Factory does not expand ~ and variables; write the full path"
            yield key.name, f"`{path}` {why}{assumption(run, key.name)}"


@rule("PTH005", WARNING)
def folder_created_literally(run: RunSettings) -> Findings:
    """An output path holds a variable, or `~` where it is not expanded.

    Why: a folder with exactly this name is created in the working directory, and results end up there.
    Source: llamafactory/hparams/parser.py:read_args, transformers/training_args.py:TrainingArguments.__post_init__
    Fix: write the path out, or pass it on the command line, where the shell expands it: `output_dir=$HOME/run1`.
    """
    for key, path in outputs(run):
        rest = path.removeprefix("~") if key.name == "output_dir" else path
        if has_variable(rest) and not (key.access == "either" and run.workspace.find(path)):
            found = f"`{path}` is not expanded, so a folder of exactly this name is created"
            yield key.name, f"{found}; write the full path"


@rule("PTH012", ERROR)
def space_in_recipe_path(run: RunSettings) -> Findings:
    """The recipe's path holds a space, and the run starts through torchrun.

    Why: LLaMA-Factory joins the torchrun command with spaces and splits it again, so every process gets half a path.
    `accelerate launch` and Ray take the path whole.
    Source: llamafactory/launcher.py:launch
    Fix: rename the file or folder.
    """
    if problem := Launch(run).split_problem([run.workspace.recipe]):
        yield None, f"{problem}; rename the file or folder"


@rule("PTH013", ERROR)
def settings_file_missing(run: RunSettings) -> Findings:
    """`fsdp_config` or `accelerator_config` names a file that does not exist or is not JSON.

    Why: every process stops while the arguments are parsed.
    Source: transformers/training_args.py:TrainingArguments.__post_init__,
    transformers/training_args.py:TrainingArguments._process_fsdp_args
    Fix: name an existing JSON file, from the working directory, or write its keys as a mapping in the recipe.
    """
    for key, path in named_paths(run, _JSON_FILE_KEYS):
        if location := run.workspace.find(path):
            try:
                read_json(str(location[0]))
            except RecipeError as err:
                yield in_json_setting(run, key.name), f"{err}; correct the file"
        elif is_missing(run, path, key.kind):
            remedy = f"name an existing JSON file, or write its keys below `{key.name}`"
            yield key.name, f"`{path}` does not exist; {remedy}"


def _fix_from_working_directory(run: RunSettings, places: Mapping[str, Path]) -> Fix | None:
    """Return a fix that writes paths in the recipe relative to the working directory. `places`: for each key of the
    recipe the path where its file was found. None if a path does not lie below the working directory. The fix is not
    safe, because the unchanged recipe works if the run is started from another folder."""
    cwd = Path.cwd()
    sets = []
    for key, place in places.items():
        path = Path(os.path.normpath(place.absolute()))
        target = path.parent if key == "dataset_dir" else path
        written = run.args.values.get(key)
        if not target.is_relative_to(cwd) or not isinstance(written, str) or "," in written:
            return None
        sets.append(Edit("set", key, target.relative_to(cwd).as_posix()))
    return Fix(tuple(sets), safe=False)


def _relative_paths(run: RunSettings) -> Iterator[tuple[str, str]]:
    """Yield each relative path that the recipe reads, after its key. A model or adapter is left out if its name may be
    a hub name."""
    for key, path in named_paths(run, READ_KEYS):
        if key.name == "deepspeed":
            path = _deepspeed_file_name(run) or ""
        elif key.name == "dataset_dir":
            path = f"{path}/{REGISTRY_FILE}" if run.data.registry else ""
        elif key.may_be_on_hub and not is_local_name(path):
            path = ""
        if path and not Path(path).is_absolute():
            yield key.name, path


def _location(run: RunSettings, key: str, path: str) -> tuple[Path, bool] | None:
    """Return where a relative path of the recipe leads, and True if it leads there from the working directory."""
    if key != "dataset_dir" or not run.workspace.find(path):
        return run.workspace.find(path)
    folder = run.workspace.find_dataset_dir(str(Path(path).parent))
    return (folder[0] / REGISTRY_FILE, folder[1]) if folder else None


def _deepspeed_file_name(run: RunSettings) -> str | None:
    """Return the value of `deepspeed` if it is a file name; None if it is a mapping, JSON text or base64-encoded
    JSON."""
    value = run.args.get("deepspeed")
    if not isinstance(value, str) or value.startswith("{"):
        return None
    encoded = "." not in value and re.fullmatch(r"[A-Za-z0-9_=-]{24,}", value)
    return None if encoded else value


@rule("PTH006", ERROR)
def model_missing(run: RunSettings) -> Findings:
    """The model path looks local, and nothing is there.

    Why: every process stops with "Failed to load tokenizer", or the name is looked for on the hub.
    Source: llamafactory/model/loader.py:load_tokenizer
    Fix: make or download the model, correct the path, or write a hub name (`Qwen/Qwen3-8B`).
    """
    for key, path in named_paths(run, MODEL_KEYS):
        if is_local_name(path) and is_missing(run, path, key.kind):
            remedy = "train or download the model, or name a hub model such as `Qwen/Qwen3-8B`"
            yield key.name, f"`{path}` does not exist; {remedy}{if_elsewhere(run, path)}{assumption(run, key.name)}"


@rule("PTH017", ERROR)
def model_name_impossible(run: RunSettings) -> Findings:
    """The model's name is neither a folder nor a name that a hub could have.

    Why: the name is a placeholder, such as `<your_model_path>`, or misspelt. Every process stops with "Incorrect
    path_or_model_id" while the tokenizer is loaded, after the imports.
    Source: transformers/utils/hub.py:cached_files
    Fix: a hub name (`Qwen/Qwen3-8B`) or a folder that holds the model.
    """
    for key, path in named_paths(run, MODEL_KEYS):
        if not is_local_name(path) and not run.workspace.find(path) and _is_impossible_hub_name(path):
            found = f"`{path}` is neither a folder nor a name that a hub could have"
            yield key.name, f"{found}; write a hub name such as `Qwen/Qwen3-8B`"


@rule("PTH028", WARNING)
def model_name_misspelt(run: RunSettings) -> Findings:
    """The model's hub name is not known, but differs by a letter or two from a known name of the same owner.

    Why: if the hub does not have the name, every process stops with "is not a valid model identifier" while the
    tokenizer is loaded, after the imports, on a cluster after the queue. A number that differs may also be that of a
    newer model than data/models.yaml and LLaMA-Factory know.
    Source: transformers/utils/hub.py:cached_files
    Fix: the name in the message. Where the name is right, say what the model is: `# base: NAME` in the header block.
    """
    for key, path in named_paths(run, MODEL_KEYS) if not isinstance(run.header.get("base"), str) else ():
        local = is_local_name(path) or run.workspace.find(path)
        hub_name = path.count("/") == 1 and not local and not _is_impossible_hub_name(path)
        if hub_name and not _is_known_model(path) and (meant := unknown_models.likely_meant_name(path)):
            doubt = "if that is no newer model, " if unknown_models.numbers_differ(path, meant) else ""
            text = f"model `{path}` is not known here; {doubt}did you mean `{meant}`?"
            yield key.name, text, set_value(key.name, meant, safe=False)


def _is_known_model(name: str) -> bool:
    """True if the name is in the tables of known models, or if a local hub cache holds the model."""
    try:
        return models.find_known_model(name) is not None
    except RecipeError:  # of a config.json that cannot be used
        return True


@rule("PTH007", ERROR)
def model_folder_empty(run: RunSettings) -> Findings:
    """The model folder holds no model.

    Why: transformers stops with "Unrecognized model"; for an adapter folder only after the data set is tokenized.
    Source: transformers/models/auto/configuration_auto.py:AutoConfig.from_pretrained
    Fix: name the folder with config.json; an adapter belongs into `adapter_name_or_path`.
    """
    for key, path in named_paths(run, _WHOLE_MODEL_KEYS):
        location = run.workspace.find(path)
        if not location or safe_read.path_kind(location[0] / "config.json") == "file":
            continue
        is_here = not run.workspace.may_be_elsewhere(path, key.kind)
        if is_here and safe_read.path_kind(location[0]) == "folder" and (is_local_name(path) or location[1]):
            adapter = safe_read.path_kind(location[0] / "adapter_config.json") == "file"
            found = f"`{path}` holds {'an adapter and ' if adapter else ''}no config.json"
            remedy = "name the folder by `adapter_name_or_path`" if adapter else "name the folder that holds the model"
            yield key.name, f"{found}; {remedy}"


@rule("PTH016", NOTE, about=subjects.model)
def model_folder_in_part(run: RunSettings, model: Model) -> Findings:
    """The model folder holds a config.json, but no weights or no tokenizer.

    Why: enough to judge the recipe by, not to run it. Without weights the run stops once the data are tokenized;
    without a tokenizer transformers makes up an empty one, every sample becomes a token or two, and the run ends well
    with nothing learned.
    Source: llamafactory/model/loader.py:load_model, llamafactory/model/loader.py:load_tokenizer
    Fix: all files of the model in the folder that the run is started with.
    """
    name = run.args.get("model_name_or_path")
    place = run.workspace.find(str(name)) if model.id is None else None
    if place and (parts := [*model_files.missing_files(place[0], scratch=run.args.flag("train_from_scratch"))]):
        yield "model_name_or_path", f"`{name}` holds no {' and no '.join(parts)}; put all files of the model into it"


@rule("PTH008", ERROR)
def adapter_missing(run: RunSettings) -> Findings:
    """The adapter path is a folder without an adapter, or looks local and does not exist.

    Why: found out by "Can't find 'adapter_config.json'", after the data set is tokenized and the model is loaded.
    Source: peft/config.py:PeftConfigMixin.from_pretrained, llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: name the folder that holds adapter_config.json, such as the `output_dir` of an earlier LoRA run.
    """
    for key, path in named_paths(run, ADAPTER_KEYS):
        location = run.workspace.find(path)
        is_empty = location and safe_read.path_kind(location[0] / "adapter_config.json") != "file"
        if is_empty and not run.workspace.may_be_elsewhere(path, key.kind):
            yield key.name, f"`{path}` holds no adapter_config.json; name the folder of a finished LoRA run"
        missing = is_local_name(path) and is_missing(run, path, key.kind)
        if missing and not find_earlier_adapter(run.workspace.recipe, path):
            yield key.name, f"`{path}` does not exist; name the folder of a finished LoRA run"


@rule("PTH029", NOTE)
def adapter_untrained(run: RunSettings) -> Findings:
    """The adapter does not exist yet; a recipe in the same folder trains it.

    Why: until that run has ended, this one stops with "Can't find 'adapter_config.json'", after the data set is
    tokenized and the model is loaded. `lmf-recipes train` does not start it.
    Source: peft/config.py:PeftConfigMixin.from_pretrained
    Fix: train the recipe in the message first, from the same working directory.
    """
    for key, path in named_paths(run, ADAPTER_KEYS):
        missing = not run.workspace.find(path) and is_local_name(path)
        if missing and (before := find_earlier_adapter(run.workspace.recipe, path)):
            found = f"adapter `{path}` does not exist yet"
            yield key.name, f"{found}; train `{before.name}` first, which saves the adapter there"


def _is_impossible_hub_name(name: str) -> bool:
    """True if huggingface_hub does not accept the text as a repository name, with or without an organization."""
    words = all(
        len(part) <= 96 and re.sub("[-_.]", "", part).isalnum() and not {part[0], part[-1]} & {"-", "."}
        for part in name.split("/")
    )
    return not words or "--" in name or ".." in name or name.endswith(".git")
