"""Releases of transformers and LLaMA-Factory that can load the model that a run trains, and what to install if the
releases at hand cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import model_classes, models, releases
from validator.knowledge.broken_releases import BrokenReleases
from validator.knowledge.model_classes import is_loadable
from validator.knowledge.models import ConfigSource
from validator.knowledge.releases import ReleasePair
from validator.run.settings import RunSettings


class LoadingReleases(NamedTuple):
    """Releases that can load a model. `factory`: the newest LLaMA-Factory release that admits transformers releases
    which can. `transformers`: the range of these transformers releases, as pip writes it."""

    factory: str
    transformers: str

    def pip_command(self, with_factory: bool) -> str:
        """Return the command that installs the transformers releases, and LLaMA-Factory `with_factory`."""
        factory = f"llamafactory=={self.factory} " if with_factory else ""
        return f'pip install {factory}"transformers{self.transformers}"'


def model_types(run: RunSettings) -> tuple[str, ...]:
    """Return the model type of the run's model, and behind it the type of its text model if transformers looks it up.
    Empty if the model is not known, or if its own code is used in place of transformers' classes. Empty also if no
    transformers release knows the type and messages may not quote the config.json that names it."""
    source = _find_config_source(run)
    config = source.config if source else {}
    if _uses_own_code(run, config):
        return ()
    kind = run.model.kind if run.model else str(config.get("model_type", ""))
    text = config.get("text_config")
    inner = text.get("model_type") if isinstance(text, Mapping) else run.model.decoder if run.model else None
    is_looked_up = isinstance(inner, str) and inner and model_classes.looks_text_type_up(kind)
    kinds = (kind, str(inner)) if is_looked_up else (kind,) if kind else ()
    folder = source.folder if source else None
    is_quotable = folder is None or run.workspace.may_quote(folder / "config.json")
    return kinds if is_quotable or model_classes.first_release(kinds) else ()


def _find_config_source(run: RunSettings) -> ConfigSource | None:
    name = run.args.get("model_name_or_path")
    if not isinstance(name, str):
        return None
    place = run.workspace.find(name)
    with suppress(RecipeError):  # a config.json that other rules report
        return models.find_config_source(name, place[0] if place else None, *run.hub_source)
    return None


def _uses_own_code(run: RunSettings, config: Mapping[str, Any]) -> bool:
    """True if code of the model's own is loaded in place of transformers' classes. Without `trust_remote_code` that is
    not so, unless transformers has no class at all: then TRA901 reports it."""
    if run.model and run.model.remote_code:
        return True
    has_code = "AutoConfig" in (config.get("auto_map") or ()) or (
        run.model is not None and run.model.family.code_on_hub
    )
    return has_code and run.args.flag("trust_remote_code")


def loading_problem(kinds: Sequence[str], pair: ReleasePair) -> str:
    """Return why a pair of releases (LLaMA-Factory, transformers) cannot load a model of these types, as a clause for a
    message; empty if it can."""
    if is_loadable(kinds, pair):
        return ""
    factory, version = pair
    if unknown := model_classes.unknown_type(kinds, version):
        first = model_classes.first_release([unknown])
        since = f", which came with {first}" if first and releases.range_admits(f"<{first}", version) else ""
        return f"transformers {version} does not know model type `{unknown}`{since}"
    return f"LLaMA-Factory {factory} finds no class for model type `{kinds[0]}` in transformers {version}"


def loading_releases(
    kinds: Sequence[str], factories: Sequence[str], broken: Sequence[BrokenReleases] = ()
) -> LoadingReleases | None:
    """Return the releases that can load a model of these types and are not among the `broken` ones, for the first of
    the LLaMA-Factory releases `factories` that admits any. None if none does."""
    for factory in factories:
        loading = [
            version
            for version in model_classes.loading_releases(kinds, factory)
            if not any(
                not each.instead and each.admits({"llamafactory": factory, "transformers": version}) for each in broken
            )
        ]
        if loading:
            return LoadingReleases(factory, _range(loading, factory))
    return None


def no_release_clause(kinds: Sequence[str]) -> str:
    """Return the clause that no LLaMA-Factory release of the tables can load a model of these types, for a message."""
    if model_classes.first_release(kinds) is None:
        return f"no transformers release up to {model_classes.listed_releases()[-1]} does"
    factory, version = releases.newest_pair()
    return f"none of the releases that LLaMA-Factory {factory} admits, up to {version}, can load it"


def _range(loading: Sequence[str], factory: str) -> str:
    """Return the range of the newest unbroken row of transformers releases in `loading`, within what a LLaMA-Factory
    release admits. `loading`: transformers releases, oldest first."""
    oldest, newest = releases.admitted_transformers(factory)
    listed = model_classes.listed_releases()
    last = listed.index(loading[-1])
    first = next(place for place in range(last, -1, -1) if place == 0 or listed[place - 1] not in loading)
    lower = listed[first] if releases.range_admits(f">={oldest}", listed[first]) else oldest
    ends = last + 1 == len(listed) or not releases.range_admits(f"<={newest}", listed[last + 1])
    if ends and lower == newest:
        return f"=={newest}"
    return f">={lower},{f'<={newest}' if ends else f'<{listed[last + 1]}'}"
