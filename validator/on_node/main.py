"""The command line of a job: `batch` on the first node of a SLURM job, `node` on each node of any job.

The options say of the run what the program needs; after `--` comes the command that it starts."""

import argparse
import os
import sys
from typing import List, Tuple

from .batch import Batch
from .node import Node
from .output_lock import JobId, slurm_job


def main() -> None:
    """Run the program with the arguments of this process, and exit with the exit code of the run."""
    settings, words = _parse(sys.argv[1:])
    if settings.part == "batch":
        sys.exit(Batch(settings).run(words))
    env = os.environ
    job = slurm_job() if settings.engine == "SLURM" else None
    if job:
        env["NODE_RANK"] = env["SLURM_NODEID"]
    else:
        job = JobId(settings.engine, env["RDZV_ID"])
    sys.exit(Node(settings, int(env["NODE_RANK"]), job).run(words))


def _parse(arguments: List[str]) -> Tuple[argparse.Namespace, List[str]]:
    """Return the options, and the words after the first `--`."""
    end = arguments.index("--")
    parser = argparse.ArgumentParser(prog="lmf-recipes job")
    parser.add_argument("part", choices=("batch", "node"))
    parser.add_argument("--engine", required=True, help="SLURM, SkyPilot or Kubernetes")
    parser.add_argument("--recipe", required=True, help="the recipe, which all nodes see")
    parser.add_argument("--output", required=True, help="the output folder of the run")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--log", default="", help="the beginning of the path of each node's log")
    parser.add_argument("--machine", default="", help="what lmf-recipes doctor judges a node by")
    parser.add_argument("--own-folders", action="store_true", help="each node has an output folder of its own")
    parser.add_argument("--resumes", action="store_true", help="a start after the first goes on from a checkpoint")
    parser.add_argument("--anew", action="store_true", help="the first start moves aside what the output folder holds")
    parser.add_argument("--resuming", action="append", default=[], help="overrides that make a start go on")
    parser.add_argument("--notice", type=int, default=0, help="seconds before the limit at which SLURM sends USR1")
    parser.add_argument("--wait", type=float, default=600.0, help="seconds that nodes wait for each other")
    parser.add_argument("--max-open-files", type=int, default=65536)
    parser.add_argument(
        "--vendor-file",
        dest="vendor_files",
        action="append",
        default=[],
        help="shell files that set the vendor's paths",
    )
    parser.add_argument("--vendor-unless", default="", help="a variable that is set where they were read")
    parser.add_argument("--peers-driver", default="", help="an older driver needs the variables below")
    parser.add_argument("--peers-variable", dest="peers_variables", action="append", default=[])
    parser.add_argument("--hccl", action="store_true", help="processes exchange tensors by HCCL")
    parser.add_argument("--npus", action="store_true", help="the job has some of the NPUs of its node")
    return parser.parse_args(arguments[:end]), arguments[end + 1 :]
