"""SCH: keys that LLaMA-Factory does not accept, will not accept in a later release, or reads only in another command;
values of the wrong type or outside of the choices; unknown releases. No other module imports cerberus.

LLaMA-Factory does not convert the values that YAML gives it, so a wrong type fails at parsing, at the first step or
never. What really happens was measured for each argument and kind of value (data/values.json), and decides the
severity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from validator.errors import RecipeError
from validator.finding import Fix, Place, Severity
from validator.knowledge import releases, tables
from validator.knowledge.chat_templates import earlier_factories
from validator.knowledge.node_environment import is_env_enabled
from validator.knowledge.releases import ArgumentEntry, ReleasePair, ReleaseRange, argument_entry
from validator.recipe.recipe_file import Document
from validator.recipe.suggestions import nearest_name, suggest
from validator.rules import read_conditions, subjects
from validator.rules.rule import FailsAt, Violation, remove_keys, rename_key, set_value
from validator.run.checkout import find_checkout
from validator.run.recipe_arguments import converted_value, is_unusable_number, read_number
from validator.run.settings import run_of_values
from validator.wording import clip, quoted_names, shown_value

_CHOICE_CODES = ("SCH004", "SCH005")
_ACTION_KEYS = ("do_train", "do_eval", "do_predict")
# keys of other commands that the parser of train judges all the same: TRA006 and TRA013
_KEYS_JUDGED_BY_RULES = ("infer_backend", "export_quantization_bit")
# Below it a key is another word, not a slip of the hand: `image_max_tokens` is not `image_max_pixels`.
_MIN_SIMILARITY = 0.85
_MAX_KEYS_WITH_HINT = 50  # a file with more strangers is no recipe, and to compare them takes long
_BELONGS_IN_REGISTRY = "; they describe data and belong in dataset_info.json"
_ENGINE_HINT = "; mcore_adapter (Megatron) reads it where the environment has USE_MCA=1; set USE_MCA=1"
_FORK_HINT = " or of any other known release; is it from a fork?"
_FAILURE_MOMENTS = dict(zip("pdmtsevhn", FailsAt, strict=True))  # by the letter of an outcome in data/values.json
_VALUES_JUDGED_BY_RULES = ("quantization_method",)  # by TRA308 and TRA804, which know whether it is read
TYPE_WORDS = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list",
    "dict": "a mapping", "object": "nothing YAML can write",
}  # fmt: skip


class Keys(NamedTuple):
    """The keys and values of a recipe, and pairs of releases (LLaMA-Factory and transformers). `judged_releases`: the
    pairs by which the recipe is judged, newest first. `admitted`: all pairs that the header block allows."""

    values: Mapping[str, Any]
    judged_releases: list[ReleasePair]
    admitted: list[ReleasePair]


def check_schema(document: Document) -> list[Violation]:
    """Return a violation for every key that LLaMA-Factory does not accept, and for every value of the wrong type or
    outside of the choices."""
    admitted = ReleaseRange(document.header)
    remarks = list(_release_range_problems(document.header, admitted))
    judged = admitted.judged_pairs
    recipe = Keys(document.values, judged, admitted.possible_pairs)
    entries = {str(key): argument_entry(str(key), judged) for key in document.values}
    accepted = {key: argument for key, argument in entries.items() if argument is not None}
    run = run_of_values(document.values)
    wrong_values = [
        each
        for each in find_wrong_values(
            document.values,
            accepted,
            lambda key: belongs_to_other_command(key) or read_conditions.never_read(run, key),
        )
        if each.code not in _CHOICE_CODES or not _is_choice_of_fork(document, str(each.place.key))
    ]
    reported = {each.place.key for each in wrong_values}
    return [
        *remarks,
        *find_unknown_keys([key for key in entries if key not in accepted and not _is_taken(document, key)], recipe),
        *_keys_newer_than_release([key for key in entries if key in accepted], admitted),
        *wrong_values,
        *find_removed_and_foreign_keys({key: accepted[key] for key in accepted if key not in reported}, recipe),
    ]


def _is_taken(document: Document, key: str) -> bool:
    """True if the repository of the recipe holds a LLaMA-Factory that has the key, or if the environment hands the
    recipe to Megatron, which has it (PAR202)."""
    source = find_checkout(document.path)
    by_megatron = "engine" in tables.yaml_table("strangers").get(key.lower(), {}) and is_env_enabled("USE_MCA")
    return by_megatron or (source is not None and source.has_key(key))


def _is_choice_of_fork(document: Document, key: str) -> bool:
    """True if the repository of the recipe holds a LLaMA-Factory that takes the key's value."""
    source = find_checkout(document.path)
    return source is not None and source.has_choice(key, str(document.values[key]))


