"""SCH001, SCH006 and SCH007: keys that LLaMA-Factory does not take, will not take, or does not read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import Fix, Place, Severity
from validator.read.text import clip
from validator.rules import edits
from validator.rules.argument import Entry, entry
from validator.rules.rule import Violation
from validator.tables import data, releases
from validator.tables.suggestion import nearest

_ASKING = ("do_train", "do_eval", "do_predict")
# keys of other commands that the parser of train judges all the same: TRA006 and TRA013
_JUDGED = ("infer_backend", "export_quantization_bit")
# Below it a key is another word, not a slip of the hand: `image_max_tokens` is not `image_max_pixels`.
_LIKENESS = 0.85
_HINTED = 50  # a file with more strangers is no recipe, and to compare them takes long
_NAMED = 5
_IN_REGISTRY = "; they describe data and belong in dataset_info.json"
_FORK = ", nor of any other release; of a fork?"
_SHARED = (_IN_REGISTRY, _FORK)


def unknown(
    strangers: list[str],
    values: Mapping[str, Any],
    pairs: list[releases.Pair],
    admitted: list[releases.Pair],
) -> Iterator[Violation]:
    """SCH001: keys that one of the releases does not take. Those of one origin are one mistake."""
    shared: dict[str, list[str]] = {remedy: [] for remedy in _SHARED}
    for key in strangers:
        lacking = _lacking(key, pairs)
        near = _near(key, pairs) if len(strangers) <= _HINTED else None
        guess = f"; did you mean `{near}`?" if near else _FORK
        remedy = _known(key, lacking) or _meant(key) or guess
        if remedy in shared:
            shared[remedy].append(key)
        else:
            yield _stranger([key], lacking, remedy)._replace(fix=_fix(key, near, values, pairs, admitted))
    yield from (_stranger(keys, _lacking(keys[0], pairs), remedy) for remedy, keys in shared.items() if keys)


def _stranger(keys: list[str], lacking: releases.Pair, remedy: str) -> Violation:
    verb = "is not a key" if len(keys) == 1 else "are not keys"
    return _violation("SCH001", Severity.ERROR, keys[0], f"{_named(keys)} {verb} of LLaMA-Factory {lacking[0]}{remedy}")


def _named(keys: list[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(f"`{clip(key)}`" for key in keys[:_NAMED]) + more


def _known(key: str, lacking: releases.Pair) -> str:
    """Of a key that another release takes, which, and what to write today; else empty."""
    if came := _came(key, lacking):
        return f", which the recipe's range holds; it came with {came}"
    change = data.listing("renamed").get(key)
    return f" with its transformers{_removed(change)}" if change else ""


def _meant(key: str) -> str:
    """What a key of another program or file was meant for; empty where that is not known."""
    meant = data.listing("strangers").get(key.lower())
    if meant is None:
        command = data.table("arguments")["elsewhere"].get(key)
        return f"'s train command; it belongs to `{command}`" if command else ""
    if "belongs" in meant:
        return _IN_REGISTRY
    return f"; set {meant['variable']} in the environment" if "variable" in meant else f"; {_remedy(meant)}"


def _near(key: str, pairs: list[releases.Pair]) -> str | None:
    known = (name for name in data.table("arguments")["arguments"] if entry(name, pairs))
    return nearest(key, known, _LIKENESS)


def _fix(
    key: str,
    near: str | None,
    values: Mapping[str, Any],
    pairs: list[releases.Pair],
    admitted: list[releases.Pair],
) -> Fix | None:
    """What a key that is not known becomes. Only LLaMA-Factory's own renaming is no guess."""
    if key in data.listing("renamed"):
        return _renewed(key, values, pairs, admitted)
    meant = data.listing("strangers").get(key.lower(), {})
    now = near if not meant else meant.get("now") if "how" not in meant else None
    return edits.rename(key, now, safe=False) if now and now not in values else None


def _renewed(
    key: str, values: Mapping[str, Any], pairs: list[releases.Pair], admitted: list[releases.Pair]
) -> Fix | None:
    """What a key becomes that LLaMA-Factory or transformers renamed, where each of the releases takes that; safe where
    none of those `admitted` loses by it."""
    change, value = data.listing("renamed")[key], values[key]
    if change.get("leave") or ("as" in change and value is False):
        return edits.drop(key, safe=not any(_heeds(pair, key, value) for pair in admitted))
    now = change.get("now")
    if now is None or now in values or entry(now, pairs) is None:
        return None
    safe = all(_replaced(pair, change) for pair in admitted if _heeds(pair, key, value))
    if "as" in change:
        return edits.rename(key, now, safe, change["as"]) if value is True else None
    below = type(value) in (int, float) and 0 <= value < change.get("below", 0)
    return edits.rename(key, now, safe) if "how" not in change or below else None


