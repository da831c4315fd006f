"""The smallest changes that make a run fit, and changes that use free memory. Each changed run is judged like any other
run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from validator.escaping import shell_quote
from validator.finding import Verdict
from validator.knowledge import releases
from validator.levers import search
from validator.levers.options import setting_lines
from validator.physics import Estimate
from validator.physics.estimate import GIB
from validator.recipe.known_folders import catalogue_root
from validator.rules.problems import accepts_changes
from validator.run.launch_command import Launch
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.training_time import usual_time_ratio
from validator.run.variants import ArgumentChanges, with_arguments


@dataclass(frozen=True)
class Change:
    """Settings to write, with the changed run's expected memory in GiB, its verdict, and a note on the cost. `first`:
    commands to run before, in the folder from which the run is started. `environment`: variables that the launch needs
    only after the change. `time_ratio`: time of the changed run divided by the present run's time on the same samples,
    or of their steps if the number of samples is not known; None if neither is known."""

    set: ArgumentChanges
    device_gib: float
    host_gib: float
    verdict: Verdict
    note: str
    first: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    time_ratio: float | None = None

    def settings(self) -> list[str]:
        """Return each setting as a line of YAML."""
        return setting_lines(self.set)

    def steps(self) -> list[str]:
        """Return what the user must do besides writing the settings, as texts for a message."""
        variables = " ".join(f"{name}={value}" for name, value in (self.environment or {}).items())
        started = [f"start it by `lmf-recipes train`, or with {variables} in the environment"] if variables else []
        return [*(f"run `{command}` first" for command in self.first), *started]

    def __str__(self) -> str:
        written = ", ".join(f"`{setting}`" for setting in self.settings())
        needs = f"{self.device_gib:.1f} GiB per device, {self.host_gib:.0f} of host memory per node"
        return "; ".join([f"{written} ({needs})", *self.steps()])


def evaluate_change(run: RunSettings, settings: ArgumentChanges, note: str) -> Change:
    """Return the change that these settings make, with the memory and the verdict of the changed run."""
    after = with_arguments(run, settings)
    prediction = predict(after)
    memories = prediction.device_memory, prediction.host_memory
    device_gib, host_gib = (memory.expected / GIB if memory else 0.0 for memory in memories)
    verdict, copies = prediction.verdict_at_longest, _copy_commands(run, settings)
    return Change(settings, device_gib, host_gib, verdict, note, copies, _new_variables(run, after))


def _copy_commands(run: RunSettings, settings: ArgumentChanges) -> list[str]:
    """Return the `lmf-recipes copy` commands that the change needs: for its DeepSpeed file if that file is not found,
    and for the recipe itself if it is read from the catalogue."""
    file = settings.get("deepspeed")
    if not isinstance(file, str):
        return []
    recipe, cwd = Path(run.workspace.recipe).absolute(), Path.cwd()
    if recipe.parent != catalogue_root() / "recipes" or cwd.is_relative_to(catalogue_root()):
        return [] if run.workspace.find(file) else [_copy_command(Path(file).name)]
    needed_copies = ((cwd / recipe.name, recipe.stem), (cwd / file, Path(file).name))
    return [_copy_command(name) for path, name in needed_copies if not path.exists()]


def _copy_command(name: str) -> str:
    return f"lmf-recipes copy {name} ."


def _new_variables(run: RunSettings, after: RunSettings) -> dict[str, str]:
    """Return the environment variables that the launch of the changed run (`after`) needs, and that the launch of the
    present run does not need or needs with another value."""
    before, now = (Launch(one).start_env for one in (run, after))
    return {name: value for name, value in now.items() if before.get(name) != value}


@dataclass(frozen=True)
class ReleaseMemory:
    """Memory, in GiB, of the device that needs most, with one transformers release that the recipe's header block
    allows."""

    transformers: str
    low: float
    expected: float
    high: float
    verdict: Verdict


def memory_on_older_release(run: RunSettings) -> ReleaseMemory | None:
    """Return the run's memory with the last transformers 4, if the run fits with that release but not with the present
    one; else None. transformers 4 stores experts as linear modules, which bitsandbytes can quantize."""
    mixture = run.model is not None and run.model.arch.ffn.experts > 0
    if not (mixture and run.quantization.quantizes_at_load and predict(run).verdict_at_longest in ("tight", "exceeds")):
        return None
    version = releases.previous_major_pair()[1]
    older_prediction = predict(run.with_header({**run.header, "transformers": version}))
    memory = older_prediction.device_memory
    if memory is None or older_prediction.verdict_at_longest != "fits":
        return None
    return release_memory(version, memory, older_prediction.verdict_at_longest)


def release_memory(version: str, memory: Estimate, verdict: Verdict) -> ReleaseMemory:
    """Return a memory estimate in GiB, together with its verdict and the transformers release (`version`) that it is
    for."""
    return ReleaseMemory(version, memory.low / GIB, memory.expected / GIB, memory.high / GIB, verdict)


def with_time_ratios(run: RunSettings, changes: Sequence[Change]) -> list[Change]:
    """Return the changes with their `time_ratio` filled in."""
    return [replace(each, time_ratio=usual_time_ratio(run, with_arguments(run, each.set))) for each in changes]


_ADVICE_PREFIXES: Mapping[Verdict, str] = {"fits": "", "tight": "nothing fits with a margin; it is tight if you "}


def nearest_changes(run: RunSettings, limit: int = 5) -> list[Change]:
    """Return the cheapest changes with which the run fits, at most `limit`. A change that contains all settings of a
    cheaper change is left out. If no change makes the run fit, return changes with which the run is tight (fits without
    a margin). If there are none of these either, return changes that come nearest to the machine's limits.

    For a run that fits, or whose verdict is unknown, return changes that save memory without changing the training. No
    change brings an error that the run does not have."""
    prediction = predict(run)
    if prediction.verdict_at_longest not in ("tight", "exceeds"):
        return list(islice(_changes_keeping_training(run), limit))
    better: tuple[Verdict, ...] = ("fits", "tight") if prediction.verdict_at_longest == "exceeds" else ("fits",)
    for verdict in better:
        if found := list(islice(_cheapest_changes(run, verdict), limit)):
            return found
    return list(islice(_closest_changes(run), limit))


def change_advice(run: RunSettings) -> str:
    """Return what to do about a run that does not fit, as the end of a message."""
    if predict(run).is_simulated:
        return f"`lmf-recipes explain {shell_quote(run.workspace.recipe)} --simulate` tries changes"
    if cure := memory_on_older_release(run):
        written = f"write `# transformers: {cure.transformers}` into the header block and install it"
        return f"{written} ({cure.expected:.1f} GiB per device)"
    for verdict, words in _ADVICE_PREFIXES.items():
        if cheapest := next(_cheapest_changes(run, verdict), None):
            return f"{words}set {cheapest}"
    return "no change makes it fit, `lmf-recipes explain` shows the nearest"


def _cheapest_changes(run: RunSettings, wanted: Verdict) -> Iterator[Change]:
    for option in search.cheapest_options(run, wanted, accepts_changes(run, warnings=False)):
        yield evaluate_change(run, option.set, option.note)


def _closest_changes(run: RunSettings) -> Iterator[Change]:
    """Yield the changes that come nearest to the machine's limits, although the run still does not fit."""
    tried = [
        evaluate_change(run, option.set, option.note)
        for option in search.most_frugal_options(run)
        if _saves_memory(run, option.set)
    ]
    shown: list[Change] = []
    accepts = accepts_changes(run, warnings=False)
    for each in sorted(tried, key=lambda each: (search.VERDICT_RANKS[each.verdict], _times_over_machine(run, each))):
        if all(_is_nearer(run, each, than) for than in shown) and accepts(each.set):
            shown.append(each)
            yield each


