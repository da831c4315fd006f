"""Formats the answer of `data --html` as one self-contained HTML page with SVG charts, without script and network
access.

Also checks whether the file named by `--html` may be replaced: only an earlier page of this command may."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from validator.dataset import data_text
from validator.dataset.data_report import DataReport
from validator.dataset.sample_guidance import SampleGuidance
from validator.dataset.sequence_lengths import HistogramBar
from validator.errors import RecipeError, os_reason
from validator.recipe import atomic_write, safe_read

_STYLE = """
:root { color-scheme: light dark; --bar: #3b6fb6; --weak: #8884; --bad: #d0392b; }
@media (prefers-color-scheme: dark) { :root { --bar: #7aa7e6; --bad: #ff7b6b; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .6rem .2rem 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr { border-bottom: 1px solid var(--weak); } code, td { overflow-wrap: anywhere; }
svg { width: 100%; font-size: 12px; } svg text { fill: currentColor; } .bar, .here { fill: var(--bar); }
.mark { stroke: var(--bad); stroke-dasharray: 4 3; } .too-few { fill: #d9534f88; } .few { fill: #f0ad4e88; }
.useful { fill: #9bc53d66; } .good { fill: #2e8b5799; } .saturated { fill: #8888; } summary { cursor: pointer; }
.error { color: var(--bad); font-weight: 600; } .tiles { display: flex; flex-wrap: wrap; gap: 1rem; }
.tile { border: 1px solid var(--weak); border-radius: .4rem; padding: .5rem 1rem; }
.tile b { display: block; font-size: 1.3rem; }
"""
_HEAD = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
_MARK = '<meta name="generator" content="lmf-recipes data">'
_CSP = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
_VIEW = '<meta name="viewport" content="width=device-width, initial-scale=1">'


NO_OWN_PAGE = "exists and is not a page of this command; choose another name, or remove it"


def is_own_page(data: bytes) -> bool:
    """Return True if the content of a file is empty or is a page that this command has written."""
    return not data or data.startswith(f"{_HEAD}\n{_MARK}".encode())


def format_page(report: DataReport) -> str:
    """Return the answer of `data` as one HTML page."""
    name = escape(report.path)
    parts = (_head(report), _lengths(report), _amount(report), _quality(report),
             _paragraphs(f"Note: {note}" for note in report.notes))  # fmt: skip
    body = "\n".join(line for part in parts for line in part)
    head = f"{_HEAD}\n{_MARK}\n{_CSP}\n{_VIEW}\n<title>{name}: training data</title>\n<style>{_STYLE}</style>\n</head>"
    return f"{head}\n<body>\n<h1>{name}</h1>\n{body}\n</body>\n</html>\n"


def _paragraphs(sentences: Iterable[str]) -> Iterator[str]:
    return (f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _head(report: DataReport) -> Iterator[str]:
    """Yield the head of the page: problems that stop the run, the method, tiles with figures, and tables of data sets
    and dropped rows."""
    yield from (f'<p class="error">{escape(str(problem))}</p>' for problem in report.problems)
    yield from _paragraphs([f"{report.model or 'no model named'}, {data_text.method_sentence(report)}"])
    rows, steps = report.rows, report.steps
    total, warmup, saves = (steps.total, steps.warmup, steps.saves) if steps else (0, 0, 0)
    shown = {"rows read": rows.read, "rows dropped": rows.dropped, "rows trained": rows.trained, "steps": total,
             "steps of warm-up": warmup, "saves": saves, "tokens an epoch": report.tokens.per_epoch}  # fmt: skip
    yield '<div class="tiles">'
    yield from (f'<div class="tile"><b>{size:,}</b>{name}</div>' for name, size in shown.items())
    yield "</div>"
    yield from _paragraphs(data_text.schedule_sentences(report))
    sets = [(one.name, one.role, one.note or ", ".join(one.columns), one.rows) for one in report.sets]
    yield from _html_table("Data sets", ("name", "for", "columns", "rows"), sets)
    drops = [(drop.reason, ", ".join(data_text.places(drop)), drop.rows) for drop in report.drops]
    yield from _html_table("Dropped rows", ("reason", "such as", "rows"), drops)


def _lengths(report: DataReport) -> Iterator[str]:
    bars, better = report.tokens.histogram, report.tokens.recommended_cutoff_len
    if not bars:
        return
    yield "<h2>Lengths in tokens</h2>"
    marks = [(report.cutoff_len, f"cutoff_len {report.cutoff_len:,}")]
    yield histogram_svg(bars, marks + ([(better, f"recommended {better:,}")] if better else []))
    yield from _paragraphs([data_text.tokens_sentence(report), *data_text.cutoff_sentences(report)])
    yield "<details><summary>as numbers</summary>"
    yield from _html_table("", ("tokens", "rows"), [(f"{bar.from_:,} to {bar.to:,}", bar.rows) for bar in bars])
    yield "</details>"


def _amount(report: DataReport) -> Iterator[str]:
    amount = report.amount
    if not amount.rows:
        return
    yield f"<h2>Amount: {escape(amount.verdict)}</h2>"
    yield guidance_zones_svg(amount)
    reasons = [*data_text.rows_not_counted(report), *data_text.amount_reasons(amount)]
    yield from _paragraphs([data_text.amount_sentence(amount), *reasons])
    if amount.sources:
        yield from _paragraphs([f"Guidance: {'; '.join(one.get('url') or one['cite'] for one in amount.sources)}"])


def _quality(report: DataReport) -> Iterator[str]:
    rows = [(one.kind, one.message, ", ".join(data_text.places(one)), f"{one.share:.2%}", one.rows)
            for one in report.quality]  # fmt: skip
    yield from _html_table("Quality", ("", "", "such as", "share", "rows"), rows)


def _html_table(title: str, header: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    """Yield the HTML of a table, with numbers aligned to the right. Yield nothing if there are no rows."""
    if not rows:
        return
    kinds = [' class="n"' if isinstance(value, int) else "" for value in rows[0]]
    names = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, header, strict=True))
    yield f"{title and f'<h2>{title}</h2>'}\n<table>\n<tr>{names}</tr>"
    for row in rows:
        texts = (f"{value:,}" if isinstance(value, int) else escape(str(value)) for value in row)
        yield f"<tr>{''.join(f'<td{kind}>{text}</td>' for kind, text in zip(kinds, texts, strict=True))}</tr>"
    yield "</table>"


def require_page_target(path: Path) -> None:
    """Raise RecipeError if the page cannot be written to the path: the folder is missing, or the file exists and is not
    an earlier page of this command."""
    try:
        if not path.parent.is_dir():
            raise RecipeError(f"`{path}` cannot be written: there is no folder `{path.parent}`")
        with safe_read.open_file(path) as file:
            atomic_write.require_own_file(path, file.read(1 << 16), is_own_page, NO_OWN_PAGE)
    except FileNotFoundError:
        return
    except safe_read.NoFileError:
        atomic_write.require_own_file(path, b"no file", is_own_page, NO_OWN_PAGE)
    except OSError as err:
        raise RecipeError(f"`{path}` cannot be written: {os_reason(err)}") from None


_SVG_WIDTH, _SVG_MARGIN, _BARS_TOP, _BARS_BOTTOM, _LABELS_HEIGHT = 720, 20, 24, 224, 44
_INNER_WIDTH = _SVG_WIDTH - 2 * _SVG_MARGIN
_HIGHEST_BAR = _BARS_BOTTOM - _BARS_TOP - 20
# Each figure of the guidance begins a zone: the verdict on so many samples.
_ZONE_NAMES = {"minimum": "few", "useful": "useful", "good": "good", "saturating": "saturated"}


def histogram_svg(bars: Sequence[HistogramBar], marks: Iterable[tuple[int, str]]) -> str:
    """Return an SVG histogram of rows by length in tokens. `marks` are lengths at which a vertical line is drawn, each
    with its label."""
    max_rows, width, parts = max(bar.rows for bar in bars), _INNER_WIDTH / len(bars), list[str]()
    for at, bar in enumerate(bars):
        left, tall = _SVG_MARGIN + at * width, bar.rows / max_rows * _HIGHEST_BAR
        title = f"{bar.from_:,} to {bar.to:,} tokens: {bar.rows:,} rows"
        parts.append(f'<rect class="bar" x="{left + 1:.1f}" y="{_BARS_BOTTOM - tall:.1f}" width="{width - 2:.1f}" '
                     f'height="{tall:.1f}"><title>{title}</title></rect>')  # fmt: skip
        middle, below = left + width / 2, _BARS_BOTTOM + 14
        turn = f' transform="rotate(-40 {middle:.1f} {below})"'
        parts.append(_text_svg(f"{bar.from_:,}", middle, below, "end", turn))
    for number, (length, name) in enumerate(marks):
        at = bisect_left([bar.to for bar in bars], length)  # the bar that holds the length
        within = max(length - bars[at].from_, 0) / (bars[at].to - bars[at].from_ + 1) if at < len(bars) else 0
        x, y = _SVG_MARGIN + (at + within) * width, 12 + 13 * number
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 9}" y2="{_BARS_BOTTOM}"/>')
        parts.append(_text_svg(name, x - 4, y, "end") if x > _SVG_WIDTH / 2 else _text_svg(name, x + 4, y, "start"))
    return _wrap_in_svg("Rows by length in tokens", _BARS_BOTTOM + _LABELS_HEIGHT, parts)


def guidance_zones_svg(amount: SampleGuidance) -> str:
    """Return an SVG chart that shows the number of samples among the zones of the guidance (few, useful, good …) on a
    logarithmic axis. The text is empty if there is no guidance, or no samples."""
    begins = {_ZONE_NAMES[figure]: samples for figure, samples in amount.figures().items()}
    if not begins or not amount.rows:
        return ""
    low, high = min(*begins.values(), amount.rows) / 3, max(*begins.values(), amount.rows) * 3

    def place(samples: float) -> float:
        return _SVG_MARGIN + math.log(samples / low) / math.log(high / low) * _INNER_WIDTH

    parts = []
    edges = [low, *begins.values(), high]
    for name, start, stop in zip(["too few" if "few" in begins else "few", *begins], edges, edges[1:], strict=False):
        x, wide = place(start), place(stop) - place(start)
        parts.append(f'<rect class="{name.replace(" ", "-")}" x="{x:.1f}" y="32" width="{wide:.1f}" height="26">'
                     f"<title>{name}</title></rect>")  # fmt: skip
        parts += [_text_svg(name, x + wide / 2, 49)] if wide > 7 * len(name) else []
        parts += [_text_svg(f"{stop:,}", x + wide, 74)] if stop != high else []
    here = place(amount.rows)
    parts += [f'<path class="here" d="M{here:.1f} 30l-7 -12h14z"/>', _text_svg(f"{amount.rows:,} here", here, 13)]
    return _wrap_in_svg("Samples against the guidance", 84, parts)


def _text_svg(text: str, x: float, y: float, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}"{more}>{text}</text>'


def _wrap_in_svg(title: str, tall: int, parts: Sequence[str]) -> str:
    return (f'<svg viewBox="0 0 {_SVG_WIDTH} {tall}" role="img" aria-label="{title}">\n'
            + "\n".join(parts) + "\n</svg>")  # fmt: skip
