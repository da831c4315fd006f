"""What to type after an answer of `plan`."""

from __future__ import annotations

from collections.abc import Sequence

from validator.plan.answer import Answer
from validator.plan.nearest import same
from validator.quoting import join


def following(answer: Answer, given: Sequence[str]) -> list[str]:
    """Commands for a shell: the best plan as a recipe, the recipe of the catalogue where one is for this very machine;
    after a choice of models, the ways to train the first. `given`: the options that were answered, as words."""
    if answer.best is None:
        return []
    draft, again = answer.best.draft, ["lmf-recipes", "plan", *given]
    if answer.model is None:
        return [join([*again, "--model", draft.model.name])]
    commands = [[*again, "--write", f"{draft.name}.yaml"]]
    if alike := same(draft):
        data = given.index("--data") if "--data" in given else len(given)
        commands.append(["lmf-recipes", "copy", alike, ".", *given[data : data + 2]])
    return [join(command) for command in commands]
