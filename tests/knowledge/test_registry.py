"""LLaMA-Factory's registry of models against the catalogue: what is known, what is not and why, and the templates."""

from __future__ import annotations

from pages import models as registry
from support.every import every

from validator.knowledge import models
from validator.knowledge.tables import json_table, yaml_table

GROUPS = list(registry.groups())
# Registered for a tuned model, as which LLaMA-Factory takes them.
SLIPS = {"AI-ModelScope/gemma-7b"}


def test_no_group_is_missing() -> None:
    """The groups of 0.9.5 hold every name that templates.json has by template."""
    named = {
        place for kinds in json_table("templates")["models"].values() for places in kinds.values() for place in places
    }
    assert {place for group in GROUPS for place in group.places} == named
    assert len(GROUPS) == 126


@every(GROUPS)
def test_a_group_is_known_or_has_a_reason(group: registry.Group) -> None:
    assert group.known or group.reason, f"no entry for {', '.join(group.unknown)}"


def test_no_reason_is_stale() -> None:
    """A group that is known whole needs none."""
    assert registry.reasons()["groups"].keys() & {group.name for group in GROUPS if group.known} == set()


def test_reasons_are_of_the_registry() -> None:
    assert registry.reasons()["groups"].keys() <= {group.name for group in GROUPS}
    assert registry.reasons()["places"].keys() <= {place for group in GROUPS for place in group.places}


def registered() -> dict[str, tuple[str, str]]:
    """Place -> template of its group and kind."""
    kinds = json_table("templates")["models"].items()
    return {place: (template, kind) for template, each in kinds for kind, places in each.items() for place in places}


REGISTERED = registered()


def blind(model: models.Model, template: str) -> bool:
    """Whether the template reads images and the model sees none: its preprocessing would fail."""
    entry = yaml_table("models")[str(model.id)]
    sees = any(f"{part}_config" in entry["config"] for part in ("vision", "audio", "thinker"))
    return not sees and bool(json_table("templates")["templates"].get(template, {}).get("media"))


@every([group for group in GROUPS if group.known])
def test_templates_are_those_of_llamafactory(group: registry.Group) -> None:
    """A chat model has its group's template, a base model has none or its group's."""
    for place in set(group.places) - registry.reasons()["places"].keys():
        template, kind = REGISTERED[place]
        model = models.find_model(place)
        ours = model.template
        if not blind(model, template):
            untuned = model.base and (kind != "chat" or place in SLIPS)
            assert ours == (template or None) or (ours is None and untuned), place
