"""What data sets call their columns, in lower case: those looked for first come first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

QUESTIONS = ("instruction", "prompt", "question", "query", "problem", "input")
MORE = ("input", "context", "输入")
ANSWERS = ("output", "response", "answer", "completion", "solution")
# A question and an answer by names that mean nothing each without the other.
COUPLES = (
    *(("human", "gpt"), ("human", "assistant"), ("user", "assistant"), ("inputs", "targets"), ("source", "target")),
    *(("问题", "答案"), ("问题", "回答"), ("指令", "输出")),
)
TEXTS = ("text", "content", "raw_content")
SYSTEM = ("system", "system_prompt")
PAIRS = (("chosen", "rejected"), ("chosen_response", "rejected_response"), ("response_chosen", "response_rejected"))
LABELS = ("label", "kto_tag", "kto_label", "desirable")
MEDIA = {"images": ("images", "image"), "videos": ("videos", "video"), "audios": ("audios", "audio")}


def called(row: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """The columns of these names, in whatever case the data write them."""
    columns = {str(column).lower(): column for column in row}
    return (columns[name] for name in names if name in columns)
