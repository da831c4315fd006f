"""The study as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --bar: #3b6fb6; --weak: #8884; --bad: #c0392b; --good: #2e8b57; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .6rem .2rem 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr { border-bottom: 1px solid var(--weak); } code { overflow-wrap: anywhere; }
.bar { background: var(--bar); height: .8rem; min-width: 1px; } td.w { width: 55%; }
.error { color: var(--bad); font-weight: 600; } .tiles { display: flex; flex-wrap: wrap; gap: 1rem; }
.tile { border: 1px solid var(--weak); border-radius: .4rem; padding: .5rem 1rem; }
.tile b { display: block; font-size: 1.3rem; }
"""
_HEAD = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
_WIDE = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def page(found: Mapping[str, Any]) -> str:
    """The whole page."""
    name = escape(found["path"])
    parts = (_problems(found), _tiles(found), _sets(found), _drops(found), _lengths(found), _amount(found["amount"]),
             _quality(found), _notes(found))  # fmt: skip
    body = "\n".join(line for part in parts for line in part)
    head = f"{_HEAD}\n{_WIDE}\n<title>{name}: training data</title>\n<style>{_STYLE}</style>\n</head>"
    return f"{head}\n<body>\n<h1>{name}</h1>\n{body}\n</body>\n</html>\n"


def _problems(found: Mapping[str, Any]) -> Iterator[str]:
    for problem in found["problems"]:
        place, message = escape(problem["place"]), escape(problem["message"])
        yield f'<p class="error">LLaMA-Factory stops: <code>{place}</code>: {message}</p>'


def _tiles(found: Mapping[str, Any]) -> Iterator[str]:
    rows, steps, tokens = found["rows"], found["steps"] or {}, found["tokens"]
    shown = {"rows read": rows["read"], "rows dropped": rows["dropped"], "rows trained": rows["trained"],
             "steps": steps.get("total", 0), "steps of warm-up": steps.get("warmup", 0), "saves": steps.get("saves", 0),
             "tokens an epoch": tokens["per_epoch"]}  # fmt: skip
    model = escape(str(found["model"] or "no model named"))
    yield f"<p>{model}, {escape(found['stage'])} {escape(found['method'])}, cutoff_len {found['cutoff_len']:,}</p>"
    yield '<div class="tiles">'
    yield from (f'<div class="tile"><b>{size:,}</b>{name}</div>' for name, size in shown.items())
    yield "</div>"


def _table(title: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    if not rows:
        return
    yield f"<h2>{title}</h2>\n<table>\n<tr>{''.join(f'<th>{name}</th>' for name in header)}</tr>"
    yield from (f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    yield "</table>"


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    if isinstance(value, float):  # a share of the widest bar
        return f'<td class="w"><div class="bar" style="width: {value:.2%}"></div></td>'
    return f"<td>{escape(str(value))}</td>"


def _sets(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [(one["name"], one["role"], one["note"] or ", ".join(one["columns"]), one["rows"]) for one in found["sets"]]
    yield from _table("Data sets", ("name", "for", "columns", "rows"), rows)


def _drops(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [(drop["reason"], ", ".join(drop["examples"]), drop["rows"]) for drop in found["drops"]]
    yield from _table("Dropped rows", ("reason", "such as", "rows"), rows)


def _lengths(found: Mapping[str, Any]) -> Iterator[str]:
    tokens = found["tokens"]
    most = max((bar["rows"] for bar in tokens["histogram"]), default=1)
    rows = [(f"{bar['from']:,} to {bar['to']:,}", bar["rows"], bar["rows"] / most) for bar in tokens["histogram"]]
    yield from _table(f"Lengths in tokens ({escape(tokens['source'])})", ("tokens", "rows", ""), rows)
    if rows:
        cut = f"{tokens['rows_cut']:,} rows and {tokens['tokens_cut']:,} tokens are cut at cutoff_len."
        yield f"<p>{cut} Recommended: {tokens['recommended_cutoff_len']:,}.</p>"
    if memory := found["memory"]:
        yield (f"<p>Device memory: {memory['longest_gib']:.1f} GiB with the longest batch ({memory['longest']:,} "
               f"tokens), {memory['cutoff_gib']:.1f} GiB at cutoff_len.</p>")  # fmt: skip


def _amount(amount: Mapping[str, Any]) -> Iterator[str]:
    marks = [(name, amount[name]) for name in ("minimum", "useful", "good", "saturating") if amount[name]]
    marks.append(("here", amount["rows"]))
    scale = max(size for _, size in marks) or 1
    title = f"Amount: {escape(amount['verdict'])}"
    yield from _table(title, ("", "samples", ""), [(name, size, size / scale) for name, size in marks])
    yield f"<p>{escape(amount['message'])}. {escape(amount['epochs']['message'])}</p>"
    if better := amount["better_size"]:
        yield f"<p>A model of {better['billions']:g}B suits these samples better.</p>"
    sources = "; ".join(escape(str(one.get("url") or one.get("cite"))) for one in amount["sources"])
    yield f"<p>Guidance: {sources}</p>" if sources else ""


def _quality(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [(one["kind"], one["message"], ", ".join(one["examples"]), f"{one['share']:.2%}", one["rows"])
            for one in found["quality"]]  # fmt: skip
    yield from _table("Quality", ("", "", "such as", "share", "rows"), rows)


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"<p>Note: {escape(note)}</p>" for note in found["notes"])
