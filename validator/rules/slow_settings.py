"""TRA921 to TRA926 and TRA937: settings and releases that cost time without any benefit. The time model is slow, so it
is used only if a setting makes a finding likely."""

from __future__ import annotations

from dataclasses import replace

from validator.knowledge.devices import Machine
from validator.knowledge.tables import yaml_table
from validator.levers.faster_release import faster_release
from validator.levers.options import larger_micro_batch, less_sharding, more_loader_workers, together
from validator.levers.search import best_use_of_memory
from validator.physics import RunPart, TimeTerm
from validator.physics.estimate import GIB
from validator.rules import subjects
from validator.rules.problems import accepts_changes, is_free_of_errors
from validator.rules.rule import NOTE, WARNING, Findings, rule
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.prediction import predict
from validator.run.sample_lengths import estimate_sample_lengths, expected_longest
from validator.run.schedule import evaluation_interval, save_interval, written_checkpoints
from validator.run.settings import RunSettings
from validator.run.training_time import TrainingTime, predict_training_time, time_ratio, usual_time_ratio
from validator.run.variants import ArgumentChanges, with_arguments
from validator.wording import two_digits

# A step has to take so much longer, and a wait so large a share of it, to be told of: beyond what the time model errs
# by where links or kernels decide.
_MIN_TIME_RATIO, _MIN_WAITING_SHARE = 1.3, 0.5
# Bytes of all checkpoints, of which no fewer are told: a disk that takes 1.6 GB a second writes them in three minutes.
_MIN_CHECKPOINT_BYTES = 3e11
_MAX_PADDING_SHARE = 1 / 3
_MAX_SLOWED_SPEED = 0.95  # of one node: what several do is less, also when it is rounded


def _time_ratio(run: RunSettings, other_run: RunSettings) -> float:
    """Return how many times as long `run` takes as `other_run` on the same samples: the whole run if the number of
    samples is known, else the steps. 0 if either time is unknown. If the lengths of the samples are unknown, every
    sample counts as `cutoff_len` tokens."""
    lengths = estimate_sample_lengths(run).lengths[1] if _are_lengths_known(run) else (run.batch.max_tokens,)
    shorter = time_ratio(run, other_run, lengths)
    return 1 / shorter if shorter else 0.0


def _are_lengths_known(run: RunSettings) -> bool:
    return run.declared.lengths.typical is not None or run.data.has_first_rows


def _device_gib(run: RunSettings) -> str:
    memory = predict(run).device_memory
    return f"{memory.expected / GIB:.1f} GiB per device" if memory else ""


@rule("TRA921", WARNING, about=subjects.deepspeed)
def sharded_without_need(run: RunSettings, zero: DeepSpeedConfig) -> Findings:
    """Weights are spread over the devices, or lie in main memory, where each device has room for them.

    Why: ZeRO-3 gathers every layer in each pass of each micro batch, an adapter's frozen base too; offload moves states
    over the host's link and updates them on the processor. Where the devices' memory suffices without, that buys
    nothing: users tell of LoRA two to ten times as slow with ZeRO-3 (LLaMA-Factory issues 3499, 5398, 9528). So it is
    on one device, where nothing is sharded. Of a file that is not there nothing is said.
    Source: own (the time model)
    Fix: the settings that the message names, the first that `lmf-recipes explain` has for memory to spare.
    """
    if zero.is_assumed or predict(run).verdict not in ("fits", "tight"):
        return  # what exceeds its machine has a finding that names the nearest change
    option = best_use_of_memory(run, less_sharding, accepts_changes(run))
    if option is None or "offload" in str(option.set["deepspeed"]):
        return
    after = with_arguments(run, option.set)
    if (longer := _time_ratio(run, after)) > _MIN_TIME_RATIO:
        took = f"the same samples take {longer:.1f} times as long as they need"
        yield "deepspeed", f"{took}; set {option}, which fits ({_device_gib(after)})"


