"""Finds LLaMA-Factory's template for a folder that holds a model: by the model's name and shapes, by the folder's own
chat template, or by the model type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import composites, releases
from validator.knowledge.families import Family, family_of_type, is_composite, with_usual_fields
from validator.knowledge.tables import json_table, yaml_table
from validator.recipe import safe_read
from validator.recipe.safe_read import read_json, read_text

Config = Mapping[str, Any]
# Where transformers looks for a chat template, the file that wins first.
_CHAT_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "tekken.json")
_SIZE_FIELDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# What stands around a turn: a token, one for a role with its line end, a mark in brackets with its space, or a word
# before a colon.
_TURN_MARK = re.compile(
    r"<\|(?:user|assistant)\|>\n?|<[^<>\s{}]+>|\[/?[A-Z_]+\](?: (?=\{))?|\[e~\[|\]~b\]|(?:### )?[A-Za-z]+:"
)
_ROLE_MARK = re.compile("(?i)<.*(?:user|assistant)")
# Formats of fine-tunes by others, the most marks first: what a model of any type may speak.
_COMMON_TEMPLATES = ("chatml", "llama3", "phi", "gemma2", "mistral", "zephyr", "vicuna", "alpaca")
_BASE_NAME = re.compile(r"(?i)(?:^|[-_.])(?:base|pt)(?:[-_.]|$)")
_TUNED_NAME = re.compile(r"(?i)instruct|chat|(?:^|[-_.])it(?:[-_.]|$)")


class ChatTemplate(NamedTuple):
    """The LLaMA-Factory template for the model in a folder. `name` is None if no template is known. `how` says where
    the template comes from. `base`: the model counts as a base model. `speaks`: all templates whose turns the folder's
    own chat template writes; empty if these are not known. `hub`: published names of a model with the same shapes and
    the same name."""

    name: str | None
    how: str
    base: bool = False
    speaks: frozenset[str] = frozenset()
    hub: tuple[str, ...] = ()


def known_templates() -> Mapping[str, Mapping[str, Any]]:
    """Return LLaMA-Factory's facts about each of its templates, by name (data/template.py)."""
    templates: Mapping[str, Mapping[str, Any]] = json_table("templates")["templates"]
    return templates


def earlier_factories() -> list[str]:
    """Return the LLaMA-Factory releases whose templates are known, and nothing else, newest first: those before the
    releases of the other tables."""
    factories: list[str] = json_table("templates")["earlier"]["llamafactory"]
    return factories


def registering_factories(template: str) -> list[str]:
    """Return the LLaMA-Factory releases that have a template, newest first, including those of `earlier_factories`."""
    everywhere = [*releases.known_factories(), *earlier_factories()] if template in known_templates() else []
    factories: list[str] = json_table("templates")["in"].get(template, everywhere)
    return factories


def template_slots() -> Mapping[str, Mapping[str, Any]]:
    """Return the texts that each of LLaMA-Factory's templates writes around turns, by name (data/template.py)."""
    slots: Mapping[str, Mapping[str, Any]] = json_table("formats")["formats"]
    return slots


def folder_template(folder: Path, config: Config, family: Family) -> ChatTemplate:
    """Return the LLaMA-Factory template for the model in a folder. It comes from a published model of the same name and
    shapes, else from the folder's own chat template, else from the model type. A folder that has a tokenizer but no
    chat template counts as a base model, unless its name says that the model is tuned."""
    name, (text, file) = model_name_of_path(folder.absolute()), _own_chat_template(folder)
    speaks = frozenset(each for each in template_slots() if text and _has_turns_of(each, text))
    sisters = list(_models_of_same_shapes(config))
    if match := _published_name(sisters, name, str(config.get("_name_or_path", ""))):
        hub, entry = match
        template = (entry.get("overrides", {}).get(hub) or {}).get("template", entry["template"])
        if not text or template in speaks:
            base = hub in entry["base"]
            how = f"that of {hub}, whose name and shapes the folder has"
            return ChatTemplate(
                None if base and not is_composite(config) else template, how, base, speaks, tuple(entry["hub"])
            )
    base = bool(_BASE_NAME.search(name))
    if text:
        candidates = (*(entry["template"] for _, entry in sisters), *family.templates, *_COMMON_TEMPLATES)
        choice = _choose_template([each for each in candidates if each in speaks], "<think>" in text)
        how = "by" if choice else "none of LLaMA-Factory's has the turns of"
        return ChatTemplate(choice, f"{how} the chat template in {file}", base, speaks)
    if any(safe_read.path_kind(folder / each) == "file" for each in _TOKENIZER_FILES) and not _TUNED_NAME.search(name):
        return ChatTemplate(None, "the folder has no chat template and is taken for a base model", base=True)
    guess = family.templates[0] if family.templates else None
    return ChatTemplate(
        guess, f"the usual one of model type {family.kind}, as the folder has no chat template to tell", base
    )


