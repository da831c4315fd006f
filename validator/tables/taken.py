"""Which model of the catalogue a name stands for that is neither one of its names nor a folder here: by the last part
of a path, of another owner's hub name, or of the folder that a hub's cache or a training run makes; else by what a run
of it is called."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import pairwise, takewhile
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from validator.tables import models, unknown, wording
from validator.tables.data import listing
from validator.tables.models import Model
from validator.tables.template import own_name

# How names of quantized checkpoints end, the method as transformers calls it, and the bits.
_QUANTIZED = re.compile(
    r"(?i)[-_.](?:(?:unsloth-)?(?P<bitsandbytes>bnb)-(?P<b>[48])bit|(?P<gptq>gptq)(?:-int(?P<g>[348]))?|(?P<awq>awq)"
    r"(?:-int4)?|(?P<fp8>fp8))$"
)
# Two digits behind letters, and no size behind them: qwen25, llama31, v03.
_POINTLESS = re.compile(r"(?i)(?<=[a-z])(\d)(\d)(?![\dbm])")
# Ways of writing a name that no known one has, and what they stand for: 1p5B, 05b, Llama-3-Base-8B.
_REWRITTEN = (
    (_POINTLESS, r"\1.\2"),
    (re.compile(r"(?i)(?<=\d)p(?=\d+(?:[-_.]|b(?![a-z])))"), "."),
    (re.compile(r"(?i)(?<![\da-z.])0(?=\db(?![a-z]))"), "0."),
    (re.compile(r"(?i)(?<![a-z])(instruct|chat|base|it|vision)[-_.](\d[\d.]*b)(?![a-z])"), r"\2-\1"),
)
# Kaggle keeps models in FAMILY/FRAMEWORK/VARIATION/VERSION.
_KAGGLE = re.compile(r"(?:.*/)?(?P<family>[^/]+)/(?i:transformers|pytorch)/(?P<variation>[^/]+)/\d+$")
_WORD = re.compile(r"\d+|[a-z]+")
_SIZED = re.compile(r"(?i)\d[\d.]*[bm](?![a-z])")
# What tells variants of the same shapes apart, and is often left out.
_VARIANT = r"(?:[-_.](?:instruct|chat|it|hf|pt|base|a\d+b|v\d[\d.]*))*"
# Where LLaMA-Factory's examples have a run save whole weights: saves/MODEL/full/RUN.
_SAVED = re.compile(r"(?:.*/)?(?P<model>[^/]+)/(?:full|freeze)(?:/.*)?")
# So many parts of a path, from its end, may hold the name: saves/MODEL/full/sft/checkpoint-100.
_DEPTH = 5


class _Match(NamedTuple):
    """A name of the catalogue that was met, and what stands behind it in the name looked for; `exact`: no word is too
    many or too few."""

    key: str
    hub: str
    rest: str
    exact: bool


def model(name: str, template: Any = None) -> Model | None:
    """The model that a name stands for, `taken` from it; None where that is not sure. A name with other words than the
    known one tells the shapes, not the template: it may be trained for another. Words may stand before a known name
    only where the recipe's template is that of the known model, too: else it may be a part of another."""
    path = PurePosixPath(name.replace("\\", "/").strip())
    owner = path.parts[0].lower() if len(path.parts) == 2 and not name.startswith((".", "/", "~")) else ""
    for read in (_match, *((partial(_within, template=template),) if isinstance(template, str) else ())):
        for own in _candidates(path):
            if there := _quantized(own, read):
                sure = not unknown.other_kind(name) and not _misspelt(owner, there[0])
                return _taken(*there) if sure else None
    return None


def described(text: str, template: Any) -> Model | None:
    """The model that the name of a run or of its recipe tells, such as dpo_qwen3_8b: with its size, and of the template
    that the recipe has; None where that is not sure."""
    if not isinstance(template, str):
        return None
    for own in _rewritten(wording.without_training(text)):
        known = _match(own) or _within(own, template)
        if known and _SIZED.search(known.hub) and _speaks(known, template):
            return _taken(known._replace(exact=False), None)
    return None


def _quantized(own: str, read: Callable[[str], _Match | None]) -> tuple[_Match, re.Match[str] | None] | None:
    """What a name is read as, and the ending that says how it is quantized, where the table does not know that."""
    quantized, known = _QUANTIZED.search(own), read(own)
    if known and known.exact:
        return known, None
    if quantized:
        known = read(own[: quantized.start()])
    return (known, quantized) if known else None


def _candidates(path: PurePosixPath) -> Iterator[str]:
    """What the model may be called: the last part of the path, else one above it, with all that follows; each also as
    other names are written."""
    above = ("-".join(path.parts[-depth:]) for depth in range(2, min(_DEPTH, len(path.parts)) + 1))
    saved = _SAVED.fullmatch(str(path))
    for name in (*_at_kaggle(path), own_name(path), *above, *([saved["model"]] if saved else ())):
        yield from _rewritten(name)


def _rewritten(name: str) -> Iterable[str]:
    """The name, and as other names are written."""
    return dict.fromkeys((name, reduce(lambda text, change: change[0].sub(change[1], text), _REWRITTEN, name)))


def _at_kaggle(path: PurePosixPath) -> Iterator[str]:
    """The variation, with the family's name where it leaves that out."""
    if kept := _KAGGLE.fullmatch(str(path)):
        family, variation = kept["family"], kept["variation"]
        yield variation if variation.startswith(family) else f"{family}-{variation}"


