"""PAR2xx: environment variables that LLaMA-Factory's launcher reads (launcher.py), what Ray needs if these variables
make it start the run, and packages that settings need where the run is launched."""

from __future__ import annotations

import difflib
import os
from itertools import groupby

from validator.escaping import shell_join
from validator.knowledge import node_environment
from validator.knowledge.devices import Machine
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.rules import subjects
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.run import launch_command
from validator.run.needed_packages import needed_packages, pip_requirement
from validator.run.settings import RunSettings
from validator.wording import plural

_OFF_WORDS = ("false", "n", "0", "no", "off", "")
_SWITCHES = (
    "FORCE_TORCHRUN", "USE_MODELSCOPE_HUB", "USE_OPENMIND_HUB", "DISABLE_VERSION_CHECK", "ALLOW_EXTRA_ARGS",
    "USE_RAY", "USE_V1", "USE_MCA", "USE_KT", "RECORD_VRAM", "FORCE_CHECK_IMPORTS",
)  # fmt: skip
_OTHER_TRAINERS = {
    "USE_V1": "LLaMA-Factory's new trainer",
    "USE_MCA": "Megatron",
}


@rule("PAR201", WARNING)
def switch_not_on(_run: RunSettings) -> Findings:
    """A switch in the environment holds a word that LLaMA-Factory takes as off.

    Why: only true, y and 1 turn a switch on; `FORCE_TORCHRUN=yes` starts no torchrun, and nothing says so.
    Source: llamafactory/extras/misc.py:is_env_enabled
    Fix: write 1.
    """
    for name in _SWITCHES:
        value = os.environ.get(name, "")
        if value.lower() not in _OFF_WORDS and not node_environment.is_env_enabled(name):
            yield None, f"the environment has {name}={value}, which LLaMA-Factory takes as off; write {name}=1"


@rule("PAR202", WARNING)
def another_trainer(_run: RunSettings) -> Findings:
    """The environment hands the recipe to another trainer of LLaMA-Factory.

    Why: the keys are read by another code base, so this verdict does not hold there.
    Source: llamafactory/cli.py:main, llamafactory/launcher.py:launch
    Fix: unset the variable.
    """
    for name, what in _OTHER_TRAINERS.items():
        if node_environment.is_env_enabled(name):
            found = f"the environment has {name}={os.environ[name]}, so the run goes to {what}"
            yield None, f"{found}, which has other keys and is not judged; unset {name} to train without it"


@rule("PAR203", WARNING, about=subjects.machine)
def processes_against_machine(_run: RunSettings, machine: Machine) -> Findings:
    """The environment starts a number of processes that is not the machine's number of devices.

    Why: the launcher takes NPROC_PER_NODE and NNODES from the environment: batch size, memory and steps are then those
    of another machine than was judged, or the nodes wait for each other.
    Source: llamafactory/launcher.py:launch
    Fix: unset the variable, or name the machine with `--machine`.
    """
    devices, nodes = machine.devices, machine.nodes
    if (processes := os.environ.get("NPROC_PER_NODE", str(devices))) != str(devices):
        found = f"the environment has NPROC_PER_NODE={processes}, but the machine has {devices} devices"
        yield "machine", f"{found}; unset NPROC_PER_NODE, or name the machine with `--machine`"
    if (given := os.environ.get("NNODES", str(nodes))) != str(nodes):
        found = f"the environment has NNODES={given}, but the machine has {nodes} {plural(nodes, 'node')}"
        yield "machine", f"{found}; unset NNODES, or name the machine with `--machine`"


@rule("PAR204", WARNING, about=subjects.machine)
def node_rank_missing(_run: RunSettings, machine: Machine) -> Findings:
    """The environment gives this node's rank as RANK, which LLaMA-Factory does not read.

    Why: without NODE_RANK every node takes itself for the first, and all wait for each other until the timeout. With
    RDZV_ID the launch is elastic, and the nodes find their ranks themselves.
    Source: llamafactory/launcher.py:launch
    Fix: `NODE_RANK=$RANK`.
    """
    finds_its_rank = {"RDZV_ID", "NODE_RANK", "LOCAL_RANK"} & os.environ.keys()
    if machine.nodes > 1 and "RANK" in os.environ and not finds_its_rank:
        found = f"the environment has RANK={os.environ['RANK']}, but LLaMA-Factory reads only NODE_RANK"
        yield "machine", f"{found}; set NODE_RANK=$RANK"


