"""Which model of the catalogue a name stands for that is neither one of its names nor a folder here: by the last part
of a path, of another owner's hub name, or of the folder that a hub's cache or a training run makes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple

from validator.tables import models, unknown
from validator.tables.data import listing
from validator.tables.models import Model
from validator.tables.template import own_name

# How names of quantized checkpoints end, the method as transformers calls it, and the bits.
_QUANTIZED = re.compile(
    r"(?i)[-_.](?:(?:unsloth-)?(?P<bitsandbytes>bnb)-(?P<b>[48])bit|(?P<gptq>gptq)(?:-int(?P<g>[348]))?|(?P<awq>awq)"
    r"(?:-int4)?|(?P<fp8>fp8))$"
)
# Of a name that begins with a known one: words after which the shapes may be others.
_OTHER_SHAPES = re.compile(
    r"(?i)^[-_.]?\d|\d[bm](?![a-z])|\dx\d|\d ?bits?|(?<![a-z])(?:int|fp|w|a)\d|moe|gg[um][fl]|gptq|awq|quant|exl\d|"
    r"mlx|onnx|(?<!lora.)(?<!sft.)(?<!dpo.)merge(?!d)|omni|(?<![a-z])vl(?![a-z])|vision|visual|image|multimodal|llava|"
    r"audio|speech|video|embed|rerank|reward|(?<![a-z])p?rm(?![a-z])|prun|spars|minitron|draft|specul|eagle|medusa|mtp|"
    r"layer|depth|width|vocab|expan|extend|upscal|classif|(?<![a-z])(?:mini|tiny|nano|small|lite|large|half)(?![a-z])"
)
_WORD = re.compile(r"\d+|[a-z]+")
_SIZED = re.compile(r"(?i)\d[bm](?![a-z])")
# What tells variants of the same shapes apart, and is often left out.
_VARIANT = "(?:[-_.](?:instruct|chat|it|hf|pt|base))*"


class _Match(NamedTuple):
    """A catalogue entry, its name that was met, what stands behind that in the name looked for, and whether the name
    has no word too many or too few."""

    key: str
    hub: str
    rest: str
    exact: bool


def model(name: str) -> Model | None:
    """The model that a name stands for, `taken` from it; None where that is not sure. A name with other words than the
    known one tells the shapes, not the template: it may be trained for another."""
    owner, own = _parts(name)
    quantized = _QUANTIZED.search(own)
    known = _match(own[: quantized.start()] if quantized else own)
    if known is None or unknown.other_kind(name) or _misspelt(owner, known):
        return None
    one = models.model(known.hub)._replace(taken="name", cached="")
    if not known.exact:
        one = one._replace(template=None, base=False, hub=(), positions=None)
    return _quantized(one, quantized) if quantized else one


def _parts(name: str) -> tuple[str, str]:
    """The owner of a hub name, empty of a path, and the last part of either."""
    path = PurePosixPath(name.replace("\\", "/").strip())
    hub = not name.startswith((".", "/", "~")) and len(path.parts) == 2
    return path.parts[0].lower() if hub else "", own_name(path)


def _quantized(one: Model, ending: re.Match[str]) -> Model:
    """The model, quantized as the name ends."""
    method = next(each for each in ("bitsandbytes", "gptq", "awq", "fp8") if ending[each])
    bits = 8 if method == "fp8" else int(ending["b"] or ending["g"] or 4)
    return one._replace(quantized=method, quantized_bits=bits)


def _match(own: str) -> _Match | None:
    """The longest known name that `own` is, or begins with where that tells the size and nothing speaks for other
    shapes. Case and the marks between words do not count, nor `Meta-`; those within a number do."""
    words = [*_WORD.finditer(_bare(own))][:32]
    lasts = listing("models").matching(_begins([word[0] for word in words])) if words else ()
    known = [_compared(key, hub, own, words) for key, last in lasts for hub in _hubs(key, last)]
    best = min(known, key=lambda each: (len(each.rest), not each.exact, len(each.hub)), default=None)
    if best is None or _short_of_another(own, best.key):
        return None
    sure = best.exact or not best.rest or (_SIZED.search(best.hub) and not _OTHER_SHAPES.search(best.rest))
    return best if sure else None


def _compared(key: str, hub: str, own: str, words: list[re.Match[str]]) -> _Match:
    """A known name beside the words of `own`, without its `Meta-`."""
    count, bare = len(_WORD.findall(_bare(hub))), own[-words[-1].endpos :]
    rest = bare[words[count - 1].end() :] if count <= len(words) else ""
    return _Match(key, hub, rest, exact=count == len(words) and not rest.strip("-_."))


def _begins(words: list[str]) -> re.Pattern[str]:
    """What finds the last parts of names that are made of the first of these words, one or more."""
    pattern = _VARIANT
    for before, word in reversed([*pairwise(words)]):
        mark = "[-_.]+" if before.isdigit() and word.isdigit() else "[-_.]*"
        pattern = f"(?:{mark}{word}{pattern})?"
    return re.compile(rf"(?i)/((?:meta-)?{words[0]}{pattern})(?=[,\]\s])")


def _bare(name: str) -> str:
    """The last part of a name as names are compared."""
    return name.rpartition("/")[2].lower().removeprefix("meta-")


def _hubs(key: str, last: str) -> list[str]:
    """The first name of the entry that ends so; none where only its notes mention one."""
    entry = listing("models")[key]
    return [hub for hub in (*entry["hub"], *entry["modelscope"]) if hub.endswith(f"/{last}")][:1]


def _short_of_another(own: str, key: str) -> bool:
    """Whether it is also how recipes are called by another model: qwen7b is Qwen2.5's."""
    return any(listing("models")[other]["short"] == own.lower() for other in listing("models").mention(own.lower())
               if other != key)  # fmt: skip


def _misspelt(owner: str, known: _Match) -> bool:
    """Whether the owner of the known name would have made the other: more likely a slip than a fine-tune."""
    return bool(known.rest) and known.hub.lower().startswith(f"{owner}/")
