"""Guesses which model of the catalogue an unlisted name stands for: by the last part of a path, of another owner's hub
name, or of the folder that a hub's cache or a training run makes; else by the name of a run. Words beside the known
name may suggest other shapes, or quantized weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import pairwise, takewhile
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from validator.knowledge import models, unknown_models
from validator.knowledge.chat_templates import model_name_of_path
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table

# Patterns are texts, which `re` compiles when they are first used: most checks use none of them.
# Beside a known name: words with which the shapes may be others, or it is an adapter.
_OTHER_SHAPES = (
    r"(?i)\d[bm](?![a-z])|\dx\d|(?<![a-z\d])\dx(?![a-z])|\d ?bits?|(?<![a-z])(?:int|fp(?!16)|w|a)\d|moe|gg[um][fl]|"
    r"gptq|awq|quant|exl\d|mlx|onnx|(?<!lora.)(?<!sft.)(?<!dpo.)merge(?!d)|omni|(?<![a-z])v(?:l(?![a-z])|-|$)|vision|"
    r"visual|image|multimodal|llava|audio|speech|video|embed|rerank|reward|(?<![a-z])p?rm(?![a-z])|prun|spars|minitron|"
    r"draft|specul|eagle|medusa|mtp|adapter|(?<![a-z])q?lora(?![a-z])(?!.*merge)|data(?![a-z])|generated|layer|depth|"
    r"width|vocab|expan|extend|upscal|classif|memory"
)
# The same, but behind the word for a training they are about its data: sft_text_only; nor are a few tokens a part.
_SHAPE_PARTS = (
    r"(?i)with(?!.*(?:token|think|reason|(?<![a-z])cot(?![a-z])))|"
    r"(?<![a-z])(?:only|mini|tiny|nano|small|lite|large|half)(?![a-z])"
)
_TRAINING_STAGE = r"(?i)(?<![a-z])(?:sft|dpo|kto|orpo|simpo|ppo|grpo|rft|cpt|pretrain)(?![a-z])"
# A version goes on behind the known name; a date does not, nor does a share (0.2) or a number of something.
_VERSION = r"(?i)[-_.]?(?!\d{6}|0\.\d)\d+(?![\da-z])"
# Before a known name: it is that of another model, or tokens of a language may have been added to its vocabulary.
_ANOTHER_MODEL = (
    r"(?i)distil|student|teacher|(?<![a-z])(?:from|of|for|to|vs|and|on|in|zh|jp|ja|ko)(?![a-z])|chinese|japanese|korean|"
    r"arabic|german|turkish|vietnam"
)
# What the names of recipes and runs say of how they train, word by word.
_TRAINING_WORDS = (
    r"(?i)(?<![a-z\d])(?:sft|dpo|kto|orpo|simpo|ppo|rm|pt|cpt|pretrain(?:ing)?|train(?:ing)?|ft|fine[-_]?tun(?:e|ed|ing)|"
    r"full|freeze|q?lora|dora|config|merged?|stage\d*|ds\d?|deepspeed|z[0-3]|zero[0-3])(?![a-z\d])"
)
_IN_16_BITS = r"(?i)(?<![a-z])(?:bf|fp)16(?!\d)"


def suggests_other_shapes(words: str) -> bool:
    """True if the words suggest other shapes than those of the known model, or an adapter."""
    training = re.search(_TRAINING_STAGE, words)
    return bool(
        re.search(_OTHER_SHAPES, words) or re.search(_SHAPE_PARTS, words[: training.start()] if training else words)
    )


def without_training_words(text: str) -> str:
    """Return the name of a run or a recipe without the words that say how it trains."""
    return "-".join(filter(None, re.split(r"[-_.@]*(?:\x00[-_.@]*)+", re.sub(_TRAINING_WORDS, "\0", text))))


# How names of quantized checkpoints end, the method as transformers calls it, and the bits.
_QUANTIZED_ENDING = (
    r"(?i)[-_.](?:(?:unsloth-)?(?P<bitsandbytes>bnb)-(?P<b>[48])bit|(?P<gptq>gptq)(?:-int(?P<g>[348]))?|(?P<awq>awq)"
    r"(?:-int4)?|(?P<fp8>fp8))$"
)
# Two digits behind letters, and no size behind them: qwen25, llama31, v03.
_MISSING_POINT = r"(?i)(?<=[a-z])(\d)(\d)(?![\dbm])"
# Ways of writing a name that no known one has, and what they stand for: 1p5B, 05b, Llama-3-Base-8B.
_REWRITES = (
    (_MISSING_POINT, r"\1.\2"),
    (r"(?i)(?<=\d)p(?=\d+(?:[-_.]|b(?![a-z])))", "."),
    (r"(?i)(?<![\da-z.])0(?=\db(?![a-z]))", "0."),
    (r"(?i)(?<![a-z])(instruct|chat|base|it|vision)[-_.](\d[\d.]*b)(?![a-z])", r"\2-\1"),
)
# Kaggle keeps models in FAMILY/FRAMEWORK/VARIATION/VERSION.
_KAGGLE_PATH = r"(?:.*/)?(?P<family>[^/]+)/(?i:transformers|pytorch)/(?P<variation>[^/]+)/\d+$"
_NAME_WORD = r"\d+|[a-z]+"
_SIZE_IN_NAME = r"(?i)\d[\d.]*[bm](?![a-z])"
# What tells variants of the same shapes apart, and is often left out.
_VARIANT_WORDS = r"(?:[-_.](?:instruct|chat|it|hf|pt|base|a\d+b|v\d[\d.]*))*"
# Where LLaMA-Factory's examples have a run save whole weights: saves/MODEL/full/RUN.
_SAVED_PATH = r"(?:.*/)?(?P<model>[^/]+)/(?:full|freeze)(?:/.*)?"
# So many parts of a path, from its end, may hold the name: saves/MODEL/full/sft/checkpoint-100.
_MAX_DEPTH = 5


class _Match(NamedTuple):
    """A known name of the catalogue: the key of its entry, the name itself, and the words behind it in the name that
    was looked for. `exact`: no word is too many or too few."""

    key: str
    hub: str
    rest: str
    exact: bool


def guess_model(name: str, template: Any = None) -> Model | None:
    """Return the model that a name stands for, with `identified_by` set; None if that is uncertain. A name with other
    words than the known one tells the shapes but not the template, as the model may be trained for another. Words may
    stand before a known name only if the recipe's template is the known model's, too; else the name may be a part of
    another."""
    path = PurePosixPath(name.replace("\\", "/").strip())
    owner = path.parts[0].lower() if len(path.parts) == 2 and not name.startswith((".", "/", "~")) else ""
    for read in (
        _match_beginning,
        *((partial(_match_inside, template=template),) if isinstance(template, str) else ()),
    ):
        for own in _candidate_names(path):
            if match := _match_quantized(own, read):
                sure = not unknown_models.not_a_model_message(name) and not _is_misspelling(owner, match[0])
                return _guessed_model(*match) if sure else None
    return None


def guess_model_of_run(text: str, template: Any) -> Model | None:
    """Return the model that the name of a run or of its recipe tells, such as dpo_qwen3_8b. The name must hold a size,
    and the model's template must be the recipe's. None if that is uncertain."""
    if not isinstance(template, str):
        return None
    for own in _rewritten_names(without_training_words(text)):
        known = _match_beginning(own) or _match_inside(own, template)
        if known and re.search(_SIZE_IN_NAME, known.hub) and _has_template(known, template):
            return _guessed_model(known._replace(exact=False), None)
    return None


def _match_quantized(own: str, read: Callable[[str], _Match | None]) -> tuple[_Match, re.Match[str] | None] | None:
    """Return the known name in `own`, and the ending that says how it is quantized if the table lacks the quantized
    name; None if there is no known name."""
    quantized, known = re.search(_QUANTIZED_ENDING, own), read(own)
    if known and known.exact:
        return known, None
    if quantized:
        known = read(own[: quantized.start()])
    return (known, quantized) if known else None


def _candidate_names(path: PurePosixPath) -> Iterator[str]:
    """Yield possible names of the model: the last part of the path, then each part above it with all that follows; each
    also rewritten to the usual spelling."""
    above = ("-".join(path.parts[-depth:]) for depth in range(2, min(_MAX_DEPTH, len(path.parts)) + 1))
    saved = re.fullmatch(_SAVED_PATH, str(path))
    for name in (*_kaggle_names(path), model_name_of_path(path), *above, *([saved["model"]] if saved else ())):
        yield from _rewritten_names(name)


def _rewritten_names(name: str) -> Iterable[str]:
    """Return the name, and the name in the usual spelling."""
    return dict.fromkeys((name, reduce(lambda text, change: re.sub(change[0], change[1], text), _REWRITES, name)))


def _kaggle_names(path: PurePosixPath) -> Iterator[str]:
    """Yield the name that a path of Kaggle tells: the variation, with the family's name if the variation leaves it
    out."""
    if match := re.fullmatch(_KAGGLE_PATH, str(path)):
        family, variation = match["family"], match["variation"]
        yield variation if variation.startswith(family) else f"{family}-{variation}"


def _guessed_model(known: _Match, quantized: re.Match[str] | None) -> Model:
    one = models.find_model(known.hub)._replace(identified_by="name", cached="")
    if not known.exact:
        one = one._replace(template=None, base=False, hub=(), positions=None)
    if one.quantized and re.search(_IN_16_BITS, known.rest):
        one = one._replace(quantized=None, quantized_bits=0, dtype_bytes=2.0)
    if quantized is None:
        return one
    method = next(each for each in ("bitsandbytes", "gptq", "awq", "fp8") if quantized[each])
    bits = 8 if method == "fp8" else int(quantized["b"] or quantized["g"] or 4)
    return one._replace(quantized=method, quantized_bits=bits)


def _match_beginning(own: str) -> _Match | None:
    """Return the longest known name that `own` is, or begins with if the known name tells the size and nothing suggests
    other shapes; None if there is none. Case, `Meta-` and the marks between words do not count; marks within a number
    do."""
    words = [*re.finditer(_NAME_WORD, _bare_name(own))][:32]
    lasts = yaml_table("models").matching(_beginning_pattern([word[0] for word in words])) if words else ()
    known = [_compare_words(key, hub, own, words) for key, last in lasts for hub in _hub_names(key, last)]
    best = min(known, key=_match_rank, default=None)
    if best is None or _is_short_of_another(own, best):
        return None
    return best if not best.rest or _keeps_shapes(best) else None


def _match_inside(own: str, template: str) -> _Match | None:
    """Return the known name with a size that stands behind other words and belongs to a model of this template; None if
    there is none."""
    words = [word for word in [*re.finditer(_NAME_WORD, own.lower())][1:32] if word[0].isalpha()]
    for word in words:
        known = _match_beginning(own[word.start() :]) if any(yaml_table("models").mention(f"/{word[0]}")) else None
        if known and re.search(_SIZE_IN_NAME, known.hub):
            before = own[: word.start()]
            sure = _has_template(known, template) and not (
                suggests_other_shapes(before) or re.search(_ANOTHER_MODEL, before)
            )
            return known._replace(rest=before + known.rest, exact=False) if sure else None
    return None


def _has_template(known: _Match, template: str) -> bool:
    """True if the template is the known model's, or that of a model tuned from it."""
    entry = yaml_table("models")[known.key]
    its = (entry.get("overrides", {}).get(known.hub) or {}).get("template", entry["template"])
    return bool(its) and its.removesuffix("_nothink") == template.removesuffix("_nothink")


