"""PAR120 and PAR121: keys of a DeepSpeed file that the prediction leaves out, and keys that nothing reads
(data/deepspeed_keys.yaml, which says of every key what it does to a run)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from validator.knowledge.tables import yaml_table
from validator.rules import subjects
from validator.rules.rule import NOTE, WARNING, Findings, rule
from validator.rules.subjects import PlaceIn
from validator.run.deepspeed import DTYPE_OF_WORD, DeepSpeedConfig
from validator.run.settings import RunSettings

_NUMBER_FORMAT = "number format"  # in `neutral` of the table: that of the run


@rule("PAR120", WARNING, about=subjects.deepspeed_file)
def prediction_leaves_out(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON sets keys that change memory, time or steps, and that are not judged.

    Why: memory and time are predicted as if the keys were not there, so that a run that fits by the prediction may not
    fit, and the other way round.
    Source: own (the prediction)
    Fix: measure with `lmf-recipes train --smoke`, or remove the keys.
    """
    found = {path: entry["not_judged"] for path, entry in _keys_at_work("not_judged", run, zero)}
    if found:
        named = "; ".join(f"`{path}` ({what})" for path, what in found.items())
        remedy = "measure with `lmf-recipes train --smoke`, or remove what you do not need"
        yield at(next(iter(found)), at_key=True), f"memory and time are predicted without {named}; {remedy}"


@rule("PAR121", NOTE, about=subjects.deepspeed_file)
def section_unread(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON has a section that nothing reads in a run of LLaMA-Factory.

    Why: it is for models or loaders of DeepSpeed. LLaMA-Factory trains models of transformers with the Trainer's
    loader, so the run is what it is without the section.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine.deepspeed_io, deepspeed/runtime/pipe/engine.py:PipelineEngine,
    deepspeed/ops/sparse_attention/sparse_attention_utils.py:SparseAttentionUtils
    Fix: remove the section.
    """
    for path, entry in _keys_at_work("unread", run, zero):
        yield at(path, at_key=True), f"nothing reads `{path}`: {entry['unread']}; remove `{path}`"


def _keys_at_work(
    kind: Literal["not_judged", "unread"], run: RunSettings, zero: DeepSpeedConfig
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each key of the DeepSpeed configuration whose entry in the table is of this kind and whose value turns
    something on: its dotted path, down to the switch of a block, and its entry."""
    table = yaml_table("deepspeed_keys")
    number_format = run.precision.compute_dtype or "fp32"
    for path in table.matches(rf"\n([\w.]+): \{{{kind}:"):
        value = zero.value(path)
        if value is None:
            continue
        entry = table[path]
        switch, needs = entry.get("switch"), entry.get("needs")
        if switch:
            value = value.get(switch) if isinstance(value, Mapping) else None
        neutral = [number_format if one == _NUMBER_FORMAT else one for one in ("auto", *entry.get("neutral", ()))]
        word = DTYPE_OF_WORD.get(value, value) if isinstance(value, str) else value
        compared = _NUMBER_FORMAT in entry.get("neutral", ())
        if compared and (run.model_name is None or word not in DTYPE_OF_WORD.values()):
            continue  # refused by another rule, or not known from a DeepSpeed file alone
        counts = zero.stage in entry.get("stages", (0, 1, 2, 3)) and (needs is None or run.args.flag(needs))
        if value and word not in neutral and counts:
            yield f"{path}.{switch}" if switch else path, entry
