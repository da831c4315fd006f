"""PTH001 to PTH005, PTH012 and PTH013: what a recipe's paths name. Models and adapters are in weights.py, data sets in
registry.py, earlier runs in resuming.py."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from validator.diagnostic import Edit, Fix, RecipeError, Severity, Verdict
from validator.job.datasets import REGISTRY
from validator.job.job import Job
from validator.job.which import local
from validator.job.zero import Zero
from validator.read import disk
from validator.read.tree import read_json
from validator.rules import inside
from validator.rules.rule import Finding, rule
from validator.tables.checkout import home
from validator.tables.suggestion import suggest

# Keys that name something to be read. LLaMA-Factory splits the adapters at commas.
_READ = (
    "model_name_or_path", "adapter_name_or_path", "deepspeed", "dataset_dir", "resume_from_checkpoint", "fsdp_config",
    "accelerator_config", "ref_model", "reward_model", "ref_model_adapters", "reward_model_adapters",
)  # fmt: skip
_WRITTEN = ("output_dir", "tokenized_path")
PATHS = frozenset((*_READ, *_WRITTEN))  # placeholders in them are judged here
_MEMORY: Mapping[Verdict, str] = {"fits": "fits", "tight": "is tight", "exceeds": "exceeds memory"}
MODELS = ("model_name_or_path", "ref_model", "reward_model")
ADAPTERS = ("adapter_name_or_path", "ref_model_adapters", "reward_model_adapters")


@rule("PTH001", Severity.ERROR)
def deepspeed_missing(job: Job) -> Iterator[Finding]:
    """The DeepSpeed file does not exist.

    Why: every process stops while the arguments are parsed, after some 20 seconds of imports under torchrun: "Expected
    a string path to an existing deepspeed config". Memory is judged by the stage that the name tells; where it tells
    none, only if LLaMA-Factory's own files all come to the same.
    Source: accelerate/utils/deepspeed.py:HfDeepSpeedConfig.__init__
    Fix: name an existing file; relative paths count from the working directory, not from the recipe.
    """
    name = _zero_name(job)
    if name and not job.find(name) and not unexpanded(name):
        missing = f"`{name}` does not exist, here or in a folder above the recipe"
        registry = astray(job)
        both = f", nor does `{registry}`: start in the folder that holds both" if registry else ""
        yield "deepspeed", f"{missing}{both}{judged(job, 'deepspeed')}{_instead(job, name)}"


def judged(job: Job, key: str) -> str:
    """What a DeepSpeed file or a model that is not there is taken for."""
    if key == "deepspeed" and job.zero and job.zero.assumed:
        return f"; judged as {job.zero.words}, as its name says"
    if key == "deepspeed" and job.unread:
        return _under_each(job.unread.verdicts)
    return f"; judged as {guessed}" if key == "model_name_or_path" and (guessed := taken(job)) else ""


def _under_each(verdicts: Mapping[str, Verdict]) -> str:
    """What LLaMA-Factory's own files would make of the run."""
    by_verdict: dict[Verdict, list[str]] = {}
    for words, verdict in verdicts.items():
        by_verdict.setdefault(verdict, []).append(words)
    if len(by_verdict) == 1:
        (verdict,) = by_verdict
        return f"; its name tells no stage, and with each of LLaMA-Factory's own the run {_MEMORY[verdict]}"
    several = (f"the run {_MEMORY[verdict]} with {', '.join(words)}" for verdict, words in by_verdict.items())
    return f"; its name tells no stage: {', '.join(several)}"


def taken(job: Job) -> str:
    """Which model the one that the recipe names is taken for, and why; empty where it is known, or the header says."""
    model = job.model
    if model is None or model.taken not in ("name", "run", "recipe"):
        return ""
    quantized = f", quantized by {model.quantized}" if model.quantized else ""
    why = {"name": "by its name", "run": f"which `{model.how}` trains or merges into it", "recipe": f"by {model.how}"}
    return f"{model.name}{quantized}, {why[model.taken]}"