def _match_rank(known: _Match) -> tuple[int, bool, int, int]:
    """Return the sort key of a match, the best first: fewest words behind it, none left out, the shortest known name,
    and of variants the largest model."""
    return len(known.rest), not known.exact, len(known.hub), -int(yaml_table("models")[known.key]["parameters"])


def _keeps_shapes(known: _Match) -> bool:
    """True if the words behind a known name are those of a fine-tune. The size may be said once more, or where the
    known name leaves it out."""
    size, said = re.search(_SIZE_IN_NAME, known.hub), re.search(_SIZE_IN_NAME, known.rest)
    if size is None and said and _is_close_size(said[0], yaml_table("models")[known.key]["parameters"]):
        size = said
    if size is None:
        return False
    rest = re.sub(rf"(?i)(?<![\d.]){re.escape(size[0])}(?![a-z])", "", known.rest)
    rest = re.sub(rf"(?i)with[-_.]?{_generation_pattern(known.hub)}(?![\d.])", "", rest)  # a part of its own generation
    return not (re.match(_VERSION, rest) or suggests_other_shapes(rest))


def _generation_pattern(hub: str) -> str:
    """Return a pattern for the beginning of a model's name: family and generation."""
    return "[-_.]?".join(word for word, _ in zip(re.findall(_NAME_WORD, _bare_name(hub)), range(2), strict=False))


