"""What the verdict on memory takes for granted, and the value of it that would turn the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from validator.finding import Assumption
from validator.physics.estimate import GIB
from validator.run.first_rows import certain_tokens
from validator.run.prediction import predict
from validator.run.settings import RunSettings

_LEAST_TOKENS = 64  # in shorter samples nothing is trained
# A host that has less main memory than half of what its devices have is rare, and so is one with less than this.
_USUAL_SHARE_OF_DEVICES, _USUAL_GIB = 0.5, 30.0


def verdict_assumptions(run: RunSettings) -> tuple[Assumption, ...]:
    """Return what the memory verdict of the run takes for granted and could be otherwise: the length of samples, the
    number of pictures, the transformers release, the machine's main memory. What would not turn the verdict is left
    out."""
    if Assumption not in run.derived:
        is_judged = run.machine is not None and predict(run).device_memory is not None
        run.derived[Assumption] = (*_find_assumptions(run),) if is_judged else ()
    found: tuple[Assumption, ...] = run.derived[Assumption]
    return found


def _find_assumptions(run: RunSettings) -> Iterator[Assumption]:
    if not run.batch.packing:
        yield from _lengths_declared(run) if run.declared.lengths.longest else _lengths_unknown(run)
    yield from _pictures(run)
    yield from _release(run)
    yield from _host_memory(run)


def _lengths_declared(run: RunSettings) -> Iterator[Assumption]:
    """Yield the length up to which the verdict holds, if it would be worse where samples fill `cutoff_len`."""
    prediction, cutoff = predict(run), int(run.args.number("cutoff_len"))
    verdict, declared = prediction.device_verdict, run.declared.lengths.longest
    if verdict not in ("fits", "tight") or run.batch.max_tokens >= cutoff or prediction.is_simulated:
        return
    holds = prediction.longest_samples(verdict, run.batch.max_tokens, cutoff)
    if holds and holds < cutoff:
        text = f"{verdict} up to {_in_two_digits(holds)} a sample; `lengths` says that the longest has {declared:,.0f}"
        yield Assumption("length", declared, holds, text, "" if verdict == "fits" else "FIT002")


def _lengths_unknown(run: RunSettings) -> Iterator[Assumption]:
    """Yield the length up to which the run would fit, if it does not where samples are as long as they may be."""
    prediction, longest = predict(run), run.batch.max_tokens
    if prediction.is_simulated:
        if enough := prediction.fitting_length:
            text = f"is expected to fit up to {_in_two_digits(enough)} a sample"
            yield Assumption("length", longest, enough, text, "FIT011")
        return
    if prediction.device_verdict not in ("tight", "exceeds"):
        return
    least = min(_LEAST_TOKENS, longest)
    tight = prediction.fitting_length or prediction.longest_samples("tight", least, longest)
    fits = prediction.longest_samples("fits", least, tight or least)
    if prediction.device_verdict == "tight":
        if fits and fits < longest:
            yield Assumption("length", longest, fits, f"fits up to {_in_two_digits(fits)} a sample", "FIT002")
    elif tight and prediction.fitting_length:
        yield Assumption("length", longest, fits or tight, _up_to("fits", "is", fits, tight), "FIT011")
    elif tight:
        certain = certain_tokens(run)
        source = "the first rows have some of" if certain > run.batch.certain_tokens else "some are taken to have"
        text = f"{_up_to('would fit', 'would be', fits, tight)}; {source} {certain:,}"
        yield Assumption("length", certain, fits or tight, text, "FIT001")


def _up_to(fitting: str, being: str, fits: int | None, tight: int) -> str:
    if not fits:
        return f"{being} tight up to {_in_two_digits(tight)} a sample"
    further = _in_two_digits(tight) != _in_two_digits(fits)
    beyond = f", {being} tight up to {_in_two_digits(tight).removesuffix(' tokens')}" if further else ""
    return f"{fitting} up to {_in_two_digits(fits)} a sample{beyond}"


def _in_two_digits(tokens: int) -> str:
    """Return a number of tokens with its first two digits, the others rounded down to zero."""
    unit = int("1".ljust(len(str(tokens)) - 1, "0"))
    return f"{tokens // unit * unit:,} tokens"


def fitting_length(run: RunSettings, longest: int) -> int | None:
    """Return the `cutoff_len` up to which the run fits its devices, if it would not fit with one of `longest` tokens,
    to about 2 %. None if it would, if the shortest samples do not fit either, or if that is not known without a
    simulation. A longer `cutoff_len` also leaves room for longer images."""
    prediction = predict(run)
    if run.machine is None or prediction.is_simulated or prediction.device_memory is None:
        return None

    def fits(length: int) -> bool:
        return bool(predict(run.updated({"cutoff_len": length})).longest_samples("fits", length, length))

    own, most = min(int(run.args.number("cutoff_len")), longest), longest
    least = own if fits(own) else min(_LEAST_TOKENS, longest)
    if fits(most) or not fits(least):
        return None
    while most - least > max(8, least // 50):
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least


def longer_samples_in_words(own: int, cutoff_len: int, fits: int | None) -> str:
    """Return the end of a message that proposes a longer `cutoff_len` than `own`, that of the recipe: that the run fits
    up to a shorter length only, and what to ask for changes with which it fits. `fits`: that length in tokens; None if
    the run fits with the longer ones."""
    if fits is None:
        return ""
    changes = f"`lmf-recipes explain RECIPE cutoff_len={cutoff_len}` looks for changes with which it fits"
    rounded = _in_two_digits(fits)  # no shorter than `own`, with which it fits
    up_to = f"{own:,} tokens" if own <= fits and _in_two_digits(own) == rounded else rounded
    return f", but this run fits up to {up_to} a sample; {changes}"


def _pictures(run: RunSettings) -> Iterator[Assumption]:
    """Yield the pictures a sample up to which the run fits, if their number is not known and more may not fit."""
    prediction = predict(run)
    if prediction.fits_with_one_image and (most := prediction.most_fitting_images):
        pictures = "one picture" if most == 1 else f"{most} pictures"
        text = f"fits up to {pictures} a sample, if each has all pixels that `image_max_pixels` allows"
        yield Assumption("pictures", 1, most, text, "FIT002")


def _release(run: RunSettings) -> Iterator[Assumption]:
    """Yield the transformers release with which the verdict is another than with the newest that the recipe allows."""
    prediction = predict(run)
    for verdicts, code in ((prediction.device_verdicts, "FIT002"), (prediction.host_verdicts, "FIT004")):
        newest, verdict = next(iter(verdicts.items()), ("", "unknown"))
        if other := next((release for release, each in verdicts.items() if each != verdict), None):
            text = ", ".join(f"{verdict} with transformers {release}" for release, verdict in verdicts.items())
            yield Assumption("release", newest, other, text, code)
            return


def _host_memory(run: RunSettings) -> Iterator[Assumption]:
    """Yield the main memory with which the run fits, if the machine's is not given and could be less."""
    prediction, machine = predict(run), run.machine
    host, device_verdict = prediction.host_memory, prediction.device_verdict
    if host is None or machine is None or machine.device.shared_memory:
        return
    if machine.host_ram_gib is not None and not machine.has_usual_ram:
        return
    usual = _USUAL_SHARE_OF_DEVICES * machine.devices * (machine.device.memory_gib or 0.0)
    if device_verdict != "exceeds" and host.high / GIB > max(usual, _USUAL_GIB):
        needed = ceil(host.high / GIB)
        taken = f"{machine.host_ram_gib:g} is a usual server's" if machine.host_ram_gib else "the node's is not given"
        band = f"the upper end of {host.low / GIB:,.1f} to {host.high / GIB:,.1f}"
        text = f"fits from {needed:,} GiB of main memory a node, {band}; {taken} (`# host_ram_gib:`, `--host-ram`)"
        code = "FIT007" if machine.host_ram_gib is None and offloads_to_host(run) else ""
        yield Assumption("host_memory", machine.host_ram_gib, needed, text, code)


def offloads_to_host(run: RunSettings) -> bool:
    """True if DeepSpeed or FSDP moves states to main memory."""
    return run.deepspeed.offloads if run.deepspeed else run.fsdp is not None and run.fsdp.offload