def thought_words(slots: Mapping[str, Any]) -> tuple[str, str]:
    """Return the words that a template writes before and after a thought, as a pair (data/template.py,
    register_template). `slots`: the template's entry in data/formats.json."""
    opens, closes = slots.get("thought_words") or ("<think>\n", "\n</think>\n\n")
    return opens, closes


def model_name_of_path(path: PurePath) -> str:
    """Return the name of the model that a path leads to, usually the last part of the path. In a hub cache it is taken
    from the name of a folder further up. If a training run made the last folder, such as `checkpoint-100` or `merged`,
    the name of the folder above is put before it."""
    parts = [part.replace("___", ".") for part in path.parts]
    entry = next((part for part in reversed(parts) if part.startswith("models--")), None)
    if entry:
        return entry.rpartition("--")[2]
    if len(parts) > 2 and parts[-2] == "snapshots":
        return parts[-3].rpartition("--")[2]
    is_output_folder = parts and re.fullmatch(r"checkpoint-\d+|merged|model|final|output|export(?:ed)?|hf", parts[-1])
    return "-".join(parts[-2:]).strip("/") if is_output_folder else "".join(parts[-1:])


def _choose_template(candidates: list[str], thinks: bool) -> str | None:
    """Return the first of the template names `candidates` that LLaMA-Factory marks as reasoning (if `thinks`) or as not
    reasoning (if not). If none fits, return the first candidate; if there are no candidates, None. `thinks`: the
    folder's own chat template writes thoughts."""
    facts = known_templates()
    return min(candidates, key=lambda name: bool(facts[name].get("reasoning")) != thinks, default=None)


def _own_chat_template(folder: Path) -> tuple[str, str]:
    """Return the text of the folder's own chat template and the name of its file. Both are empty if the folder has no
    chat template that can be read."""
    for name in _CHAT_FILES:
        try:
            if name.endswith(".jinja"):
                text: Any = read_text(str(folder / name))
            else:
                settings = read_json(str(folder / name))
                text = settings.get("chat_template") if isinstance(settings, dict) else None
        except RecipeError:
            continue
        if isinstance(text, list):  # several by name, the first or the one named default for a conversation
            by_name = {str(each.get("name")): each.get("template") for each in text if isinstance(each, dict)}
            text = by_name.get("default") or next(iter(by_name.values()), None)
        if isinstance(text, str) and text.strip():
            return text, name
    return "", ""


def _has_turns_of(name: str, text: str) -> bool:
    """True if a chat template (`text`) contains the marks that LLaMA-Factory's template `name` writes around turns. Of
    the tokens for roles, one is enough, because chat templates often build these tokens from the role of a message."""
    marks = _turn_marks(name)
    roles = {mark for mark in marks if _ROLE_MARK.match(mark)}
    present_marks = {mark for mark in marks if mark in text or mark.replace("\n", "\\n") in text}
    return bool(marks) and marks - roles <= present_marks and (not roles or bool(roles & present_marks))


def _turn_marks(name: str) -> set[str]:
    template = template_slots()[name]
    slots = (slot for part in ("user", "assistant") for slot in template.get(part, ()))
    return {mark for slot in slots for mark in _TURN_MARK.findall(slot if isinstance(slot, str) else slot[0])}


def _models_of_same_shapes(config: Config) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the models of data/models.yaml that have the same type and decoder sizes as `config`, as pairs (id,
    entry)."""
    models, kind, shapes = yaml_table("models"), config.get("model_type"), _decoder_sizes(config)
    keys = set(models.mention(f"model_type: {kind}".lower()))
    fields = family_of_type(str(kind)).fields if str(kind) in yaml_table("families") else {}
    for key in models.mention(f"{fields.get('hidden_size', 'hidden_size')}: {shapes[0]}"):
        candidate = models[key]["config"] if key in keys else {}
        if candidate.get("model_type") == kind and _decoder_sizes(candidate) == shapes:
            yield key, models[key]


def _decoder_sizes(config: Config) -> list[Any]:
    """Return the decoder's sizes (hidden size, layers, heads and others) by which two models are compared."""
    if is_composite(config):
        config = composites.decoder_config(composites.trained_config(config))
    kind = str(config.get("model_type"))
    fields = with_usual_fields(config, family_of_type(kind)) if kind in yaml_table("families") else config
    return [fields.get(name) for name in _SIZE_FIELDS]


def _published_name(sisters: list[tuple[str, Mapping[str, Any]]], *names: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the first published name in `sisters` whose part after the owner equals that part of one of `names`, and
    the entry of its model; None if there is no such name. `sisters`: models of the same shapes, as pairs (id, entry of
    data/models.yaml)."""
    last_parts = {name.rpartition("/")[2].lower() for name in names if name}
    candidates = ((hub, entry) for _, entry in sisters for hub in (*entry["hub"], *entry["modelscope"]))
    return next(((hub, entry) for hub, entry in candidates if hub.rpartition("/")[2].lower() in last_parts), None)