def _release_range_problems(header: Mapping[str, Any], admitted: ReleaseRange) -> Iterator[Violation]:
    for field, why in admitted.malformed():
        message = f"{why}; until then {field} {releases.verified_release(field)} is assumed"
        yield Violation("SCH008", Severity.WARNING, subjects.header_field(field), message)
    try:
        pairs = admitted.required_pairs
        if not admitted.stand_ins:
            return
        near, oldest = " and ".join(dict.fromkeys(version for _, version in pairs)), admitted.oldest_stand_in
        field, severity = ("llamafactory", Severity.WARNING) if oldest else ("transformers", Severity.NOTE)
        message = f"{field} {header[field]} is not a known release; judged as {near}"
        if oldest:
            found = f"{field} {header[field]} is older than the releases that are known"
            message = f"{found}; judged as {oldest} with transformers {near}, which may take and know more"
        yield Violation("SCH008", severity, Place((field,), key=field), message)
    except RecipeError as err:
        field = next(name for name in releases.RELEASE_FIELDS if header.get(name) is not None)
        yield Violation(
            "SCH008", Severity.WARNING, Place((field,), key=field), f"{err}; until then the newest releases are assumed"
        )


def find_unknown_keys(unknown: list[str], recipe: Keys) -> Iterator[Violation]:
    """Yield SCH001 for each key that at least one of the judged releases does not accept. Keys that all belong in
    dataset_info.json, or that no hint explains, share one violation. `unknown`: these keys."""
    shared: dict[str, list[str]] = {_BELONGS_IN_REGISTRY: [], _ENGINE_HINT: [], _FORK_HINT: []}
    compared = tables.json_table("arguments")["arguments"] if 0 < len(unknown) <= _MAX_KEYS_WITH_HINT else ()
    candidates = [name for name in compared if argument_entry(name, recipe.judged_releases)]
    for key in unknown:
        near = nearest_name(key, candidates, _MIN_SIMILARITY)
        guess = f"; did you mean `{near}`?" if near else _FORK_HINT
        release_without = _newest_release_without(key, recipe.judged_releases)
        remedy = _taken_by_other_release(key, release_without) or _intended_key(key) or guess
        if remedy in shared:
            shared[remedy].append(key)
        else:
            text = f"`{clip(key)}` is not a key of LLaMA-Factory {release_without[0]}{remedy}"
            yield _key_violation("SCH001", Severity.ERROR, key, text, _fix_unknown_key(key, near, recipe))
    for remedy, keys in shared.items():
        if keys:
            verb = "is not a key" if len(keys) == 1 else "are not keys"
            remedy = remedy if len(keys) == 1 else remedy.replace("is it", "are they").replace("reads it", "reads them")
            release = _newest_release_without(keys[0], recipe.judged_releases)[0]
            text = f"{quoted_names(keys)} {verb} of LLaMA-Factory {release}{remedy}"
            yield _key_violation("SCH001", Severity.ERROR, keys[0], text)


