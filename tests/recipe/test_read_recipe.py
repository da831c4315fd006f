"""A recipe is read as LLaMA-Factory's reader (OmegaConf 2.4) reads it, value by value."""

from __future__ import annotations

import io
from typing import Any

import omegaconf
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.count_calls import calls
from support.every import every
from support.laws import examples

from validator.recipe.recipe_file import parse_recipe

REFUSED = "refused"

SCALARS = """
1e-4 1E-4 1e4 1e+3 1.0e-4 .5 .5e3 .5e+3 1. 1_000 1_000.5 010 0x10 0b101 0o7 1:30 1:30.5 -1:30 2024-01-01
2024-01-01T00:00:00Z yes no on off True FALSE y n Y null ~ None NULL .inf -.inf .nan .NaN +1 -0 +.inf 1e 1__0 _1 0xZZ
1e5_0 1_e5 "1e-4" '1' "true" 'no' ! !x << = {} [] @x %x `x |- 'a#b' a#b $x $$ ??? "a\\nb" "\\ud800" 5e-5 08 1,000
""".split()  # noqa: SIM905 (sixty quoted strings would be harder to read)
TAGGED = ["!!str 5", "!!int 5", "!!int x", "!!float 5", "!!null x", "!!bool yes", "!!binary aGk=", "!!set {a, b}",
          "!!omap [a: 1]", "!!timestamp 2024-01-01", "!!python/name:os.system", "!x y", "!!python/tuple [1]",
          "!!bool x", "!!int ''", "!!int 0x", "!!int '1:x'", "!!int [1]", "!!float x", "!!float ':'", "!!binary x",
          "!!str [a]", "!!str {a: b}", "!!bool [yes]", "!!null [1]", "!!map [1]", "!!seq {a: 1}", "!!pairs [a: 1]",
          "!!omap x", "!!timestamp x", "{!!bool q: 1}", "{!!int '': 1}", "{!!timestamp x: 1}", "{!!str [a]: 1}",
          "{1.5: 2}", "{[a]: 2}", "0x" + "f" * 200, "a #b", '"', "x: y", "[1, 2", "{a: 1, a: 2}", "{a: }",
          "{1: a, 1: b}", "{~: 1}", "[~]", "{a: ${b}"]  # fmt: skip
INTERPOLATIONS = [
    "${a}", "${a", "${", "${}", "${ }", "a${b", "x${b}y", "${a:b}", '"${a}"', r"\${a}", r"\${a", r"\\${a}", r"\\${a",
    "${oc.env:HOME}/x", "${a[0]}", "${a.b}", "${.a}", "${..a}", "${a,b}", "${f:1,2}", "${f:${b}}", "${f:'x}", "${'a'}",
    "${a b}", "${a-b}", "${f:}", "${f: {x: 1}}", "${f:[1, 2]}", '${f:"x y"}', "$ {a}", "$HOME", "${${a}}", "${a.${b}}",
    "${a}}", "{${a}", "${a}${b}", "${a}${b", "\"${a:'${'}\"", "\"${a:'${b}'}\"", "${a:${b:${c}}}", "${a.${b.${c}}}.d",
    "${:}", "${: }", "${:a}", "${:a, b}", "${:a,}", r"${\:}", r"${a\.b}", r"${a\b}", r"${\${.}",
    "${f:[}", "${f:]}", "${f:x[1]}", "${f:[1,[2]]}", "'${f:{x: [1]}}'", "${f:{x}}", r"${f:x\}", r"${f:\}}",
    "${f:${:a}}", "${f: 'x'}", "${f:x 'y'}", r"${f:'x\'y'}", r"${f:'x\'}", "${${:a}}", "${f:{x:1,}}", "${f:,,}",
    "${f:[,1]}", "${a${b}}", "${${a}b}", "${${a}:b}", "${a.${b}c}", "${[${a}]}", "${f:a${b}c}",
]  # fmt: skip
TEXTS = [
    "", "\n", "# c\n", "---\n", "null\n", "~\n", "{}\n", "---\na: 1\n...\n", "---\na: 1\n---\nb: 2\n",
    "a: 1\n...\n", "a: 1\na: 2\n", "a: {b: 1, b: 2}\n", "a: [{b: 1, b: 2}]\n", "1: a\n1: b\n", "1: a", "true: x",
    "null: x", "1.5: x", "? [a]\n: b", "? {a: b}\n: c", "? a\n: b", "\ufeffa: 1\n", "a: 1\r\nb: 2\r\n", "a: 1\rb: 2\r",
    "x: &a {b: 1}\ny: *a\n", "x: &a {b: 1}\ny:\n  <<: *a\n  c: 2\n", "x: &a {b: 1}\ny:\n  <<: *a\n  b: 2\n",
    "x: &a {b: 1}\nz: &c {b: 3, d: 4}\ny:\n  <<: [*a, *c]\n", "<<: {a: 1}\nb: 2\n", "<<: {a: 1}\na: 2\n", "<<: [1]\n",
    "<<: 1\n", "a: 1\n<<: {b: 2}\n<<: {c: 3}\n", "x: &x [*x]\n", "x: *y\n", "a: 中文\n", "名: 1\n", "a: \ta\n",
    "\ta: 1\n",    "a: b: c\n", "a: [1, 2\n", 'a: "x\n', "a: 1 # c\n", "=: 1\n", "a:\n- 1\n- 2\n", "a:\n  - {b: c}\n",
    'a: ["1", 1, 1e-3]\n', "a: >\n  x\n  y\n", "a: |\n  x\n", "!!set {a, b}", "a: &b\n", "*a : 1\n", "&a a: *a\n",
    'a: {b: "${c"}\n', "a: [${b]\n", '"${a": 1\n', "%YAML 1.1\n---\na: 1\n", "%YAML 1.2\n---\na: on\n", "a: \x07\n",
    "a: 1\x0c\n", '"": 1\n', "a : 1\n", "a: " + "9" * 5000,
]  # fmt: skip


