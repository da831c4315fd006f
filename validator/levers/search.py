"""The search over the options of all levers: for options that need less memory, cheapest first, and for options that
make use of free memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TypeVar

from validator.finding import Verdict
from validator.levers import options
from validator.levers.options import SHARDING, Option, Options
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.training_time import usual_time_ratio
from validator.run.variants import ArgumentChanges, ArgumentValue, with_arguments

Candidate = TypeVar("Candidate")

# What keeps the training as it is. Each costs more than all before it together, here and below.
_SAME_TRAINING: tuple[Options, ...] = (
    options.smaller_evaluation_batch,
    options.smaller_micro_batch,
    options.zero2,
    options.liger_kernel,
    options.recomputation,
    options.fewer_loader_workers,
)
# What changes the samples or the numbers, or makes the run slow.
_FOR_ADAPTERS: tuple[Options, ...] = (
    options.adapters_in_every_layer,
    options.half_as_long_samples,
    options.four_bits,
    options.unquantized_for_zero3,
    options.zero3,
    options.everything_offloaded,
    options.much_shorter_samples,
)
_FOR_WEIGHTS: tuple[Options, ...] = (
    options.zero3,
    options.half_as_long_samples,
    options.optimizer_offloaded,
    options.everything_offloaded,
    options.adapters,
    options.much_shorter_samples,
)
_FOR_WEIGHTS_ON_ONE_DEVICE: tuple[Options, ...] = (
    options.half_as_long_samples,
    options.pure_bf16,
    options.adapters,
    options.memory_saving_optimizers,
    options.optimizer_offloaded,
    options.everything_offloaded,
    options.much_shorter_samples,
)
# What free memory may buy; what makes steps fastest comes first.
USES_OF_MEMORY: tuple[Options, ...] = (
    options.less_sharding,
    options.more_loader_workers,
    options.no_recomputation,
    options.unquantized_weights,
    options.larger_micro_batch,
    options.longer_samples,
)
# So many trials for further options, where one was found already: they cost about 0.3 ms each.
_MAX_FURTHER_TRIALS = 150
# A run that takes so many times as long as another is slower; below that the time model does not tell them apart.
_MAX_TIME_RATIO = 1.01
VERDICT_RANKS: dict[Verdict, int] = {"fits": 0, "tight": 1, "exceeds": 2, "unknown": 3}


def promising(
    groups: Iterable[tuple[Iterable[Candidate], Iterable[Candidate]]], fits: Callable[[Candidate], bool]
) -> Iterator[Candidate]:
    """Yield the candidates that are worth a trial. Each group is a pair: its most memory-saving candidates, and all of
    its candidates. If none of the memory-saving candidates of a group fits (`fits` returns False), no other can fit,
    and the group is skipped."""
    for frugal, candidates in groups:
        if any(map(fits, frugal)):
            yield from candidates


def reaches_verdict(run: RunSettings, option: Option, wanted: Verdict) -> bool:
    """True if the run with the option, and with samples of the longest possible length, has the memory verdict `wanted`
    or a better one."""
    return VERDICT_RANKS[predict(with_arguments(run, option.set)).verdict_at_longest] <= VERDICT_RANKS[wanted]


def cheapest_options(run: RunSettings, wanted: Verdict, accepts: Callable[[ArgumentChanges], bool]) -> Iterator[Option]:
    """Yield the options, cheapest first, that bring the run to the memory verdict `wanted` or a better one, and whose
    settings `accepts` accepts. An option that contains all settings of a cheaper one is left out. Each option that
    changes the training is combined with every combination of options that do not."""
    found: list[ArgumentChanges] = []

    def reaches(option: Option) -> bool:
        return reaches_verdict(run, option, wanted)

    for trial, option in enumerate(promising(_groups(run, found), reaches)):
        if found and trial > _MAX_FURTHER_TRIALS:
            return
        if reaches(option) and accepts(option.set):
            found.append(option.set)
            yield option


def _groups(run: RunSettings, found: list[ArgumentChanges]) -> Iterator[tuple[Iterator[Option], Iterator[Option]]]:
    """Yield a pair of options for each combination of options that change the training: its strongest memory savings,
    and all options that add settings that keep the training. Options that contain all settings of an entry in `found`,
    the results so far, are left out. If a result contains the settings of the combination, these are added to
    `found`."""
    easy = [*_combinations(run, _SAME_TRAINING)]
    for hard in _combinations(run, _changing_training(run)):
        if _holds_any(hard.set, found):
            continue
        combined = filter(None, (_combine((each, hard)) for each in easy))
        yield (
            _most_frugal(run, hard, found),
            (each for each in combined if each.set and not _holds_any(each.set, found)),
        )
        if hard.set and any(hard.set.items() <= settings.items() for settings in found):
            found.append(hard.set)


def most_frugal_options(run: RunSettings) -> Iterator[Option]:
    """Yield each combination of options that change the training, combined with every memory saving that does not
    change it."""
    for hard in _combinations(run, _changing_training(run)):
        yield from _most_frugal(run, hard)


def options_keeping_training(run: RunSettings) -> Iterator[Option]:
    """Yield each single option that saves memory without changing what is trained."""
    for lever in _SAME_TRAINING:
        yield from _available(run, lever)


def _changing_training(run: RunSettings) -> tuple[Options, ...]:
    """Return the levers that change the training, cheapest first. They depend on whether the run trains adapters or the
    model's own weights."""
    if run.task.method not in ("full", "freeze"):
        return _FOR_ADAPTERS
    return _FOR_WEIGHTS if run.batch.world_size > 1 else _FOR_WEIGHTS_ON_ONE_DEVICE


