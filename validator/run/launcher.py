"""Ray, which USE_RAY puts in the place of torchrun (llamafactory/train/tuner.py, _ray_training_function): its workers
and the CPUs that it reserves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import node_environment
from validator.recipe.safe_read import parse_json
from validator.run.settings import RunSettings

# Of each device of the whole cluster, however many workers train (train/trainer_utils.py, get_placement_group). That
# Ray waits for them without end was seen with ray 2.60: 10 CPUs on 2, and two times 10 on 19; on 20 they are there.
RAY_CPUS = 10


def uses_ray() -> bool:
    """True if the environment hands the run to Ray."""
    return node_environment.is_env_enabled("USE_RAY")


def ray_workers(job: RunSettings) -> int:
    """Return the number of processes that train."""
    return max(int(job.args.number("ray_num_workers")), 1)


def declared_ray_cpus(job: RunSettings) -> int | None:
    """Return the CPUs that the recipe tells Ray it has; None if Ray counts them itself."""
    count = _ray_init_options(job).get("num_cpus")
    return count if isinstance(count, int) else None


def joins_ray_cluster(job: RunSettings) -> bool:
    """True if the run joins an existing cluster; otherwise Ray starts a cluster for the run on this node."""
    return bool(_ray_init_options(job).get("address") or os.environ.get("RAY_ADDRESS"))


def _ray_init_options(job: RunSettings) -> Mapping[str, Any]:
    """Return the arguments of ray.init, written as a mapping or as JSON text (hparams/training_args.py)."""
    value = job.args.get("ray_init_kwargs")
    if isinstance(value, str):
        with suppress(RecipeError):
            value = parse_json(value)
    return value if isinstance(value, Mapping) else {}