def _taken(known: _Match, quantized: re.Match[str] | None) -> Model:
    one = models.model(known.hub)._replace(taken="name", cached="")
    if not known.exact:
        one = one._replace(template=None, base=False, hub=(), positions=None)
    if one.quantized and wording.in_16_bits(known.rest):
        one = one._replace(quantized=None, quantized_bits=0, dtype_bytes=2.0)
    if quantized is None:
        return one
    method = next(each for each in ("bitsandbytes", "gptq", "awq", "fp8") if quantized[each])
    bits = 8 if method == "fp8" else int(quantized["b"] or quantized["g"] or 4)
    return one._replace(quantized=method, quantized_bits=bits)


def _match(own: str) -> _Match | None:
    """The longest known name that `own` is, or begins with where that tells the size and nothing speaks for other
    shapes. Case and the marks between words do not count, nor `Meta-`; those within a number do."""
    words = [*_WORD.finditer(_bare(own))][:32]
    lasts = listing("models").matching(_begins([word[0] for word in words])) if words else ()
    known = [_compared(key, hub, own, words) for key, last in lasts for hub in _hubs(key, last)]
    best = min(known, key=_rank, default=None)
    if best is None or _short_of_another(own, best):
        return None
    return best if not best.rest or _keeps_shapes(best) else None


def _within(own: str, template: str) -> _Match | None:
    """The known name of a size that stands behind other words, of a model of this template."""
    words = [word for word in [*_WORD.finditer(own.lower())][1:32] if word[0].isalpha()]
    for word in words:
        known = _match(own[word.start() :]) if any(listing("models").mention(f"/{word[0]}")) else None
        if known and _SIZED.search(known.hub):
            before = own[: word.start()]
            sure = _speaks(known, template) and not (wording.other_shapes(before) or wording.of_another(before))
            return known._replace(rest=before + known.rest, exact=False) if sure else None
    return None


def _speaks(known: _Match, template: str) -> bool:
    """Whether the template is that of the known model, or of the one that was tuned from it."""
    entry = listing("models")[known.key]
    its = (entry.get("overrides", {}).get(known.hub) or {}).get("template", entry["template"])
    return bool(its) and its.removesuffix("_nothink") == template.removesuffix("_nothink")


def _rank(known: _Match) -> tuple[int, bool, int, int]:
    """What is the better match comes first: fewer words behind it, none left out; of versions the largest."""
    return len(known.rest), not known.exact, len(known.hub), -int(listing("models")[known.key]["parameters"])


def _keeps_shapes(known: _Match) -> bool:
    """Whether the words behind a known name are those of a fine-tune. The size may be said once more, or where the
    known name leaves it out."""
    size, said = _SIZED.search(known.hub), _SIZED.search(known.rest)
    if size is None and said and _close(said[0], listing("models")[known.key]["parameters"]):
        size = said
    if size is None:
        return False
    rest = re.sub(rf"(?i)(?<![\d.]){re.escape(size[0])}(?![a-z])", "", known.rest)
    rest = re.sub(rf"(?i)with[-_.]?{_generation(known.hub)}(?![\d.])", "", rest)  # a part of its own generation
    return not (wording.goes_on(rest) or wording.other_shapes(rest))


def _generation(hub: str) -> str:
    """How the name of a model begins, its family and number, as a pattern."""
    return "[-_.]?".join(word for word, _ in zip(_WORD.findall(_bare(hub)), range(2), strict=False))


def _close(size: str, parameters: int) -> bool:
    """Whether 14B says so many parameters, by the tenth that names are rounded by."""
    said = float(size[:-1]) * (1e9 if size[-1] in "bB" else 1e6)
    return abs(said / parameters - 1) < 0.1


def _compared(key: str, hub: str, own: str, words: list[re.Match[str]]) -> _Match:
    """A known name beside the words of `own`, without its `Meta-`."""
    its, bare = _WORD.findall(_bare(hub)), own[-words[-1].endpos :]
    common = len([*takewhile(lambda pair: pair[0] == pair[1][0], zip(its, words, strict=False))])
    return _Match(key, hub, bare[words[common - 1].end() :].rstrip("-_."), exact=common == len(its) == len(words))


def _begins(words: list[str]) -> re.Pattern[str]:
    """What finds the last parts of names that are made of the first of these words, one or more, but for those that
    tell variants apart."""
    pattern = ""
    for before, word in reversed([*pairwise(words)]):
        mark = "[-_.]+" if before.isdigit() and word.isdigit() else "[-_.]*"
        pattern = f"(?:{mark}{word}{pattern})?"
    return re.compile(rf"(?i)/((?:meta-)?{words[0]}{pattern}{_VARIANT})(?=[,\]\s])")


def _bare(name: str) -> str:
    """The last part of a name as names are compared."""
    return name.rpartition("/")[2].lower().removeprefix("meta-")


def _hubs(key: str, last: str) -> list[str]:
    """The first name of the entry that ends so; none where only its notes mention one."""
    entry = listing("models")[key]
    return [hub for hub in (*entry["hub"], *entry["modelscope"]) if hub.endswith(f"/{last}")][:1]


def _short_of_another(own: str, best: _Match) -> bool:
    """Whether recipes call another model so: qwen7b is Qwen2.5's, and qwen_7b_sft may be of that one, too."""
    short = own.lower() if best.exact else "".join(_WORD.findall(_bare(best.hub)))
    return any(listing("models")[other]["short"] == short for other in listing("models").mention(short)
               if other != best.key)  # fmt: skip


def _misspelt(owner: str, known: _Match) -> bool:
    """Whether the owner of the known name would have made the other: more likely a slip than a fine-tune."""
    return bool(known.rest) and known.hub.lower().startswith(f"{owner}/")
