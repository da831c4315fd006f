"""PTH006 to PTH008, PTH016, PTH017, PTH028 and PTH029: what the names of models and adapters lead to."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import RecipeError, Severity
from validator.job import earlier
from validator.job.job import Job
from validator.job.which import local
from validator.read import disk
from validator.rules import edits
from validator.rules.paths import ADAPTERS, MODELS, judged, named, unexpanded
from validator.rules.rule import Finding, rule
from validator.tables import models

_MARKS = str.maketrans("", "", "-_.")  # of a hub name, beside letters and digits


@rule("PTH006", Severity.ERROR)
def model_missing(job: Job) -> Iterator[Finding]:
    """The model path looks local, and nothing is there.

    Why: every process stops with "Failed to load tokenizer", or the name is looked for on the hub.
    Source: llamafactory/model/loader.py:load_tokenizer
    Fix: make or download the model, correct the path, or write a hub name (`Qwen/Qwen3-8B`).
    """
    for key, path in named(job, MODELS):
        if local(path) and not job.find(path) and not unexpanded(path):
            remedy = "make or download it, or name a hub model such as `Qwen/Qwen3-8B`"
            yield key, f"`{path}` does not exist; {remedy}{judged(job, key)}"


def model_absent(job: Job) -> bool:
    """Whether the model is a path where nothing is, which PTH004 or PTH006 tells."""
    path = job.get("model_name_or_path")
    return isinstance(path, str) and local(path) and not job.find(path)


@rule("PTH017", Severity.ERROR)
def model_name_impossible(job: Job) -> Iterator[Finding]:
    """The model's name is one that no hub takes, and no folder is called so.

    Why: a place left to be filled in, such as `<your_model_path>`, or a slip. Every process stops with "Incorrect
    path_or_model_id" while the tokenizer is loaded, after the imports.
    Source: transformers/utils/hub.py:cached_files
    Fix: a hub name (`Qwen/Qwen3-8B`) or a folder that holds the model.
    """
    for key, path in named(job, MODELS):
        if not local(path) and not job.find(path) and _hub_refuses(path):
            yield key, f"`{path}` is no name of a hub and no folder; write a hub name such as `Qwen/Qwen3-8B`"


@rule("PTH028", Severity.WARNING)
def model_name_misspelt(job: Job) -> Iterator[Finding]:
    """The model's hub name is not known, and a letter or two off one of the same owner that is.

    Why: of a name that the hub does not have, every process stops with "is not a valid model identifier" while the
    tokenizer is loaded, after the imports, on a cluster after the queue. A number that differs may also be that of a
    newer model than data/models.yaml and LLaMA-Factory know.
    Source: transformers/utils/hub.py:cached_files
    Fix: the name in the message. Where the name is right, say what the model is: `# base: NAME` in the header block.
    """
    if isinstance(job.header.get("base"), str):
        return
    for key, path in named(job, MODELS):
        if path.count("/") != 1 or local(path) or job.find(path) or _hub_refuses(path) or _is_known(path):
            continue
        from validator.tables import unknown  # which no model that is known waits for

        if meant := unknown.misspelt(path):
            doubt = "if it is no newer model, " if unknown.other_numbers(path, meant) else ""
            yield key, f"`{path}` is not known here; {doubt}did you mean `{meant}`?", edits.put(key, meant, safe=False)


def _is_known(name: str) -> bool:
    """True for a name of the catalogue, and for a model that a local hub cache holds."""
    try:
        return models.known(name) is not None
    except RecipeError:  # of a config.json that cannot be used
        return True


@rule("PTH007", Severity.ERROR)
def model_folder_empty(job: Job) -> Iterator[Finding]:
    """The model folder holds no model.

    Why: transformers stops with "Unrecognized model"; for an adapter folder only after the data set is tokenized.
    Source: transformers/models/auto/configuration_auto.py:AutoConfig.from_pretrained
    Fix: name the folder with config.json; an adapter belongs into `adapter_name_or_path`.
    """
    for key, path in named(job, ("model_name_or_path", "ref_model")):
        location = job.find(path)
        if not location or disk.kind(location[0] / "config.json") == "file":
            continue
        if disk.kind(location[0]) == "folder" and (local(path) or location[1]):
            adapter = disk.kind(location[0] / "adapter_config.json") == "file"
            remedy = "it is an adapter: use `adapter_name_or_path`" if adapter else "name the folder of the weights"
            yield key, f"`{path}` holds no config.json; {remedy}"


@rule("PTH016", Severity.NOTE)
def model_folder_in_part(job: Job) -> Iterator[Finding]:
    """The model folder holds a config.json, but no weights or no tokenizer.

    Why: enough to judge the recipe by, not to run it. Without weights the run stops once the data are tokenized;
    without a tokenizer transformers makes up an empty one, every sample becomes a token or two, and the run ends well
    with nothing learned.
    Source: llamafactory/model/loader.py:load_model, llamafactory/model/loader.py:load_tokenizer
    Fix: all files of the model in the folder that the run is started with.
    """
    name = job.get("model_name_or_path")
    if job.model and job.model.id is None and (place := job.find(str(name))):
        from validator.tables import checkpoint  # which no check of a hub name waits for

        if parts := [*checkpoint.missing(place[0], scratch=job.flag("train_from_scratch"))]:
            yield (
                "model_name_or_path",
                f"`{name}` holds no {' and no '.join(parts)}; a run needs all files of the model",
            )


@rule("PTH008", Severity.ERROR)
def adapter_missing(job: Job) -> Iterator[Finding]:
    """The adapter path is a folder without an adapter, or looks local and does not exist.

    Why: found out by "Can't find 'adapter_config.json'", after the data set is tokenized and the model is loaded.
    Source: peft/config.py:PeftConfigMixin.from_pretrained, llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: name the folder that holds adapter_config.json, such as the `output_dir` of an earlier LoRA run.
    """
    for key, path in named(job, ADAPTERS):
        location = job.find(path)
        if location and disk.kind(location[0] / "adapter_config.json") != "file":
            yield key, f"`{path}` holds no adapter_config.json; name the folder of a finished LoRA run"
        elif not location and local(path) and not unexpanded(path) and not earlier.adapter(job.path, path):
            yield key, f"`{path}` does not exist; name the folder of a finished LoRA run"


@rule("PTH029", Severity.NOTE)
def adapter_untrained(job: Job) -> Iterator[Finding]:
    """The adapter does not exist yet; a recipe in the same folder trains it.

    Why: until that run has ended, this one stops with "Can't find 'adapter_config.json'", after the data set is
    tokenized and the model is loaded. `lmf-recipes train` does not start it.
    Source: peft/config.py:PeftConfigMixin.from_pretrained
    Fix: train the recipe in the message first, from the same working directory.
    """
    for key, path in named(job, ADAPTERS):
        if not job.find(path) and local(path) and (before := earlier.adapter(job.path, path)):
            yield key, f"`{path}` does not exist yet; train `{before.name}` first, which saves it there"


def _hub_refuses(name: str) -> bool:
    """Whether huggingface_hub takes it for no name, of one part or two."""
    parts = name.split("/")
    words = all(
        len(part) <= 96 and part.translate(_MARKS).isalnum() and not {part[0], part[-1]} & {"-", "."} for part in parts
    )
    return not words or "--" in name or ".." in name or name.endswith(".git")
