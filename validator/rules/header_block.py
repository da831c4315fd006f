"""LOA010 and LOA011: fields of the header block. CUR: this repository's own conventions for the files of its recipes/.

An unreadable header block is reported when the recipe is read (recipe/recipe_file.py)."""

from __future__ import annotations

from pathlib import Path

from validator.errors import RecipeError
from validator.finding import Place
from validator.knowledge import devices
from validator.recipe.known_folders import catalogue_root
from validator.recipe.suggestions import unknown_name
from validator.rules import subjects
from validator.rules.rule import WARNING, Findings, rule
from validator.run.recipe_arguments import finite_number, header_lengths, parse_price
from validator.run.recipe_labels import catalogue_name, predicted_memory
from validator.run.settings import RunSettings
from validator.wording import shown_value

_HEADER_FIELDS = ("summary", "machine", "host_ram_gib", "samples", "rows", "predicted", "origin", "accelerate", "base",
           "lengths", "overfit", "packages", "network", "price", "llamafactory", "transformers", "deepspeed",
           "torch")  # fmt: skip

# Fields of the header block that hold text or a number, each with an example for a message.
_TEXT_FIELDS = {
    "summary": "LoRA of Qwen3-8B",
    "machine": "8xa100-80g",
    "accelerate": "fsdp.yaml",
    "base": "Qwen/Qwen3-8B",
    "deepspeed": '"0.17"',
    "torch": '"2.7"',
}
_NUMBER_FIELDS = {"host_ram_gib": "1024", "samples": "20000", "rows": "20000"}


@rule("LOA010", WARNING)
def header_field_unknown(run: RunSettings) -> Findings:
    """The header block has a field that nothing reads.

    Why: a misspelt field is a setting that does not count.
    Source: own (the header block)
    Fix: use summary, machine, host_ram_gib, samples (how many are recommended), rows (of the data sets that the recipe
    names, after `max_samples`), predicted, origin, accelerate (the file that `accelerate launch` is given), base
    (`Qwen/Qwen2.5-7B`: the model that a checkpoint of one's own comes from, where no config.json is at hand), lengths
    (`[800, 3000]`: tokens of a usual sample and of the longest), overfit (`true`: the run is meant to learn its samples
    by heart), packages (`flash-linear-attention`: those beside LLaMA-Factory's own that the run has, which `train`
    looks for), network (`8xroce-100g`: what joins nodes), price (`1.99 USD`: of a device and hour), llamafactory,
    transformers, deepspeed and torch (releases that the recipe is for).
    """
    for field in run.header:
        if field not in _HEADER_FIELDS:
            yield Place((str(field),), at_key=True), unknown_name("header field", str(field), _HEADER_FIELDS)


@rule("LOA011", WARNING)
def header_value_unusable(run: RunSettings) -> Findings:
    """A field of the header block holds a value of the wrong kind.

    Why: it is left out as if it were not there, and nothing is judged by it.
    Source: own (the header block)
    Fix: text for summary, machine, accelerate, base, deepspeed and torch (`"2.7"`, in quotes); a positive number,
    without quotes or unit, for host_ram_gib, samples and rows; for lengths the typical number of tokens in a sample, or
    a list of that and the longest; for packages their names, as a list or with commas between them; for network one of
    those that are known; for price an amount and a currency.
    """
    for field, example in _TEXT_FIELDS.items():
        if run.header.get(field) is not None and not isinstance(run.header[field], str):
            found = f"header field `{field}` is {shown_value(run.header[field])}, not text"
            yield subjects.header_field(field), f"{found}; write it as in `# {field}: {example}`"
    for field, example in _NUMBER_FIELDS.items():
        number = finite_number(run.header.get(field))
        if run.header.get(field) is not None and not (number and number > 0):
            found = f"header field `{field}` is {shown_value(run.header[field])}, not a positive number"
            yield field, f"{found}; write it as in `# {field}: {example}`"
    if run.header.get("lengths") is not None and header_lengths(run.header["lengths"]) is None:
        form = "neither a number of tokens nor a typical and a longest one"
        found = f"header field `lengths` is {shown_value(run.header['lengths'])}, {form}"
        yield "lengths", f"{found}; write it as in `# lengths: 800` or `# lengths: [800, 3000]`"
    packages = run.header.get("packages")
    each = packages if isinstance(packages, list) else [packages]
    if packages is not None and not all(isinstance(one, str) for one in each):
        found = f"header field `packages` is {shown_value(packages)}, not names of packages"
        yield "packages", f"{found}; write it as in `# packages: [flash-linear-attention]`"
    if run.header.get("network") is not None:
        try:
            devices.parse_network(str(run.header["network"]))
        except RecipeError as err:
            yield "network", str(err)
    if run.header.get("price") is not None and parse_price(run.header["price"]) is None:
        price = shown_value(run.header["price"])
        found = f"header field `price` is {price}, not an amount and a currency"
        yield "price", f"{found}; write it as in `# price: 1.99 USD`"