def by_omegaconf(text: str) -> Any:
    """What LLaMA-Factory gets (hparams/parser.py, v0.9.5), or REFUSED."""
    try:
        return omegaconf.OmegaConf.to_container(omegaconf.OmegaConf.load(io.StringIO(text)))
    except (
        omegaconf.errors.OmegaConfBaseException,
        yaml.YAMLError,
        ValueError,
        RecursionError,
        OSError,
        TypeError,
        LookupError,
        AttributeError,
    ):
        return REFUSED


def by_us(text: str) -> Any:
    document = parse_recipe("x.yaml", text)
    return document.values if document.readable else REFUSED


def shown(value: Any) -> str:
    """repr, which tells 1 from 1.0 and True, and equates nan with itself."""
    return repr(value)


@every([f"k: {value}\n" for value in SCALARS + TAGGED + INTERPOLATIONS] + TEXTS)
def test_reads_what_omegaconf_reads(text: str) -> None:
    assert shown(by_us(text)) == shown(by_omegaconf(text))


@pytest.mark.parametrize("text", ["- 1\n", "[]\n", '""\n', "foo\n", "a:1\n", "2024-01-01\n", "5\n", "true\n"])
def test_only_a_mapping_is_a_recipe(text: str) -> None:
    """OmegaConf makes a list of these, or a mapping with the text as its key; LLaMA-Factory refuses both."""
    assert [problem.code for problem in parse_recipe("x.yaml", text).problems] == ["LOA003"]


@examples(40)
@given(st.text("0123456789+-.eE_:xobafinINFNAtrueyslf~ ", min_size=1, max_size=12))
def test_scalars_of_any_spelling(scalar: str) -> None:
    text = f"k: {scalar}\n"
    assert shown(by_us(text)) == shown(by_omegaconf(text))


@examples(40)
@given(st.lists(st.sampled_from(["${", "}", "a", ".", ":", "[", "]", "{", "\\", ",", "'", "$", "1", " "]), max_size=9))
def test_interpolations_of_any_form(parts: list[str]) -> None:
    value = "".join(parts)
    text = yaml.safe_dump({"k": value}, allow_unicode=True)
    assert (by_us(text) == REFUSED) == (by_omegaconf(text) == REFUSED), value


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="$"), min_size=1, max_size=8)
# Not `\???`: that is OmegaConf's escape for its marker of missing values.
TEXTS_WITHOUT_MARKS = st.text(st.characters(exclude_characters="$?"))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS_WITHOUT_MARKS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))


@examples(40)
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.booleans())
def test_any_mapping(values: dict[str, Any], flow: bool) -> None:
    text = yaml.safe_dump(values, default_flow_style=flow, allow_unicode=True)
    assert shown(by_us(text)) == shown(by_omegaconf(text))


@examples(60)
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_with_a_position(text: str) -> None:
    document = parse_recipe("x.yaml", text)
    lines = text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + text.count("\u2029") + 1
    for problem in document.problems:
        assert 1 <= problem.line <= lines + 1
        assert problem.column >= 1
        assert "\n" not in problem.message


BOMB = "a: &a [x, x]\n" + "".join(f"k{i}: &k{i} [*{'a' if i == 0 else f'k{i - 1}'}, *a, *a]\n" for i in range(40))
DOUBLING = "k0: &k0 [1, 1]\n" + "".join(f"k{i}: &k{i} [*k{i - 1}, *k{i - 1}]\n" for i in range(1, 64))


