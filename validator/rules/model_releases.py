"""TRA907, TRA908, TRA910 and TRA938: releases that the header block allows and that cannot load or train the model."""

from __future__ import annotations

from collections.abc import Sequence

from validator.knowledge import model_classes, releases
from validator.knowledge.broken_releases import BrokenReleases
from validator.knowledge.chat_templates import registering_factories
from validator.knowledge.releases import ReleasePair
from validator.rules.rule import ERROR, WARNING, Findings, rule
from validator.run.broken_run import broken_for_run
from validator.run.model_release import (
    LoadingReleases,
    loading_problem,
    loading_releases,
    model_types,
    no_release_clause,
)
from validator.run.settings import RunSettings


def _types_and_pairs(run: RunSettings) -> list[tuple[Sequence[str], list[ReleasePair]]]:
    """Return the model's types and the pairs of releases that the header block allows, newest first, as the one subject
    of the rules here."""
    kinds = model_types(run)
    return [(kinds, run.releases.pairs_among(reversed(model_classes.listed_releases())) if kinds else [])]


def _lacking(kinds: Sequence[str], pairs: list[ReleasePair]) -> list[ReleasePair]:
    """Return the pairs of releases that cannot load a model of these types."""
    return [pair for pair in pairs if not model_classes.is_loadable(kinds, pair)]


@rule("TRA907", ERROR, about=_types_and_pairs)
def releases_without_model(run: RunSettings, kinds: Sequence[str], pairs: list[ReleasePair]) -> Findings:
    """No release that the header block allows can load the model.

    Why: transformers knows the models that it was released with; of a newer one "Transformers does not recognize this
    architecture", when the model is configured, after the whole data set is tokenized on every rank. Where it knows the
    type, LLaMA-Factory may still look for a class in other lists than the one that has it.
    Source: transformers/models/auto/configuration_auto.py:AutoConfig.from_pretrained,
        llamafactory/model/loader.py:load_model
    Fix: the releases that the message names, in the header block and installed; or another model.
    """
    if pairs and len(pairs) == len(_lacking(kinds, pairs)):
        several = len({version for _, version in pairs}) > 1
        others = ", and no other release that the header block allows can load it" if several else ""
        remedy = _install_remedy(run, kinds) or f"{no_release_clause(kinds)}; choose another model"
        yield _release_field(run), f"{_problem(run, kinds, pairs[0])}{others}; {remedy}"


@rule("TRA908", WARNING, about=_types_and_pairs)
def releases_partly_without_model(run: RunSettings, kinds: Sequence[str], pairs: list[ReleasePair]) -> Findings:
    """Some of the releases that the header block allows cannot load the model, or lack the template.

    Why: a machine on which one of them is installed passes for fit, and the run ends there: for want of the template
    before the data is read, for want of the model's class when it is configured, after the whole data set is tokenized
    on every rank.
    Source: transformers/models/auto/configuration_auto.py:AutoConfig.from_pretrained,
        llamafactory/model/loader.py:load_model, llamafactory/data/template.py:get_template_and_fix_tokenizer
    Fix: the range of releases that the message names, in the header block.
    """
    lacking = _lacking(kinds, pairs)
    found, is_allowed = _loading_releases(run, kinds) if 0 < len(lacking) < len(pairs) else (None, False)
    if found:
        problem = f"the header block also allows releases without this model: {_problem(run, kinds, lacking[0])}"
        yield _release_field(run), f"{problem}; write {_header_lines(run, found, is_allowed)}"
    elif "llamafactory" in run.header:
        template = str(run.args.get("template"))
        having = registering_factories(template)
        without = [factory for factory in run.releases.possible_factories if factory not in having]
        if without and (kept := [factory for factory in run.releases.possible_factories if factory in having]):
            problem = f"the header block also allows LLaMA-Factory {without[0]}, which has no template `{template}`"
            yield "llamafactory", f"{problem}; write `# llamafactory: {kept[0]}`"


_Hit = tuple[ReleasePair, BrokenReleases]


def _broken_pairs(run: RunSettings, kinds: Sequence[str], pairs: Sequence[ReleasePair]) -> list[_Hit]:
    """Return the pairs of releases that are broken for the run, each with what is broken about it, among the pairs that
    the header block allows."""
    each = ((pair, broken) for broken in broken_for_run(run, kinds) for pair in pairs)
    return [(pair, one) for pair, one in each if one.admits(dict(zip(releases.RELEASE_FIELDS, pair, strict=True)))]


