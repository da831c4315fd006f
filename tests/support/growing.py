"""Files that grow: one kind of input each, of any size, as an author who wants to hold up a check would write it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

RECIPE, ENGINE, ACCELERATE = "recipe.yaml", "engine.json", "accelerate.yaml"
REGISTRY, CONFIG = "data/dataset_info.json", "model/config.json"
_HEAD = ["summary: a recipe", "machine: 2xrtx-3090", "host_ram_gib: 128", "samples: 22000"]
_KEYS = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
    "stage": "sft",
    "do_train": "true",
    "finetuning_type": "lora",
    "lora_target": "all",
    "dataset": "mine",
    "template": "qwen",
    "cutoff_len": "2048",
    "output_dir": "saves/mine",
    "bf16": "true",
}
_ZERO = '"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"'
_SHAPES = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}


# What is read of one value, and the nodes that a recipe may have beside those of a good one.
LONGEST, _NODES = 32_000, 9_900
# A model whose memory is no question, however large its vocabulary: advice takes longer than all else.
TINY: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "per_device_train_batch_size": "1",
    "cutoff_len": "512",
}


class Kind(NamedTuple):
    """A file that grows in one way: its name, and its text of about so many bytes. `given` are the files beside it."""

    name: str
    text: Callable[[int], str]
    given: dict[str, str]

    def write(self, folder: Path, size: int) -> Path:
        """All files, in a folder, the growing one of at most so many bytes; gives the one that is to be checked."""
        files = {"data/dataset_info.json": '{"mine": {"hf_hub_url": "a/b"}}', **self.given, self.name: self.text(size)}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8", newline="")
        return folder / (RECIPE if RECIPE in files else self.name)


def recipe(*lines: str, head: tuple[str, ...] = (), **keys: str | None) -> str:
    """A recipe that is right, with lines added to it and its header block, and with other values of some keys."""
    block = ["# /// recipe", *(f"# {line}" for line in [*_HEAD, *head]), "# ///"]
    body = [f"{key}: {value}" for key, value in {**_KEYS, **keys}.items() if value is not None]
    return "\n".join([*block, *body, *lines]) + "\n"


def words(size: int, form: str, between: str = ",") -> str:
    """Words such as `a0,a1,a2`, of so many bytes."""
    return between.join(_until(size, form, len(between)))


def _until(size: int, form: str, between: int = 1) -> Iterator[str]:
    for number in count():
        word = form.format(number, number + 1)
        size -= len(word.encode()) + between
        if size < 0:
            return
        yield word


def whole(text: Callable[[int], str]) -> Kind:
    """A recipe that is nothing but this."""
    return Kind(RECIPE, text, {})


def behind(text: Callable[[int], str], **keys: Any) -> Kind:
    """A good recipe with text behind it."""
    base = recipe(**keys)
    return Kind(RECIPE, lambda size: base + text(size - len(base)), {})


def lines(form: str, nodes: int = 2) -> Kind:
    """A good recipe with numbered lines behind it, of so many nodes each: as many as a recipe may have, then longer
    ones."""
    return behind(lambda size: "".join(f"{line}\n" for line in _numbered(form, nodes, size)))


def _numbered(form: str, nodes: int, size: int, more: int = 1) -> list[str]:
    """As many lines as a recipe may have, each with a comment that fills up the size; `more` is added to each."""
    written = list(islice(_until(size, form, more), _NODES // nodes))
    room = (size - sum(len(line.encode()) + more for line in written)) // len(written) - 3
    return [f"{line} # {'c' * room}" if room > 0 else line for line in written]


def many(text: Callable[[int], str]) -> Kind:
    """A good recipe with value behind value, each as long as is read."""

    def written(size: int) -> str:
        return "".join(f"x{number}{text(LONGEST).removeprefix('x')}" for number in range(size // LONGEST))

    return behind(written)


def value(key: str, text: Callable[[int], str], **keys: Any) -> Kind:
    """A recipe with a long value for one key."""

    def written(size: int) -> str:
        base = recipe(**{**keys, key: text(min(size - 600, LONGEST))})
        return base + "# c\n" * ((size - len(base.encode())) // 4)

    return whole(written)


def listed(key: str, form: str, **keys: Any) -> Kind:
    """A recipe with many words for one key."""
    return value(key, lambda size: words(size, form), **keys)


def header(form: str) -> Kind:
    """A recipe with many lines in its header block."""
    base = len(recipe())
    return whole(lambda size: recipe(head=tuple(_numbered(form, 2, size - base, more=3))))


def field(name: str, text: Callable[[int], str]) -> Kind:
    """A recipe with a long value in its header block."""

    def written(size: int) -> str:
        base = recipe(head=(f"{name}: {text(min(size - 600, LONGEST))}",))
        return base + "# c\n" * ((size - len(base.encode())) // 4)

    return whole(written)


def engine(start: str, form: str, end: str) -> Kind:
    """A DeepSpeed file that a recipe names, with many members."""
    return _json(ENGINE, start, form, end, {RECIPE: recipe(deepspeed=ENGINE)})


def alone(start: str, form: str, end: str) -> Kind:
    """A DeepSpeed file that is checked by itself."""
    return _json(ENGINE, start, form, end, {})


def registry(start: str, form: str, end: str, **keys: Any) -> Kind:
    """A dataset_info.json with many members."""
    return _json(REGISTRY, start, form, end, {RECIPE: recipe(**keys)})


def config(form: str) -> Kind:
    """The config.json of a model that a recipe trains, with many members."""
    start = json.dumps(_SHAPES)[:-1] + ", "
    return _json(CONFIG, start, form, "}", {RECIPE: recipe(model_name_or_path="model")})


def accelerate(form: str) -> Kind:
    """An accelerate file that a recipe names, with many lines."""
    start = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"
    given = {RECIPE: recipe(head=(f"accelerate: {ACCELERATE}",))}
    return Kind(ACCELERATE, lambda size: start + words(size - len(start), form, "\n") + "\n", given)


def _json(name: str, start: str, form: str, end: str, given: dict[str, str]) -> Kind:
    room = len(start) + len(end)
    return Kind(name, lambda size: start + words(size - room, form, ", ") + end, given)


def filled(start: str, part: str, end: str = "") -> Callable[[int], str]:
    """Text of one part again and again."""
    return lambda size: start + part * max(0, (size - len(start + end)) // len(part.encode())) + end


def nested(opening: str, closing: str, start: str = "", middle: str = "") -> Callable[[int], str]:
    """Text that is opened and closed as often as goes."""
    pair, rest = len(opening + closing), len(start + middle) + 9

    def text(size: int) -> str:
        levels = (size - rest) // pair
        return f"{start}{opening * levels}{middle}{closing * levels}\n"

    return text


def _indented(size: int) -> str:
    """Mappings in mappings, each line a column further in."""
    return "".join(f"{' ' * depth}a:\n" for depth in range(int((2 * size) ** 0.5) - 30))


def _chained(size: int) -> str:
    """Anchors that each hold two aliases of the one before."""
    return "k0: &a0 [x, x]\n" + words(size - 20, "k{1}: &a{1} [*a{0}, *a{0}]", "\n") + "\n"


def _merged(size: int) -> str:
    """Mappings that each merge the one before."""
    return "k0: &a0 {x: 1}\n" + words(size - 20, "k{1}: &a{1} {{<<: *a{0}, y{0}: 1}}", "\n") + "\n"


_ZERO_BLOCK = '{"zero_optimization": {"stage": 2}, ' + _ZERO
GROUPS: dict[str, dict[str, Kind]] = {
    "interpolations": {
        "interpolations in each other": many(nested("${a:", "}", "x: ", "b")),
        "interpolations in each other, by key": many(nested("${a.", "}", "x: ", "b")),
        "interpolations that are not closed": many(filled("x: ", "${a:", "\n")),
        "interpolations side by side": many(filled("x: ", "${a} ", "\n")),
        "interpolations escaped": many(filled("x: ", "\\${", "\n")),
        "backslashes before an interpolation": many(filled("x: ", "\\", "${\n")),
        "spaces in an interpolation": many(filled("x: '${a:", " ", "'\n")),
        "spaces before an interpolation's key": many(filled("x: '${", " ", "'\n")),
        "dots in an interpolation": many(filled("x: ${a", ".a", "\n")),
        "one dot after another in an interpolation": many(filled("x: ${", ".", "\n")),
        "commas in an interpolation": many(filled("x: '${a:", "b,", "'\n")),
        "commas in an interpolation without a name": many(filled("x: '${:", "b, ", "'\n")),
        "words in an interpolation without a name": many(filled("x: '${:", "b", "'\n")),
        "quotes in an interpolation": many(filled('x: "${a:', "'b' ", '"\n')),
        "braces in an interpolation": many(filled('x: "${a:', "{b} ", '"\n')),
        "brackets in an interpolation": many(filled('x: "${', "[b]", '"\n')),
        "interpolations that each begin another": many(filled("x: '", "${a: ", "'\n")),
        "lines without a key": behind(filled("", "stray\n#\n")),
        "lines without a space behind the colon": behind(filled("", "x:1\n#\n")),
        "many values with an interpolation": lines("x{0}: ${{a:${{b}}}}"),
    },
    "lists at commas": {
        "data sets that nobody knows": listed("dataset", "a{0}"),
        "more data sets than are read": whole(lambda size: recipe(dataset=words(size - 500, "a{0}"))),
        "the same data set again and again": listed("dataset", "mine"),
        "data sets without a name": value("dataset", filled("a", ",", "")),
        "data sets by path": listed("dataset", "data/a{0}.json"),
        "data sets to evaluate": listed("eval_dataset", "a{0}"),
        "data sets in a list": value("dataset", lambda size: f"[{words(size - 2, 'a{0}')}]"),
        "new tokens": whole(lambda size: recipe(add_special_tokens=words(size - 500, "<{0}>"), **TINY)),
        "a list of new tokens": whole(lambda size: recipe(add_tokens=f"[{words(size - 500, '<{0}>')}]")),
        "lora_target": listed("lora_target", "a{0}"),
        "lora_target by path": listed("lora_target", "model.layers.{0}.mlp.up_proj"),
        "additional_target": listed("additional_target", "a{0}"),
        "freeze_trainable_modules": listed("freeze_trainable_modules", "a{0}", finetuning_type="freeze"),
        "freeze_extra_modules": listed("freeze_extra_modules", "a{0}", finetuning_type="freeze"),
        "freeze_trainable_layers": value("freeze_trainable_layers", filled("", "9"), finetuning_type="freeze"),
        "galore_target": listed("galore_target", "a{0}", finetuning_type="full", use_galore="true"),
        "apollo_target": listed("apollo_target", "a{0}", finetuning_type="full", use_apollo="true"),
        "interleave_probs": listed("interleave_probs", "0.{0}", mix_strategy="interleave_under"),
        "adapters": listed("adapter_name_or_path", "a{0}"),
        "add_tokens": listed("add_tokens", "a{0}"),
        "report_to": value("report_to", lambda size: f"[{words(size - 2, 'a{0}')}]"),
        "optim_args": listed("optim_args", "a{0}=1"),
        "fsdp": value("fsdp", lambda size: words(size, "a{0}", " ")),
        "include_effective_tokens": value("packing", lambda size: f"[{words(size - 2, 'a{0}')}]"),
        "dataset_dir as a mapping": value("dataset_dir", lambda size: "{" + words(size - 2, "a{0}: {{b: c}}") + "}"),
    },
    "long values": {
        **{
            f"a long {key}": value(key, filled("a", "b"))
            for key in (
                "model_name_or_path",
                "output_dir",
                "template",
                "deepspeed",
                "dataset",
                "stage",
                "bf16",
                "resume_from_checkpoint",
                "learning_rate",
                "lr_scheduler_type",
                "tokenized_path",
                "split",
            )
        },
        "a long path": value("model_name_or_path", filled("a", "/b")),
        "a model's name of digits": value("model_name_or_path", filled("Qwen/Qwen", "7")),
        "a model's name of words": value("model_name_or_path", filled("Qwen/Qwen", "-7b")),
        "a model's name of points": value("model_name_or_path", filled("Qwen/Qwen", ".7")),
        "DeepSpeed by a name of digits": value("deepspeed", filled("z", "zero3")),
        "a token of letters": value("dataset_dir", filled("a", "B")),
        "variables in a path": value("output_dir", filled("a", "/$b")),
        "a split": value("split", filled("train", "[1:")),
        "a quoted value with escapes": behind(filled('x: "', "\\u0041", '"\n')),
        "a literal block": behind(filled("x: |\n", "  a\n")),
        "a folded block": behind(filled("x: >\n", "  a\n")),
        "a plain value over many lines": behind(filled("x: a\n", "  a\n")),
        "a value of a Mebibyte": behind(filled("x: ", "a", "\n")),
        "a value of a Mebibyte without an end": behind(filled('x: "', "a")),
        "Chinese": behind(filled("x: ", "\u4e2d", "\n")),
        "emoji": behind(filled("x: ", "\U0001f600", "\n")),
        "control characters": behind(filled('x: "', "\\e", '"\n')),
    },
    "numbers": {
        "a number": behind(filled("cutoff_len: ", "9", "\n"), cutoff_len=None),
        "a number of base 8": behind(filled("cutoff_len: 0", "7", "\n"), cutoff_len=None),
        "a number of base 16": behind(filled("cutoff_len: 0x", "f", "\n"), cutoff_len=None),
        "a number of base 2": behind(filled("cutoff_len: 0b", "1", "\n"), cutoff_len=None),
        "a number of base 60": behind(filled("cutoff_len: 1", ":1", "\n"), cutoff_len=None),
        "a number with underscores": behind(filled("cutoff_len: 1", "_1", "\n"), cutoff_len=None),
        "a number with points": behind(filled("cutoff_len: 1.", "1", "\n"), cutoff_len=None),
        "an exponent": behind(filled("cutoff_len: 1e", "1", "\n"), cutoff_len=None),
        "an exponent, and no number": behind(filled("cutoff_len: 1", "_1", "x\n"), cutoff_len=None),
        "many numbers of base 8": lines("x{0}: 0{0}7"),
        "many numbers of base 60": lines("x{0}: 1:1"),
    },
    "keys": {
        "keys that nobody knows": lines("x{0}: 1"),
        "more keys than are read": behind(lambda size: words(size, "x{0}: 1", "\n")),
        "short keys in one line": behind(lambda size: "x: {" + words(size - 5, "x{0}: 1") + "}\n"),
        "keys like others": lines("cutoff_len{0}: 1"),
        "keys written twice": lines("bf16: true"),
        "keys written twice, in pairs": lines("x{0}: 1\nx{0}: 1", 4),
        "a long key": behind(lambda size: f"? {'a' * (size - 8)}\n: 1\n"),
        "a long key in a line": behind(lambda size: f"{'a' * (size - 8)}: 1\n"),
        "long keys": lines(f"{'a' * 500}{{0}}: 1"),
        "keys that are lists": lines("? [a, {0}]\n: 1", 4),
        "null keys": lines("null: {0}"),
    },
    "lists, nesting, aliases": {
        "a list in brackets": behind(lambda size: f"x: [{words(size - 5, '{0}')}]\n"),
        "a list of empty words": behind(filled("x: [", "a,", "]\n")),
        "a list in lines": behind(lambda size: "x:\n" + words(size - 5, "- {0}", "\n") + "\n"),
        "a list without an end": behind(filled("x: [", "a,")),
        "brackets in each other": behind(nested("[", "]", "x: ")),
        "brackets without an end": behind(filled("x: ", "[")),
        "braces without an end": behind(filled("x: ", "{a: ")),
        "braces and questions": behind(filled("x: ", "{? ")),
        "dashes in a line": behind(filled("x:\n", "- ")),
        "mappings in each other": behind(
            lambda size: "x:\n" + "".join(f" {line}\n" for line in _indented(size).split("\n"))
        ),
        "many lists beside each other": lines("x{0}: [[[[[[[[1]]]]]]]]", 10),
        "anchors": lines("x{0}: &a{0} 1"),
        "aliases of one anchor": behind(lambda size: "a: &a [1, 2, 3]\n" + words(size - 20, "x{0}: *a", "\n") + "\n"),
        "aliases of aliases": behind(_chained),
        "mappings merged one into the other": behind(_merged),
        "one mapping merged again and again": behind(
            lambda size: "a: &a {b: 1}\nx: {" + words(size - 30, "<<: *a") + "}\n"
        ),
        "a list of mappings to merge": behind(lambda size: "a: &a {b: 1}\n<<: [" + words(size - 30, "*a") + "]\n"),
        "a large mapping merged often": behind(
            lambda size: (
                "a: &a {" + words(size // 2, "b{0}: 1") + "}\n" + words(size // 2 - 20, "x{0}: {{<<: *a}}", "\n")
            )
        ),
        "tags": lines("x{0}: !!str {0}"),
        "a long tag": behind(filled("x: !", "a", " 1\n")),
        "tags that are refused": lines("x{0}: !!set {{a}}", 4),
        "dates by tag": lines("x{0}: !!timestamp 2001-01-01"),
        "documents": behind(filled("", "---\n")),
        "directives": whole(filled("", "%YAML 1.1\n")),
        "directives of tags": whole(lambda size: words(size - 9, "%TAG !a{0}! b", "\n") + "\n--- a\n"),
        "a long directive": whole(filled("%TAG ! ", "a")),
    },
    "lines": {
        "blank lines": behind(filled("", "\n")),
        "blank lines of spaces": behind(filled("", "    \n")),
        "one line of spaces": behind(filled("", " ")),
        "carriage returns": behind(filled("", "\r")),
        "tabs": behind(filled("x:", "\t", "1\n")),
        "unusual line ends": behind(filled("x: '", "\u2028", "'\n")),
        "findings behind many lines": behind(lambda size: "\n" * (size // 2) + words(size // 2, "x{0}: 09", "\n")),
        "findings in one line": whole(lambda size: "{" + words(size - 4, "x{0}: 010", ", ") + "}\n"),
    },
    "comments": {
        "comments": behind(lambda size: words(size - 1, "# a comment {0}", "\n") + "\n"),
        "one long comment": behind(filled("# ", "a ", "\n")),
        "hash signs": behind(filled("", "#")),
        "comments that suppress": behind(filled("", "# lmf-recipes: ignore TRA009\n")),
        "comments that suppress nothing known": behind(
            lambda size: words(size - 1, "# lmf-recipes: ignore XYZ{0}", "\n") + "\n"
        ),
        "a comment of many codes": behind(
            lambda size: "# lmf-recipes: ignore " + words(size - 40, "XYZ{0}", ", ") + "\n"
        ),
        "a comment of many known codes": behind(filled("bf16: true # lmf-recipes: ignore", " LOA004", "\n")),
        "beginnings of comments": behind(filled("# lmf-recipes:", " #\tlmf-recipes:\t", "\n")),
        "findings, each with a comment": lines("x{0}: 010 # lmf-recipes: ignore LOA008"),
    },
    "the header block": {
        "header fields": header("x{0}: 1"),
        "header fields like others": header("samples{0}: 1"),
        "header lines that are comments": header("# {0}"),
        "a list in the header block": field("lengths", lambda size: f"[{words(size - 2, '{0}')}]"),
        "header blocks": behind(filled("", "# /// recipe\n# ///\n")),
        "header blocks in each other": behind(filled("", "# # /// recipe\n")),
        "header blocks without an end": whole(filled("", "# /// recipe\n")),
        "a header block in a header block": whole(
            lambda size: "# /// recipe\n" + "# # /// recipe\n# # ///\n" * (size // 24 - 9) + "# ///\n"
        ),
        **{
            f"a long {name} in the header block": field(name, filled("a", "b"))
            for name in (
                "machine",
                "summary",
                "network",
                "price",
                "base",
                "accelerate",
                "transformers",
                "llamafactory",
                "torch",
                "samples",
                "origin",
                "lengths",
            )
        },
        "a machine of digits": field("machine", filled("2x", "3")),
        "a machine of words": field("machine", filled("2x", "-a1")),
        "a network of words": field("network", filled("8x", "-a1")),
        "releases": field("transformers", lambda size: '"' + words(size - 2, ">={0}.0") + '"'),
        "a release of digits": field("transformers", filled('">=5.', "1.", '1"')),
        "predictions": field("predicted", lambda size: "{" + words(size - 2, "a{0}: 1", ", ") + "}"),
    },
    "DeepSpeed files": {
        "DeepSpeed keys": engine(_ZERO_BLOCK + ", ", '"k{0}": 1', "}"),
        "DeepSpeed keys like others": engine(_ZERO_BLOCK + ", ", '"train_batch_size{0}": 1', "}"),
        "DeepSpeed keys in a block": engine('{"zero_optimization": {"stage": 2, ', '"k{0}": 1', "}}"),
        "DeepSpeed keys to fill in": engine(_ZERO_BLOCK + ", ", '"k{0}": "auto"', "}"),
        "DeepSpeed blocks to fill in": engine(_ZERO_BLOCK + ", ", '"k{0}": {{"a": "auto"}}', "}"),
        "DeepSpeed blocks in each other": Kind(
            ENGINE, nested('{"a":', "}", _ZERO_BLOCK + ', "a":', "1"), {RECIPE: recipe(deepspeed=ENGINE)}
        ),
        "DeepSpeed lists in each other": Kind(
            ENGINE, nested("[", "]", _ZERO_BLOCK + ', "a":', "1"), {RECIPE: recipe(deepspeed=ENGINE)}
        ),
        "a DeepSpeed list": engine(_ZERO_BLOCK + ', "x": [', "{0}", "]}"),
        "a DeepSpeed number": Kind(
            ENGINE, filled(_ZERO_BLOCK + ', "gradient_clipping": ', "9", "}"), {RECIPE: recipe(deepspeed=ENGINE)}
        ),
        "a DeepSpeed text": Kind(
            ENGINE, filled('{"zero_optimization": {"stage": "', "9", '"}}'), {RECIPE: recipe(deepspeed=ENGINE)}
        ),
        "a DeepSpeed file of spaces": Kind(
            ENGINE, filled('{"zero_optimization":', " ", "1}"), {RECIPE: recipe(deepspeed=ENGINE)}
        ),
        "a DeepSpeed file that is broken": engine(_ZERO_BLOCK + ", ", '"k{0}": 1', ""),
        "a DeepSpeed file alone, with keys": alone(_ZERO_BLOCK + ", ", '"k{0}": 1', "}"),
        "a DeepSpeed file alone, with keys written twice": alone(_ZERO_BLOCK + ", ", '"k": 1', "}"),
        "a DeepSpeed file alone, in one list": alone("[", "{0}", "]"),
        "DeepSpeed in the recipe": behind(
            lambda size: "deepspeed: {zero_optimization: {stage: 2}, " + words(size - 60, "k{0}: 1") + "}\n"
        ),
        "DeepSpeed as text in the recipe": behind(
            lambda size: """deepspeed: '{"zero_optimization": {"stage": 2}, """ + words(size - 60, '"k{0}": 1') + "}'\n"
        ),
    },
    "data set registries": {
        "data sets of a registry": registry("{", '"a{0}": {{"file_name": "a"}}', "}"),
        "data sets of a registry, one unknown": registry(
            "{", '"a{0}": {{"file_name": "a"}}', "}", dataset="a0x,b,c,d,e"
        ),
        "keys of an entry": registry('{"mine": {"file_name": "a", ', '"k{0}": 1', "}}"),
        "keys of an entry without a source": registry('{"mine": {', '"k{0}": 1', "}}"),
        "columns of an entry": registry('{"mine": {"file_name": "a", "columns": {', '"k{0}": "a"', "}}}"),
        "tags of an entry": registry(
            '{"mine": {"file_name": "a", "formatting": "sharegpt", "tags": {', '"k{0}": "a"', "}}}"
        ),
        "data sets named and in a registry": Kind(
            REGISTRY,
            lambda size: "{" + words(size - 2, '"a{0}": {{"k": 1}}') + "}",
            {RECIPE: recipe(dataset=words(LONGEST, "a{0}"))},
        ),
        "data sets named, others in a registry": Kind(
            REGISTRY,
            lambda size: "{" + words(size - 2, '"a{0}": {{"k": 1}}') + "}",
            {RECIPE: recipe(dataset=words(LONGEST, "b{0}"))},
        ),
    },
    "config.json": {
        "config.json": config('"k{0}": 1'),
        "layers in config.json": config('"layer_types": ["full_attention"], "l{0}": 1'),
        "a list in config.json": Kind(
            CONFIG,
            lambda size: json.dumps(_SHAPES)[:-1] + ', "layer_types": [' + words(size - 400, '"full_attention"') + "]}",
            {RECIPE: recipe(model_name_or_path="model")},
        ),
        "a long name in config.json": Kind(
            CONFIG,
            lambda size: json.dumps({**_SHAPES, "model_type": "a" * (size - 400)}),
            {RECIPE: recipe(model_name_or_path="model")},
        ),
    },
    "accelerate files": {
        "accelerate keys": accelerate("k{0}: 1"),
        "accelerate keys like others": accelerate("num_processes{0}: 1"),
        "accelerate FSDP keys": accelerate("fsdp_config: {{k{0}: 1}}"),
        "an accelerate list": Kind(
            ACCELERATE,
            lambda size: "distributed_type: FSDP\nx: [" + words(size - 40, "{0}") + "]\n",
            {RECIPE: recipe(head=(f"accelerate: {ACCELERATE}",))},
        ),
        "accelerate brackets in each other": Kind(
            ACCELERATE, nested("[", "]", "x: "), {RECIPE: recipe(head=(f"accelerate: {ACCELERATE}",))}
        ),
    },
}
KINDS = {name: kind for group in GROUPS.values() for name, kind in group.items()}
