"""`--simulate`, which several commands take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from validator.commands.say import say

if TYPE_CHECKING:
    from validator.job.job import Job
    from validator.trial.figures import Simulation
    from validator.trial.trials import Trials

_LACKS = "--simulate needs {}, which this Python lacks; run `pip install torch llamafactory=={}`"


def _possible(context: click.Context, _parameter: click.Parameter, wanted: bool) -> bool:
    """Refused as wrong usage, with what to install, where the packages are not there."""
    if wanted and not context.resilient_parsing:
        from validator.tables import releases  # only where it is asked for
        from validator.trial import trials

        if lacking := trials.lacking():
            raise click.UsageError(_LACKS.format(", ".join(lacking), releases.newest()[0]))
    return wanted


@contextmanager
def trials(wanted: bool, more: int = 0) -> Iterator[Trials | None]:
    """What simulates runs, `more` beside the first; None where it is not wanted. The process that simulates ends with
    the block."""
    if not wanted:
        yield None
        return
    from validator.trial import trials

    with trials.Trials(lambda line: say(line, err=True), more) as made:
        yield made


@contextmanager
def simulated(wanted: bool, more: int = 0) -> Iterator[Callable[[Job], Job] | None]:
    """As `trials`, what gives a job its simulations."""
    with trials(wanted, more) as made:
        if made is None:
            yield None
            return
        from validator.trial import job

        yield lambda one: job.simulated(one, made)


def figures(job: Job) -> Simulation | None:
    """What was simulated of a job; None where nothing was."""
    from validator.trial.job import SimulatedJob

    return job.simulation if isinstance(job, SimulatedJob) else None


OPTION = click.option("--simulate", is_flag=True, callback=_possible,
                      help="Step the real class through with tensors that hold no values: for models that no formula "
                      "knows. Needs torch and LLaMA-Factory, and seconds.")  # fmt: skip
