"""What differs between two answers to a question, told apart by how much it matters.

An answer has an exit code, standard output, standard error and the files that were written. Output is compared as JSON
where both are JSON, else line by line without bars and padding. A finding is whatever has a code such as TRA009.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

# What matters most comes first.
KINDS: Mapping[str, str] = {
    "codes": "exit codes",
    "findings": "findings",
    "verdicts": "verdicts",
    "fields": "fields and values",
    "numbers": "numbers",
    "order": "order only",
    "words": "words only",
}
_VERDICTS = frozenset({"fits", "tight", "exceeds", "unknown"})
_CODE = re.compile(r"[A-Z]{3}\d{3}")
_PLACE = ("path", "line", "column", "key", "locations")
_ANNOTATED = re.compile(r"::(?P<severity>\w+) (?P<path>.*),title=(?P<code>[A-Z]{3}\d{3})::(?P<message>.*)")
_FOUND = re.compile(r"(?P<path>.*?): (?P<severity>error|warning|note): (?P<message>.*) \[(?P<code>[A-Z]{3}\d{3})\]")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_BARS = re.compile("[\u2580-\u259f|]+")
_TOKEN = re.compile(r"`[^`]*`|\d[\d,]*(?:\.\d+)?|\w[\w'-]*|\S")
_COUNTED = re.compile(r"\b(?:\d+|no) (error|warning|note|fixable)s?\b")
_COUNTS = re.compile(r"(.*\.)?(errors|warnings|notes|ruleIndex)")
_MOST = 3000  # words of a text that are compared one by one


@dataclass(frozen=True)
class Difference:
    """One difference at one place. `cause` is what it shares with others of its kind: the JSON field, the code of a
    finding, the words that were replaced and those in their place. `change` is relative."""

    kind: str
    cause: str
    old: str
    new: str
    change: float | None = None


class Names:
    """Names that have changed on purpose, as OLD=NEW."""

    def __init__(self, pairs: Sequence[str] = ()) -> None:
        self._new = dict(pair.split("=", 1) for pair in pairs)
        either = "|".join(map(re.escape, sorted(self._new, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?<![\w-])(?:{either})(?![\w-])") if either else None

    def text(self, text: str) -> str:
        """The text with new names. Both answers are read so, as an old name may still be a usual word."""
        return self._pattern.sub(lambda found: self._new[found[0]], text) if self._pattern else text

    def value(self, value: Any, keys: bool) -> Any:
        """The JSON value with new names in its texts and, if wanted, in its keys."""
        if isinstance(value, dict):
            return {self._new.get(k, k) if keys else k: self.value(each, keys) for k, each in value.items()}
        if isinstance(value, list):
            return [self.value(each, keys) for each in value]
        return self.text(value) if isinstance(value, str) else value


def compare(command: str, old: Mapping[str, Any], new: Mapping[str, Any], names: Names) -> list[Difference]:
    """Every difference between the two answers of a command."""
    if old == new:
        return []
    found: list[Difference] = []
    if old["code"] != new["code"]:
        found.append(Difference("codes", f"{old['code']} -> {new['code']}", _last(old["err"]), _last(new["err"])))
        if bool(old["out"]) != bool(new["out"]):
            return found  # one of them answers nothing that could be compared
    found += _contents(old["out"], new["out"], names, f"text of {command}")
    found += _contents(old["err"], new["err"], names, f"standard error of {command}")
    for name in sorted(old["files"].keys() | new["files"].keys()):
        if name not in new["files"]:
            found.append(Difference("fields", f"{command} no longer writes a file", name, ""))
        elif name not in old["files"]:
            found.append(Difference("fields", f"{command} writes a file", "", name))
        else:
            found += _contents(old["files"][name], new["files"][name], names, f"files that {command} writes")
    return found


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _contents(old: str, new: str, names: Names, where: str) -> list[Difference]:
    if old == new:
        return []
    try:
        old_value, new_value = json.loads(old), json.loads(new)
    except ValueError:
        return list(_texts(names.text(old).splitlines(), names.text(new).splitlines(), where))
    if not isinstance(old_value, dict | list) or not isinstance(new_value, dict | list):
        return list(_texts(names.text(old).splitlines(), names.text(new).splitlines(), where))
    found = list(_values(names.value(old_value, keys=True), names.value(new_value, keys=False), ""))
    if any(each.kind == "findings" for each in found):  # which are counted, too
        found = [each for each in found if each.kind != "numbers" or not _COUNTS.fullmatch(each.cause)]
    return found


def _values(old: Any, new: Any, path: str) -> Iterator[Difference]:
    """Differences between two JSON values that stand at the same place."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _objects(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _lists(old, new, path)
    elif _is_number(old) and _is_number(new):
        if old != new:
            yield Difference("numbers", path, str(old), str(new), _change(old, new))
    elif isinstance(old, str) and isinstance(new, str):
        yield from _strings(old, new, path)
    elif old != new:
        yield Difference("fields", f"{path}: {_shape(old)} -> {_shape(new)}", _short(old), _short(new))


