"""What the words beside the known name of a model say of it, in a name that is made of both."""

import re

# Beside a known name: words with which the shapes may be others, or it is an adapter.
_OTHER_SHAPES = re.compile(
    r"(?i)\d[bm](?![a-z])|\dx\d|(?<![a-z\d])\dx(?![a-z])|\d ?bits?|(?<![a-z])(?:int|fp(?!16)|w|a)\d|moe|gg[um][fl]|"
    r"gptq|awq|quant|exl\d|mlx|onnx|(?<!lora.)(?<!sft.)(?<!dpo.)merge(?!d)|omni|(?<![a-z])v(?:l(?![a-z])|-|$)|vision|"
    r"visual|image|multimodal|llava|audio|speech|video|embed|rerank|reward|(?<![a-z])p?rm(?![a-z])|prun|spars|minitron|"
    r"draft|specul|eagle|medusa|mtp|adapter|(?<![a-z])q?lora(?![a-z])(?!.*merge)|data(?![a-z])|generated|layer|depth|"
    r"width|vocab|expan|extend|upscal|classif|memory"
)
# The same, but behind the word for a training they are about its data: sft_text_only; nor are a few tokens a part.
_PARTS = re.compile(
    r"(?i)with(?!.*(?:token|think|reason|(?<![a-z])cot(?![a-z])))|"
    r"(?<![a-z])(?:only|mini|tiny|nano|small|lite|large|half)(?![a-z])"
)
_TRAINING = re.compile(r"(?i)(?<![a-z])(?:sft|dpo|kto|orpo|simpo|ppo|grpo|rft|cpt|pretrain)(?![a-z])")
# A version goes on behind the known name; a date does not, nor does a share (0.2) or a number of something.
_GOES_ON = re.compile(r"(?i)[-_.]?(?!\d{6}|0\.\d)\d+(?![\da-z])")
# Before a known name: it is that of another model, or tokens of a language may have been added to its vocabulary.
_ANOTHER = re.compile(
    r"(?i)distil|student|teacher|(?<![a-z])(?:from|of|for|to|vs|and|on|in|zh|jp|ja|ko)(?![a-z])|chinese|japanese|korean|"
    r"arabic|german|turkish|vietnam"
)
# What the names of recipes and runs say of how they train, word by word.
_HOW = re.compile(
    r"(?i)(?<![a-z\d])(?:sft|dpo|kto|orpo|simpo|ppo|rm|pt|cpt|pretrain(?:ing)?|train(?:ing)?|ft|fine[-_]?tun(?:e|ed|ing)|"
    r"full|freeze|q?lora|dora|config|merged?|stage\d*|ds\d?|deepspeed|z[0-3]|zero[0-3])(?![a-z\d])"
)
_HALF = re.compile(r"(?i)(?<![a-z])(?:bf|fp)16(?!\d)")


def other_shapes(words: str) -> bool:
    """Whether they speak for other shapes than those of the known model, or for an adapter."""
    training = _TRAINING.search(words)
    return bool(_OTHER_SHAPES.search(words) or _PARTS.search(words[: training.start()] if training else words))


def of_another(before: str) -> bool:
    """Whether words before the known name say that it is another model's, or that its vocabulary may have grown."""
    return bool(_ANOTHER.search(before))


def goes_on(behind: str) -> bool:
    """Whether a version goes on behind the known name."""
    return bool(_GOES_ON.match(behind))


def without_training(text: str) -> str:
    """The name of a run or a recipe without what it says of how it trains."""
    return "-".join(filter(None, re.split(r"[-_.@]*(?:\x00[-_.@]*)+", _HOW.sub("\0", text))))


def in_16_bits(words: str) -> bool:
    """Whether they say that the weights are in 16 bits, whatever those of the known model are in."""
    return bool(_HALF.search(words))
