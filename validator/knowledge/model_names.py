"""Guesses which model of the catalogue (data/models.yaml) an unlisted name stands for. The name may be the last part of
a path, another owner's hub name, a folder of a hub cache or a training run, or the name of a run. Words around the
known name may suggest other shapes or quantized weights."""

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
    """True if the words around a known model name suggest that the model has other shapes, or that it is an adapter."""
    training = re.search(_TRAINING_STAGE, words)
    return bool(
        re.search(_OTHER_SHAPES, words) or re.search(_SHAPE_PARTS, words[: training.start()] if training else words)
    )


def without_training_words(text: str) -> str:
    """Return the name of a run or a recipe without the words that say how it trains, such as sft or lora."""
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
    """A known model name that was found in a text. `key`: id of the model in data/models.yaml. `hub`: the known hub
    name. `rest`: the words of the text behind the known name. `exact`: the text has exactly the words of the known
    name."""

    key: str
    hub: str
    rest: str
    exact: bool


def guess_model(name: str, template: Any = None) -> Model | None:
    """Return the model that an unlisted name stands for, with `identified_by` set; None if the model is uncertain.

    If the name has other words in addition to a known name, the model gets the known shapes but not the known template,
    because it may be trained for another template. Other words may stand before the known name only if `template`, the
    recipe's template, is the known model's; otherwise the known name may be part of another model's name."""
    path = PurePosixPath(name.replace("\\", "/").strip())
    owner = path.parts[0].lower() if len(path.parts) == 2 and not name.startswith((".", "/", "~")) else ""
    for read in (
        _match_beginning,
        *((partial(_match_inside, template=template),) if isinstance(template, str) else ()),
    ):
        for text in _candidate_names(path):
            if match := _match_quantized(text, read):
                is_sure = not unknown_models.not_a_model_message(name) and not _is_misspelling(owner, match[0])
                return _guessed_model(*match) if is_sure else None
    return None


def guess_model_of_run(text: str, template: Any) -> Model | None:
    """Return the model that is named in the name of a run or a recipe, such as dpo_qwen3_8b; None if the model is
    uncertain. The name must contain a size, and the model's template must be the recipe's `template`."""
    if not isinstance(template, str):
        return None
    for name in _rewritten_names(without_training_words(text)):
        match = _match_beginning(name) or _match_inside(name, template)
        if match and re.search(_SIZE_IN_NAME, match.hub) and _has_template(match, template):
            return _guessed_model(match._replace(exact=False), None)
    return None


def _match_quantized(name: str, read: Callable[[str], _Match | None]) -> tuple[_Match, re.Match[str] | None] | None:
    """Return the known name in `name`, and the ending of `name` that says how the model is quantized, such as `-awq`;
    None if there is no known name. The ending is None if there is no such ending, or if the catalogue has the name with
    its ending. `read`: the function that finds a known name in a text."""
    ending, match = re.search(_QUANTIZED_ENDING, name), read(name)
    if match and match.exact:
        return match, None
    if ending:
        match = read(name[: ending.start()])
    return (match, ending) if match else None


def _candidate_names(path: PurePosixPath) -> Iterator[str]:
    """Yield texts from a path that may be the model's name: the last part, then the last two parts joined, then the
    last three, up to five. Each text is yielded as it is and in the usual spelling. Paths of Kaggle and of
    LLaMA-Factory's `saves` folder give further texts."""
    ends = ("-".join(path.parts[-depth:]) for depth in range(2, min(_MAX_DEPTH, len(path.parts)) + 1))
    run = re.fullmatch(_SAVED_PATH, str(path))
    for name in (*_kaggle_names(path), model_name_of_path(path), *ends, *([run["model"]] if run else ())):
        yield from _rewritten_names(name)


def _rewritten_names(name: str) -> Iterable[str]:
    """Return the name as it is and the name in the usual spelling, such as 0.5b for 05b."""
    return dict.fromkeys((name, reduce(lambda text, change: re.sub(change[0], change[1], text), _REWRITES, name)))