def astray(job: Job) -> str | None:
    """The registry, where neither it nor the DeepSpeed file is found from the folder that both are written for."""
    name, folder = _zero_name(job), job.get("dataset_dir")
    if job.registry is None or job.tokenized or not name or not isinstance(folder, str) or unexpanded(name):
        return None
    registry = f"{folder}/{REGISTRY}"
    relative = not (Path(name).is_absolute() or Path(folder).is_absolute())
    return registry if relative and not job.find(name) and not job.find(registry) else None


def _instead(job: Job, name: str) -> str:
    """How to get a DeepSpeed file that is not there: from the catalogue, or by another name."""
    file = _alike(job.zero) if job.zero and job.zero.assumed else Path(name).name
    if disk.kind(home() / "deepspeed" / file) == "file":
        return f"; `lmf-recipes copy {file} .` writes `deepspeed/{file}`"
    known = {path.name for folder in job.folders for path in disk.matching(folder, "deepspeed/*.json")}
    return suggest(file, known).replace("`", "`deepspeed/", 1)


def _alike(zero: Zero) -> str:
    """What the catalogue calls its file of the same stage and offload."""
    offload = "_offload_all" if zero.offload("offload_param") else "_offload" if zero.offloads else ""
    return f"ds_z{zero.stage}{offload}.json"


@rule("PTH002", Severity.NOTE)
def found_from_elsewhere(job: Job) -> Iterator[Finding]:
    """A relative path is right from another folder than the working directory.

    Why: LLaMA-Factory takes relative paths from the working directory, whatever the recipe's own folder is.
    Source: llamafactory/hparams/parser.py:read_args
    Fix: start from the folder named, write the path absolute, or use `lmf-recipes train`, which does that for you.
    """
    places = {key: location for key, path in _relative(job) if (location := job.find(path)) and not location[1]}
    if places:
        key, (place, _) = next(iter(places.items()))
        wanted = Path(dict(_relative(job))[key])
        folder = place.parents[len(wanted.parts) - 1]
        others = f" (and {', '.join(list(places)[1:])})" if len(places) > 1 else ""
        text = f"`{wanted}`{others} is not in the working directory; it works when started in `{folder}`"
        yield key, text, _from_here(job, {key: place for key, (place, _) in places.items()})


@rule("PTH003", Severity.ERROR)
def deepspeed_unreadable(job: Job) -> Iterator[Finding]:
    """The DeepSpeed configuration is not a JSON object.

    Why: every process stops while the arguments are parsed.
    Source: accelerate/utils/deepspeed.py:HfDeepSpeedConfig.__init__
    Fix: correct the place named; JSON has no comments, no trailing commas and only double quotes.
    """
    value = job.get("deepspeed")
    if job.zero and job.zero.problem and isinstance(value, str) and (value.startswith("{") or job.find(value)):
        why = job.zero.problem
        also = "; JSON has no comments and no trailing commas" if "is not valid JSON" in why else ""
        yield inside.deepspeed(job), f"{why}{also}"


@rule("PTH004", Severity.ERROR)
def path_not_expanded(job: Job) -> Iterator[Finding]:
    """A path to be read holds `~` or a variable, which LLaMA-Factory does not expand.

    Why: the path is taken letter by letter and does not exist; only `output_dir` expands `~`.
    Source: llamafactory/hparams/parser.py:read_args, transformers/training_args.py:TrainingArguments.__post_init__
    Fix: write the path out.
    """
    for key, path in named(job, _READ):
        if unexpanded(path) and not path.startswith("{") and not job.find(path):
            why = "is taken literally and does not exist: ~ and variables are not expanded; write it out"
            yield key, f"`{path}` {why}{judged(job, key)}"


