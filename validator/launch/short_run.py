"""Short versions of a run that leave the files of the real run alone: two steps with an evaluation and a save
(`--smoke`), and a few timed steps (`calibrate`)."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from validator.errors import RecipeError
from validator.launch.local_launch import NO_READER, LocalLaunch, TrainingProcess
from validator.launch.trainer_log import UNTIMED_STEPS, MeasuredSteps, read_last_step, read_measured_steps
from validator.recipe import safe_read
from validator.recipe.recipe_file import path_override
from validator.run.checkpoints import DEFAULT_OUTPUT_DIR
from validator.run.launch_command import ProcessSpec
from validator.run.settings import RunSettings

_ISOLATION = ("logging_steps=1", "logging_strategy=steps", "overwrite_output_dir=true", "report_to=none")
_ISOLATION_WHERE_SET = {"resume_from_checkpoint": "null", "push_to_hub": "false", "use_swanlab": "false"}


def isolating_overrides(run: RunSettings, output: str) -> Iterator[str]:
    """Yield overrides that make a run write to the folder `output` only, upload and report nothing, start anew, and log
    each step."""
    yield from (path_override("output_dir", output), *_ISOLATION)
    yield from overrides_where_set(run, _ISOLATION_WHERE_SET)


def overrides_where_set(run: RunSettings, values: dict[str, str]) -> Iterator[str]:
    """Yield an override `key=value` for each key of `values` that the recipe sets to something other than false, zero
    or empty. Other keys are left as they are."""
    yield from (f"{key}={value}" for key, value in values.items() if run.args.get(key))


SMOKE_STEPS = 2
# Fewer tokens than ordinary samples have, so that enough of them are packed (Alpaca's have about a hundred).
_TOKENS_PER_SAMPLE = 100
# Rows of a data set: some may be dropped while they are tokenized, and tokenizing more takes longer than the steps.
_MIN_ROWS, _MAX_ROWS = 64, 10_000


def smoke_overrides(run: RunSettings) -> tuple[str, ...]:
    """Return overrides for a smoke run: two steps of the run, in a folder named after its output folder with `-smoke`
    at the end. Raises RecipeError if that folder holds checkpoints of another run, because the Trainer might remove
    some of them."""
    output = f"{str(run.args.get('output_dir') or DEFAULT_OUTPUT_DIR).rstrip('/')}-smoke"
    for checkpoint in safe_read.glob_folder(safe_read.expand_home(output), "checkpoint-*"):
        if checkpoint.name != f"checkpoint-{SMOKE_STEPS}":
            raise RecipeError(f"`{output}` is not a smoke run's: it holds {checkpoint.name}; rename it")
    return (*isolating_overrides(run, output), *_schedule_overrides(run), *_data_overrides(run))


def _schedule_overrides(run: RunSettings) -> Iterator[str]:
    """Yield overrides that stop the run after two steps, with a save and, if the recipe evaluates during training, an
    evaluation at the second step. PPO saves by `save_steps` alone (train/ppo/trainer.py)."""
    yield from (f"max_steps={SMOKE_STEPS}", f"save_steps={SMOKE_STEPS}")
    if run.args.get("save_strategy") == "epoch":
        yield "save_strategy=steps"
    if run.evaluation.while_training:
        yield from ("eval_strategy=steps", f"eval_steps={SMOKE_STEPS}")
        yield from overrides_where_set(run, {"eval_delay": "0"})


def _data_overrides(run: RunSettings) -> Iterator[str]:
    """Yield overrides that limit the data to the rows that two steps and one evaluation batch need. `tokenized_path` is
    unset if the folder does not exist yet, so that the shortened data are not saved where the real run would load them.
    `val_size` becomes a share of the remaining rows, or a number of rows for streamed data (data/data_utils.py,
    split_dataset)."""
    if run.args.is_set("tokenized_path") and not run.data.is_tokenized:
        yield "tokenized_path=null"
    max_samples, eval_rows = int(run.args.number("max_samples")), _evaluation_rows(run)
    rows = min(_rows_per_dataset(run), max_samples or _MAX_ROWS)
    streams = run.args.flag("streaming")
    yield f"buffer_size={min(rows, int(run.args.number('buffer_size')))}" if streams else f"max_samples={rows}"
    if run.evaluation.splits_validation_set:
        share = round(min(eval_rows / rows, 0.5), 3)
        yield f"val_size={eval_rows if streams else share}"


def _rows_per_dataset(run: RunSettings) -> int:
    """Return the number of rows to take from each data set: enough for two steps and one evaluation batch, between 64
    and 10,000. If the run generates text for a separate evaluation set, return one batch for each device only, because
    generating takes longest."""
    evaluated = _evaluation_rows(run)
    if run.args.is_set("eval_dataset") and (run.evaluation.generates_text or run.evaluation.predicts):
        return max(evaluated, run.batch.micro_batch * run.batch.world_size)
    trained = SMOKE_STEPS * run.batch.effective_batch * _rows_per_sequence(run)
    return min(max(trained + evaluated, _MIN_ROWS), _MAX_ROWS)


def _evaluation_rows(run: RunSettings) -> int:
    """Return the number of rows in one evaluation batch over all devices. If `val_size` is a number of rows, the result
    is at most `val_size`."""
    batch = max(int(run.args.number("per_device_eval_batch_size")), 1) * run.batch.world_size * _rows_per_sequence(run)
    val_size = run.args.number("val_size")
    return min(batch, int(val_size)) if val_size > 1 else batch


def _rows_per_sequence(run: RunSettings) -> int:
    """Return the number of rows that fill one packed sequence, at 100 tokens a row; 1 without packing."""
    return math.ceil(run.batch.max_tokens / _TOKENS_PER_SAMPLE) if run.batch.packing else 1


def smoke_summary(output: Path, seconds: float) -> str:
    """Return the message after a smoke run without errors: the parts that ran (steps, evaluation, prediction) with
    their times, and the checkpoint that was saved. The parts are read from `all_results.json` and the output folder.
    `seconds` is the time of the whole run."""
    results = output / "all_results.json"
    metrics = safe_read.read_json(str(results)) if safe_read.path_kind(results) == "file" else {}
    names = {"train": f"{SMOKE_STEPS} steps", "eval": "evaluation", "predict": "prediction"}
    parts = [
        f"{name} {metrics[f'{kind}_runtime']:.1f} s" for kind, name in names.items() if f"{kind}_runtime" in metrics
    ]
    saved = [path.name for path in safe_read.glob_folder(output, f"checkpoint-{SMOKE_STEPS}")]
    through = ", ".join([*parts, *saved]) or "all"
    return f"smoke run: nothing failed in {seconds:.0f} s ({through}); the run itself goes without --smoke"


_LOG_NAME = "trainer_log.jsonl"
# Seconds between two looks at the log, and those that the trainer has to end in.
_POLL_SECONDS, _GRACE_SECONDS = 0.2, 30
# What a run would do beside its steps ('no' in quotes, as YAML reads no as false), and what refuses to be without that.
_TIMED_OVERRIDES = (
    "include_num_input_tokens_seen=true", "save_strategy='no'", "eval_strategy='no'", "plot_loss=false",
)  # fmt: skip
_TIMED_WHERE_SET = {"load_best_model_at_end": "false", "early_stopping_steps": "null", "do_predict": "false"}


def timed_overrides(run: RunSettings, steps: int, output: Path) -> Iterator[str]:
    """Yield overrides for a timing run: two untimed first steps, then `steps` timed steps, in the folder `output`.
    Evaluation, saves and plots are switched off."""
    yield f"max_steps={UNTIMED_STEPS + steps}"
    yield from (*isolating_overrides(run, str(output)), *_TIMED_OVERRIDES, *overrides_where_set(run, _TIMED_WHERE_SET))


def run_timed_steps(prepared: LocalLaunch, steps: int) -> MeasuredSteps:
    """Run the trainer until `steps` timed steps are logged, end it, and return the measured step times. What the
    trainer prints goes to standard error. Raises RecipeError if the trainer ends before these steps are done."""
    words, env = prepared.process
    log, total_steps = Path(prepared.output, _LOG_NAME), UNTIMED_STEPS + steps
    trainer = TrainingProcess(ProcessSpec(words, {**env, "RECORD_VRAM": "1"}), _GRACE_SECONDS, stdout=sys.stderr)
    with trainer.forward_signals():
        try:
            while trainer.poll() is None and read_last_step(log) < total_steps:
                time.sleep(_POLL_SECONDS)
        finally:
            trainer.send_signal(signal.SIGTERM)
            code = trainer.wait()
    if trainer.first_signal:
        sys.exit(128 + trainer.first_signal)
    if code == NO_READER:
        sys.exit(code)
    if read_last_step(log) < total_steps:
        ended = f"{words[0]} ended with exit code {code} after {read_last_step(log)} of {total_steps} steps"
        raise RecipeError(f"{ended}; its output above says why")
    return read_measured_steps(log)
