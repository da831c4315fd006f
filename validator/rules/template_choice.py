"""TRA601 to TRA605, TRA614, TRA618, TRA619 and TRA621: whether the template exists and suits the model, and how it
treats thoughts in the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import models, tables
from validator.knowledge.chat_templates import (
    earlier_factories,
    known_templates,
    registering_factories,
    template_slots,
    thought_words,
)
from validator.recipe.suggestions import nearest_name, unknown_name
from validator.rows.converter import FatalRowError, row_converter
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, remove_keys, rule, set_value
from validator.run.checkout import find_checkout
from validator.run.dataset_registry import Dataset
from validator.run.settings import RunSettings

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def registered_template(name: str) -> str | None:
    """Return the template that LLaMA-Factory lists for a chat-tuned hub model, ignoring case; None if it does not list
    the model."""
    for template, groups in tables.json_table("templates")["models"].items():
        if template and any(name.lower() == known.lower() for known in groups.get("chat", ())):
            return str(template)
    return None


def own_template(run: RunSettings) -> str | None:
    """Return the template of the run's model; None if it is not known."""
    name = run.args.get("model_name_or_path")
    template = run.model.template if run.model else None
    return template or (registered_template(name) if isinstance(name, str) else None)


def _family_template(run: RunSettings) -> str | None:
    """Return the template of the run's model. For a base model, return the template of the chat-tuned model of its
    family. None if neither is known."""
    template = own_template(run)
    if template or run.model is None or not run.model.hub:
        return template
    try:
        return models.find_model(run.model.hub[0]).template
    except RecipeError:
        return None


@rule("TRA601", ERROR)
def template_unknown(run: RunSettings) -> Findings:
    """The template does not exist, or not in the LLaMA-Factory release that the header block names.

    Why: fails before the data is read, after the imports on every rank.
    Source: llamafactory/data/template.py:get_template_and_fix_tokenizer
    Fix: one of LLaMA-Factory's templates, such as qwen, qwen3, llama3, mistral, gemma3; or the release that has it.
    """
    name, own, known = str(run.args.get("template")), own_template(run), known_templates()
    if not run.args.is_set("template") or _is_registered(run, name):
        return
    having = registering_factories(name)
    lacking = f"LLaMA-Factory {_possible_factories(run)[0]} has no template `{name}`, which"
    found = f"{lacking} {having[0]} has" if having else f"template `{name}` is not known"
    wanted = own if own and not _is_same_family(name, own) else name
    if wanted != name and _is_registered(run, wanted):
        text = f"{found}; write `template: {wanted}`, the model's"
        yield "template", text, set_value("template", wanted, safe=False)
    elif newer := next(iter(registering_factories(wanted)), None):
        change = "" if wanted == name else f"`template: {wanted}`, the model's, and "
        lines = f"`# llamafactory: {newer}` into the header block, and run `pip install llamafactory=={newer}`"
        yield "template", f"{found}; write {change}{lines}"
    else:
        near = nearest_name(name, known)
        fix = set_value("template", near, safe=False) if near else None
        yield "template", unknown_name("template", name, known), fix


def _is_same_family(one: str, other: str) -> bool:
    return one.removesuffix("_nothink") == other.removesuffix("_nothink")


def _possible_factories(run: RunSettings) -> Sequence[str]:
    return run.releases.factories_before_tables(earlier_factories()) or run.releases.possible_factories


def _is_registered(run: RunSettings, template: str) -> bool:
    """True if a LLaMA-Factory that the recipe allows has the template."""
    having, source = registering_factories(template), find_checkout(run.workspace.recipe)
    by_release = any(factory in having for factory in _possible_factories(run))
    return by_release or (source is not None and source.has_template(template))


@rule("TRA602", ERROR)
def prompt_not_trainable(run: RunSettings) -> Findings:
    """The template cannot train on the prompt.

    Why: it marks the end of an answer at the start of the next turn; fails before the data is read.
    Source: llamafactory/data/template.py:get_template_and_fix_tokenizer
    Fix: remove `train_on_prompt`.
    """
    template = run.template
    if template and run.task.stage == "sft" and run.args.flag("train_on_prompt") and template.get("efficient_eos"):
        text = f"template {run.args.get('template')} cannot train on the prompt; remove `train_on_prompt`"
        yield "train_on_prompt", text


@rule("TRA603", ERROR)
def tool_format_unknown(run: RunSettings) -> Findings:
    """The tool format does not exist.

    Why: fails before the data is read, after the imports on every rank.
    Source: llamafactory/data/tool_utils.py:get_tool_utils
    Fix: remove it (the template has its own), or one of LLaMA-Factory's formats.
    """
    known = tables.json_table("templates")["names"]["tool_formats"]
    name = run.args.get("tool_format")
    if isinstance(name, str) and name not in known:
        yield "tool_format", unknown_name("tool format", name, known)