def _kaggle_names(path: PurePosixPath) -> Iterator[str]:
    """Yield the model's name in a Kaggle path of the form FAMILY/FRAMEWORK/VARIATION/VERSION: the variation, with the
    family before it if the variation does not begin with the family. Yields nothing for other paths."""
    if match := re.fullmatch(_KAGGLE_PATH, str(path)):
        family, variation = match["family"], match["variation"]
        yield variation if variation.startswith(family) else f"{family}-{variation}"


def _guessed_model(match: _Match, ending: re.Match[str] | None) -> Model:
    model = models.find_model(match.hub)._replace(identified_by="name", cached="")
    if not match.exact:
        model = model._replace(template=None, base=False, hub=(), positions=None)
    if model.quantized and re.search(_IN_16_BITS, match.rest):
        model = model._replace(quantized=None, quantized_bits=0, dtype_bytes=2.0)
    if ending is None:
        return model
    method = next(each for each in ("bitsandbytes", "gptq", "awq", "fp8") if ending[each])
    bits = 8 if method == "fp8" else int(ending["b"] or ending["g"] or 4)
    return model._replace(quantized=method, quantized_bits=bits)


def _match_beginning(name: str) -> _Match | None:
    """Return the longest known name that `name` equals or begins with; None if there is no known name. If more words
    follow, the known name must state a size, and the words must not suggest other shapes. Case, `Meta-` and the marks
    between words do not count; marks within a number do."""
    words = [*re.finditer(_NAME_WORD, _bare_name(name))][:32]
    lasts = yaml_table("models").matching(_beginning_pattern([word[0] for word in words])) if words else ()
    matches = [_compare_words(key, hub, name, words) for key, last in lasts for hub in _hub_names(key, last)]
    best = min(matches, key=_match_rank, default=None)
    if best is None or _is_short_of_another(name, best):
        return None
    return best if not best.rest or _keeps_shapes(best) else None


def _match_inside(name: str, template: str) -> _Match | None:
    """Return the known name that follows other words in `name`; None if there is no such name. The known name must
    contain a size, its model must have the recipe's `template`, and the words before it must not suggest another model
    or other shapes."""
    words = [word for word in [*re.finditer(_NAME_WORD, name.lower())][1:32] if word[0].isalpha()]
    for word in words:
        match = _match_beginning(name[word.start() :]) if any(yaml_table("models").mention(f"/{word[0]}")) else None
        if match and re.search(_SIZE_IN_NAME, match.hub):
            prefix = name[: word.start()]
            is_sure = _has_template(match, template) and not (
                suggests_other_shapes(prefix) or re.search(_ANOTHER_MODEL, prefix)
            )
            return match._replace(rest=prefix + match.rest, exact=False) if is_sure else None
    return None


def _has_template(match: _Match, template: str) -> bool:
    """True if `template`, the recipe's template, is the template of the known model or, for a base model, of the models
    tuned from it."""
    entry = yaml_table("models")[match.key]
    known_template = (entry.get("overrides", {}).get(match.hub) or {}).get("template", entry["template"])
    return bool(known_template) and known_template.removesuffix("_nothink") == template.removesuffix("_nothink")


def _match_rank(match: _Match) -> tuple[int, bool, int, int]:
    """Return the sort key of a match; the best match comes first. A match is better if less text follows the known
    name, then if the text has exactly the words of the known name, then if the known name is shorter, then if the model
    is larger."""
    return len(match.rest), not match.exact, len(match.hub), -int(yaml_table("models")[match.key]["parameters"])


