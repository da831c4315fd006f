"""LOA010 and LOA011: the fields of the header block. That it can be read at all is judged in read/."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Place, RecipeError, Severity
from validator.job.job import Job
from validator.job.lengths import lengths
from validator.job.values import quantity
from validator.rules.rule import Finding, rule
from validator.tables.suggestion import suggest

_FIELDS = ("summary", "machine", "host_ram_gib", "samples", "rows", "predicted", "origin", "accelerate", "base",
           "lengths", "overfit", "packages", "network", "price", "llamafactory", "transformers", "torch")  # fmt: skip


@rule("LOA010", Severity.WARNING)
def header_field_unknown(job: Job) -> Iterator[Finding]:
    """The header block has a field that nothing reads.

    Why: a misspelt field is a setting that does not count.
    Source: own (the header block)
    Fix: use summary, machine, host_ram_gib, samples (how many are recommended), rows (of the data sets that the recipe
    names, after `max_samples`), predicted, origin, accelerate (the file that `accelerate launch` is given), base
    (`Qwen/Qwen2.5-7B`: the model that a checkpoint of one's own comes from, where no config.json is at hand), lengths
    (`[800, 3000]`: tokens of a usual sample and of the longest), overfit (`true`: the run is meant to learn its samples
    by heart), packages (`flash-linear-attention`: those beside LLaMA-Factory's own that the run has, which `train`
    looks for), network (`8xroce-100g`: what joins nodes), price (`1.99 USD`: of a device and hour), llamafactory,
    transformers and torch (releases that the recipe is for).
    """
    for field in job.header:
        if field not in _FIELDS:
            hint = suggest(str(field), _FIELDS)
            yield Place((str(field),), at_key=True), f"header field `{field}` is not known{hint}"


@rule("LOA011", Severity.WARNING)
def header_value_unusable(job: Job) -> Iterator[Finding]:
    """A field of the header block holds a value of the wrong kind.

    Why: it is left out as if it were not there, and nothing is judged by it.
    Source: own (the header block)
    Fix: text for summary, machine, accelerate, base and torch (`"2.7"`, in quotes); a positive number, without quotes
    or unit, for host_ram_gib, samples and rows; for lengths the typical number of tokens in a sample, or a list of that
    and the longest; for packages their names, as a list or with commas between them; for network one of those that are
    known; for price an amount and a currency.
    """
    for field in ("summary", "machine", "accelerate", "base", "torch"):
        if job.header.get(field) is not None and not isinstance(job.header[field], str):
            yield field, f"header field `{field}` is {job.header[field]!r:.40}, not text"
    for field in ("host_ram_gib", "samples", "rows"):
        number = quantity(job.header.get(field))
        if job.header.get(field) is not None and not (number and number > 0):
            yield field, f"header field `{field}` is {job.header[field]!r:.40}, not a positive number"
    if job.header.get("lengths") is not None and lengths(job.header["lengths"]) is None:
        form = "neither a number of tokens nor a list of a typical and a longest one"
        yield "lengths", f"header field `lengths` is {job.header['lengths']!r:.40}, {form}"
    packages = job.header.get("packages")
    each = packages if isinstance(packages, list) else [packages]
    if packages is not None and not all(isinstance(one, str) for one in each):
        yield "packages", f"header field `packages` is {packages!r:.40}, not names of packages"
    if job.header.get("network") is not None and (problem := _network(job.header["network"])):
        yield "network", problem
    if job.header.get("price") is not None and not _priced(job.header["price"]):
        yield "price", f"header field `price` is {job.header['price']!r:.40}, not an amount and a currency: 1.99 USD"


def _priced(value: object) -> bool:
    from validator.job.price import price  # which few recipes state

    return price(value) is not None


def _network(name: object) -> str | None:
    """What is wrong with the name of a network; None where nothing is."""
    from validator.tables import networks  # which few recipes name

    try:
        networks.network(str(name))
    except RecipeError as err:
        return str(err)
    return None