def _heeds(pair: releases.Pair, key: str, value: object) -> bool:
    """Whether the release takes the key, and for something else than is so without it."""
    argument = entry(key, [pair])
    return argument is not None and argument["default"] != value


def _replaced(pair: releases.Pair, change: Entry) -> bool:
    """Whether the release takes what stands for a key today, as it is meant: a share as `warmup_steps` is no warm-up at
    all before the release that lets the share go."""
    return entry(change["now"], [pair]) is not None and releases.reached(pair, change.get("deprecated", ""))


def _lacking(key: str, pairs: list[releases.Pair]) -> releases.Pair:
    """The newest of the releases that does not have the key."""
    return next(pair for pair in pairs if entry(key, [pair]) is None)


def _came(key: str, lacking: releases.Pair) -> str:
    """The first newer pair that has the key, in words; empty where none has it."""
    newer = releases.known()[: releases.known().index(lacking)]
    first = next((pair for pair in reversed(newer) if entry(key, [pair]) is not None), None)
    if first is None:
        return ""
    return f"LLaMA-Factory {first[0]}" if first[0] != lacking[0] else f"transformers {first[1]}"


def _removed(change: Entry) -> str:
    return f" (gone since {change.get('removed', 'an earlier release')}); {_remedy(change)}"


def remarks(
    accepted: Mapping[str, Entry],
    values: Mapping[str, Any],
    pairs: list[releases.Pair],
    admitted: list[releases.Pair],
) -> Iterator[Violation]:
    """SCH006 and SCH007: keys that go or have gone in a later release, and keys that only another command reads."""
    others: dict[str, list[str]] = {}
    for key, argument in accepted.items():
        text = _farewell(key, values, pairs, admitted)
        if text:
            reached = all(releases.reached(pair, _parting(key)) for pair in pairs)
            fix = _renewed(key, values, pairs, admitted) if reached else None
            yield _violation("SCH006", Severity.NOTE, key, text)._replace(fix=fix)
        elif command := _other_command(key, argument):
            others.setdefault(command, []).append(key)
    trained = any(values.get(key) for key in _ASKING) or values.get("stage") == "ppo"
    for command, keys in others.items():
        text = f"{_named(keys)} {'has' if len(keys) == 1 else 'have'} no effect here: only the {command} command reads "
        text += "it" if len(keys) == 1 else "them"
        text += "" if trained else "; no training is asked for (`do_train`)"
        fix = edits.drop(*keys, safe=False) if trained else None
        yield _violation("SCH007", Severity.NOTE, keys[0], text)._replace(fix=fix)


def of_other_command(key: str) -> bool:
    """Whether only another command than train reads the key."""
    return bool(_other_command(key, data.table("arguments")["arguments"].get(key, {})))


def _other_command(key: str, argument: Entry) -> str:
    return str(argument.get("command") or "") if key not in _JUDGED else ""


def _farewell(key: str, values: Mapping[str, Any], pairs: list[releases.Pair], admitted: list[releases.Pair]) -> str:
    """The message that a later release drops the key, or that the newest has dropped it. Empty if the key stays, or if
    a release that may run the recipe would misread its replacement."""
    change = data.listing("renamed").get(key, {})
    if entry(key, [releases.newest()]) is None:
        remedy = f"; there {_remedy(change)}" if change else ""
        gone = change.get("removed", f"LLaMA-Factory {releases.newest()[0]}")
        return f"`{key}` is gone since {gone}, so the recipe ends with the older releases it names{remedy}"
    going = change.get("deprecated")
    if not going or not any(releases.reached(pair, going) for pair in pairs):
        return ""
    if "below" in change and not all(_replaced(pair, change) for pair in admitted):
        return ""
    remedy = _remedy(change).replace("{}", clip(str(values[key])))
    return f"`{key}` will go ({going} warns about it); {remedy}"


def _parting(key: str) -> str:
    """The release that lets a key go, or says that it will."""
    change = data.listing("renamed").get(key, {})
    return str(change.get("deprecated") or change.get("removed") or "")


def _remedy(change: Entry) -> str:
    return str(change.get("how") or f"write `{change['now']}`")


def _violation(code: str, severity: Severity, key: str, text: str) -> Violation:
    return Violation(code, severity, Place((key,), key=key, at_key=True), text)