@pytest.mark.sample(one_in=3, whole_for=["validator/recipe/*"])
@pytest.mark.parametrize(
    "text",
    [
        DOUBLING,
        "a: [" + ",".join(["1"] * 9_997) + "]",
        "a: [" + ",".join(["1"] * 9_998) + "]",
        f"a: &a [{'1, ' * 30}]\nb: &b [{'*a, ' * 30}]\nc: [{'*b, ' * 5}]",
        "x: &a {k: 1}\n" + "".join(f"y{i}: *a\n" for i in range(3000)),
        BOMB,
    ],
)
def test_aliases_expand_as_far_as_with_omegaconf(text: str) -> None:
    assert calls(lambda: by_us(text)) < 500_000
    assert shown(by_us(text)) == shown(by_omegaconf(text))


@pytest.mark.parametrize("depth", [3, 50, 500, 8_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}"), ("- ", "")])
def test_depth(depth: int, opening: str, closing: str) -> None:
    """OmegaConf runs out of stack somewhere between 100 and 300 levels."""
    break_ = "\n" if opening == "- " else ""
    text = f"a: {break_}" + opening * depth + "1" + closing * depth
    assert calls(lambda: parse_recipe("x.yaml", text)) < 50_000
    document = parse_recipe("x.yaml", text)
    assert document.readable == (depth <= 50)
    assert document.readable or "100 levels" in document.problems[0].message


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("x: " + "a" * 32_769, "LOA001", "32,769 characters are written as one value"),
        ("? " + "a" * 32_769 + "\n: 1", "LOA001", "32,769 characters are written as one value"),
        ("x:\n" + "- 1\n" * 10_000, "LOA002", "more than 10,000 values"),
        ("%TAG !a! b\n" * 2_000 + "--- a", "LOA002", "`%TAG` directives"),
    ],
)
def test_what_is_larger_than_any_recipe(text: str, code: str, message: str) -> None:
    problem = parse_recipe("x.yaml", text).problems[0]
    assert problem.code == code
    assert message in problem.message
    assert parse_recipe("x.yaml", "x: " + "a" * 32_768).readable


@pytest.mark.parametrize(("text", "readable"), [("add_special_tokens: {}", True), ("x: {{add_tokens: {}}}", False)])
def test_new_tokens_may_be_many(text: str, readable: bool) -> None:
    """A public recipe adds 16,384 codes of pictures."""
    codes = ",".join(f"<|{each}|>" for each in range(16_384))
    assert parse_recipe("x.yaml", text.format(f"'{codes}'")).readable is readable


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "LOA002", 3, 2),
        ("a: 1\n  b: 2\n", "LOA002", 2, 4),
        ("a: 1\nb: {x: 1,\n  x: 2}\n", "LOA004", 3, 3),
        ("a: 1\nb: 2\na: 3\n", "LOA004", 3, 1),
        ("a: 1\nb:2\n\nc: 3\n", "LOA012", 2, 1),
        ("a: 1\nb:\n  - c\n  d\ne: 2\n", "LOA012", 4, 3),
        ("a: 1\nb: '${x'\n", "LOA002", 2, 4),
        ("- a\n", "LOA003", 1, 1),
        ("a: 1\n~: 2\n", "LOA002", 2, 1),
        ("a: !!set {b}\n", "LOA002", 1, 4),
    ],
)
def test_where_a_fault_is(text: str, code: str, line: int, column: int) -> None:
    found = parse_recipe("x.yaml", text).problems
    assert [(problem.code, problem.line, problem.column) for problem in found] == [(code, line, column)]


@pytest.mark.parametrize(
    ("text", "codes", "values"),
    [
        ("a: 1\na: 2\nb: 3\n", ["LOA004"], {"a": 2, "b": 3}),
        ("a: 1\nb:2\nc\nd: 4\n", ["LOA012", "LOA012"], {"a": 1, "d": 4}),
        ("a: 1\nb:2\n  c\nd: 4\n", ["LOA012", "LOA002"], {}),
        ("a: 1\nstray  # text\n\nd: 4\na: 5\n", ["LOA012", "LOA004"], {"a": 5, "d": 4}),
        # a broken list hides what follows, and so do keys that no reader finds the colon of
        ("a: 1\nb:2\nc: [\nd: 4\n", ["LOA012", "LOA002"], {}),
        ("a: 1\n" + "b" * 1030 + ": 2\n", ["LOA002"], {}),
        ("a: 1\n" + "stray\n#\n" * 21 + "b: 1\n", ["LOA012"] * 20 + ["LOA002"], {}),
    ],
)
def test_one_fault_does_not_hide_the_values(text: str, codes: list[str], values: dict[str, object]) -> None:
    document = parse_recipe("x.yaml", text)
    assert ([each.code for each in document.problems], document.values) == (codes, values)
    assert (document.readable, document.judgeable) == (False, bool(values))
    assert document.body_tree is None or len(document.body_tree.text) == len(document.text)


def test_all_duplicates_at_once_and_the_first_place() -> None:
    found = parse_recipe("x.yaml", "a: 1\na: 2\nb: 1\nb: 2\n").problems
    assert [(problem.line, problem.key) for problem in found] == [(2, "a"), (4, "b")]
    assert "first on line 3" in found[1].message