_REQUIRED_FIELDS = {
    "summary": "one line on what it trains",
    "machine": "such as 8xascend-910b-64g",
    "host_ram_gib": "main memory of a node",
    "samples": "recommended number of samples",
}


def _is_catalogue_recipe(run: RunSettings) -> bool:
    """True for a recipe of this repository's recipes/ that is checked as written, without command-line overrides."""
    folder = Path(run.workspace.recipe).absolute().parent
    return bool(run.header) and run.is_unmodified and folder == catalogue_root() / "recipes"


@rule("CUR001", WARNING)
def name_not_derived(run: RunSettings) -> Findings:
    """The file name does not say what the recipe holds.

    Why: recipes are found by name: model, hardware, method.
    Source: own (this repository's conventions)
    Fix: name it `<model>-<device>[x<count>]-<method>[-<variant>].yaml`; the message says the derived form.
    """
    stem = Path(run.workspace.recipe).stem
    named = _is_catalogue_recipe(run) and run.model is not None and run.model.short is not None
    if named and (derived := catalogue_name(run)) and stem != derived and not stem.startswith(f"{derived}-"):
        yield None, f"the file is named {stem}.yaml, but its contents say {derived}[-variant].yaml; rename the file"


@rule("CUR002", WARNING)
def header_incomplete(run: RunSettings) -> Findings:
    """The header block of a catalogue recipe lacks a field.

    Why: the catalogue lists and judges recipes by these fields.
    Source: own (this repository's conventions)
    Fix: add the field to the block between `# /// recipe` and `# ///`.
    """
    if _is_catalogue_recipe(run):
        for field, what in _REQUIRED_FIELDS.items():
            if run.header.get(field) is None:
                yield None, f"header block lacks `{field}` ({what}); add it"


@rule("CUR003", WARNING)
def prediction_drifted(run: RunSettings) -> Findings:
    """The `predicted` field differs from what the tool computes.

    Why: readers choose by it, and it changes with the recipe and with the memory model.
    Source: own (this repository's conventions)
    Fix: `make tables` rewrites the line in every recipe; or paste the values of the message. Hours, which take longer
    to compute, are compared by `python tools/derive.py --check` alone.
    """
    now, stated = predicted_memory(run), run.header.get("predicted")
    hours = {"hours": stated["hours"]} if isinstance(stated, dict) and "hours" in stated else {}
    if _is_catalogue_recipe(run) and now and stated != {**now, **hours}:
        written = ", ".join(f"{key}: {value}" for key, value in {**now, **hours}.items())
        yield (
            "predicted",
            f"what the header block predicts differs from what is computed; write `predicted: {{{written}}}`",
        )


@rule("CUR004", WARNING)
def left_from_an_example(run: RunSettings) -> Findings:
    """A catalogue recipe limits the number of samples.

    Why: users copy it and train on a fraction of their data without noticing.
    Source: own (this repository's conventions)
    Fix: remove `max_samples`.
    """
    if _is_catalogue_recipe(run) and run.args.is_set("max_samples"):
        found = f"`max_samples: {run.args.get('max_samples')}` would cut a user's data silently"
        yield "max_samples", f"{found}; remove `max_samples`"
