"""The nearest changes to a job: the cheapest that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, product

from validator.advise import ladder, release
from validator.advise.change import Change, change
from validator.advise.ladder import Step, Way
from validator.diagnostic import Verdict
from validator.job.changed import Settings, changed
from validator.job.job import Job
from validator.quoting import quote
from validator.rules import engine

_WORDS: Mapping[Verdict, str] = {"fits": "", "tight": "nothing fits with a margin; it is tight if you "}
_BADNESS: Mapping[Verdict, int] = {"fits": 0, "tight": 1, "exceeds": 2, "unknown": 3}
# So many trials for further changes, where there is one already: they cost about 0.3 ms each.
_PATIENCE = 150


def nearest(job: Job, limit: int = 5) -> list[Change]:
    """Changes that fit, the cheapest first by the order of the ladder, and nothing in any of them that could be left
    out; else those that are tight; else those that come nearest. For a job that fits, or of which nobody can say, the
    easy ways to need less. None brings an error that the job does not have."""
    if job.worst not in ("tight", "exceeds"):
        return list(islice(_easy(job), limit))
    better: tuple[Verdict, ...] = ("fits", "tight") if job.worst == "exceeds" else ("fits",)
    for wanted in better:
        if enough := list(islice(_minimal(job, wanted), limit)):
            return enough
    return list(islice(_closest(job), limit))


def advice(job: Job) -> str:
    """What to do about a job that does not fit, as the end of a message."""
    if job.simulated:
        return f"`lmf-recipes explain {quote(job.path)} --simulate` tries changes"
    if cure := release.older(job):
        written = f"write `# transformers: {cure.transformers}` into the header block and install it"
        return f"{written} ({cure.expected:.1f} GiB per device)"
    for wanted, words in _WORDS.items():
        if cheapest := next(_minimal(job, wanted), None):
            return f"{words}set {cheapest}"
    return "no change makes it fit, `lmf-recipes explain` shows the nearest"


def _minimal(job: Job, wanted: Verdict) -> Iterator[Change]:
    """Changes that reach the verdict, the cheapest first, without those that hold all keys of a cheaper one."""
    enough: list[Settings] = []
    for trial, way in enumerate(_candidates(job, wanted, enough)):
        if enough and trial > _PATIENCE:
            return
        if _reaches(job, way, wanted) and _accepted(job, way.set):
            enough.append(way.set)
            yield change(job, way.set, way.note)


def _candidates(job: Job, wanted: Verdict, enough: list[Settings]) -> Iterator[Way]:
    """Each hard way with all choices of easy ones, but for what holds something that is `enough`; a hard way that has
    served is added to that."""
    easy = [*_combinations(job, ladder.EASY)]
    for hard in _combinations(job, ladder.hard(job)):
        if _holds_any(hard.set, enough) or not any(_reaches(job, way, wanted) for way in _thrifty(job, hard, enough)):
            continue  # none of the easy ways needs more memory, so nothing reaches it without them
        for way in filter(None, (ladder.joined((each, hard)) for each in easy)):
            if way.set and not _holds_any(way.set, enough):
                yield way
        if hard.set and any(hard.set.items() <= settings.items() for settings in enough):
            enough.append(hard.set)


def _holds_any(settings: Settings, others: Sequence[Settings]) -> bool:
    return any(other.keys() <= settings.keys() for other in others)


def _closest(job: Job) -> Iterator[Change]:
    """Where nothing reaches the limits: all the easy ways with each hard one, the nearest to them first."""
    tried = [change(job, way.set, way.note) for hard in _combinations(job, ladder.hard(job))
             for way in _thrifty(job, hard) if _saves(job, way.set)]  # fmt: skip
    shown: list[Change] = []
    for each in sorted(tried, key=lambda each: (_BADNESS[each.verdict], _excess(job, each))):
        if all(_nearer(job, each, than) for than in shown) and _accepted(job, each.set):
            shown.append(each)
            yield each


def _nearer(job: Job, one: Change, than: Change) -> bool:
    """Whether it needs clearly less than another of what that has too little of."""
    short = changed(job, than.set)
    device = short.device_verdict == than.verdict and one.device_gib <= 0.98 * than.device_gib
    return device or (short.host_verdict == than.verdict and one.host_gib <= 0.98 * than.host_gib)


def _easy(job: Job) -> Iterator[Change]:
    """Each easy way by itself, where it saves anything."""
    for way in (way for step in ladder.EASY for way in ladder.taken(job, step)):
        if _saves(job, way.set) and _accepted(job, way.set):
            yield change(job, way.set, way.note)


def _combinations(job: Job, steps: Sequence[Step]) -> Iterator[Way]:
    """At most one way of each step, the cheapest first: each step costs more than all before it together."""
    choices = [(Way({}, ""), *ladder.taken(job, step)) for step in reversed(steps)]
    for chosen in product(*choices):
        if way := ladder.joined(reversed(chosen)):
            yield way


def _thrifty(job: Job, hard: Way, enough: Sequence[Settings] = ()) -> Iterator[Way]:
    """The hard way with the last of all easy ways, but those that are enough by themselves; also without another
    engine, which may need more than it saves."""
    last = (ways[-1] for step in ladder.EASY if (ways := ladder.taken(job, step)))
    easy = [way for way in last if not _holds_any(way.set, enough)]
    for engine_kept in (False, True):
        decided = hard.decides | ({ladder.ENGINE} if engine_kept else set())
        if way := ladder.joined([*(each for each in easy if not each.decides & decided), hard]):
            yield way


def _reaches(job: Job, way: Way, wanted: Verdict) -> bool:
    return _BADNESS[changed(job, way.set).worst] <= _BADNESS[wanted]


def _accepted(job: Job, settings: Settings) -> bool:
    """Whether the settings bring no error that the job does not have, other than of memory and of data sets: no change
    touches those, and the catalogue's, where its DeepSpeed files are looked for, are not the job's."""
    new = _errors(changed(job, settings)) - _errors(job)
    return all(code.startswith("PTH1") for code, _ in new)


_errors = lru_cache(maxsize=64)(engine.errors)


def _saves(job: Job, settings: Settings) -> bool:
    """Whether the job then needs at least a fiftieth less, of the devices or of the host."""
    after = changed(job, settings)
    pairs = ((job.device_memory, after.device_memory), (job.host_memory, after.host_memory))
    return any(now.expected < 0.98 * was.expected for was, now in pairs if was and now)


def _excess(job: Job, tried: Change) -> float:
    """How many times over the machine a change that does not fit still is."""
    machine = job.machine
    if machine is None or tried.verdict != "exceeds":
        return 0.0
    device = tried.device_gib / (machine.device.usable_gib or tried.device_gib or 1.0)
    return max(device, tried.host_gib / machine.host_ram_gib if machine.host_ram_gib else 0.0)