def _available(run: RunSettings, lever: Options) -> list[Option]:
    """Return the lever's options for the run. If the run uses an accelerate file, options that change the sharding are
    left out, because the accelerate file decides it."""
    return [option for option in lever(run) if not (run.accelerate and SHARDING in option.moves)]


def _combine(chosen: Iterable[Option]) -> Option | None:
    """Return several options combined into one; None if two of them move the same lever."""
    settings: dict[str, ArgumentValue] = {}
    notes: list[str] = []
    moved: list[str] = []
    for option in chosen:
        settings |= option.set
        notes += [option.note] if option.note else []
        moved += option.moves
    moves = frozenset(moved)
    return Option(settings, "; ".join(notes), moves) if len(moves) == len(moved) else None


def _combinations(run: RunSettings, levers: Sequence[Options]) -> Iterator[Option]:
    """Yield combinations of at most one option of each lever, cheapest first. A lever counts as more expensive than all
    levers before it together."""
    choices = [(Option({}, ""), *_available(run, lever)) for lever in reversed(levers)]
    yield from filter(None, (_combine(reversed(chosen)) for chosen in product(*choices)))


def _most_frugal(run: RunSettings, hard: Option, found: Sequence[ArgumentChanges] = ()) -> Iterator[Option]:
    """Yield `hard`, a combination of options that change the training, together with the strongest option of every
    lever that keeps the training. Options that contain all settings of an entry in `found` are left out. A second
    combination keeps the run's DeepSpeed file, because another file may need more memory than it saves."""
    last = (choices[-1] for lever in _SAME_TRAINING if (choices := _available(run, lever)))
    easy = [option for option in last if not _holds_any(option.set, found)]
    for sharding_kept in (False, True):
        moved = hard.moves | ({SHARDING} if sharding_kept else set())
        if option := _combine([*(each for each in easy if not each.moves & moved), hard]):
            yield option


def _holds_any(settings: ArgumentChanges, earlier_settings: Sequence[ArgumentChanges]) -> bool:
    return any(earlier.keys() <= settings.keys() for earlier in earlier_settings)


def best_use_of_memory(
    run: RunSettings, lever: Options, accepts: Callable[[ArgumentChanges], bool], wanted: Verdict = "fits"
) -> Option | None:
    """Return the lever's option that uses most memory while the run still fits; `wanted` may name another memory
    verdict in place of `fits`. Options whose settings `accepts` refuses, and options that make the run slower, are left
    out. Return None if no option is left."""
    for option in _available(run, lever):
        after = with_arguments(run, option.set)
        if predict(after).verdict == wanted:
            ratio = usual_time_ratio(run, after)
            if (ratio is None or ratio < _MAX_TIME_RATIO) and accepts(option.set):
                return option
    return None
