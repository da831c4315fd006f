"""The study as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from validator.show import picture
from validator.study.amount import Amount
from validator.study.results import Study

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
_OURS = '<meta name="generator" content="lmf-recipes data">'
_SAFE = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
_WIDE = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def ours(data: bytes) -> bool:
    """Whether a file is such a page, or empty."""
    return not data or data.startswith(f"{_HEAD}\n{_OURS}".encode())


def page(study: Study) -> str:
    """The whole page."""
    name = escape(study.path)
    parts = (_problems(study), _tiles(study), _sets(study), _drops(study), _lengths(study), _amount(study.amount),
             _quality(study), _notes(study))  # fmt: skip
    body = "\n".join(line for part in parts for line in part)
    head = f"{_HEAD}\n{_OURS}\n{_SAFE}\n{_WIDE}\n<title>{name}: training data</title>\n<style>{_STYLE}</style>\n</head>"
    return f"{head}\n<body>\n<h1>{name}</h1>\n{body}\n</body>\n</html>\n"


def _problems(study: Study) -> Iterator[str]:
    for problem in study.problems:
        place, message = escape(problem.place), escape("; ".join(filter(None, [problem.message, problem.remedy])))
        yield f'<p class="error">LLaMA-Factory stops: <code>{place}</code>: {message}</p>'


def _tiles(study: Study) -> Iterator[str]:
    rows, steps = study.rows, study.steps
    total, warmup, saves = (steps.total, steps.warmup, steps.saves) if steps else (0, 0, 0)
    shown = {"rows read": rows.read, "rows dropped": rows.dropped, "rows trained": rows.trained, "steps": total,
             "steps of warm-up": warmup, "saves": saves, "tokens an epoch": study.tokens.per_epoch}  # fmt: skip
    model = escape(str(study.model or "no model named"))
    yield f"<p>{model}, {escape(study.stage)} {escape(study.method)}, cutoff_len {study.cutoff_len:,}</p>"
    yield '<div class="tiles">'
    yield from (f'<div class="tile"><b>{size:,}</b>{name}</div>' for name, size in shown.items())
    yield "</div>"


def _table(title: str, header: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    if not rows:
        return
    kinds = (' class="n"' if isinstance(value, int) else "" for value in rows[0])
    names = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, header, strict=True))
    yield f"{title and f'<h2>{title}</h2>'}\n<table>\n<tr>{names}</tr>"
    yield from (f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    yield "</table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"


def _sets(study: Study) -> Iterator[str]:
    rows = [(one.name, one.role, one.note or ", ".join(one.columns), one.rows) for one in study.sets]
    yield from _table("Data sets", ("name", "for", "columns", "rows"), rows)


def _drops(study: Study) -> Iterator[str]:
    rows = [(drop.reason, ", ".join(drop.examples), drop.rows) for drop in study.drops]
    yield from _table("Dropped rows", ("reason", "such as", "rows"), rows)


def _lengths(study: Study) -> Iterator[str]:
    tokens = study.tokens
    if not tokens.histogram:
        return
    yield f"<h2>Lengths in tokens ({escape(tokens.source)})</h2>"
    limit, recommended = study.cutoff_len, tokens.recommended_cutoff_len
    better = [(recommended, f"recommended {recommended:,}")] if recommended else []
    marks = [(limit, f"cutoff_len {limit:,}"), *better]
    yield picture.histogram(tokens.histogram, marks)
    yield (f"<p>Median {tokens.median:,}, 99 % up to {tokens.p99:,}, longest {tokens.longest:,}. "
           f"{tokens.rows_cut:,} rows and {tokens.tokens_cut:,} tokens are cut at cutoff_len. "
           f"{f'Recommended: {recommended:,}.' if recommended else ''}</p>")  # fmt: skip
    if memory := study.memory:
        yield (f"<p>Device memory: {memory.longest_gib:.1f} GiB with the longest batch ({memory.longest:,} "
               f"tokens), {memory.cutoff_gib:.1f} GiB at cutoff_len.</p>")  # fmt: skip
    yield "<details><summary>as numbers</summary>"
    rows = [(f"{bar.from_:,} to {bar.to:,}", bar.rows) for bar in tokens.histogram]
    yield from _table("", ("tokens", "rows"), rows)
    yield "</details>"


def _amount(amount: Amount) -> Iterator[str]:
    if not amount.rows:
        return
    yield f"<h2>Amount: {escape(amount.verdict)}</h2>"
    yield picture.zones(amount)
    yield f"<p>{amount.counted}: {escape(amount.message)}. {_better(amount)}</p>"
    yield f"<p>{escape(amount.epochs.message)}</p>" if amount.epochs.message else ""
    sure = "; ".join(f"{figure}: {escape(words)}" for figure, words in amount.sure.items())
    yield f"<p>By: {sure}</p>" if sure else ""
    sources = "; ".join(escape(str(one.get("url") or one.get("cite"))) for one in amount.sources)
    yield f"<p>Guidance: {sources}</p>" if sources else ""


def _better(amount: Amount) -> str:
    better = amount.better_size
    return f"A model of {better.billions:g}B suits these samples better." if better else ""


def _quality(study: Study) -> Iterator[str]:
    rows = [(one.kind, one.message, ", ".join(one.examples), f"{one.share:.2%}", one.rows)
            for one in study.quality]  # fmt: skip
    yield from _table("Quality", ("", "", "such as", "share", "rows"), rows)


def _notes(study: Study) -> Iterator[str]:
    yield from (f"<p>Note: {escape(note)}</p>" for note in study.notes)