def _keys_newer_than_release(keys: list[str], admitted: ReleaseRange) -> Iterator[Violation]:
    """Yield SCH001 for each key that LLaMA-Factory does not accept in a release before those of the tables, which the
    header block names. `keys`: those that the releases of the tables accept."""
    possible = admitted.factories_before_tables(earlier_factories())
    if possible:
        newest_first = [releases.known_factories()[-1], *earlier_factories()]
        for came in newest_first[: newest_first.index(possible[0])]:
            for key in sorted({*keys} & {*tables.yaml_table("newer_keys")["since"][came]}, key=keys.index):
                found = f"`{key}` is not a key of LLaMA-Factory {possible[0]}, but of {came}"
                remedy = f'write `# llamafactory: ">={came}"` into the header block, and install it'
                yield _key_violation("SCH001", Severity.ERROR, key, f"{found}; {remedy}")


def _taken_by_other_release(key: str, release_without: ReleasePair) -> str:
    """Return, as text for a message, which other release accepts a key and what to write instead today; an empty string
    if no release accepts it."""
    newer = releases.known_pairs()[: releases.known_pairs().index(release_without)]
    first = next((pair for pair in reversed(newer) if argument_entry(key, [pair]) is not None), None)
    if first:
        package, came = ("llamafactory", first[0]) if first[0] != release_without[0] else ("transformers", first[1])
        return f', which the recipe allows; write `# {package}: ">={came}"` into the header block'
    change = tables.yaml_table("renamed").get(key)
    if change is None:
        return ""
    gone = change.get("removed", "an earlier release")
    return f" with its transformers (gone since {gone}); {_replacement_advice(change)}"


def _intended_key(key: str) -> str:
    """Return, as text for a message, what to do about a key of another program or of another file, such as
    dataset_info.json; an empty string if the key is not in the tables."""
    stranger = tables.yaml_table("strangers").get(key.lower())
    if stranger is None:
        command = tables.json_table("arguments")["elsewhere"].get(key)
        return f"'s train command; it belongs to `{command}`" if command else ""
    if "belongs" in stranger:
        return _BELONGS_IN_REGISTRY
    if "engine" in stranger:
        return _ENGINE_HINT
    return (
        f"; set {stranger['variable']} in the environment"
        if "variable" in stranger
        else f"; {_replacement_advice(stranger)}"
    )


def _fix_unknown_key(key: str, near: str | None, recipe: Keys) -> Fix | None:
    """Return the fix for an unknown key: another name for it, or None if no name is likely. `near`: the most similar
    known key. The fix is safe only if LLaMA-Factory or transformers itself renamed the key; otherwise the name is a
    guess."""
    if key in tables.yaml_table("renamed"):
        return _fix_renamed_key(key, recipe)
    stranger = tables.yaml_table("strangers").get(key.lower(), {})
    now = near if not stranger else stranger.get("now") if "how" not in stranger else None
    return rename_key(key, now, safe=False) if now and now not in recipe.values else None


def _fix_renamed_key(key: str, recipe: Keys) -> Fix | None:
    """Return the fix for a key that LLaMA-Factory or transformers renamed; None if a release by which the recipe is
    judged does not accept the new name. The fix is safe if the run stays the same under every release that the header
    block allows."""
    change, value = tables.yaml_table("renamed")[key], recipe.values[key]
    # Releases that take the key, and for something else than is so without it.
    entries = [(pair, argument_entry(key, [pair])) for pair in recipe.admitted]
    affected = [pair for pair, entry in entries if entry and entry["default"] != value]
    if change.get("leave") or ("as" in change and value is False):
        return remove_keys(key, safe=not affected)
    now = change.get("now")
    if now is None or now in recipe.values or argument_entry(now, recipe.judged_releases) is None:
        return None
    safe = all(_takes_replacement(pair, change) for pair in affected)
    if "as" in change:
        return rename_key(key, now, safe, change["as"]) if value is True else None
    is_below_limit = type(value) in (int, float) and 0 <= value < change.get("below", 0)
    return rename_key(key, now, safe) if "how" not in change or is_below_limit else None