@rule("TRA604", ERROR)
def template_needs_images(run: RunSettings) -> Findings:
    """A template for images is used with a model that has no image processor.

    Why: "Processor was not found" while the data is tokenized, even without any image in it.
    Source: llamafactory/data/mm_plugin.py:MMPluginMixin._validate_input
    Fix: the template of the text model.
    """
    if "image" not in run.template_media or not _is_registered(run, str(run.args.get("template"))):
        return
    family = _family_template(run)
    local = run.model is not None and run.model.id is None
    medialess = family and not local and not known_templates().get(family, {}).get("media")
    if medialess or _lacks_processor(run):
        found = f"template {run.args.get('template')} needs an image processor, which this model does not have"
        yield "template", f"{found}; {f'write `template: {family}`' if family else 'name a template of a text model'}"


def _lacks_processor(run: RunSettings) -> bool:
    """True if the model is a local folder without processor files (for images or audio)."""
    name = run.args.get("model_name_or_path")
    local = isinstance(name, str) and run.workspace.find(f"{name}/config.json")
    return bool(local) and not any(run.workspace.find(f"{name}/{file}") for file in _PROCESSOR_FILES)


def _may_suit_model(run: RunSettings, template: str) -> bool:
    """True if the template may be right for a model in a local folder, although the model's own template is not known.
    This is so if the model is a base model, if its chat template is not known or writes turns like the template's, or
    if the template uses plain words instead of special tokens."""
    model = run.model
    if model is None or model.id is not None:
        return False
    turns = str(template_slots()[template].get("user"))
    return model.base or not model.speaks or template in model.speaks or not ("<" in turns or "[INST]" in turns)


@rule("TRA605", WARNING)
def template_of_another_family(run: RunSettings) -> Findings:
    """The template is not the model's.

    Why: training goes well, but the model learns marks that it does not know and that serving with its own template
    does not produce: answers that never end, or lost skills.
    Source: llamafactory/extras/constants.py:register_model_group
    Fix: the template that LLaMA-Factory registers for the model. `x` and `x_nothink` both pass.
    """
    own, name = own_template(run), run.args.get("template")
    if not own or run.template is None or run.task.stage == "pt" or not _is_registered(run, str(name)):
        return
    if _is_same_family(str(name), own) or _may_suit_model(run, str(name)):
        return
    media = "image" in run.template_media
    if not (media and not known_templates().get(own, {}).get("media")):
        text = f"template {name} is not that of {run.args.get('model_name_or_path')}; write `template: {own}`"
        yield "template", text, set_value("template", own, safe=False)


@rule("TRA614", NOTE)
def template_missing(run: RunSettings) -> Findings:
    """No template is named.

    Why: LLaMA-Factory then derives one from the tokenizer's own, which loses tools, thinking and the end of answers for
    some models, or trains without any where the tokenizer has none.
    Source: llamafactory/data/template.py:get_template_and_fix_tokenizer, llamafactory/data/template.py:parse_template
    Fix: the template that LLaMA-Factory registers for the model.
    """
    if run.task.trains and not run.args.is_set("template") and run.task.stage != "pt":
        own = _family_template(run)
        remedy = f"write `template: {own}`" if own else "set `template` to the model's"
        yield "template", f"no template is named, so one is derived from the tokenizer; {remedy}"


# Answers of a data set that are left out of account: a few rows of another kind ruin nothing.
_IGNORED_SHARE = 0.1
# First rows of a local data set that are looked at.
_MAX_ROWS_READ = 200
# How far public data sets go without thoughts, by what sets.yaml says of them.
_PUBLIC_SHARES = {"none": 1.0, "some": 0.5, "all": 0.0}
# Stages that train on answers as the template writes them (llamafactory/data/processor).
_STAGES_WITH_TEMPLATE = ("sft", "dpo", "kto", "rm")


@rule("TRA618", WARNING)
def empty_thoughts_trained(run: RunSettings) -> Findings:
    """Answers without thoughts are trained with an empty thought, so that the model unlearns to think.

    Why: the templates of reasoning models put an empty thought before each answer that has none. With `enable_thinking`
    left at true, the loss counts it: the model learns to open and close its thought at once. The loss looks good.
    Source: llamafactory/data/template.py:ReasoningTemplate
    Fix: `enable_thinking: false` puts the empty thought into the prompt, out of the loss, and removes thoughts that
    are there; null does the same and keeps them, for mixed data. Or answers that have thoughts.
    """
    if run.args.get("enable_thinking") is not True:
        return
    lacking = _shares_without_thoughts(run)
    named = [name for name, share in lacking.items() if share > _IGNORED_SHARE]
    if not named:
        return
    own = registered_template(str(run.args.get("model_name_or_path"))) or ""
    if own == f"{run.args.get('template')}_nothink":
        remedy, fix = f"write `template: {own}`, the one of this model", set_value("template", own, safe=False)
    elif all(share == 1 for share in lacking.values()):
        remedy, fix = "write `enable_thinking: false`", set_value("enable_thinking", False, safe=False)
    else:
        remedy, fix = "write `enable_thinking: null`, which keeps the blocks that are there", None
    key = "enable_thinking" if run.args.is_set("enable_thinking") else "template"
    trained = f"so template {run.args.get('template')} trains an empty block before each answer"
    yield key, f"{_names_with_verb(named)} no thinking blocks, {trained}; {remedy}", fix