@rule("TRA910", ERROR, about=_types_and_pairs)
def releases_broken_for_model(run: RunSettings, kinds: Sequence[str], pairs: list[ReleasePair]) -> Findings:
    """All releases that the header block allows are known to fail with the model.

    Why: they have the model, and a mistake of theirs ends the run while it loads, or has it train weights that are not
    the model's: a loss as of a model that was never trained. The threads are in validator/data/broken.yaml.
    Source: transformers/modeling_utils.py:PreTrainedModel._initialize_missing_keys,
        transformers/integrations/deepspeed.py:_apply_weight_conversions_to_state_dict,
        llamafactory/model/loader.py:load_model
    Fix: the releases that the message names, in the header block and installed.
    """
    fatal = [hit for hit in _broken_pairs(run, kinds, pairs) if hit[1].effect != "loses"]
    if fatal and {pair for pair, _ in fatal} == {*pairs}:
        yield _release_field(run), _broken_message(run, kinds, *fatal[0])


@rule("TRA938", WARNING, about=_types_and_pairs)
def releases_partly_broken_for_model(run: RunSettings, kinds: Sequence[str], pairs: list[ReleasePair]) -> Findings:
    """Some of the releases that the header block allows are known to fail with the model, or lose a part of it.

    Why: a machine on which one of them is installed passes for fit, and the run ends there or is worth nothing. The
    threads are in validator/data/broken.yaml.
    Source: transformers/modeling_utils.py:PreTrainedModel._initialize_missing_keys,
        transformers/integrations/deepspeed.py:_apply_weight_conversions_to_state_dict,
        llamafactory/model/loader.py:load_model
    Fix: the range of releases that the message names, in the header block.
    """
    hits = _broken_pairs(run, kinds, pairs)
    if hits and {pair for pair, broken in hits if broken.effect != "loses"} != {*pairs}:
        some = len(pairs) > 1 and not hits[0][1].instead
        also = "the header block also allows releases that fail with this model: " if some else ""
        setting = hits[0][1].when  # fp16 is also the key that asks for it
        place = setting if run.args.is_set(setting) else _release_field(run)
        yield place, f"{also}{_broken_message(run, kinds, *hits[0])}"


def _broken_message(run: RunSettings, kinds: Sequence[str], pair: ReleasePair, broken: BrokenReleases) -> str:
    """Return what broken releases do with the model, and the remedy, as a message."""
    if broken.instead:
        return f"transformers {pair[1]} {broken.what}; {broken.instead}"
    remedy = _install_remedy(run, kinds) or no_release_clause(kinds)
    return f"transformers {pair[1]} {broken.what}; {remedy}"


def _install_remedy(run: RunSettings, kinds: Sequence[str]) -> str:
    """Return what to write into the header block and to install so that a model of these types loads, as a clause for a
    message; an empty string if no release can load it."""
    found, is_allowed = _loading_releases(run, kinds)
    if not found:
        return ""
    command = found.pip_command(with_factory=not is_allowed)
    return f"write {_header_lines(run, found, is_allowed)} into the header block, and run `{command}`"


def _problem(run: RunSettings, kinds: Sequence[str], pair: ReleasePair) -> str:
    """Return why a pair of releases cannot load the model. If only the LLaMA-Factory release is the header block's, the
    text says that it admits no newer transformers release."""
    implied = "transformers" not in run.header and "llamafactory" in run.header
    limit = f"LLaMA-Factory {pair[0]} admits transformers up to {pair[1]}: " if implied else ""
    return f"{limit}{loading_problem(kinds, pair)}"


def _release_field(run: RunSettings) -> str:
    """Return the field of the header block that names the releases; without one, the recipe's key of the model."""
    return next((field for field in ("transformers", "llamafactory") if field in run.header), "model_name_or_path")


def _loading_releases(run: RunSettings, kinds: Sequence[str]) -> tuple[LoadingReleases | None, bool]:
    """Return the releases that can load and train a model of these types, and True if the header block allows their
    LLaMA-Factory release. None and False if no release can."""
    broken = broken_for_run(run, kinds)
    if found := loading_releases(kinds, run.releases.possible_factories, broken):
        return found, run.releases.oldest_stand_in is None
    return loading_releases(kinds, releases.known_factories(), broken), False


def _header_lines(run: RunSettings, found: LoadingReleases, is_allowed: bool) -> str:
    """Return the lines of the header block that allow only releases which can load the model, as text for a message."""
    lines = [] if is_allowed and "transformers" in run.header else [f"`# llamafactory: {found.factory}`"]
    if "transformers" in run.header or "llamafactory" not in run.header:
        lines.append(f'`# transformers: "{found.transformers.replace(",", ", ")}"`')
    return " and ".join(lines)