@rule("PAR210", WARNING, about=subjects.machine)
def nodes_may_vary(run: RunSettings, machine: Machine) -> Findings:
    """The environment lets an elastic launch start with fewer or more nodes than the recipe is judged for.

    Why: with RDZV_ID torchrun starts half a minute after MIN_NNODES nodes have come, up to MAX_NNODES of them. Fewer
    make a smaller batch, and what ZeRO-3 spreads takes more memory on each device; that was not judged. After the loss
    of a node the others cannot load what ZeRO has saved. Where the lost one is that of MASTER_ADDR, all end.
    Source: llamafactory/launcher.py:launch, deepspeed/runtime/engine.py:DeepSpeedEngine._load_zero_checkpoint
    Fix: unset both; an elastic launch of a fixed number of nodes needs neither.
    """
    least, most = (os.environ.get(name) for name in ("MIN_NNODES", "MAX_NNODES"))
    elastic = least is not None and most is not None and "RDZV_ID" in os.environ
    if elastic and {least, most} != {str(machine.nodes)}:
        judged = f"but the verdict holds for {machine.nodes} {plural(machine.nodes, 'node')}"
        bound = ", and ZeRO resumes only with as many processes as before" if run.zero_stage else ""
        found = f"the environment has MIN_NNODES={least} MAX_NNODES={most}, {judged}{bound}"
        yield "machine", f"{found}; unset MIN_NNODES and MAX_NNODES"


@rule("PAR211", WARNING, about=subjects.machine)
def torchrun_restarts(run: RunSettings, machine: Machine) -> Findings:
    """The environment makes torchrun restart processes by itself.

    Why: nodes share a store, in which each counts the restarts for itself: after the loss of a process all wait for
    each other without end, and a node that comes back ends the others after a minute (seen in real runs, torch 2.13).
    With `overwrite_output_dir` each restart begins anew, and none sets a half-written checkpoint aside.
    Source: llamafactory/launcher.py:launch,
    torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:DynamicRendezvousHandler.next_rendezvous
    Fix: unset MAX_RESTARTS and start all nodes again, as the jobs of `lmf-recipes submit` do.
    """
    restarts = os.environ.get("MAX_RESTARTS", "")
    if "RDZV_ID" not in os.environ or not restarts.isdecimal() or int(restarts) == 0:
        return
    shared = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"
    if machine.nodes > 1 and shared:
        remedy = "unset MAX_RESTARTS, or set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        found = (
            f"the environment has MAX_RESTARTS={restarts}, and after a restart nodes can wait for each other for ever"
        )
        yield "machine", f"{found}; {remedy}"
    if run.args.flag("overwrite_output_dir"):
        found = f"the environment has MAX_RESTARTS={restarts}, and with `overwrite_output_dir` each restart begins anew"
        yield "overwrite_output_dir", f"{found}; set `overwrite_output_dir: false`, or unset MAX_RESTARTS"


@rule("PAR205", WARNING, about=subjects.model)
def name_of_another_hub(run: RunSettings, model: Model) -> Findings:
    """The model has another name on the hub from which it is loaded.

    Why: with USE_MODELSCOPE_HUB LLaMA-Factory hands the name to modelscope as it stands, without it to Hugging Face;
    where the other hub has another name for the model, every process stops with a 404 error.
    Source: llamafactory/extras/misc.py:try_download_model_from_other_hub
    Fix: the name in the message, a folder, or the variable set as the name asks for.
    """
    if model.id is None or model.identified_by or run.workspace.find(str(run.args.get("model_name_or_path"))):
        return
    scope = node_environment.is_env_enabled("USE_MODELSCOPE_HUB")
    if not scope and model.name in model.hub:  # which most checks are
        return
    names = yaml_table("models")[model.id]["modelscope"] if scope else list(model.hub)
    if model.name not in names:
        meant = _most_similar_name(model.name, names)
        remedy = f"write `{meant}`" if meant else "name a folder"
        change = f"unset USE_MODELSCOPE_HUB, or {remedy}" if scope else f"set USE_MODELSCOPE_HUB=1, or {remedy}"
        hub = "ModelScope" if scope else "Hugging Face"
        yield "model_name_or_path", f"{model.name} is not known to be on {hub}, from which it is loaded; {change}"


def _most_similar_name(name: str, names: list[str]) -> str | None:
    """Return the one of `names` that is most similar to `name`, without regard to the organization before the slash:
    most likely the same model's name on another hub. None if `names` is empty."""
    name_of_model = {each.rpartition("/")[2].lower(): each for each in reversed(names)}
    matches = difflib.get_close_matches(name.rpartition("/")[2].lower(), list(name_of_model), n=1, cutoff=0.0)
    return name_of_model[matches[0]] if matches else None


@rule("PAR206", ERROR, about=subjects.machine)
def ray_cannot_start(run: RunSettings, machine: Machine) -> Findings:
    """Ray cannot give the run what it asks for.

    Why: LLaMA-Factory reserves a bundle of 10 CPUs and one device for each device of the cluster, and waits for them
    without end; for more workers than devices it stops. `num_cpus` in `ray_init_kwargs` is what Ray believes, not what
    the machine has (github.com/hiyouga/LlamaFactory/issues/10348).
    Source: llamafactory/train/tuner.py:_ray_training_function, llamafactory/train/trainer_utils.py:get_placement_group
    Fix: as many CPUs, or workers, as the message says.
    """
    if not launch_command.uses_ray():
        return
    devices, wanted = machine.devices, launch_command.RAY_CPUS * machine.devices
    promised, workers = launch_command.declared_ray_cpus(run), launch_command.ray_workers(run)
    if promised is not None and promised < wanted and not launch_command.joins_ray_cluster(run):
        reserved = f"LLaMA-Factory reserves {launch_command.RAY_CPUS} for each of {devices} devices"
        found = f"`num_cpus` gives Ray {promised} CPUs, but {reserved}, so the run would wait for ever"
        yield "ray_init_kwargs", f"{found}; set `num_cpus: {wanted}`"
    if workers > run.batch.world_size:
        found = f"`ray_num_workers` is {workers}, but the machine has {run.batch.world_size} devices"
        yield "ray_num_workers", f"{found}; set `ray_num_workers: {run.batch.world_size}`"


