"""TRA606 to TRA617, TRA620, TRA927 and TRA928: packing, lengths, streaming and mixing of the training data, and how
long the other processes wait until the first has tokenized it."""

from __future__ import annotations

import math
import os

from validator.knowledge import families
from validator.knowledge.devices import Machine
from validator.knowledge.models import Model
from validator.knowledge.node_environment import node_needs
from validator.physics.run_time import RunPart
from validator.rules import subjects
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule, set_value
from validator.run import sample_lengths
from validator.run.answer_cuts import estimate_answer_cuts
from validator.run.assumptions import fitting_length, longer_samples_in_words
from validator.run.settings import RunSettings
from validator.run.training_time import predict_training_time

# Which share of samples may lose the end of their answers without a word: with the fewest tokens that their texts
# plausibly have, and with the usual number.
_MAX_SHARE_CUT_SURELY, _MAX_SHARE_CUT = 0.05, 0.1


@rule("TRA606", ERROR)
def packed_length_uneven(run: RunSettings) -> Findings:
    """Samples are packed to a length that is not a multiple of 8.

    Why: batches are padded to a multiple of 8 and packed positions are not: "size of tensor a must match" at the first
    step, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/data/processor/supervised.py:PackedSupervisedDatasetProcessor.preprocess_dataset,
    llamafactory/train/sft/workflow.py:run_sft
    Fix: a `cutoff_len` that is a multiple of 8.
    """
    length = run.args.number("cutoff_len")
    if run.task.stage == "sft" and run.batch.packing and run.task.trains and length % 8:
        text = f"`cutoff_len` is {length:.0f}, and packing needs a multiple of 8; write {length // 8 * 8:.0f}"
        yield "cutoff_len", text, set_value("cutoff_len", int(length // 8 * 8), safe=False)


def _packs_with_flash_attention(run: RunSettings) -> bool:
    return run.uses_flash_attention and run.batch.neat_packing and run.task.stage == "sft"


@rule("TRA608", ERROR)
def neat_packing_batches(run: RunSettings) -> Findings:
    """Neat packing with flash attention gets more than one packed sample at a time.

    Why: an assertion at the first step, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/data/collator.py:SFTDataCollatorWith4DAttentionMask.__call__
    Fix: `per_device_train_batch_size: 1` and a longer `cutoff_len`.
    """
    if _packs_with_flash_attention(run) and run.batch.micro_batch > 1:
        found = f"`neat_packing` with `flash_attn: fa2` takes 1 packed sample per device, not {run.batch.micro_batch}"
        yield "per_device_train_batch_size", f"{found}; set `per_device_train_batch_size: 1`"


@rule("TRA609", ERROR, about=subjects.model, since="transformers 5.0.0")
def length_scaling_fails(run: RunSettings, model: Model) -> Findings:
    """`rope_scaling` takes effect, which transformers 5 refuses.

    Why: LLaMA-Factory writes the longer maximum as a fraction and transformers 5 checks for a whole number: fails
    when the model is configured, after the whole data set is tokenized.
    Source: llamafactory/model/model_utils/rope.py:configure_rope
    Fix: a `cutoff_len` within the model's positions, or a model with a longer context.
    """
    limit, length = model.positions, run.args.number("cutoff_len")
    if run.args.is_set("rope_scaling") and limit and run.batch.kept_tokens > limit and not model.remote_code:
        found = f"`cutoff_len` is {length:.0f}, the model has {limit} positions"
        why = "`rope_scaling`, which would stretch them, fails with transformers 5"
        yield "rope_scaling", f"{found}, and {why}; set `cutoff_len: {limit}`"


@rule("TRA610", WARNING, about=subjects.model)
def longer_than_model(run: RunSettings, model: Model) -> Findings:
    """Samples may be longer than the positions the model was trained for.

    Why: beyond them a model talks nonsense, and some fail on the first long sample.
    Source: own (the model's config.json)
    Fix: a `cutoff_len` within the model's positions.
    """
    limit, length = model.positions, run.args.number("cutoff_len")
    if limit and length > limit and not run.args.is_set("rope_scaling"):
        text = f"`cutoff_len` is {length:.0f}, and the model has {limit} positions; set `cutoff_len: {limit}`"
        yield "cutoff_len", text, set_value("cutoff_len", limit, safe=False)


@rule("TRA611", ERROR)
def streaming_refused(run: RunSettings) -> Findings:
    """Streaming is combined with something that needs to know the whole data set.

    Why: refused at parse, on every rank; a `tokenized_path` that is still to be written, after the data is read.
    Source: llamafactory/hparams/parser.py:get_train_args,
    llamafactory/hparams/data_args.py:DataArguments.__post_init__, llamafactory/data/loader.py:get_dataset
    Fix: `max_steps`, a whole `val_size`, no `max_samples`, or no `streaming`.
    """
    if not run.args.flag("streaming"):
        return
    if run.args.number("max_steps") == -1:
        found = "`streaming` needs `max_steps`, because the number of samples is not known"
        yield "streaming", f"{found}; set `max_steps`, such as `max_steps: 1000`"
    if run.args.get("max_samples") is not None:
        yield "max_samples", "`max_samples` is refused with `streaming`; remove `max_samples`"
    if run.evaluation.splits_validation_set and run.args.number("val_size") < 1:
        found = f"`val_size` is the share {run.args.get('val_size')}, and `streaming` needs a number of samples"
        yield "val_size", f"{found}; write a whole number such as `val_size: 100`"
    path = run.args.get("tokenized_path")
    if isinstance(path, str) and not run.workspace.find(path) and not run.workspace.may_be_elsewhere(path, "folder"):
        found = f"`tokenized_path: {path}` does not exist, and streamed data cannot be saved to it"
        yield "tokenized_path", f"{found}; remove `streaming` or `tokenized_path`"


@rule("TRA612", ERROR)
def mixing_refused(run: RunSettings) -> Findings:
    """The shares of mixed data sets do not fit the data sets.

    Why: refused at parse on every rank; shares that do not add up to 1, when the data is read.
    Source: llamafactory/hparams/data_args.py:DataArguments.__post_init__, llamafactory/data/data_utils.py:merge_dataset
    Fix: `mix_strategy: interleave_under`, one share for each data set, together 1.
    """
    at, shares, data = "interleave_probs", _mixing_shares(run), run.args.words("dataset")
    named = {key: len(run.args.words(key)) for key in ("dataset", "eval_dataset") if run.args.is_set(key)}
    uneven = next((key for key, number in named.items() if number != len(shares)), None)
    if run.args.is_set(at) and run.args.get("mix_strategy") == "concat":
        remedy = "write `mix_strategy: interleave_under`, or remove `interleave_probs`"
        yield at, f"`interleave_probs` is refused with `mix_strategy: concat`; {remedy}"
    elif run.args.is_set(at) and uneven:
        found = f"`interleave_probs` has {len(shares)} shares, and `{uneven}` has {named[uneven]} names"
        yield at, f"{found}; write one share for each name of `{uneven}`"
    elif run.args.is_set(at) and len(data) > 1 and abs(sum(shares) - 1) > 1e-6:  # which .nan never is
        found = f"the shares in `interleave_probs` add up to {sum(shares):g}, not to 1"
        yield at, f"{found}; change `interleave_probs` so that they do"


def _mixing_shares(run: RunSettings) -> list[float]:
    """Return the recipe's `interleave_probs` as numbers, the share of each data set; NaN for a word that is not a
    number."""
    shares = []
    for word in run.args.words("interleave_probs"):
        try:
            shares.append(float(word))
        except ValueError:
            shares.append(math.nan)
    return shares


@rule("TRA613", ERROR)
def amount_refused(run: RunSettings) -> Findings:
    """A setting leaves no data to train on.

    Why: fails while the data is read, on every rank.
    Source: llamafactory/data/loader.py:_load_single_dataset, llamafactory/data/data_utils.py:split_dataset
    Fix: a positive `max_samples`, a `val_size` below 1 as a share, at least one preprocessing worker.
    """
    streams, samples, share = (run.args.get(key) for key in ("streaming", "max_samples", "val_size"))
    if samples is not None and run.args.number("max_samples") <= 0 and not streams:
        yield "max_samples", f"`max_samples: {samples}` leaves no data; remove `max_samples`"
    if isinstance(share, float) and share == 1.0 and not streams:
        yield "val_size", "`val_size: 1.0` holds back all data; write a share such as 0.05, or a number of samples"
    if run.args.get("preprocessing_num_workers") is not None and run.args.number("preprocessing_num_workers") < 1:
        text = "`preprocessing_num_workers` is below 1; write 1 or more, or remove `preprocessing_num_workers`"
        yield "preprocessing_num_workers", text


@rule("TRA615", ERROR)
def streamed_file_without_workers(run: RunSettings) -> Findings:
    """A local file is streamed without loader workers.

    Why: LLaMA-Factory cuts the file into as many pieces as there are workers, and the default is none: StopIteration
    while the data is read.
    Source: llamafactory/data/loader.py:_load_single_dataset
    Fix: `dataloader_num_workers: 1` or more.
    """
    local = any(one.source == "file" for one in run.data.datasets)
    if local and run.args.flag("streaming") and run.args.get("dataloader_num_workers") == 0:
        found = "`streaming` of a local file needs workers, and `dataloader_num_workers` is 0"
        yield "streaming", f"{found}; set `dataloader_num_workers: 1`"


@rule("TRA616", ERROR, since="transformers 4.53.0", until="llamafactory 0.9.5")
def neat_packing_of_0_9_4(run: RunSettings) -> Findings:
    """Neat packing is used, and the recipe admits LLaMA-Factory 0.9.4 with a transformers release of 2025.

    Why: 0.9.4 refuses it at parse, on every rank, with transformers 4.53 and later; 0.9.5 does not.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `llamafactory: ">=0.9.5"` in the header block, or `transformers: "<4.53"`.
    """
    if run.batch.neat_packing:
        found = "LLaMA-Factory 0.9.4, which the recipe allows, refuses `neat_packing` with transformers 4.53 or later"
        yield "neat_packing", f'{found}; write `# llamafactory: ">=0.9.5"` into the header block'


@rule("TRA617", ERROR, since="llamafactory 0.9.5")
def neat_packing_unfit_for_model(run: RunSettings) -> Findings:
    """Neat packing with flash attention is used for a model for which LLaMA-Factory does not support it.

    Why: "Neat packing is not supported for gemma4, gpt_oss models", when the batches are set up, after the data is
    tokenized and the model loaded on every rank. LLaMA-Factory knows the model by its template.
    Source: llamafactory/data/collator.py:SFTDataCollatorWith4DAttentionMask.__post_init__
    Fix: `packing: true` alone, or no `flash_attn: fa2`.
    """
    unfit = tuple(families.llamafactory_types("no_neat_packing"))
    if _packs_with_flash_attention(run) and str(run.args.get("template")).startswith(unfit):
        found = f"`neat_packing` with `flash_attn: fa2` does not work for template {run.args.get('template')}"
        yield "neat_packing", f"{found}; write `packing: true` in place of `neat_packing`"


@rule("TRA620", WARNING)
def most_samples_cut(run: RunSettings) -> Findings:
    """Answers are longer than `cutoff_len` leaves room for: those of one sample in ten, or samples of average length.

    Why: LLaMA-Factory cuts questions and answers to `cutoff_len`, and the model learns answers that stop in the middle.
    Lengths are those of the first rows of local data, by their characters, of the header block, or published ones of
    public data. `data` counts all rows with the model's own tokenizer.
    Source: llamafactory/data/processor/processor_utils.py:infer_seqlen, own (estimates of tokens)
    Fix: a longer `cutoff_len`, or shorter samples.
    """
    if run.task.stage == "pt" or not run.task.trains or run.data.is_tokenized:
        return
    limit, place = run.args.number("cutoff_len"), "cutoff_len" if run.args.is_set("cutoff_len") else "dataset"
    cuts = estimate_answer_cuts(run) if limit > 0 and not run.declared.lengths.typical else None
    if cuts and (cuts.low >= _MAX_SHARE_CUT_SURELY or cuts.usual >= _MAX_SHARE_CUT):
        shares = f"{cuts.low:.0%}" if cuts.high - cuts.low < 0.005 else f"{cuts.low:.0%} to {cuts.high:.0%}"
        found = f"`cutoff_len` ({limit:,.0f}) cuts some {shares} of the answers, by {run.data.sampled_in_words}"
        positions = (run.model.positions if run.model else None) or cuts.sufficient_length
        better = min(cuts.sufficient_length, positions)
        if run.data.has_more_rows:  # whose lengths `data` alone knows
            remedy = "set the `cutoff_len` that `lmf-recipes data` names, or shorten the samples"
        else:
            longer = f"set `cutoff_len: {better}`, or shorten the samples"
            remedy = f"{longer}{longer_samples_in_words(int(limit), better, fitting_length(run, better))}"
        yield place, f"{found}; {remedy if better > limit else 'as more is not possible, shorten the samples'}"
    elif not cuts and (mean := _mean_length(run)) > limit > 0:
        found = f"samples have about {mean:,.0f} tokens, of which `cutoff_len` keeps the first {limit:,.0f}"
        yield place, f"{found}; raise `cutoff_len`, or shorten the samples"


def _mean_length(run: RunSettings) -> float:
    """Return the mean tokens of a sample: the typical length that the header block states, or else the published mean
    of public data sets; 0 if neither is known."""
    if run.declared.lengths.typical:
        return run.declared.lengths.typical
    # Where samples are recommended, the recipe is made for other data than it names.
    is_for_other_data = run.data.local_rows is not None or run.declared.samples is not None
    published = None if is_for_other_data else sample_lengths.published_tokens(run)
    return float(published[0]) if published else 0.0


# With fewer tokens for one process nothing is reported: it makes 100,000 a second, and the least wait is half an hour.
_QUICK_TOKENS = 1e8
# Processes that most servers have the processors and the memory for (LLaMA-Factory's own examples).
_MAX_TOKENIZERS = 16


@rule("TRA927", WARNING)
def tokenizing_outlasts_timeout(run: RunSettings) -> Findings:
    """`ddp_timeout` ends before the first process has tokenized the data, for which the others wait.

    Why: they wait in a collective, which ends after half an hour where the recipe allows no longer: "Watchdog caught
    collective operation timeout: … ran for 1800328 milliseconds" (LLaMA-Factory issues 2424, 2656). On several nodes
    the first process of each tokenizes all of it.
    Source: llamafactory/data/loader.py:get_dataset,
    transformers/training_args.py:TrainingArguments.main_process_first, own (the time model)
    Fix: more `preprocessing_num_workers`, a longer `ddp_timeout`, or tokenize once before with `tokenized_path`.
    """
    seconds, limit = _tokenizing_seconds(run), run.args.number("ddp_timeout")
    if seconds > limit > 0:
        suffice = seconds * _tokenizer_processes(run) / _MAX_TOKENIZERS < limit
        longer = 3600 * math.ceil(2 * seconds / 3600)
        key, value = ("preprocessing_num_workers", _MAX_TOKENIZERS) if suffice else ("ddp_timeout", longer)
        minutes = f"tokenizing takes about {seconds / 60:.0f} minutes, and `ddp_timeout` allows {limit / 60:.0f}"
        place = "ddp_timeout" if run.args.is_set("ddp_timeout") else "dataset"
        yield place, f"{minutes}; set `{key}: {value}`, or tokenize before with `tokenized_path`", set_value(key, value)


@rule("TRA928", NOTE, about=subjects.machine)
def hccl_waits_less(run: RunSettings, machine: Machine) -> Findings:
    """HCCL ends the wait for the first process before it has tokenized the data, whatever `ddp_timeout` allows.

    Why: on Ascend processes wait on the device, where HCCL_EXEC_TIMEOUT counts: 1,836 s where nothing sets it, and on a
    910A 17,340 s at most. Then "the specified timeout waiting event", error 507046 or 507048 (LLaMA-Factory issue 5551,
    Ascend/pytorch issues 48 and 62).
    Source: llamafactory/data/loader.py:get_dataset, own (the time model; HCCL_EXEC_TIMEOUT as CANN describes it)
    Fix: HCCL_EXEC_TIMEOUT as long as `ddp_timeout`, which `lmf-recipes train` sets; surer is to tokenize once before,
    with `tokenized_path`.
    """
    seconds, allowed = _tokenizing_seconds(run), run.args.number("ddp_timeout")
    waiting = node_needs(machine.device).waiting if seconds else None
    if waiting is None:
        return
    given = os.environ.get(waiting.name, "")
    limit = int(given) if given.isdecimal() else waiting.usual  # 0 is without end
    if 0 < limit < seconds <= allowed:
        minutes = f"tokenizing takes about {seconds / 60:.0f} minutes, and HCCL waits only {limit / 60:.0f}"
        longer = f"{waiting.name}={int(min(allowed, waiting.most or allowed))}"
        remedy = f"set {longer}" if given else f"start with `lmf-recipes train`, which sets {longer}"
        yield "dataset", f"{minutes}; {remedy}, or, safer, tokenize before with `tokenized_path`"


def _tokenizing_seconds(run: RunSettings) -> float:
    """Return approximately how many seconds the other processes wait while the first process tokenizes the data. 0 if
    there are no other processes, if the data are tokenized already, or if few tokens make the wait short (then the time
    is not predicted, because the time model is slow)."""
    # Tokens that each process which tokenizes makes, if all samples were as long as they may be.
    sequences = (run.data.rows or 0) * (2 if run.task.uses_preference_pairs else 1)
    max_tokens = sequences * run.batch.max_tokens / _tokenizer_processes(run)
    if run.batch.world_size == 1 or run.data.is_tokenized or max_tokens < _QUICK_TOKENS:
        return 0.0
    prediction = predict_training_time(run)
    return prediction.run.terms.get(RunPart.TOKENIZING, 0.0) if prediction and prediction.run else 0.0


def _tokenizer_processes(run: RunSettings) -> float:
    return max(run.args.number("preprocessing_num_workers"), 1)
