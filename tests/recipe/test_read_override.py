"""Overrides merge as with OmegaConf, and have no place in the file."""

from __future__ import annotations

import io

import omegaconf
import pytest
import yaml
from support.every import every

from validator.errors import RecipeError
from validator.recipe.recipe_file import parse_recipe, with_overrides

REFUSED = "refused"
BASE = "a: 1\nd: {x: 1, y: {p: 1}}\nl: [1, 2]\n"
OVERRIDES = [
    ["a=2"], ["a=1e-4"], ["a="], ["a=null"], ["a=[1,2]"], ["a={x: 1}"], ["d={z: 3}"], ["d=null"], ["d={}"], ["d.x=5"],
    ["d.z.w=5"], ["l=[3]"], ["l.0=5"], ["a.b=1"], ['a="x"'], ["a='x: y'"], ["a=x: y"], ["a=b=c"], ["a=${d.x}"],
    ["a=${"], ["a=2", "a=3"], ["d={y: {q: 2}}"], ["d.y.q=3"], ["a= 2"], ["a=2 # c"], ["a=[1"], ["a=2024-01-01"],
    ["a={x: 1, x: 2}"], ["d={x: {q: 2}}", "d.x.r=1"], ["a=" + "9" * 5000], ["a=*x"], ["a=010"], ["new.k=1"],
    ["a=!!set {b}"], ["a=/tmp/x y"], ["a=---"], ["a=a\nb"], ["d.y={p: {r: 1}}"], ["d.y=1"], ["l={a: 1}"],
    ["d=[1]"], ["d={y: [1]}"], ["l.a=1"], ["a.b.c=1"], ["d.x.z=1"],
]  # fmt: skip


@every(OVERRIDES)
def test_overrides_merge_as_with_omegaconf(words: list[str]) -> None:
    conf = omegaconf.OmegaConf
    try:
        theirs = conf.to_container(conf.merge(conf.load(io.StringIO(BASE)), conf.from_cli(words)))
    except (omegaconf.errors.OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError):
        theirs = REFUSED
    try:
        ours: object = with_overrides(parse_recipe("x.yaml", BASE), words).values
    except RecipeError:
        ours = REFUSED
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("word", ["a", "--a=1", "--max_steps", "=1", "", "b.yaml", "a.=1", ".a=1", "l[0]=1", "a b=1"])
def test_overrides_that_llamafactory_would_take_for_unknown_keys(word: str) -> None:
    with pytest.raises(RecipeError, match="KEY=VALUE"):
        with_overrides(parse_recipe("x.yaml", BASE), [word])


def test_an_override_leaves_the_document_and_has_no_place_in_the_file() -> None:
    document = parse_recipe("x.yaml", BASE)
    changed = with_overrides(document, ["d.x=2", "d.y.p=7"])
    assert document.values["d"] == {"x": 1, "y": {"p": 1}}
    assert changed.values["d"] == {"x": 2, "y": {"p": 7}}
    assert changed.position(("d",)) == (1, 1)
    assert changed.position(("l",)) == (3, 4)
    assert with_overrides(document, []) is document


@pytest.mark.parametrize(
    ("value", "place"), [("/opt/ds/z2.json", (2, 12)), ("/opt/z2.json", (1, 1)), ("z2.json", (1, 1))]
)
def test_a_path_that_is_only_made_absolute_keeps_its_place(value: str, place: tuple[int, int]) -> None:
    document = parse_recipe("x.yaml", "stage: sft\ndeepspeed: ds/z2.json\n")
    assert with_overrides(document, [f"deepspeed={value}"]).position(("deepspeed",)) == place


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("x=" + "[" * 120_000, "not valid YAML"),
        ("x=" + "[" * 105 + "]" * 105, "not valid YAML"),
        ("x=!!bool y", "not valid YAML"),
        ("x=0x" + "f" * 5000, "not valid YAML"),
        (".".join("a" * 60_000) + "=1", "60,000 keys"),
    ],
)
def test_overrides_that_go_too_far(word: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        with_overrides(parse_recipe("x.yaml", BASE), [word])
