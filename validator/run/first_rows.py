"""The first rows of local data sets: the estimated tokens of their turns, and how long the longest surely is. `data`
counts all rows, by the same texts and, without the model's tokenizer, the same estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from validator.rows.converter import FatalRowError, Sample
from validator.rows.outcomes import row_checker
from validator.rows.token_estimate import TextEstimator
from validator.rows.truncation import CutImages, SampleLengths, are_images_cut
from validator.run.chat_template import ChatTemplate, recipe_template, sample_lengths, sample_texts
from validator.run.image_tokens import image_counter
from validator.run.row_images import first_row_images
from validator.run.settings import RunSettings

_STAGES = ("sft", "dpo", "rm", "kto")  # those that train on answers
# Tokens of a text, as multiples of the estimate. Nine in ten pieces of text are within 15 % of it for Qwen's
# vocabulary; vocabularies of 32,000 words make more tokens.
FEWEST, EXPECTED, MOST = 0.9, 1.0, 1.3


class FirstRow(NamedTuple):
    """A row that is trained on. `turns`: tokens of its turns; of a preference pair, the last two are its answers.
    `images`: tokens of its images. `has_media`: its data set has images, videos or audio; their tokens are in `turns`
    if `is_counted`."""

    sample: Sample
    turns: tuple[int, ...]
    images: int
    has_media: bool
    is_counted: bool

    def lengths(self, run: RunSettings, template: ChatTemplate, factor: float = 1.0) -> SampleLengths:
        """Return the lengths of the sample, if each text has `factor` times the estimated tokens."""
        turns = self.turns if factor == 1.0 else [round(factor * each) for each in self.turns]
        limit = max(run.batch.kept_tokens, 1)
        return sample_lengths(template, self.sample, turns, run.task.stage, run.batch.packing, limit)


def first_rows(run: RunSettings) -> tuple[FirstRow, ...]:
    """Return those of the rows `run.data.sampled_rows` that are trained on."""
    if first_rows not in run.derived:
        run.derived[first_rows] = (*_read_rows(run),)
    found: tuple[FirstRow, ...] = run.derived[first_rows]
    return found


def _read_rows(run: RunSettings) -> Iterator[FirstRow]:
    stage, estimator = run.task.stage, TextEstimator()
    template, images, counter = recipe_template(run, estimator), first_row_images(run), image_counter(run)[0]
    checks = {dataset: row_checker(dataset.attr, stage) for dataset in run.data.datasets}
    for number, (dataset, row) in enumerate(run.data.sampled_rows):
        sample = checks[dataset](row).sample
        if sample is None:
            continue
        tokens = images[number].tokens if images else ()
        try:
            texts = sample_texts(template, sample, stage, tokens, counter is not None and counter.in_front)
        except FatalRowError:
            continue
        turns = tuple(sum(estimator.count(pieces)) + added for pieces, added in texts)
        has_media = dataset.attr.has_media and stage != "pt"
        image_tokens = sum(each.sequence for each in tokens)
        yield FirstRow(sample, turns, image_tokens, has_media, bool(images) or not has_media)


def cut_images(run: RunSettings) -> CutImages | None:
    """Return the first rows of which `cutoff_len` cuts an image; None if there is none, or if the sizes of the images
    are not known."""
    template, cut = recipe_template(run, TextEstimator()), list[tuple[int, int]]()
    for row in filter(lambda row: row.images, first_rows(run)):
        full, *kept = row.lengths(run, template)
        if are_images_cut(run.task.stage, row.images, *kept):
            cut.append((row.images, full))
    return CutImages(len(cut), *map(max, zip(*cut, strict=True))) if cut else None


def text_rows(run: RunSettings) -> list[FirstRow]:
    """Return the first rows that have answers and neither images, videos nor audio. Empty if the stage trains on no
    answers."""
    return [each for each in first_rows(run) if not each.has_media] if run.task.stage in _STAGES else []


def certain_tokens(run: RunSettings) -> int:
    """Return the tokens that the run's longest sequence has at least: by the header block, or by the first rows of
    local data sets, if these are surely longer."""
    if certain_tokens not in run.derived:
        template = recipe_template(run, TextEstimator())
        known = max((each.lengths(run, template)[0] for each in text_rows(run)), default=0)
        run.derived[certain_tokens] = max(run.batch.certain_tokens, min(int(FEWEST * known), run.batch.max_tokens))
    found: int = run.derived[certain_tokens]
    return found