def _is_nearer(run: RunSettings, one: Change, than: Change) -> bool:
    """True if the change `one` comes nearer to the machine's limits than the change `than`. It does if `than` exceeds
    the memory of a device or of the host, and `one` needs at least 2 % less of that memory."""
    short = predict(with_arguments(run, than.set))
    device = short.device_verdict == than.verdict and one.device_gib <= 0.98 * than.device_gib
    return device or (short.host_verdict == than.verdict and one.host_gib <= 0.98 * than.host_gib)


def _changes_keeping_training(run: RunSettings) -> Iterator[Change]:
    accepts = accepts_changes(run, warnings=False)
    for option in search.options_keeping_training(run):
        if _saves_memory(run, option.set) and accepts(option.set):
            yield evaluate_change(run, option.set, option.note)


def _saves_memory(run: RunSettings, settings: ArgumentChanges) -> bool:
    """True if the settings save more than 2 % of the run's expected device memory or host memory."""
    before, after = predict(run), predict(with_arguments(run, settings))
    pairs = ((before.device_memory, after.device_memory), (before.host_memory, after.host_memory))
    return any(now.expected < 0.98 * was.expected for was, now in pairs if was and now)


def _times_over_machine(run: RunSettings, tried: Change) -> float:
    """Return how many times the machine's memory the changed run (`tried`) needs: for a device or for the host,
    whichever is larger. Return 0 if the changed run does not exceed the machine, or if no machine is named."""
    machine = run.machine
    if machine is None or tried.verdict != "exceeds":
        return 0.0
    device = tried.device_gib / (machine.device.usable_gib or tried.device_gib or 1.0)
    return max(device, tried.host_gib / machine.host_ram_gib if machine.host_ram_gib else 0.0)


def uses_of_free_memory(run: RunSettings, limit: int = 5) -> list[Change]:
    """Return at most `limit` changes that use more memory and gain something, if the run fits, the fastest first. With
    each change the run still fits with the same margin, and has no further error or warning."""
    if predict(run).verdict != "fits":
        return []
    best = (search.best_use_of_memory(run, lever, accepts_changes(run)) for lever in search.USES_OF_MEMORY)
    found = (evaluate_change(run, option.set, option.note) for option in islice(filter(None, best), limit))
    return sorted(with_time_ratios(run, [*found]), key=lambda change: change.time_ratio or 1.0)