def _takes_replacement(pair: ReleasePair, change: ArgumentEntry) -> bool:
    """True if a release understands the new name of a renamed key as it is meant. For example, before a certain release
    a share in `warmup_steps` means no warm-up at all. `change`: the table entry of the renamed key."""
    since = change.get("deprecated", "")
    return argument_entry(change["now"], [pair]) is not None and releases.is_at_least(pair, since)


def _newest_release_without(key: str, pairs: list[ReleasePair]) -> ReleasePair:
    """Return the first pair of releases (LLaMA-Factory and transformers) that does not accept the key. `pairs` are
    sorted, newest first."""
    return next(pair for pair in pairs if argument_entry(key, [pair]) is None)


def find_removed_and_foreign_keys(accepted: Mapping[str, ArgumentEntry], recipe: Keys) -> Iterator[Violation]:
    """Yield SCH006 for keys that a later release removes or has removed, and SCH007 for keys that only another command
    reads."""
    keys_by_command: dict[str, list[str]] = {}
    for key, argument in accepted.items():
        if text := _deprecation_note(key, recipe):
            change = tables.yaml_table("renamed").get(key, {})
            since = str(change.get("deprecated") or change.get("removed") or "")
            reached = all(releases.is_at_least(pair, since) for pair in recipe.judged_releases)
            fix = _fix_renamed_key(key, recipe) if reached else None
            yield _key_violation("SCH006", Severity.NOTE, key, text, fix)
        elif command := _other_command(key, argument):
            keys_by_command.setdefault(command, []).append(key)
    trained = any(map(recipe.values.get, _ACTION_KEYS)) or recipe.values.get("stage") == "ppo"
    for command, keys in keys_by_command.items():
        (verb, them), names = ("has", "it") if len(keys) == 1 else ("have", "them"), quoted_names(keys)
        if trained:
            text = f"{names} {verb} no effect here: only the {command} command reads {them}; remove {names}"
        else:
            found = f"only the {command} command reads {names}, so the recipe is taken for one that trains nothing"
            text = f"{found}; to train, set `do_train: true`"
        fix = remove_keys(*keys, safe=False) if trained else None
        yield _key_violation("SCH007", Severity.NOTE, keys[0], text, fix)


def belongs_to_other_command(key: str) -> bool:
    """True if only a command other than `train` reads the key."""
    return bool(_other_command(key, tables.json_table("arguments")["arguments"].get(key, {})))


def _other_command(key: str, argument: ArgumentEntry) -> str:
    return str(argument.get("command") or "") if key not in _KEYS_JUDGED_BY_RULES else ""


def _deprecation_note(key: str, recipe: Keys) -> str:
    """Return the message that a later release removes the key, or that the newest release has removed it. An empty
    string if the key stays, or if a release that the header block allows would misread the key's new name."""
    change = tables.yaml_table("renamed").get(key, {})
    if argument_entry(key, [releases.newest_pair()]) is None:
        remedy = f"; for newer ones {_replacement_advice(change)}" if change else ""
        gone = change.get("removed", f"LLaMA-Factory {releases.newest_pair()[0]}")
        return f"`{key}` is gone since {gone}, so the recipe runs only with older releases{remedy}"
    going = change.get("deprecated")
    misread = "below" in change and not all(_takes_replacement(pair, change) for pair in recipe.admitted)
    if misread or not going or not any(releases.is_at_least(pair, going) for pair in recipe.judged_releases):
        return ""
    remedy = _replacement_advice(change).replace("{}", clip(str(recipe.values[key])))
    return f"`{key}` is deprecated in {going}; {remedy}"


def _replacement_advice(change: ArgumentEntry) -> str:
    return str(change.get("how") or f"write `{change['now']}`")


def _key_violation(code: str, severity: Severity, key: str, text: str, fix: Fix | None = None) -> Violation:
    return Violation(code, severity, Place((key,), key=key, at_key=True), text, fix)