@rule("TRA922", WARNING, about=subjects.machine)
def bound_by_network(run: RunSettings, machine: Machine) -> Findings:
    """What nodes send each other takes longer than what they compute.

    Why: a node's devices share one network, which is ten to a hundred times slower than the links between them. With
    ZeRO-3 or FSDP all weights cross it in each pass of each micro batch; with ZeRO-2 and without, gradients once or
    once a micro batch. Over Gigabit Ethernet several nodes are slower than one.
    Source: own (the time model; LLaMA-Factory issue 10119)
    Fix: `network:` in the header block names the network that is really there. Else ZeRO-2 or no sharding where it
    fits, LoRA, whose gradients are small, more accumulation and fewer micro batches, or one node.
    """
    nodes, known = machine.nodes, predict_training_time(run) if machine.nodes > 1 else None
    if known and (share := known.step.terms.get(TimeTerm.NETWORK, 0.0) / known.step.expected) > _MIN_WAITING_SHARE:
        one_node = replace(run, machine=machine._replace(nodes=1))
        speed = usual_time_ratio(run, one_node) or nodes * (1 - share)
        alone = f"they do the work of {speed:.1f}"
        if speed < _MAX_SLOWED_SPEED:
            alone = f"one node alone is {1 / speed:.1f} times as fast"
            alone += " but lacks the memory" * (predict(one_node).verdict == "exceeds")
        unsure = "".join(f"; assumed: {each}" for each in known.assumed if "between nodes" in each)
        where = "deepspeed" if run.deepspeed and not run.accelerate else None
        yield where, f"the network between {nodes} nodes takes {share:.0%} of a step: {alone}{unsure}"


@rule("TRA923", NOTE)
def micro_batch_small(run: RunSettings) -> Findings:
    """Micro batches are so small that devices wait for the processor to start their kernels.

    Why: a kernel takes some ten microseconds to start, whatever it computes. The same samples in fewer, larger micro
    batches with less accumulation are the same training in less time.
    Source: own (the time model)
    Fix: the two settings of the message, which keep the samples of a step.
    """
    known = predict(run).verdict == "fits" and (run.batch.packing or _are_lengths_known(run))
    timed = predict_training_time(run) if known and run.batch.accumulation > 1 else None
    if timed is None or timed.run is None or not timed.run.is_long:
        return
    if timed.step.terms.get(TimeTerm.KERNEL_LAUNCHES, 0.0) <= _MIN_WAITING_SHARE * timed.step.expected:
        return
    if (option := best_use_of_memory(run, larger_micro_batch, accepts_changes(run))) is None:
        return
    after = with_arguments(run, option.set)
    if (longer := _time_ratio(run, after)) > _MIN_TIME_RATIO:
        less = f"takes {1 - 1 / longer:.0%} less time, and fits ({_device_gib(after)})"
        yield "per_device_train_batch_size", f"devices wait for kernels to start: {option} {less}"


@rule("TRA924", WARNING)
def devices_wait_for_pictures(run: RunSettings) -> Findings:
    """Devices wait for pictures, films or sound that the data loader has not made numbers of.

    Why: without workers the process that trains opens, scales and cuts each picture itself, while the device does
    nothing; a worker does it beside the step.
    Source: own (the time model)
    Fix: `dataloader_num_workers`, a few for each device as far as there are cores, or a smaller `image_max_pixels`.
    """
    option = best_use_of_memory(run, more_loader_workers, accepts_changes(run), predict(run).verdict)
    if option and (longer := _time_ratio(run, with_arguments(run, option.set))) > _MIN_TIME_RATIO:
        less = f"{option} takes {1 - 1 / longer:.0%} less time"
        yield "dataloader_num_workers", f"devices wait for pictures to be read; {less}"


@rule("TRA925", NOTE)
def mostly_padding(run: RunSettings) -> Findings:
    """More than a third of each batch is padding, which is computed like text.

    Why: a micro batch is as long as its longest sample. Lengths are those of the header block or of local data.
    Source: own (the time model)
    Fix: `packing: true`, which pays without FlashAttention, too. With `neat_packing: true` samples do not see each
    other (but for models with linear attention, whose state goes on from one to the next), and without FlashAttention
    a mask of all pairs of tokens takes a part of the gain; or batches of samples of about the same length, by
    `train_sampling_strategy: group_by_length` (`group_by_length: true` in earlier releases of transformers), which
    pairs do not have; or a micro batch of one sample with more accumulation.
    """
    if run.batch.micro_batch < 2 or run.batch.packing or not _are_lengths_known(run):
        return
    lengths = estimate_sample_lengths(run).lengths[1]
    padding = 1 - sum(lengths) / len(lengths) / expected_longest(lengths, run.batch.micro_batch)
    if padding > _MAX_PADDING_SHARE:
        yield "per_device_train_batch_size", f"{padding:.0%} of a batch is padding; {_padding_remedy(run)}"