def _is_close_size(size: str, parameters: int) -> bool:
    """True if 14B says so many parameters, by the tenth that names are rounded by."""
    said = float(size[:-1]) * (1e9 if size[-1] in "bB" else 1e6)
    return abs(said / parameters - 1) < 0.1


def _compare_words(key: str, hub: str, own: str, words: list[re.Match[str]]) -> _Match:
    """Return the match of a known name with the words of `own`, without `Meta-`."""
    its, bare = re.findall(_NAME_WORD, _bare_name(hub)), own[-words[-1].endpos :]
    common = len([*takewhile(lambda pair: pair[0] == pair[1][0], zip(its, words, strict=False))])
    return _Match(key, hub, bare[words[common - 1].end() :].rstrip("-_."), exact=common == len(its) == len(words))


def _beginning_pattern(words: list[str]) -> re.Pattern[str]:
    """Return the pattern that finds known names which consist of the first of these words, one or more, apart from
    words that tell variants apart."""
    pattern = ""
    for before, word in reversed([*pairwise(words)]):
        mark = "[-_.]+" if before.isdigit() and word.isdigit() else "[-_.]*"
        pattern = f"(?:{mark}{word}{pattern})?"
    return re.compile(rf"(?i)/((?:meta-)?{words[0]}{pattern}{_VARIANT_WORDS})(?=[,\]\s])")


def _bare_name(name: str) -> str:
    """Return the last part of a name, as names are compared: lower case, without `Meta-`."""
    return name.rpartition("/")[2].lower().removeprefix("meta-")


def _hub_names(key: str, last: str) -> list[str]:
    """Return the first name of the entry that ends so; an empty list if only its notes mention one."""
    entry = yaml_table("models")[key]
    return [hub for hub in (*entry["hub"], *entry["modelscope"]) if hub.endswith(f"/{last}")][:1]


def _is_short_of_another(own: str, best: _Match) -> bool:
    """True if recipes call another model so: qwen7b is Qwen2.5's, and qwen_7b_sft may be of that one, too."""
    short = own.lower() if best.exact else "".join(re.findall(_NAME_WORD, _bare_name(best.hub)))
    return any(yaml_table("models")[other]["short"] == short for other in yaml_table("models").mention(short)
               if other != best.key)  # fmt: skip


def _is_misspelling(owner: str, known: _Match) -> bool:
    """True if the owner of the known name would have made the other: more likely a slip than a fine-tune."""
    return bool(known.rest) and known.hub.lower().startswith(f"{owner}/")