def find_wrong_values(
    values: Mapping[str, Any], accepted: Mapping[str, ArgumentEntry], never_read: Callable[[str], bool]
) -> Iterator[Violation]:
    """Yield a violation for each value of the wrong type or outside of the choices. `accepted`: the keys that
    LLaMA-Factory accepts. `never_read`: returns True for a key that the run never reads; a wrong value of such a key is
    reported only if LLaMA-Factory refuses it at parsing."""
    values_to_check = {key: values[key] for key in values if key in accepted and key not in _VALUES_JUDGED_BY_RULES}
    odd = {key: value for key, value in values_to_check.items() if not _has_exact_type(value, accepted[key])}
    doubtful = {key: value for key, value in odd.items() if not _is_accepted_anyway(key, value)}
    unusable = {
        key: False for key, value in doubtful.items() if is_unusable_number(value) and _takes_numbers(accepted[key])
    }
    refused = dict(_refused_by_cerberus(doubtful, accepted)) if doubtful.keys() - unusable else {}
    for key, choice in (unusable | refused).items():
        if _measured_outcome(key, _value_kind(values[key], accepted[key])) == "p" or not never_read(key):
            yield _value_violation(key, values[key], choice, accepted[key])


def _has_exact_type(value: Any, entry: ArgumentEntry) -> bool:
    """True if a value has exactly the expected type and is one of the choices. All other values are passed to cerberus,
    which is imported only then, because its import takes as long as the rest of a check."""
    kinds = entry["type"].split("|")
    typed = type(value).__name__ in kinds or (type(value) is int and "float" in kinds)
    typed = typed and not is_unusable_number(value)
    return typed and (not entry["choices"] or (isinstance(value, str) and value in entry["choices"]))


def _takes_numbers(entry: ArgumentEntry) -> bool:
    return bool({"int", "float"} & {*entry["type"].split("|")})


def _is_accepted_anyway(key: str, value: Any) -> bool:
    """True for values that work although their type is wrong: a list in a key that LLaMA-Factory splits at commas, if a
    list was measured to work; true or false for `resume_from_checkpoint` (transformers/trainer.py:Trainer.train); the
    registry itself for `dataset_dir` (llamafactory/data/parser.py:get_dataset_list)."""
    if not isinstance(value, list):
        works = {"resume_from_checkpoint": bool, "dataset_dir": dict}
        return key in works and isinstance(value, works[key])
    return all(isinstance(word, str) for word in value) and _measured_outcome(key, "list") == "."


def _refused_by_cerberus(
    values: Mapping[str, Any], arguments: Mapping[str, ArgumentEntry]
) -> Iterator[tuple[str, bool]]:
    """Yield the key of each value that cerberus refuses, and why: True if the value is not one of the choices, False if
    its type is wrong. `arguments`: the expected types and choices, by key."""
    import cerberus
    from cerberus import errors

    def plain(name: str, *types: type) -> cerberus.TypeDefinition:
        """Return a cerberus type for which true and false are not numbers."""
        return cerberus.TypeDefinition(name, types, (bool,) if bool not in types else ())

    class Arguments(cerberus.Validator):  # type: ignore[misc]
        types_mapping: ClassVar = {
            **{each.__name__: plain(each.__name__, each) for each in (bool, int, str, list, dict)},
            **{"float": plain("float", int, float), "object": plain("object")},
        }

    judge = Arguments({key: _cerberus_rule(arguments[key]) for key in values})
    judge.validate(values, normalize=False)
    for error in judge._errors:
        yield error.document_path[0], error.code == errors.UNALLOWED_VALUE.code


def _cerberus_rule(entry: ArgumentEntry) -> dict[str, Any]:
    rule: dict[str, Any] = {"type": entry["type"].split("|"), "nullable": bool(entry["optional"])}
    if entry["choices"] and "list" not in rule["type"]:
        rule["allowed"] = [*entry["choices"], *([True, False] if "bool" in rule["type"] else [])]
    return rule


