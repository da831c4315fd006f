"""Pictures of the study as SVG: they take their colours from the page and need nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from validator.study.amount import Amount
from validator.study.distribution import Bar

_WIDTH, _HEIGHT, _LEFT, _TOP, _FOOT = 720, 200, 20, 24, 44
_ROOM = _WIDTH - 2 * _LEFT
# Each figure of the guidance begins a zone: the verdict on as many samples.
_ZONES = {"minimum": "few", "useful": "useful", "good": "good", "saturating": "saturated"}


def histogram(bars: Sequence[Bar], marks: Iterable[tuple[int, str]]) -> str:
    """Rows by length. `marks`: lengths at which a line is drawn across, and what is written there."""
    most, wide = max(bar.rows for bar in bars), _ROOM / len(bars)
    parts = [part for at, bar in enumerate(bars) for part in _bar(bar, most, _LEFT + at * wide, wide)]
    for number, (length, name) in enumerate(marks):
        parts += _mark(name, _LEFT + _place(bars, length) * wide, 12 + 13 * number)
    return _svg("Rows by length in tokens", _TOP + _HEIGHT + _FOOT, parts)


def _bar(bar: Bar, most: int, left: float, wide: float) -> Iterator[str]:
    tall = bar.rows / most * (_HEIGHT - 20)
    said = f"{bar.from_:,} to {bar.to:,} tokens: {bar.rows:,} rows"
    yield (f'<rect class="bar" x="{left + 1:.1f}" y="{_TOP + _HEIGHT - tall:.1f}" width="{wide - 2:.1f}" '
           f'height="{tall:.1f}"><title>{said}</title></rect>')  # fmt: skip
    middle = left + wide / 2
    yield (f'<text x="{middle:.1f}" y="{_TOP + _HEIGHT + 14}" text-anchor="end" '
           f'transform="rotate(-40 {middle:.1f} {_TOP + _HEIGHT + 14})">{bar.from_:,}</text>')  # fmt: skip


def _place(bars: Sequence[Bar], length: int) -> float:
    """Where a length stands, in bars from the left."""
    for at, bar in enumerate(bars):
        if length <= bar.to:
            return at + max(length - bar.from_, 0) / (bar.to - bar.from_ + 1)
    return len(bars)


def _mark(said: str, x: float, y: float) -> Iterator[str]:
    side = "end" if x > _WIDTH / 2 else "start"
    yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 9}" y2="{_TOP + _HEIGHT}"/>'
    yield f'<text x="{x + (-4 if side == "end" else 4):.1f}" y="{y}" text-anchor="{side}">{said}</text>'


def zones(amount: Amount) -> str:
    """The number of samples among the zones of the guidance, on a logarithmic axis; empty where there is none."""
    begins = {_ZONES[figure]: samples for figure, samples in amount.figures().items()}
    if not begins or not amount.rows:
        return ""
    low, high = min(*begins.values(), amount.rows) / 3, max(*begins.values(), amount.rows) * 3
    edges = [low, *begins.values(), high]
    places = [_LEFT + math.log(edge / low) / math.log(high / low) * _ROOM for edge in edges]
    names = ["too few" if "few" in begins else "few", *begins]
    parts = [part for name, *span in zip(names, places, places[1:], strict=False) for part in _zone(name, *span)]
    parts += (_text(f"{edge:,}", at, 74) for edge, at in zip(edges[1:-1], places[1:-1], strict=True))
    here = _LEFT + math.log(amount.rows / low) / math.log(high / low) * _ROOM
    parts += [f'<path class="here" d="M{here:.1f} 30l-7 -12h14z"/>', _text(f"{amount.rows:,} here", here, 13)]
    return _svg("Samples against the guidance", 84, parts)


def _zone(name: str, start: float, stop: float) -> Iterator[str]:
    yield (f'<rect class="{name.replace(" ", "-")}" x="{start:.1f}" y="32" width="{stop - start:.1f}" height="26">'
           f"<title>{name}</title></rect>")  # fmt: skip
    if stop - start > 7 * len(name):
        yield _text(name, (start + stop) / 2, 49)


def _text(said: str, x: float, y: float) -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{said}</text>'


def _svg(title: str, tall: int, parts: Sequence[str]) -> str:
    return (f'<svg viewBox="0 0 {_WIDTH} {tall}" role="img" aria-label="{title}">\n'
            + "\n".join(parts) + "\n</svg>")  # fmt: skip