def _keeps_shapes(match: _Match) -> bool:
    """True if the words behind a known name describe only a fine-tune, which keeps the model's shapes. The words may
    repeat the size of the model. If the known name has no size, the words must state it."""
    size, stated_size = re.search(_SIZE_IN_NAME, match.hub), re.search(_SIZE_IN_NAME, match.rest)
    if size is None and stated_size and _is_close_size(stated_size[0], yaml_table("models")[match.key]["parameters"]):
        size = stated_size
    if size is None:
        return False
    rest = re.sub(rf"(?i)(?<![\d.]){re.escape(size[0])}(?![a-z])", "", match.rest)
    rest = re.sub(rf"(?i)with[-_.]?{_generation_pattern(match.hub)}(?![\d.])", "", rest)  # a part of its own generation
    return not (re.match(_VERSION, rest) or suggests_other_shapes(rest))


def _generation_pattern(hub: str) -> str:
    """Return the text of a regular expression that matches family and generation in a model's name, such as
    `qwen[-_.]?2` for Qwen2.5-7B."""
    return "[-_.]?".join(word for word, _ in zip(re.findall(_NAME_WORD, _bare_name(hub)), range(2), strict=False))


def _is_close_size(size: str, parameters: int) -> bool:
    """True if a size such as 14B differs from the number of parameters by less than a tenth, the amount by which names
    are rounded."""
    number = float(size[:-1]) * (1e9 if size[-1] in "bB" else 1e6)
    return abs(number / parameters - 1) < 0.1


def _compare_words(key: str, hub: str, name: str, words: list[re.Match[str]]) -> _Match:
    """Return the match between a known name and a searched name. `key` and `hub`: id and hub name of the known model;
    `words`: the words of the searched `name`. A leading `Meta-` is ignored."""
    hub_words, tail = re.findall(_NAME_WORD, _bare_name(hub)), name[-words[-1].endpos :]
    common = len([*takewhile(lambda pair: pair[0] == pair[1][0], zip(hub_words, words, strict=False))])
    return _Match(key, hub, tail[words[common - 1].end() :].rstrip("-_."), exact=common == len(hub_words) == len(words))


def _beginning_pattern(words: list[str]) -> re.Pattern[str]:
    """Return the regular expression that finds hub names in data/models.yaml made of the first one or more of `words`.
    Words that tell variants apart, such as instruct, may follow in the hub name."""
    pattern = ""
    for before, word in reversed([*pairwise(words)]):
        mark = "[-_.]+" if before.isdigit() and word.isdigit() else "[-_.]*"
        pattern = f"(?:{mark}{word}{pattern})?"
    return re.compile(rf"(?i)/((?:meta-)?{words[0]}{pattern}{_VARIANT_WORDS})(?=[,\]\s])")


def _bare_name(name: str) -> str:
    """Return the part of a hub name after the owner, as names are compared: in lower case, without `Meta-`."""
    return name.rpartition("/")[2].lower().removeprefix("meta-")


def _hub_names(key: str, last: str) -> list[str]:
    """Return a list with the first hub name in a catalogue entry that ends with `last`; empty if only the notes of the
    entry mention `last`. `key`: id of the entry."""
    entry = yaml_table("models")[key]
    return [hub for hub in (*entry["hub"], *entry["modelscope"]) if hub.endswith(f"/{last}")][:1]


def _is_short_of_another(name: str, best: _Match) -> bool:
    """True if the searched name, or the known name in it, is also the short form of another model in the catalogue. For
    example, qwen7b is the short form of a Qwen2.5 model, so qwen_7b_sft may be a fine-tune of that model."""
    short = name.lower() if best.exact else "".join(re.findall(_NAME_WORD, _bare_name(best.hub)))
    return any(yaml_table("models")[key]["short"] == short for key in yaml_table("models").mention(short)
               if key != best.key)  # fmt: skip


def _is_misspelling(owner: str, match: _Match) -> bool:
    """True if the owner in the searched name also published the known name, and further words follow the known name.
    Then the searched name is more likely a misspelling than a fine-tune."""
    return bool(match.rest) and match.hub.lower().startswith(f"{owner}/")
