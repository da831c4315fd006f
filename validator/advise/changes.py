"""The nearest changes of a run that fit, and changes that use free memory, each judged as any other run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path

from validator.escaping import shell_quote
from validator.finding import Verdict
from validator.knowledge import releases
from validator.physics.estimate import GIB
from validator.recipe.known_folders import catalogue_root
from validator.rules.problems import adds_problem
from validator.run import deepspeed, training_time
from validator.run.launch_command import Launch
from validator.run.prediction import predict
from validator.run.sample_lengths import estimate_sample_lengths
from validator.run.settings import RunSettings
from validator.run.variants import ArgumentChanges, ArgumentValue, with_arguments

from . import levers
from .levers import Lever, Option


@dataclass(frozen=True)
class Change:
    """Settings to write, expected memory of the changed run in GiB, and a note on the cost. `first` are commands to run
    before, in the folder that the run is started from. `environment` holds variables that the launch did not need
    before the change. `time_ratio`: time of the changed run over time of the run as it is, on the same samples; None if
    not known."""

    set: ArgumentChanges
    device_gib: float
    host_gib: float
    verdict: Verdict
    note: str
    first: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    time_ratio: float | None = None

    def settings(self) -> list[str]:
        """Return each setting as YAML writes it."""
        return [f"{key}: {_yaml_value(value)}" for key, value in self.set.items()]

    def steps(self) -> list[str]:
        """Return what to do besides writing the settings."""
        variables = " ".join(f"{name}={value}" for name, value in (self.environment or {}).items())
        started = [f"start it by `lmf-recipes train`, or with {variables} in the environment"] if variables else []
        return [*(f"run `{command}` first" for command in self.first), *started]

    def __str__(self) -> str:
        written = ", ".join(f"`{setting}`" for setting in self.settings())
        needs = f"{self.device_gib:.1f} GiB per device, {self.host_gib:.0f} of host memory per node"
        return "; ".join([f"{written} ({needs})", *self.steps()])


def evaluate_change(run: RunSettings, settings: ArgumentChanges, note: str) -> Change:
    """Return the change that the settings make, with the memory and the verdict of the changed run."""
    after = with_arguments(run, settings)
    prediction = predict(after)
    device, host = prediction.device_memory, prediction.host_memory
    return Change(settings, device.expected / GIB if device else 0.0, host.expected / GIB if host else 0.0,
                  prediction.worst, note, _copy_commands(run, settings), _new_variables(run, after))  # fmt: skip


def _copy_commands(run: RunSettings, settings: ArgumentChanges) -> list[str]:
    """Return the `lmf-recipes copy` commands that the change needs: for its DeepSpeed file, and for the recipe itself
    if it is read from the catalogue."""
    file = settings.get("deepspeed")
    if not isinstance(file, str):
        return []
    recipe, here = Path(run.workspace.recipe).absolute(), Path.cwd()
    if recipe.parent != catalogue_root() / "recipes" or here.is_relative_to(catalogue_root()):
        return [] if run.workspace.find(file) else [_copy_command(Path(file).name)]
    wanted = ((here / recipe.name, recipe.stem), (here / file, Path(file).name))
    return [_copy_command(name) for path, name in wanted if not path.exists()]


def _copy_command(name: str) -> str:
    return f"lmf-recipes copy {name} ."


def _new_variables(run: RunSettings, after: RunSettings) -> dict[str, str]:
    """Return the environment variables that the launcher needs after the change and did not need before."""
    before, now = (Launch(one).start_env for one in (run, after))
    return {name: value for name, value in now.items() if before.get(name) != value}


def _yaml_value(value: ArgumentValue) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


@dataclass(frozen=True)
class ReleaseMemory:
    """Memory of the worst device with a transformers release that the recipe admits."""

    transformers: str
    low: float
    expected: float
    high: float
    verdict: Verdict


def memory_on_older_release(run: RunSettings) -> ReleaseMemory | None:
    """Return memory with the last transformers 4, or None unless the run fits there and not here. transformers 4 stores
    experts as linear modules, which bitsandbytes can quantize."""
    mixture = run.model is not None and run.model.arch.ffn.experts > 0
    if not (mixture and run.quantization.loads and predict(run).worst in ("tight", "exceeds")):
        return None
    version = releases.previous_major_pair()[1]
    there = predict(run.with_header({**run.header, "transformers": version}))
    memory = there.device_memory
    if memory is None or there.worst != "fits":
        return None
    return ReleaseMemory(version, memory.low / GIB, memory.expected / GIB, memory.high / GIB, there.worst)


def with_time_ratios(run: RunSettings, changes: Sequence[Change]) -> list[Change]:
    """Return the changes, each with its `time_ratio`."""
    return [replace(each, time_ratio=time_ratio_of(run, with_arguments(run, each.set))) for each in changes]


def time_ratio_of(run: RunSettings, after: RunSettings) -> float | None:
    """Return time of `after` over time of `run` on the same samples of usual lengths; None if not known."""
    return training_time.time_ratio(run, after, estimate_sample_lengths(run).lengths[1])


_ADVICE_PREFIXES: Mapping[Verdict, str] = {"fits": "", "tight": "nothing fits with a margin; it is tight if you "}
_VERDICT_RANKS: Mapping[Verdict, int] = {"fits": 0, "tight": 1, "exceeds": 2, "unknown": 3}
# So many trials for further changes, where there is one already: they cost about 0.3 ms each.
_MAX_FURTHER_TRIALS = 150


def nearest_changes(run: RunSettings, limit: int = 5) -> list[Change]:
    """Return changes that fit, cheapest first by the order of the levers, without settings that could be left out; else
    changes that are tight; else those that come nearest. For a run that fits, or whose verdict is unknown, return
    changes that save memory and keep the training. No change brings an error that the run does not have."""
    prediction = predict(run)
    if prediction.worst not in ("tight", "exceeds"):
        return list(islice(_changes_to_same_training(run), limit))
    better: tuple[Verdict, ...] = ("fits", "tight") if prediction.worst == "exceeds" else ("fits",)
    for wanted in better:
        if found := list(islice(_minimal_changes(run, wanted), limit)):
            return found
    return list(islice(_closest_changes(run), limit))


def change_advice(run: RunSettings) -> str:
    """Return what to do about a run that does not fit, as the end of a message."""
    if predict(run).simulated:
        return f"`lmf-recipes explain {shell_quote(run.workspace.recipe)} --simulate` tries changes"
    if cure := memory_on_older_release(run):
        written = f"write `# transformers: {cure.transformers}` into the header block and install it"
        return f"{written} ({cure.expected:.1f} GiB per device)"
    for wanted, words in _ADVICE_PREFIXES.items():
        if cheapest := next(_minimal_changes(run, wanted), None):
            return f"{words}set {cheapest}"
    return "no change makes it fit, `lmf-recipes explain` shows the nearest"


def _minimal_changes(run: RunSettings, wanted: Verdict) -> Iterator[Change]:
    """Yield changes that reach the verdict, cheapest first, without those that hold all keys of a cheaper one."""
    found: list[ArgumentChanges] = []
    for trial, option in enumerate(_candidate_options(run, wanted, found)):
        if found and trial > _MAX_FURTHER_TRIALS:
            return
        if _reaches_verdict(run, option, wanted) and _adds_no_error(run, option.set):
            found.append(option.set)
            yield evaluate_change(run, option.set, option.note)


def _candidate_options(run: RunSettings, wanted: Verdict, found: list[ArgumentChanges]) -> Iterator[Option]:
    """Yield each option that changes the training, with all combinations of options that do not. Options that hold all
    keys of something in `found` are left out, and an option that was part of a result is added to `found`."""
    easy = [*_combined_options(run, levers.SAME_TRAINING)]
    for hard in _combined_options(run, levers.levers_changing_training(run)):
        if _holds_any(hard.set, found) or not any(
            _reaches_verdict(run, option, wanted) for option in _most_frugal(run, hard, found)
        ):
            continue  # none of the easy options needs more memory, so nothing reaches it without them
        for option in filter(None, (levers.combine((each, hard)) for each in easy)):
            if option.set and not _holds_any(option.set, found):
                yield option
        if hard.set and any(hard.set.items() <= settings.items() for settings in found):
            found.append(hard.set)


def _holds_any(settings: ArgumentChanges, others: Sequence[ArgumentChanges]) -> bool:
    return any(other.keys() <= settings.keys() for other in others)


def _closest_changes(run: RunSettings) -> Iterator[Change]:
    """Yield the changes that come nearest to the machine's limits: each option that changes the training, with all
    options that do not."""
    tried = [
        evaluate_change(run, option.set, option.note)
        for hard in _combined_options(run, levers.levers_changing_training(run))
        for option in _most_frugal(run, hard)
        if _saves_memory(run, option.set)
    ]
    shown: list[Change] = []
    for each in sorted(tried, key=lambda each: (_VERDICT_RANKS[each.verdict], _times_over_machine(run, each))):
        if all(_is_nearer(run, each, than) for than in shown) and _adds_no_error(run, each.set):
            shown.append(each)
            yield each


def _is_nearer(run: RunSettings, one: Change, than: Change) -> bool:
    """True if `one` needs clearly less of the memory (device or host) of which `than` needs too much."""
    short = predict(with_arguments(run, than.set))
    device = short.device_verdict == than.verdict and one.device_gib <= 0.98 * than.device_gib
    return device or (short.host_verdict == than.verdict and one.host_gib <= 0.98 * than.host_gib)


def _changes_to_same_training(run: RunSettings) -> Iterator[Change]:
    """Yield each option that keeps the training, by itself, if it saves memory."""
    for option in (option for lever in levers.SAME_TRAINING for option in levers.available_options(run, lever)):
        if _saves_memory(run, option.set) and _adds_no_error(run, option.set):
            yield evaluate_change(run, option.set, option.note)


def _combined_options(run: RunSettings, tried_levers: Sequence[Lever]) -> Iterator[Option]:
    """Yield combinations of at most one option of each lever, cheapest first: each lever costs more than all before it
    together."""
    choices = [(Option({}, ""), *levers.available_options(run, lever)) for lever in reversed(tried_levers)]
    for chosen in product(*choices):
        if option := levers.combine(reversed(chosen)):
            yield option


def _most_frugal(run: RunSettings, hard: Option, found: Sequence[ArgumentChanges] = ()) -> Iterator[Option]:
    """Yield the option with the last option of every lever that keeps the training, except those in `found`: once with
    and once without another engine, which may need more memory than it saves."""
    last = (options[-1] for lever in levers.SAME_TRAINING if (options := levers.available_options(run, lever)))
    easy = [option for option in last if not _holds_any(option.set, found)]
    for engine_kept in (False, True):
        decided = hard.decides | ({levers.ENGINE} if engine_kept else set())
        if option := levers.combine([*(each for each in easy if not each.decides & decided), hard]):
            yield option


def _reaches_verdict(run: RunSettings, option: Option, wanted: Verdict) -> bool:
    return _VERDICT_RANKS[predict(with_arguments(run, option.set)).worst] <= _VERDICT_RANKS[wanted]


def _adds_no_error(run: RunSettings, settings: ArgumentChanges) -> bool:
    """True if the settings bring no error that the run does not have. Errors on data sets do not count: no change
    touches data sets, and DeepSpeed files are looked for in the catalogue, whose data sets are not the run's. Memory is
    judged by its verdict."""
    return not adds_problem(run, with_arguments(run, settings), but=("FIT", "PTH1"), warnings=False)


def _saves_memory(run: RunSettings, settings: ArgumentChanges) -> bool:
    """True if the settings save at least a fiftieth of device memory or of host memory."""
    before, after = predict(run), predict(with_arguments(run, settings))
    pairs = ((before.device_memory, after.device_memory), (before.host_memory, after.host_memory))
    return any(now.expected < 0.98 * was.expected for was, now in pairs if was and now)


def _times_over_machine(run: RunSettings, tried: Change) -> float:
    """Return the changed run's memory over the machine's, of device or host the larger; 0 if it fits or the machine is
    not known."""
    machine = run.machine
    if machine is None or tried.verdict != "exceeds":
        return 0.0
    device = tried.device_gib / (machine.device.usable_gib or tried.device_gib or 1.0)
    return max(device, tried.host_gib / machine.host_ram_gib if machine.host_ram_gib else 0.0)


# More at once no longer fills a device better: as many samples as `plan` takes, of its usual length.
_MAX_MICRO_BATCH = 8
_MAX_BATCH_TOKENS = _MAX_MICRO_BATCH * 2048
_BATCH_ALONE = frozenset({levers.BATCH})


def uses_of_free_memory(run: RunSettings, limit: int = 4) -> list[Change]:
    """Return changes that use more memory, for a job that fits, and with which it still fits by the same margin. No
    change brings an error or a warning that the run does not have."""
    if predict(run).verdict != "fits":
        return []

    def fits(option: Option) -> bool:
        return predict(with_arguments(run, option.set)).verdict == "fits"

    fitting = (next(filter(fits, lever(run)), None) for lever in _LEVERS)
    useful = (option for option in fitting if option and _saves_time(run, option))
    return [evaluate_change(run, option.set, option.note) for option in islice(useful, limit)
            if not adds_problem(run, with_arguments(run, option.set), but=("FIT",))]  # fmt: skip


def _saves_time(run: RunSettings, option: Option) -> bool:
    """True unless the option only enlarges the micro batch and padding makes the run no faster."""
    ratio = time_ratio_of(run, with_arguments(run, option.set)) if option.decides == _BATCH_ALONE else None
    return ratio is None or ratio < 1


def _less_sharding(run: RunSettings) -> Iterator[Option]:
    """Yield files that shard less than the run's, the least first, if need be with a smaller micro batch. On one device
    nothing is sharded, so only offload is worth leaving. Stages 1 and 2 keep the weights whole and send as much as
    plain data parallelism (ZeRO, arXiv 1910.02054, section 7), so leaving them gains nothing."""
    degree = _sharding_degree(run)
    offloads = degree > _LAST_WITHOUT_OFFLOAD
    for name in _FILES_BY_SHARDING[:degree] if degree > 1 else ():
        if name == "ds_z2_offload.json" and run.batch.accumulation > deepspeed.MICRO_BATCHES_KEPT_OFFLOADED:
            continue
        if run.batch.world_size > 1 or (offloads and name != "ds_z3.json"):
            file = Option({"deepspeed": f"deepspeed/{name}" if name else None}, _sharding_gain(name, offloads))
            yield file
            yield from filter(None, (levers.combine((file, batch)) for batch in levers.smaller_micro_batch(run)))


# The files from the least sharding to the most; none of them is data parallelism alone.
_FILES_BY_SHARDING = ("", "ds_z2.json", "ds_z3.json", "ds_z2_offload.json", "ds_z3_offload.json")
_LAST_WITHOUT_OFFLOAD = _FILES_BY_SHARDING.index("ds_z3.json")


def _sharding_degree(run: RunSettings) -> int:
    """Return the index of the run's sharding in `_FILES_BY_SHARDING`, or its length if weights are in host memory,
    too."""
    if not run.zero_stage or run.deepspeed is None:
        return 0
    if run.deepspeed.stage == 3 and run.deepspeed.offload("offload_param"):
        return len(_FILES_BY_SHARDING)
    return (3 if run.deepspeed.offloads else 1) + int(run.deepspeed.stage == 3)


def _sharding_gain(name: str, offloads: bool) -> str:
    if "offload" in name:
        return "only the optimizer state in host memory; faster steps"
    return (
        "nothing in host memory; much faster steps" if offloads else "weights whole on every device; less communication"
    )


def _no_recomputation(run: RunSettings) -> Iterator[Option]:
    off: dict[str, ArgumentValue] = {"disable_gradient_checkpointing": True}
    if with_arguments(run, off).activation_checkpointing.mode != "off":  # the Trainer's own key turns it on again
        off["gradient_checkpointing"] = False
    if run.activation_checkpointing.mode != "off":
        yield Option(off, "activations computed once: a quarter to a third less time for a step")


def _unquantized_weights(run: RunSettings) -> Iterator[Option]:
    if run.task.method == "lora" and run.quantization.works:
        yield Option({"quantization_bit": None}, "base weights in half precision: faster and more accurate")


def _larger_micro_batch(run: RunSettings) -> Iterator[Option]:
    """Yield larger micro batches with less accumulation, the largest first."""
    each = run.batch.kept_tokens * (2 if run.task.uses_preference_pairs else 1)
    for by in (8, 4, 2):
        micro = run.batch.micro_batch * by
        if run.batch.accumulation % by == 0 and micro <= _MAX_MICRO_BATCH and micro * each <= _MAX_BATCH_TOKENS:
            settings = {
                "per_device_train_batch_size": micro,
                "gradient_accumulation_steps": run.batch.accumulation // by,
            }
            yield Option(settings, "same effective batch in fewer, fuller passes", _BATCH_ALONE)


def _longer_samples(run: RunSettings) -> Iterator[Option]:
    """Yield longer `cutoff_len`, up to the model's positions, the longest first."""
    most = run.model.positions if run.model else None
    lengths = [int(run.args.number("cutoff_len")) << by for by in (3, 2, 1)]
    yield from (Option({"cutoff_len": length}, "fewer samples are cut") for length in lengths if length <= (most or 0))


# What makes steps fastest comes first.
_LEVERS = (_less_sharding, _no_recomputation, _unquantized_weights, _larger_micro_batch, _longer_samples)
