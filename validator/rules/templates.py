"""TRA601 to TRA605 and TRA614: the template, which writes the turns of a sample."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import RecipeError, Severity
from validator.job.job import Job
from validator.rules import edits
from validator.rules.rule import Finding, rule
from validator.tables import data, models
from validator.tables.suggestion import nearest, suggest

_TEMPLATES = "; see the list of templates in LLaMA-Factory's README"
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def registered(name: str) -> str | None:
    """LLaMA-Factory's template for a chat-tuned hub name, in any case."""
    for template, groups in data.table("templates")["models"].items():
        if template and any(name.lower() == known.lower() for known in groups.get("chat", ())):
            return str(template)
    return None


def _own_template(job: Job) -> str | None:
    name = job.get("model_name_or_path")
    known = job.model.template if job.model else None
    return known or (registered(name) if isinstance(name, str) else None)


def _family_template(job: Job) -> str | None:
    """The template of the model, or for a base model that of its chat-tuned sister."""
    own = _own_template(job)
    if own or job.model is None or not job.model.hub:
        return own
    try:
        return models.model(job.model.hub[0]).template
    except RecipeError:
        return None


@rule("TRA601", Severity.ERROR)
def template_unknown(job: Job) -> Iterator[Finding]:
    """The template does not exist.

    Why: fails before the data is read, after the imports on every rank.
    Source: llamafactory/data/template.py:get_template_and_fix_tokenizer
    Fix: one of LLaMA-Factory's templates, such as qwen, qwen3, llama3, mistral, gemma3.
    """
    known = data.table("templates")["templates"]
    name = str(job.get("template"))
    if job.has("template") and name not in known:
        own = _own_template(job)
        remedy = f"; the model's is `{own}`" if own else suggest(name, known) or _TEMPLATES
        to = own or nearest(name, known)
        fix = edits.put("template", to, safe=False) if to else None
        yield "template", f"template `{name}` does not exist{remedy}", fix


@rule("TRA602", Severity.ERROR)
def prompt_not_trainable(job: Job) -> Iterator[Finding]:
    """The template cannot train on the prompt.

    Why: it marks the end of an answer at the start of the next turn; fails before the data is read.
    Source: llamafactory/data/template.py:get_template_and_fix_tokenizer
    Fix: remove `train_on_prompt`.
    """
    template = job.template
    if template and job.stage == "sft" and job.flag("train_on_prompt") and template.get("efficient_eos"):
        yield "train_on_prompt", f"template {job.get('template')} cannot train on the prompt; remove `train_on_prompt`"


@rule("TRA603", Severity.ERROR)
def tool_format_unknown(job: Job) -> Iterator[Finding]:
    """The tool format does not exist.

    Why: fails before the data is read, after the imports on every rank.
    Source: llamafactory/data/tool_utils.py:get_tool_utils
    Fix: remove it (the template has its own), or one of LLaMA-Factory's formats.
    """
    known = data.table("templates")["names"]["tool_formats"]
    name = job.get("tool_format")
    if isinstance(name, str) and name not in known:
        near = suggest(name, known) or f"; one of {', '.join(known)}"
        yield "tool_format", f"tool format `{name}` does not exist{near}"


@rule("TRA604", Severity.ERROR)
def template_needs_images(job: Job) -> Iterator[Finding]:
    """A template for images is used with a model that has no image processor.

    Why: "Processor was not found" while the data is tokenized, even without any image in it.
    Source: llamafactory/data/mm_plugin.py:MMPluginMixin._validate_input
    Fix: the template of the text model.
    """
    template = job.template
    if template is None or "image" not in template.get("media", ()):
        return
    family = _family_template(job)
    local = job.model is not None and job.model.id is None
    medialess = family and not local and not data.table("templates")["templates"].get(family, {}).get("media")
    if medialess or _without_processor(job):
        hint = f"; write `template: {family}`" if family else ""
        yield "template", f"template {job.get('template')} needs an image processor, which this model has not{hint}"


def _without_processor(job: Job) -> bool:
    """Whether the model is a local folder without the files of a processor."""
    name = job.get("model_name_or_path")
    if not isinstance(name, str) or not job.find(f"{name}/config.json"):
        return False
    return not any(job.find(f"{name}/{file}") for file in _PROCESSOR_FILES)


def _may_speak(job: Job, template: str) -> bool:
    """Whether a local folder leaves open that the template is right: a base model, a chat template that is not known or
    writes such turns itself, or a template of words without tokens."""
    model = job.model
    if model is None or model.id is not None:
        return False
    turns = str(data.table("formats")["formats"][template].get("user"))
    return model.base or not model.speaks or template in model.speaks or not ("<" in turns or "[INST]" in turns)


@rule("TRA605", Severity.WARNING)
def template_of_another_family(job: Job) -> Iterator[Finding]:
    """The template is not the one of the model.

    Why: training goes well, but the model learns marks that it does not know and that serving with its own template
    does not produce: answers that never end, or lost skills.
    Source: llamafactory/extras/constants.py:register_model_group
    Fix: the template that LLaMA-Factory registers for the model. `x` and `x_nothink` both pass.
    """
    own, name = _own_template(job), job.get("template")
    if not own or job.template is None or job.stage == "pt" or name == own:
        return
    if str(name).removesuffix("_nothink") == own.removesuffix("_nothink") or _may_speak(job, str(name)):
        return
    media = "image" in (job.template or {}).get("media", ())
    if not (media and not data.table("templates")["templates"].get(own, {}).get("media")):
        text = f"template {name} is not the one of {job.get('model_name_or_path')}; write `template: {own}`"
        yield "template", text, edits.put("template", own, safe=False)


@rule("TRA614", Severity.NOTE)
def template_missing(job: Job) -> Iterator[Finding]:
    """No template is named.

    Why: LLaMA-Factory then derives one from the tokenizer's own, which loses tools, thinking and the end of answers for
    some models, or trains without any where the tokenizer has none.
    Source: llamafactory/data/template.py:get_template_and_fix_tokenizer, llamafactory/data/template.py:parse_template
    Fix: the template that LLaMA-Factory registers for the model.
    """
    if job.trains and not job.has("template") and job.stage != "pt":
        own = _family_template(job)
        hint = f"; write `template: {own}`" if own else ""
        yield "template", f"no template is named: it is derived from the tokenizer{hint}"