def _value_kind(value: Any, entry: ArgumentEntry) -> str:
    """Return the kind of a value, such as "quoted" for a number in quotes. data/values.json lists by kind what
    LLaMA-Factory does with the value."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if is_unusable_number(value) and _takes_numbers(entry):
        return "huge" if abs(value) < math.inf else str(value)
    if isinstance(value, float):
        return "whole" if value.is_integer() else "float"
    if isinstance(value, (int, list, dict)):
        return type(value).__name__
    return "text" if "str" in entry["type"].split("|") or read_number(value) is None else "quoted"


def _measured_outcome(key: str, kind: str) -> str:
    """Return the letter by which data/values.json states what LLaMA-Factory does with a value of this kind for the key.
    If text in place of a number was not measured, the outcome of a quoted number counts."""
    table = tables.json_table("values")
    letters: str = table["outcomes"].get(key, "")
    letter = letters[table["kinds"].index(kind)] if letters else "r"
    return _measured_outcome(key, "quoted") if kind == "text" and letter in "r-" else letter


def _value_violation(key: str, value: Any, choice: bool, entry: ArgumentEntry) -> Violation:
    fails = _FAILURE_MOMENTS.get(_measured_outcome(key, _value_kind(value, entry)))
    as_meant = entry["type"] == "bool" and (value is None or value in (0, 1))  # 1 as true, 0 and null as false
    severity = Severity.ERROR if fails else Severity.NOTE if as_meant else Severity.WARNING
    effect = f"; LLaMA-Factory fails on it {fails}" if fails else "; LLaMA-Factory does not refuse it"
    if choice:
        code, text = "SCH004" if fails else "SCH005", _choice_message(key, value, entry, effect)
    else:
        code, text = "SCH002" if fails else "SCH003", _type_message(key, value, entry, effect)
    to = _intended_choice(value, entry) if choice else converted_value(value, entry)
    # What the run refuses cannot have been trained; true and false count as what was written for them.
    safe = bool(fails) or (isinstance(to, bool) and to is bool(value))
    fix = None if to is None else set_value(key, to, safe)
    return Violation(code, severity, Place((key,), key=key), text, fix)


def _intended_choice(value: Any, entry: ArgumentEntry) -> str | None:
    """Return the choice that the user meant by a value outside of the choices. That is known if only upper and lower
    case are wrong, or if YAML read `no` as false; None otherwise."""
    word = "no" if value is False else str(value).strip().lower()
    return next((str(each) for each in entry["choices"] if str(each).lower() == word), None)


def _choice_message(key: str, value: Any, entry: ArgumentEntry, effect: str) -> str:
    choices, word = [str(choice) for choice in entry["choices"]], str(value).lower()
    losses = tables.json_table("arguments")["arguments"]["pref_loss"]["choices"]
    loss = key == "stage" and word in losses
    hint = f"; write `stage: dpo` with `pref_loss: {word}`" if loss else suggest(word, choices)
    hint = hint or "; write one of these"
    return f"`{key}` is {shown_value(value)}, not one of {', '.join(choices)}{effect}{hint}"


def _type_message(key: str, value: Any, entry: ArgumentEntry, effect: str) -> str:
    expected_type = " or ".join(TYPE_WORDS[name] for name in entry["type"].split("|"))
    if is_unusable_number(value) and _takes_numbers(entry):
        finite = expected_type.replace("a number", "a finite number")
        expected_type = f"{expected_type} below 1e18" if abs(value) < math.inf else finite
    if entry["type"] == "bool" and isinstance(value, str) and value:
        found = f"`{key}` is the text {shown_value(value)}, which counts as true{effect}"
        return f"{found}; write {expected_type} without quotes"
    meant = converted_value(value, entry)
    remedy = f"write {expected_type}, or remove `{key}`" if entry["type"] != "object" else f"remove `{key}`"
    if meant is not None:
        quotes = " without quotes" if isinstance(value, str) and read_number(value) is not None else ""
        remedy = f"write `{key}: {shown_value(meant)}`{quotes}"
    return f"`{key}` is {shown_value(value)}, not {expected_type}{effect}; {remedy}"