@rule("PTH005", Severity.WARNING)
def folder_created_literally(job: Job) -> Iterator[Finding]:
    """An output path holds a variable, or `~` where it is not expanded.

    Why: a folder with exactly this name is created in the working directory, and results end up there.
    Source: llamafactory/hparams/parser.py:read_args, transformers/training_args.py:TrainingArguments.__post_init__
    Fix: write the path out, or pass it on the command line, where the shell expands it: `output_dir=$HOME/run1`.
    """
    for key, path in named(job, _WRITTEN):
        rest = path.removeprefix("~") if key == "output_dir" else path
        if unexpanded(rest) and not (key == "tokenized_path" and job.find(path)):
            yield key, f"`{path}` is taken literally: a folder of exactly this name is created; write it out"


@rule("PTH012", Severity.ERROR)
def space_in_recipe_path(job: Job) -> Iterator[Finding]:
    """The recipe's path holds a space, and the run starts through torchrun.

    Why: LLaMA-Factory joins the torchrun command with spaces and splits it again, so every process gets half a path.
    Source: llamafactory/launcher.py:launch
    Fix: rename the file or folder.
    """
    if re.search(r"\s", job.path) and (job.world > 1 or job.engine):
        yield None, f"`{job.path}` holds a space, at which LLaMA-Factory splits the torchrun command; rename it"


@rule("PTH013", Severity.ERROR)
def settings_file_missing(job: Job) -> Iterator[Finding]:
    """`fsdp_config` or `accelerator_config` names a file that is not there, or no JSON.

    Why: every process stops while the arguments are parsed.
    Source: transformers/training_args.py:TrainingArguments.__post_init__,
    transformers/training_args.py:TrainingArguments._process_fsdp_args
    Fix: name an existing JSON file, from the working directory, or write its keys as a mapping in the recipe.
    """
    for key, path in named(job, ("fsdp_config", "accelerator_config")):
        location = job.find(path)
        if location is None:
            if not unexpanded(path):
                yield key, f"`{path}` does not exist; name a JSON file or write its keys as a mapping"
            continue
        try:
            read_json(str(location[0]))
        except RecipeError as err:
            yield inside.settings(job, key), str(err)


def named(job: Job, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for key in keys:
        value = job.get(key)
        if key in ADAPTERS:
            yield from ((key, word) for word in job.words(key) if word)
        elif isinstance(value, str) and value:
            yield key, value


def _from_here(job: Job, places: Mapping[str, Path]) -> Fix | None:
    """The paths as they are written from the working directory, where they lie in that. Started from where they are
    right today, the recipe works; so it is no safe fix."""
    here = Path.cwd()
    sets = []
    for key, place in places.items():
        inside_here = Path(os.path.normpath(place.absolute()))
        target = inside_here.parent if key == "dataset_dir" else inside_here
        if not target.is_relative_to(here) or not isinstance(job.values.get(key), str) or "," in job.values[key]:
            return None
        sets.append(Edit("set", key, target.relative_to(here).as_posix()))
    return Fix(tuple(sets), safe=False)


def _relative(job: Job) -> Iterator[tuple[str, str]]:
    """Paths of which the file system shows whether they are meant; a model may also be a hub name."""
    for key, path in named(job, _READ):
        if key == "deepspeed":
            path = _zero_name(job) or ""
        elif key == "dataset_dir":
            path = f"{path}/{REGISTRY}" if job.registry else ""
        elif key in (*MODELS, *ADAPTERS) and not local(path):
            path = ""
        if path and not Path(path).is_absolute():
            yield key, path


def _zero_name(job: Job) -> str | None:
    """The `deepspeed:` value where it is a file name, not JSON text or its base64 form."""
    value = job.get("deepspeed")
    if not isinstance(value, str) or value.startswith("{"):
        return None
    encoded = "." not in value and re.fullmatch(r"[A-Za-z0-9_=-]{24,}", value)
    return None if encoded else value


def unexpanded(path: str) -> bool:
    """Whether it holds `~` or a variable. The pattern is compiled only where it may match, which few checks need."""
    return ("~" in path or "$" in path) and bool(re.search(r"^~|(?<!\\)\$[\w{]", path))