def _objects(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[Difference]:
    gone, came = [key for key in old if key not in new], [key for key in new if key not in old]
    for key in gone:
        same = next((other for other in came if new[other] == old[key]), None)
        if same is None:
            yield Difference("fields", f"{_at(path, key)} is gone", _short(old[key]), "")
        else:
            came.remove(same)
            yield Difference("fields", f"{_at(path, key)} is now {same}: with --renamed {key}={same}?", key, same)
    for key in came:
        yield Difference("fields", f"{_at(path, key)} is new", "", _short(new[key]))
    if old == new and list(old) != list(new):
        yield Difference("order", f"keys of {path or 'the answer'}", ", ".join(old), ", ".join(new))
    for key in old:
        if key in new:
            yield from _values(old[key], new[key], _at(path, key))


def _lists(old: list[Any], new: list[Any], path: str) -> Iterator[Difference]:
    if _is_findings(old + new):
        yield from _findings(old, new, path)
        return
    pairs, gone, came, moved = _paired(old, new)
    if moved and all(a == b for a, b in pairs) and not gone and not came:
        yield Difference("order", f"{path}[]", _short(old[0]), _short(new[0]))
    for a, b in pairs:
        yield from _values(a, b, f"{path}[]")
    if gone and len(gone) == len(came) and all(isinstance(each, str) for each in gone + came):
        for a, b in zip(gone, came, strict=True):
            yield from _strings(a, b, f"{path}[]")
        return
    for entries, what in ((gone, "gone"), (came, "new")):
        for each in entries:
            told = _short(each)
            yield Difference(
                "fields", f"{path}[]: entries {what}", told if what == "gone" else "", told if what == "new" else ""
            )


def _paired(old: list[Any], new: list[Any]) -> tuple[list[tuple[Any, Any]], list[Any], list[Any], bool]:
    """Pairs of entries that stand for the same thing, the entries of either list alone, and True where pairs have
    another order. Two entries stand for the same thing if they are equal, else if they are objects of one name, else if
    they are equal but for numbers. Objects that are left over are paired one by one if both lists have as many."""
    pairs: list[tuple[int, int]] = []
    free_old, free_new = dict(enumerate(old)), dict(enumerate(new))
    for mark in (_canonical, _identity, _skeleton):
        places: dict[str, deque[int]] = defaultdict(deque)
        for at, each in free_new.items():
            places[mark(each)].append(at)
        for at, each in list(free_old.items()):
            if (name := mark(each)) and places[name]:
                pairs.append((at, places[name].popleft()))
                del free_old[at], free_new[pairs[-1][1]]
    if len(free_old) == len(free_new) and all(isinstance(e, dict) for e in (*free_old.values(), *free_new.values())):
        pairs += zip(list(free_old), list(free_new), strict=True)
        free_old, free_new = {}, {}
    pairs.sort()
    moved = [at for _, at in pairs] != sorted(at for _, at in pairs)
    return [(old[a], new[b]) for a, b in pairs], list(free_old.values()), list(free_new.values()), moved


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _skeleton(value: Any) -> str:
    return _NUMBER.sub("#", _canonical(value))


def _identity(value: Any) -> str:
    """What names an object; empty where nothing does."""
    named = (
        [value[key] for key in ("path", "name", "model", "what") if isinstance(value.get(key), str)]
        if isinstance(value, dict)
        else []
    )
    return "\0".join(named)


def _findings(old: list[Any], new: list[Any], path: str) -> Iterator[Difference]:
    """Findings that came, went, or have another place or severity; other differences of those that stayed."""
    places: dict[str, deque[Any]] = defaultdict(deque)
    for each in new:
        places[f"{_code(each)} {_place(each)}"].append(each)
    gone: dict[str, list[Any]] = defaultdict(list)
    for each in old:
        if there := places[f"{_code(each)} {_place(each)}"]:
            yield from _stayed(each, there.popleft(), path)
        else:
            gone[_code(each)].append(each)
    came: dict[str, list[Any]] = defaultdict(list)
    for each in (each for there in places.values() for each in there):
        came[_code(each)].append(each)
    for code in sorted(gone.keys() | came.keys()):
        yield from _came_and_went(code, gone[code], came[code])
    if old != new and Counter(map(_canonical, old)) == Counter(map(_canonical, new)):
        yield Difference("order", f"findings in {path or 'a text'}", _told(old[0]), _told(new[0]))


def _stayed(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[Difference]:
    if _severity(old) != _severity(new):
        yield Difference("findings", f"{_code(old)}: {_severity(old)} -> {_severity(new)}", _told(old), _told(new))
    known = ("severity", "level", *_PLACE)
    old, new = ({key: each[key] for key in each if key not in known} for each in (old, new))
    yield from _values(old, new, path)


def _came_and_went(code: str, gone: list[Any], came: list[Any]) -> Iterator[Difference]:
    """Findings of one code. As many as there are on both sides have moved."""
    for a, b in zip(gone, came, strict=False):
        yield Difference("findings", f"{code} moved", _place(a), _place(b))
    for each in gone[len(came) :]:
        yield Difference("findings", f"{code} is gone ({_severity(each)})", _told(each), "")
    for each in came[len(gone) :]:
        yield Difference("findings", f"{code} is new ({_severity(each)})", "", _told(each))


def _is_findings(entries: list[Any]) -> bool:
    return bool(entries) and all(isinstance(each, dict) and _code(each) for each in entries)


def _code(entry: Mapping[str, Any]) -> str:
    """The code of a finding in our JSON, or of a finding or rule in SARIF; empty for anything else."""
    code = entry.get("code") or entry.get("ruleId") or entry.get("id")
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _severity(finding: Mapping[str, Any]) -> str:
    return str(finding.get("severity") or finding.get("level") or "a rule")


def _place(finding: Mapping[str, Any]) -> str:
    return " ".join(_short(finding[key]) for key in _PLACE if finding.get(key) is not None)


def _told(finding: Mapping[str, Any]) -> str:
    return f"{_place(finding)}: {_short(finding.get('message', ''))}"


def _strings(old: str, new: str, path: str) -> Iterator[Difference]:
    if old == new:
        return
    if path.endswith("verdict") or {old, new} <= _VERDICTS:
        yield Difference("verdicts", f"{old} -> {new}", path, path)
    elif " " in old + new:
        yield from _texts(old.splitlines(), new.splitlines(), path)
    else:
        yield Difference("fields", f"{path}: {_short(old)} -> {_short(new)}", old, new)


def _texts(old: Sequence[str], new: Sequence[str], where: str) -> Iterator[Difference]:
    """Differences between two texts, but for bars and padding."""
    old_found, old_lines = _split(old)
    new_found, new_lines = _split(new)
    findings = list(_findings(old_found, new_found, ""))
    yield from findings
    if any(each.kind == "findings" for each in findings):  # which are counted, too
        old_lines, new_lines = ([_COUNTED.sub(r"# \1s", line) for line in lines] for lines in (old_lines, new_lines))
    if old_lines == new_lines:
        return
    if sorted(old_lines) == sorted(new_lines):
        a, b = next((a, b) for a, b in zip(old_lines, new_lines, strict=True) if a != b)
        yield Difference("order", f"lines in {where}", a, b)
        return
    places: dict[str, deque[int]] = defaultdict(deque)
    for at, line in enumerate(new_lines):
        places[_NUMBER.sub("#", line)].append(at)
    gone: list[int] = []
    for at, line in enumerate(old_lines):
        if queue := places[_NUMBER.sub("#", line)]:
            yield from _numbers(line, new_lines[queue.popleft()], where)
        else:
            gone.append(at)
    came = sorted(at for queue in places.values() for at in queue)
    yield from _reworded(_runs(gone, old_lines), _runs(came, new_lines), where)


def _split(lines: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The findings of a text, each with the excerpt that follows, and its other lines."""
    findings: list[dict[str, Any]] = []
    others: list[str] = []
    follows = False
    for line in lines:
        follows = follows and line.startswith("    ")
        if found := _FOUND.fullmatch(line) or _ANNOTATED.fullmatch(line):
            findings.append({**found.groupdict(), "excerpt": ""})
            follows = True
        elif follows:
            findings[-1]["excerpt"] += " ".join(line.split()) + " "
        elif plain := " ".join(_BARS.sub(" ", line).split()):
            others.append(plain)
    return findings, others


def _numbers(old: str, new: str, where: str) -> Iterator[Difference]:
    changes = [
        _change(a, b)
        for a, b in zip(map(_read, _NUMBER.findall(old)), map(_read, _NUMBER.findall(new)), strict=True)
        if a != b
    ]
    if old != new:
        yield Difference("numbers", where, old, new, max(changes, key=abs, default=0.0))


def _runs(places: Sequence[int], lines: Sequence[str]) -> list[str]:
    """Lines at these places, those that follow each other joined: a paragraph may be broken elsewhere than before."""
    runs: list[str] = []
    for before, at in zip([None, *places], places, strict=False):
        if before is not None and at == before + 1:
            runs[-1] += f" {lines[at]}"
        else:
            runs.append(lines[at])
    return runs


def _reworded(old: list[str], new: list[str], where: str) -> Iterator[Difference]:
    """What was said otherwise: each change of words on its own."""
    if len(old) != len(new):
        old, new = [" ".join(old)], [" ".join(new)]
    for a, b in zip(old, new, strict=True):
        a_words, b_words = _TOKEN.findall(a), _TOKEN.findall(b)
        a_masked, b_masked = [_mask(word) for word in a_words], [_mask(word) for word in b_words]
        if len(a_words) + len(b_words) > _MOST:
            yield Difference("words", f"much of {where}", a, b)
            continue
        changes = _changes(a_masked, b_masked)
        for low, high, start, end in changes:
            before, after = " ".join(a_masked[low:high]), " ".join(b_masked[start:end])
            kind = "verdicts" if {before, after} <= _VERDICTS else "words"
            cause = f"{before} -> {after}" if kind == "verdicts" else f"“{before}” -> “{after}”"
            yield Difference(kind, cause, _around(a_words, low, high), _around(b_words, start, end))
        if not changes:
            yield Difference("words", f"names in {where}", a, b)


def _changes(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Places of words that were replaced; two with hardly a word between them are one."""
    found: list[tuple[int, int, int, int]] = []
    for tag, low, high, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if found and low - found[-1][1] <= 2:
            found[-1] = (found[-1][0], high, found[-1][2], end)
        else:
            found.append((low, high, start, end))
    return found


def _around(words: Sequence[str], low: int, high: int) -> str:
    return " ".join(words[max(0, low - 3) : high + 3])


def _mask(word: str) -> str:
    return "`…`" if word.startswith("`") and len(word) > 1 else "#" if word[0].isdigit() else word


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read(number: str) -> float:
    return float(number.replace(",", ""))


def _change(old: float, new: float) -> float:
    return (new - old) / abs(old) if old else float("inf") * (1 if new > 0 else -1)


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shape(value: Any) -> str:
    if _is_number(value):
        return "a number"
    return {"dict": "an object", "list": "a list", "str": "a text"}.get(type(value).__name__) or json.dumps(value)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:99]}…"
