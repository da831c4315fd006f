"""The search over method, DeepSpeed file, offload, micro batch, length and activation checkpointing for runs that fit a
machine. The run that finishes first comes first.

The search goes through classes of runs, by the work that they add to a step. `fastest` keeps all activations of
unquantized weights. `fast` computes activations twice (one more forward pass, about a third) or unpacks 4-bit weights.
`medium` also gathers the weights of each layer from the other devices. `slow` also updates the optimizer in host
memory. `slowest` also fetches the weights from host memory. The runs that fit are then ranked by their time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from math import log2
from typing import Any

from validator.knowledge import releases
from validator.knowledge.guidance import memory_savers
from validator.levers.options import MAX_MICRO_BATCH, ShardingFile, sharding_files, takes_memory_savers
from validator.levers.search import promising
from validator.physics import Band, RunPart, TimeTerm
from validator.physics.estimate import GIB, HostTerm
from validator.plan import new_recipe
from validator.plan.new_recipe import EVALUATION_TOO_LARGE, EVALUATION_TOO_LONG, MAX_SHARE_BETWEEN_SAVES, NewRecipe
from validator.rules.problems import Problem, find_problems
from validator.run import calibration
from validator.run.prediction import predict
from validator.run.training_time import TrainingTime, hours_by_length, predict_training_time, seconds_per_sample

PLANNED_METHODS = ("lora", "full", "qlora")
# The order of methods that take about as long, for stages with an order of their own: in continued pre-training LoRA
# stays behind full training (LoRA Learns Less and Forgets Less, arXiv 2405.09673).
METHODS_BY_STAGE = {"pt": ("full", "lora", "qlora")}
ADAPTER_METHODS = ("lora", "qlora")
SPEED_CLASSES = ("fastest", "fast", "medium", "slow", "slowest")
# Classes in which every step waits for host memory.
_HOST_MEMORY_CLASSES = ("slow", "slowest")
USUAL_LENGTHS = (2048, 1024, 512)
_LENGTH_STEP = 128  # tokens
_OVERHEAD_TERMS = (
    TimeTerm.KERNEL_LAUNCHES,
    TimeTerm.COMMUNICATION,
    TimeTerm.NETWORK,
    TimeTerm.OFFLOAD_COPIES,
    TimeTerm.CPU_OPTIMIZER,
    TimeTerm.DATA_LOADING,
)
# Plans whose times differ by a smaller factor count as equally fast: the time model does not tell them apart.
ABOUT_EQUAL_RATIO = 1.25
_ONE_TENTH = 0.1
# Shares of a run from one checkpoint to the next.
_SAVE_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
# Steps between checkpoints where it is not known how long a step takes.
_USUAL_SAVE_STEPS = 500
_HOUR = 3600.0
# Seconds between checkpoints from which a kill costs much.
_MAX_SECONDS_LOST = 2 * _HOUR
# Shares of the data that are held back where evaluations of the usual one would take too long.
_FEWER_HELD_SHARES = (0.02, 0.01, 0.005, 0.002, 0.001)


@dataclass(frozen=True)
class Plan:
    """A run, with the speed class in which the search found it. `headroom_gib`: device memory that is left at the upper
    end of the 90 % band."""

    draft: NewRecipe
    speed: str

    def with_decisions(self, **decisions: Any) -> Plan:
        """Return a copy of the plan whose new recipe (`draft`) is made from these other decisions, given by the field
        names of NewRecipe."""
        return replace(self, draft=replace(self.draft, **decisions))

    @property
    def device_gib(self) -> float:
        """Expected memory, in GiB, of the device that needs most; 0 if not known."""
        memory = predict(self.draft.run).device_memory
        return memory.expected / GIB if memory else 0.0

    @property
    def host_gib(self) -> float:
        """Expected host memory of a node, in GiB; 0 if not known."""
        memory = predict(self.draft.run).host_memory
        return memory.expected / GIB if memory else 0.0

    @cached_property
    def pace(self) -> TrainingTime | None:
        """Predicted time of the run, corrected by measurements on this machine; None if no rates are published for the
        device."""
        return predict_training_time(self.draft.run, correction=self._correction)

    @property
    def hours(self) -> Band | None:
        """Predicted hours of the whole run, with their band; None if they are not known."""
        return self.pace.hours if self.pace else None

    @property
    def by_length(self) -> Mapping[int, Band]:
        """Hours by mean sample length in tokens, as `explain` prints them; empty if the sample lengths are known."""
        return hours_by_length(self.draft.run, self._correction)

    @property
    def is_approximate(self) -> bool:
        """True if the plan's optimizer approximates AdamW's updates."""
        return self.draft.optimizer is not None and memory_savers()[self.draft.optimizer].approximate

    @property
    def _correction(self) -> float | None:
        return calibration.time_correction(str(self.draft.machine))

    @cached_property
    def duration(self) -> float:
        """Expected seconds per sample over all epochs, to compare runs on the same samples; 0 if no rates are published
        for the device."""
        draft = self.draft
        return (seconds_per_sample(draft.run, draft.lengths) or 0.0) * float(draft.rates["epochs"]["default"])

    @cached_property
    def expected_time(self) -> float:
        """Expected hours of the whole run, evaluations and checkpoints included, to order runs on the same samples;
        `duration` if hours are not known."""
        return self.hours.expected if self.hours else self.duration

    def is_clearly_sooner(self, other: Plan) -> bool:
        """True if this plan finishes the same samples sooner than the other plan, by more than the error of the
        predicted times."""
        return ABOUT_EQUAL_RATIO * self.duration < other.duration

    @property
    def overhead_doublings(self) -> int:
        """How often overhead (communication, offload, waiting for the CPU) doubles the time of a step, rounded. If
        times are not known, the number of speed classes below `fast`."""
        if self.pace is None:
            return SPEED_CLASSES.index(self.speed) - SPEED_CLASSES.index("fast")
        step = self.pace.step
        computing = step.expected - sum(step.terms.get(term, 0.0) for term in _OVERHEAD_TERMS)
        return round(log2(step.expected / computing))

    @property
    def headroom_gib(self) -> float:
        memory = predict(self.draft.run).device_memory
        return (self.draft.machine.device.usable_gib or 0.0) - (memory.high / GIB if memory else 0.0)


def find_plans(start: NewRecipe, methods: Sequence[str], lengths: Sequence[int]) -> list[Plan]:
    """Return one or two plans for each method that fit and pass `check`, best first. The lengths are tried in the given
    order; plans are made for the first length at which any method fits. Where all of these fetch weights or update them
    in host memory, plans without that for the next length at which there are any stand behind them. A method that
    `check` accepts only with an earlier transformers is planned for that release."""
    older_release = cache(lambda method: on_older_transformers(replace(start, method=method)))
    longest: list[Plan] = []
    for length in lengths:
        found: list[Plan] = []
        for draft in (replace(start, method=method, length=length) for method in methods):
            plans = [*_fastest_plans(draft)]
            if not plans and (older := older_release(draft.method)):
                plans = [*_fastest_plans(replace(older, length=length))]
            found += plans
        plans = _rank_plans(found, methods) if found else []
        without_host = [plan for plan in plans if plan.speed not in _HOST_MEMORY_CLASSES]
        if longest and without_host:
            return [*longest, *without_host]
        if without_host:
            return plans
        longest = longest or plans
    return longest


def _rank_plans(plans: Sequence[Plan], methods: Sequence[str]) -> list[Plan]:
    """Return the plans, the soonest first, but those with an approximate optimizer (GaLore, APOLLO, BAdam) last. The
    best plan with the first of the `methods` leads if it takes about as long as the soonest plan."""

    def order(plan: Plan) -> tuple[bool, float, int, int]:
        return (
            plan.is_approximate,
            plan.expected_time,
            SPEED_CLASSES.index(plan.speed),
            methods.index(plan.draft.method),
        )

    soonest, *_ = ordered = sorted(plans, key=order)
    preferred = next((plan for plan in ordered if plan.draft.method == methods[0]), soonest)
    limit = (soonest.is_approximate, ABOUT_EQUAL_RATIO * soonest.expected_time, SPEED_CLASSES.index(soonest.speed))
    alike = order(preferred)[:3] <= limit
    return sorted(ordered, key=lambda plan: plan is not preferred) if alike else ordered


def on_older_transformers(start: NewRecipe) -> NewRecipe | None:
    """Return the recipe with an earlier transformers release, if the newest release has findings
    (`newest_release_findings`) and the earlier one has none; else None. The last release before the newest major one is
    tried first. Device memory is not considered."""
    if not newest_release_findings(start):
        return None
    older = (replace(start, transformers=version) for version in releases.earlier_transformers())
    return next((each for each in older if not newest_release_findings(each)), None)


def newest_release_findings(start: NewRecipe) -> list[str]:
    """Return the reasons against the recipe with its transformers release, as messages: the findings of `check`. If
    there are no findings, the reason may be too little host memory for a mixture of experts, because every process of
    transformers 5 loads all experts under ZeRO-3."""
    if found := blocking_findings(start):
        return found
    experts = loaded_experts(start)
    return [f"under ZeRO-3 its processes load {experts:,.0f} GiB of experts"] if experts else []


def loaded_experts(start: NewRecipe) -> float:
    """Return how many GiB of expert weights the processes of a node would load under ZeRO-3, if host memory is too
    small for them; otherwise 0."""
    if start.machine.world == 1 or not start.model.family.merges:
        return 0.0
    sharded = predict(replace(start, sharding="ds_z3.json").run)
    if sharded.host_memory is None or sharded.host_verdict not in ("tight", "exceeds"):
        return 0.0
    return sharded.host_memory.terms.get(HostTerm.EXPERTS, 0.0) / GIB


def lengths_to_try(start: NewRecipe) -> list[int]:
    """Return the sample lengths, in tokens, to try if the user names none, longest first: the usual lengths, extended
    if the images of a sample need more. For a model with fewer positions than every usual length, its number of
    positions. If the longest sample of the user's own data is known to be shorter than that, the first length is the
    next multiple of 128 above it."""
    longest = start.model.positions or USUAL_LENGTHS[0]
    lengths = [each for each in USUAL_LENGTHS if each <= longest] or [longest]
    if start.own_datasets and (counted := start.own_datasets.counted):
        enough = max(-(-counted.longest // _LENGTH_STEP) * _LENGTH_STEP, lengths[-1])
        lengths = [min(enough, lengths[0]), *(each for each in lengths if each < enough)]
    return list(dict.fromkeys(replace(start, length=each).length_with_images for each in lengths))


def first_plan(start: NewRecipe, methods: Sequence[str]) -> Plan | None:
    """Return the fastest plan of these methods among runs that recompute activations (every speed class except
    `fastest`); None if no run fits. Once a method fits in the speed class `fast`, later methods are not tried, because
    4-bit weights would only add time for unpacking."""
    plans: list[Plan] = []
    for method in methods:
        plans += _fastest_plans(replace(start, method=method), "fast")
        if any(plan.speed == "fast" for plan in plans):
            break
    return min(plans, key=lambda plan: (plan.expected_time, SPEED_CLASSES.index(plan.speed)), default=None)


def _fastest_plans(start: NewRecipe, begin: str = "fastest") -> Iterator[Plan]:
    """Yield the plan of the first speed class that fits, from the class `begin` on, and sometimes a second plan. A plan
    in `fastest` is followed by a plan in `fast`, which leaves more memory free. A plan in `fast` with micro batch 1 is
    followed by a plan in `medium`, if the larger micro batch there makes the run clearly faster. Full fine-tuning that
    fits in no class is tried with memory-saving optimizers; full fine-tuning that fits only with offload is also tried
    with AdamW in 16 bits."""
    optimizers: Sequence[str] = list(memory_savers())
    of_one_sample: Plan | None = None  # the plan of class `fast`, if its micro batch is 1
    for speed in SPEED_CLASSES[SPEED_CLASSES.index(begin) :]:
        best = next((with_rarer_checkpoints(Plan(member, speed)) for member in fitting_runs(start, speed)), None)
        if best and (of_one_sample is None or best.is_clearly_sooner(of_one_sample)):
            yield best
            optimizers = ["bf16"] if speed in ("slow", "slowest") else []
        if of_one_sample or (best and speed != "fastest" and (speed != "fast" or best.draft.micro_batch > 1)):
            break
        of_one_sample = best if speed == "fast" else None
    if start.optimizer is None and start.sharding is None and _takes_memory_savers(start):
        saved = (each for name in optimizers for each in _fastest_plans(replace(start, optimizer=name), "fast"))
        yield from islice(saved, 1)


def with_rarer_checkpoints(plan: Plan) -> Plan:
    """Return the plan with checkpoints at a suitable distance: one each hour on a single node, one each half hour on
    several nodes. The distance is written as a share of the run, at most a tenth, so that it suits other data, too. If
    checkpoints would take a tenth of the run's time (rule TRA926), they are further apart; if even two would, only the
    checkpoint at the end is written."""
    total = (plan.pace and plan.pace.steps) or plan.draft.run.steps or 1
    seconds = _HOUR if plan.draft.machine.nodes == 1 else _HOUR / 2
    steps_between = seconds / plan.pace.step.expected if plan.pace else _USUAL_SAVE_STEPS
    share = max((share for share in _SAVE_SHARES if share * total <= steps_between), default=_SAVE_SHARES[0])
    plan = plan.with_decisions(save_steps=share)
    while _takes_a_tenth(plan, RunPart.SAVES) and plan.draft.save_steps < MAX_SHARE_BETWEEN_SAVES:
        plan = plan.with_decisions(save_steps=min(2 * plan.draft.save_steps, MAX_SHARE_BETWEEN_SAVES))
    while plan.draft.evaluates and _takes_a_tenth(plan, RunPart.EVALUATIONS):
        plan = _with_fewer_evaluations(plan)
    if plan.pace and plan.pace.steps and plan.pace.run and plan.pace.run.wasted_on(RunPart.SAVES):
        return plan.with_decisions(save_steps=plan.pace.steps)
    return plan


def _with_fewer_evaluations(plan: Plan) -> Plan:
    """Return the plan with less time spent on evaluation. First, evaluations and checkpoints are moved further apart,
    up to the distance at which a killed run loses much (rule TRA424). Otherwise fewer samples are held back; if that
    does not suffice, there is no evaluation."""
    draft, run = plan.draft, plan.pace.run if plan.pace else None
    apart = min(2 * draft.save_steps, MAX_SHARE_BETWEEN_SAVES)
    if draft.save_steps < apart and run and apart * run.expected <= _MAX_SECONDS_LOST:
        return plan.with_decisions(save_steps=apart)
    fewer = next((share for share in _FEWER_HELD_SHARES if share < draft.held_share), None)
    return plan.with_decisions(held=fewer) if fewer else plan.with_decisions(no_evaluation=EVALUATION_TOO_LONG)


def _takes_a_tenth(plan: Plan, part: RunPart) -> bool:
    """True if `part`, such as the saving of checkpoints, takes more than a tenth of the predicted time of the plan's
    run."""
    run = plan.pace.run if plan.pace else None
    return bool(run and run.terms.get(part, 0.0) > _ONE_TENTH * run.expected)


def fitting_runs(start: NewRecipe, speed: str) -> Iterator[NewRecipe]:
    """Yield the runs of a speed class that fit and pass `check`. `speed`: a class of SPEED_CLASSES, by the work that
    sharding, offload and recomputation add to a step. Runs without Liger come first, because Liger is a further package
    to install."""
    for member in promising(_groups(start, speed), lambda member: member.fits):
        if member.fits and not _errors_and_warnings(member := with_best_micro_batch(member)):
            yield member


def _groups(start: NewRecipe, speed: str) -> Iterator[tuple[list[NewRecipe], list[NewRecipe]]]:
    """Yield a pair of lists of runs for each DeepSpeed file of a speed class. The first list holds the run that needs
    least memory, with Liger if that can be used. The second list holds all runs to try: without and with Liger."""
    for engine in _deepspeed_files(start, speed):
        frugal_run = replace(start, sharding=engine, liger=start.liger_helps, recompute=speed != "fastest")
        found = predict(frugal_run.run)
        if found.exceeds_at_rest:
            continue
        if found.host_verdict in ("tight", "exceeds") and found.device_verdict == "fits":
            frugal_run = replace(frugal_run, workers=1)  # each process that loads samples takes host memory
        if not frugal_run.fits:
            frugal_run = replace(frugal_run, no_evaluation=EVALUATION_TOO_LARGE)
        yield [frugal_run], [replace(frugal_run, liger=False), frugal_run] if frugal_run.liger else [frugal_run]


def first_to_simulate(start: NewRecipe) -> NewRecipe:
    """Return the run that every search for the recipe's method reaches, to simulate it first: with activation
    checkpointing, and with unsharded weights unless the user asks for FSDP."""
    engines = (engine for speed in ("fast", "medium") for engine in _deepspeed_files(start, speed))
    return replace(start, sharding=next(engines, None))


def most_frugal_runs(start: NewRecipe) -> Iterator[Plan]:
    """Yield the recipe with every memory saving, once for each speed class and DeepSpeed file, whether it fits or
    not."""
    for speed in SPEED_CLASSES[1:]:
        for engine in _deepspeed_files(start, speed):
            lean = replace(
                start, sharding=engine, liger=start.liger_helps, workers=1, no_evaluation=EVALUATION_TOO_LARGE
            )
            yield Plan(lean, speed)


def find_tight_plan(start: NewRecipe, methods: Sequence[str]) -> Plan | None:
    """Return the first run that is expected to fit, but exceeds the machine at the upper end of the 90 % band, and
    against which `check` has nothing else; None if there is no such run. A run whose device memory was not simulated
    does not count."""
    for method in methods:
        for plan in most_frugal_runs(replace(start, method=method)):
            found = predict(plan.draft.run)
            is_tight = (
                not found.exceeds_at_rest
                and found.host_verdict != "exceeds"
                and found.verdict_at_longest == "tight"
                and found.device_verdict != "unknown"
            )
            if is_tight and not blocking_findings(plan.draft):
                return plan
    return None


def _deepspeed_files(start: NewRecipe, speed: str) -> tuple[str | None, ...]:
    """Return the DeepSpeed files to try in a speed class (SPEED_CLASSES, by the work that they add to a step). In the
    result, None means no DeepSpeed, and `fsdp` means FSDP. For 4-bit weights fewer files are tried: these weights need
    bitsandbytes, are unpacked at every use and stay on the device."""
    several, packed = start.machine.world > 1, start.method == "qlora"
    if packed and (start.model.quantized or 4 not in start.machine.device.bitsandbytes):
        return ()
    if start.optimizer:
        return (None,) if speed in ("fastest", "fast") and _can_use_optimizer(start) else ()
    if start.sharding == "fsdp":
        possible = several and not packed and new_recipe.can_wrap_layers(start.model)
        return ("fsdp",) if speed == "medium" and possible else ()
    file_speed = "fast" if speed == "fastest" else speed
    files = (each for each in sharding_files(start.machine) if each.speed == file_speed)
    return tuple(each.name for each in files if _is_planned(start, each, speed))


def _is_planned(start: NewRecipe, file: ShardingFile, speed: str) -> bool:
    """True if plans of the speed class use the file. Full fine-tuning on several devices shards at least its optimizer
    states; adapters shard them only if they do not fit otherwise. A catalogue recipe for one device starts without
    torchrun, and so without ZeRO-2. Offload is not planned for a host whose memory is not known. Before unlocked
    memory with ZeRO-2 comes ZeRO-3."""
    several, full, packed = start.machine.world > 1, start.method == "full", start.method == "qlora"
    if file.name is None:
        return not (several and full) and not (packed and speed == "fastest")
    if file.name == "ds_z2.json":
        return (full or speed == "fast") if several else (speed == "fast" and not start.public)
    if file.offloads:
        worthwhile = (full or speed == "slowest") and file.name != "ds_z2_offload_nopin.json"
        return worthwhile and not packed and start.machine.host_ram_gib is not None
    return True


def _takes_memory_savers(start: NewRecipe) -> bool:
    return takes_memory_savers(start.machine.device, start.method, start.stage)


def _can_use_optimizer(start: NewRecipe) -> bool:
    """True if the recipe's optimizer can be used on its machine. GaLore, APOLLO and BAdam update layer by layer, which
    LLaMA-Factory supports on one device only."""
    bits = memory_savers()[start.optimizer].bits if start.optimizer else None
    possible = _takes_memory_savers(start) and bits in (None, *start.machine.device.bitsandbytes)
    return possible and (start.machine.world == 1 or start.optimizer == "bf16")


def with_best_micro_batch(start: NewRecipe) -> NewRecipe:
    """Return the recipe with the fastest micro batch that fits and does not exceed the usual effective batch; of
    equally fast ones, the largest. A larger micro batch fills a device better, but pads more. With `neat_packing` the
    micro batch is 1, because flash attention takes one sequence at a time (rule TRA608)."""
    max_micro_batch = 1 if start.run.batch.neat_packing else min(MAX_MICRO_BATCH, start.batch // start.machine.world)
    sizes = [1 << power for power in reversed(range(1, max(max_micro_batch, 1).bit_length()))]
    lengths = start.lengths
    soonest = sorted([*(replace(start, micro_batch=micro) for micro in sizes), start],
                     key=lambda each: seconds_per_sample(each.run, lengths) or 0.0)  # fmt: skip
    return next(each for each in soonest if each is start or each.fits)


def blocking_findings(start: NewRecipe) -> list[str]:
    """Return the messages of the errors and warnings that `check` would report for the run, without those on memory."""
    sharded = start.method == "full" and start.machine.world > 1 and start.sharding is None
    found = _errors_and_warnings(replace(start, sharding="ds_z3.json") if sharded else start, judge_memory=False)
    return [each.message for each in found]


# Codes that do not count against a plan. Paths and data sets depend on the folder that the recipe is written to
# (PTH, DAT, TRA620). That LoRA on a GPTQ or AWQ checkpoint may fail (TRA315) is said in a note. Wasted time is weighed
# by the order of plans (TRA92), by the order in which releases are tried (TRA937) and by the distance between
# checkpoints (TRA42, TRA114).
_NOT_AGAINST_PLANS = ("PTH", "DAT", "TRA315", "TRA620", "TRA92", "TRA937", "TRA42", "TRA114")


def _errors_and_warnings(start: NewRecipe, judge_memory: bool = True) -> list[Problem]:
    """Return the errors and warnings about the run that count against a plan. Memory findings are left out if
    `judge_memory` is False, and for the user's own data, because no dataset_info.json defines these yet. No simulation
    is made here: a run that fits was simulated before."""
    settled = replace(start, planned=start.planned.without_new_ones) if start.planned else start
    memory = () if judge_memory and not start.own_datasets else ("FIT",)
    return find_problems(settled.run, but=(*_NOT_AGAINST_PLANS, *memory))