@rule("TRA619", WARNING)
def thoughts_removed(run: RunSettings) -> Findings:
    """`enable_thinking: false` removes the thoughts of data that have them.

    Why: the model is trained on the bare answers; the long thoughts that the data were chosen for are never seen.
    Source: llamafactory/data/template.py:ReasoningTemplate
    Fix: remove `enable_thinking`; null where some answers have no thought.
    """
    if run.args.get("enable_thinking") is not False:
        return
    if named := [name for name, share in _shares_without_thoughts(run).items() if share < 1 - _IGNORED_SHARE]:
        found = f"{_names_with_verb(named)} thinking blocks, which `enable_thinking: false` removes"
        text = f"{found}; remove `enable_thinking` to train on them"
        yield "enable_thinking", text, remove_keys("enable_thinking", safe=False)


@rule("TRA621", WARNING)
def thoughts_in_other_words(run: RunSettings) -> Findings:
    """Answers mark thoughts by words that the template does not know, so that thoughts are trained as answers.

    Why: gpt-oss, Gemma 4, Seed-OSS and Kimi-VL think between words of their own. A thought between `<think>` and
    `</think>` is to their templates a part of the answer, before which they put an empty thought.
    Source: llamafactory/data/template.py:ReasoningTemplate
    Fix: the words of the template in the data, which the message names.
    """
    words = _template_thought_words(run)
    foreign = {dataset.name: _other_template_word(dataset, words[0]) for dataset in run.data.datasets} if words else {}
    if words and (named := [name for name, opener in foreign.items() if opener]):
        trained = f"which template {run.args.get('template')} trains as part of the answer"
        remedy = f"write them between `{words[0]}` and `{words[1]}`"
        yield "dataset", f"{_names_with_verb(named)} thinking blocks in `{foreign[named[0]]}`, {trained}; {remedy}"


def _names_with_verb(names: list[str]) -> str:
    quoted = ", ".join(f"`{name}`" for name in names)
    return f"data set {quoted} has" if len(names) == 1 else f"data sets {quoted} have"


def _shares_without_thoughts(run: RunSettings) -> Mapping[str, float]:
    """Return the share of answers in which the run's template finds no thought, by data set. A data set is left out if
    its answers are not known, or if they use another template's words for thoughts. Empty if the template writes no
    thoughts."""
    words = _template_thought_words(run)
    if words is None:
        return {}
    sets = [each for each in run.data.datasets if not _other_template_word(each, words[0])]
    shares = {each.name: _share_without_words(each, *words) for each in sets}
    return {name: share for name, share in shares.items() if share is not None}


def _template_thought_words(run: RunSettings) -> tuple[str, str] | None:
    """Return the words, such as <think> and </think>, that the run's template expects before and after a thought. None
    if the template writes no thoughts, or if the run trains nothing with it."""
    reasons = run.template is not None and run.template.get("reasoning")
    if not reasons or run.task.stage not in _STAGES_WITH_TEMPLATE or run.data.is_tokenized or not run.task.trains:
        return None
    opens, closes = thought_words(template_slots()[str(run.args.get("template"))])
    return opens.strip(), closes.strip()


def _other_template_word(dataset: Dataset, opens: str) -> str | None:
    """Return the word by which another template begins thoughts, if it occurs in more than a few answers of the data
    set; None if there is no such word. `opens`: the word of the run's own template."""
    if dataset.rows and dataset.rows.head:
        opening_words = {thought_words(slots)[0].strip() for slots in template_slots().values()}
        answers = [*_last_answers(dataset)][:_MAX_ROWS_READ]
        counts = {each: sum(each in text for text in answers) for each in sorted(opening_words - {opens})}
        return next((each for each, count in counts.items() if count > _IGNORED_SHARE * len(answers)), None)
    published = dataset.published
    return "<think>" if published and published["thoughts"] != "none" and opens != "<think>" else None


def _share_without_words(dataset: Dataset, opens: str, closes: str) -> float | None:
    """Return the share of answers in the data set's first rows that contain neither `opens` nor `closes`, the words
    around a thought. For a public data set without local rows, return the published share. None if the answers are not
    known."""
    if dataset.rows and dataset.rows.head:
        answers = [*_last_answers(dataset)][:_MAX_ROWS_READ]
        return sum(opens not in text and closes not in text for text in answers) / len(answers) if answers else None
    return _PUBLIC_SHARES[dataset.published["thoughts"]] if dataset.published else None


def _last_answers(dataset: Dataset) -> Iterator[str]:
    """Yield the last answer of each of the data set's first rows. A preference pair has two answers, which are both
    yielded."""
    convert = row_converter(dataset.attr)
    rows: Sequence[Any] = dataset.rows.head[:_MAX_ROWS_READ] if dataset.rows else ()
    for row in rows:
        try:
            yield from (content for _, content in convert(row).answers if isinstance(content, str) and content)
        except (FatalRowError, KeyError, TypeError, AttributeError):
            continue