@rule("PAR207", WARNING, about=subjects.machine)
def ray_may_wait(run: RunSettings, machine: Machine) -> Findings:
    """Nothing tells Ray that it has the CPUs that LLaMA-Factory reserves.

    Why: 10 CPUs are reserved for each device of the cluster; on a node that has fewer, threads counted, the run waits
    without end and says nothing (github.com/hiyouga/LlamaFactory/issues/10348).
    Source: llamafactory/train/trainer_utils.py:get_placement_group
    Fix: `ray_init_kwargs: {num_cpus: …}`, which no core stands behind, or `ray start --num-cpus` for a cluster.
    """
    if launch_command.uses_ray() and not run.on_cpu and launch_command.declared_ray_cpus(run) is None:
        wanted = launch_command.RAY_CPUS * machine.devices
        many = machine.nodes > 1 or launch_command.joins_ray_cluster(run)
        remedy = f"set `ray_init_kwargs: {{num_cpus: {wanted}}}`"
        if many:
            remedy = f"start Ray on each node with `ray start --num-cpus {wanted}`"
        reserved = f"{launch_command.RAY_CPUS} CPUs for each device, {wanted} on a node of {machine.devices}"
        found = f"the environment has USE_RAY, so LLaMA-Factory reserves {reserved}"
        yield None, f"{found}, and waits for ever if Ray has fewer; {remedy}"


@rule("PAR208", WARNING, about=subjects.machine)
def ray_trains_on_fewer(run: RunSettings, _machine: Machine) -> Findings:
    """Ray trains with fewer workers than the machine has devices.

    Why: `ray_num_workers` is 1 unless it is set. All devices are reserved, and the others stay idle: batch size, memory
    and steps are those of another machine than was judged.
    Source: llamafactory/hparams/training_args.py:RayArguments, llamafactory/train/tuner.py:_ray_training_function
    Fix: the number of all devices, or a smaller machine.
    """
    if launch_command.uses_ray() and (workers := launch_command.ray_workers(run)) < run.batch.world_size:
        found = f"the environment has USE_RAY, and `ray_num_workers` is {workers}"
        idle = f"so the others of {run.batch.world_size} devices stay idle"
        yield "ray_num_workers", f"{found}, {idle}; set `ray_num_workers: {run.batch.world_size}`"


@rule("PAR209", WARNING, about=subjects.machine)
def ray_meets_at_its_head(run: RunSettings, machine: Machine) -> Findings:
    """Workers of Ray on several nodes meet at its head node, which may have no device.

    Why: without `master_addr` it is the head's address. Where the head has no devices, no worker runs there, and all
    wait for one that listens (github.com/hiyouga/LlamaFactory/issues/10347).
    Source: llamafactory/train/tuner.py:_ray_training_function,
    llamafactory/train/trainer_utils.py:sort_placement_group_by_node_ip
    Fix: `master_addr`, the address of a node with devices.
    """
    if machine.nodes > 1 and launch_command.uses_ray() and not run.args.is_set("master_addr"):
        found = f"the environment has USE_RAY, so workers on {machine.nodes} nodes meet at Ray's head node"
        remedy = "set `master_addr` to the address of a node that has one"
        yield "machine", f"{found}, and wait for ever if it has no GPU or NPU; {remedy}"


@rule("PAR212", NOTE)
def setting_needs_packages(run: RunSettings) -> Findings:
    """A setting needs packages that its name does not tell, and that LLaMA-Factory does not install.

    Why: `predict_with_generate` needs jieba, nltk and rouge-chinese, `optim: lomo` lomo-optim; without them the run
    stops, for some settings only after the model is loaded. `doctor` and `train` look whether they are installed.
    Source: llamafactory/hparams/parser.py:_check_extra_dependencies,
    transformers/trainer_optimizer.py:_get_lomo_optimizer
    Fix: the pip command of the message, on the machine that trains; or name them under `packages` of the header block.
    """
    missing = [each for each in needed_packages(run) if each.note and each.package not in run.declared.packages]
    for setting, group in groupby(missing, key=lambda each: each.setting):
        packages = list(group)
        names = ", ".join(each.package for each in packages)
        install = shell_join(["pip", "install", *(pip_requirement(each, run) for each in packages)])
        found = f"{packages[0].why} needs {names}, which LLaMA-Factory does not install"
        stops = f"without {'them' if len(packages) > 1 else 'it'} the run stops {packages[0].dies}"
        yield setting, f"{found}: {stops}; {packages[0].install or f'run `{install}`'} where it trains"
