"""The recipe of the catalogue to start from."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from functools import cache

from validator.job import naming
from validator.plan.draft import Draft
from validator.read.recipe import load
from validator.recipes import catalogue
from validator.tables import devices

# What follows the method in a file name where the stage is not sft.
_STAGES = "pt|rm|ppo|dpo|kto"


@cache
def _labels() -> str:
    """Devices as file names say them, as a pattern."""
    return "|".join(re.escape(naming.label(device)) for device in devices.device_ids())


def nearest(draft: Draft) -> str | None:
    """The recipe of the catalogue for the same model, method and stage that shares most with the draft: before all its
    device, then their number, then its variant. None: there is none; one of another method or of another tuning, which
    goes by the same short name, would mislead."""
    method = re.escape(naming.method_name(draft.job))
    form = re.compile(rf"{re.escape(str(draft.model.short))}-({_labels()})(x\d+)?-{method}(?!-(?:{_STAGES}))(-.+)?")
    wanted = form.fullmatch(draft.name)
    own = wanted.groups() if wanted else ()  # a device known by its memory alone is no label of a recipe
    alike = (match for name in catalogue.names() if (match := form.fullmatch(name)))
    closest = sorted(alike, key=lambda match: [*map(operator.eq, own, match.groups())], reverse=True)
    names = (match.group() for match in closest)
    return next((name for name in names if _settings(name).get("model_name_or_path") == draft.model.name), None)


def same(draft: Draft) -> str | None:
    """The recipe of the catalogue that does what the draft does: on its machine, for its model and samples as long."""
    name = nearest(draft)
    return name if name == draft.name and _settings(name).get("cutoff_len") == draft.length else None


@cache
def _settings(name: str) -> Mapping[str, object]:
    return load(str(catalogue.file(name))).values