def _padding_remedy(run: RunSettings) -> str:
    """Return which setting avoids padding, as a clause for a message."""
    if run.task.stage in ("pt", "sft") and not (run.model and run.model.arch.mixer):
        return "`packing: true` spares it, but packed samples see each other"
    if run.task.stage in ("rm", "dpo"):
        return "a micro batch of one sample spares it"
    change = yaml_table("renamed")["group_by_length"]
    renamed = run.releases.requires(change["removed"])
    return f"`{change['now']}: {change['as']}` spares it" if renamed else "`group_by_length: true` spares it"


@rule("TRA926", WARNING)
def evaluated_or_saved_too_often(run: RunSettings) -> Findings:
    """Evaluations or checkpoints take more than a tenth of the run.

    Why: each evaluation passes through all that is held back, and each checkpoint waits for the disk.
    Source: own (the time model)
    Fix: a larger `eval_steps` or `save_steps`, fewer samples to evaluate, or `save_only_model: true`.
    """
    written = predict(run).checkpoint_bytes * (written_checkpoints(run) or 0)
    asked = run.evaluation.runs or written > _MIN_CHECKPOINT_BYTES
    timed = predict_training_time(run) if asked else None
    for what, part in _PARTS.items():
        if share := _wasted_share(run, timed, part):
            rarer = rarer_settings(run, what)
            remedy = f"set {together(rarer)}" if rarer else _FEWER_SAMPLES
            yield f"{what}_steps", f"{part} take {share:.0%} of the run; {remedy}"


_PARTS = {"eval": RunPart.EVALUATIONS, "save": RunPart.SAVES}
_FEWER_SAMPLES = "fewer evaluations do not suffice; evaluate fewer samples, by a smaller `val_size` or `eval_dataset`"


def _wasted_share(run: RunSettings, timed: TrainingTime | None, part: RunPart) -> float:
    """Return the share of the run's time that evaluations or checkpoints waste; 0 if the time is not known. `timed`:
    the predicted time of the run. The checkpoint at the end is not counted, because no setting avoids it."""
    if timed is None or timed.run is None or not timed.steps:
        return 0.0
    last_alone = part is RunPart.SAVES and save_interval(run, timed.steps) >= timed.steps
    return 0.0 if last_alone else timed.run.wasted_on(part)


def rarer_settings(run: RunSettings, what: str) -> ArgumentChanges | None:
    """Return the settings that make evaluations (`what`: eval) or checkpoints (save) so rare that they waste no time,
    by doubling the interval; {} if they waste none, and None if even one at the end does."""
    part, timed = _PARTS[what], predict_training_time(run)
    steps = timed.steps if timed and timed.steps else 0
    every = (evaluation_interval if what == "eval" else save_interval)(run, steps)
    changes: ArgumentChanges = {}
    rarer = run
    while _wasted_share(rarer, timed, part):
        if every >= steps:
            return None
        every = min(2 * every or max(1, steps // 10), steps)
        changes = interval_settings(run, what, every)
        rarer = with_arguments(run, changes)
        timed = predict_training_time(rarer)
    return changes


def interval_settings(run: RunSettings, what: str, steps: int) -> ArgumentChanges:
    """Return the settings that differ from the run's if it shall evaluate (`what`: eval) or save (save) every so many
    steps. To load the best checkpoint at the end, it has to do both."""
    kinds = ("save", "eval") if run.args.flag("load_best_model_at_end") else (what,)
    settings = {
        key: value for kind in kinds for key, value in ((f"{kind}_strategy", "steps"), (f"{kind}_steps", steps))
    }
    return {key: value for key, value in settings.items() if run.args.get(key) != value}


@rule("TRA937", WARNING)
def experts_one_after_another(run: RunSettings) -> Findings:
    """The experts of a mixture run one after another, with a transformers release that the header block allows.

    Why: transformers 4 runs a layer's experts in a Python loop, which waits for the device at each expert; where the
    experts are one tensor, the gradient of each slice has the size of all experts. Users tell of a 30B-A3B slower than
    a dense 32B (LLaMA-Factory issues 7921, 8038, 9374, 9625; ms-swift issue 6061). Since transformers 5 they run in
    grouped matmuls. Said where even the slow end of the newer release's time is below what is expected of the older.
    Source: transformers/integrations/moe.py:grouped_mm_experts_forward
    Fix: install the release that the message names, and write it into the header block.
    """
    if found := faster_release(run, is_free_of_errors):
        older, newer, slow, fast = found
        times = f"{two_digits(slow)} s a step, and {two_digits(fast)} with {newer}"
        remedy = f'`pip install "transformers=={newer}"` and write `# transformers: {newer}` into the header block'
        yield "model_name_or_path", f"transformers {older} runs experts one after another, {times}; {remedy}"
