"""The programs in tools/: what they derive is up to date, and the table of wishes is fulfilled."""

from __future__ import annotations

from pathlib import Path

import derive
import plan_catalogue
import pytest
from pages import coverage
from support.every import every

from validator.catalogue import bundled_recipes
from validator.knowledge import devices, models
from validator.plan import recipe_text
from validator.plan import search as plan
from validator.plan.new_recipe import NewRecipe
from validator.recipe.recipe_file import load_recipe, parse_recipe

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "recipes").glob("*.yaml"))
WISHES = list(plan_catalogue.wishes())


# What fits on each machine takes as long as all other pages together.
SAMPLED = {
    "docs/reference/coverage.md": pytest.mark.sample(one_in=4, whole_for=["tools/*", "validator/plan/*", "docs/*"])
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SAMPLED.get(name, ())) for name in (*derive.PAGES, *derive.FILES)]
)
def test_no_page_is_stale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert derive.derived_text(name) == (ROOT / name).read_text("utf-8"), "run `make tables`"


@pytest.mark.slow
def test_no_recipe_predicts_what_is_computed_no_more() -> None:
    stale = [
        job.workspace.recipe
        for job in bundled_recipes.resolved_recipes()
        if derive.recipe_text(job) != Path(job.workspace.recipe).read_text("utf-8")
    ]
    assert stale == [], "run `make tables`"


@pytest.mark.parametrize("check", [True, False])
def test_what_is_stale_is_named_and_without_check_written(tmp_path: Path, check: bool) -> None:
    page = tmp_path / "page.md"
    page.write_text("old", "utf-8")
    assert derive._settle(page, "new", check) == [page]
    assert page.read_text("utf-8") == ("old" if check else "new")
    assert derive._settle(page, page.read_text("utf-8"), check) == []


def test_every_block_of_a_page_is_generated() -> None:
    for name in derive.PAGES:
        text = (ROOT / name).read_text("utf-8")
        assert text.count("<!-- end -->") == len(derive.BLOCK.findall(text))


@pytest.mark.parametrize(
    "page", ["docs/reference/recipes.md", "docs/reference/coverage.md", "README.md", "README.zh.md"]
)
def test_every_link_to_a_recipe_leads_to_one(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    linked = {part.partition(")")[0].partition("recipes/")[2] for part in text.split("](")[1:] if ".yaml)" in part[:99]}
    assert linked <= {path.name for path in PATHS}
    assert page != "docs/reference/recipes.md" or linked == {path.name for path in PATHS}


@every(WISHES)
def test_each_wish_has_its_recipe(wish: plan_catalogue.Wish) -> None:
    assert plan_catalogue.recipe_of(wish)


@pytest.mark.slow
@pytest.mark.sample(one_in=6, whole_for=["tools/*", "validator/plan/*"])
@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: f"{wish.model.short}-{wish.machine}-{wish.method}-{wish.use}")
def test_a_recipe_is_what_the_planner_makes_of_its_wish(wish: plan_catalogue.Wish) -> None:
    draft = plan_catalogue.fulfil(wish)
    assert draft
    expected = parse_recipe("recipes/x.yaml", recipe_text.render_recipe(draft, planned=False))
    assert load_recipe(str(ROOT / "recipes" / f"{draft.name}.yaml")).values == expected.values


@pytest.mark.parametrize(
    ("machine", "ram", "method", "verdict"),
    [
        ("8xh100-80g", 512.0, "full", "fits"),
        ("8xv100-32g", 512.0, "qlora", "fits"),
        ("8xascend-910b-64g", 512.0, "qlora", "4 bit"),
        ("1xt4-16g", 24.0, "full", "host"),
    ],
)
def test_a_gap_says_why(machine: str, ram: float, method: str, verdict: str) -> None:
    target = devices.parse_machine(machine, ram)
    found = coverage._cell(models.find_model("qwen7b"), target, method, [])
    assert found.startswith(verdict)
    start = NewRecipe(models.find_model("qwen7b"), target, method)
    assert (found == "fits") == bool(plan.find_plans(start, (method,), (2048,)))


def test_a_model_that_cannot_run_says_so_whatever_the_machine() -> None:
    target = devices.parse_machine("8xh200-141g", 2048.0)
    assert coverage._cell(models.find_model("gpt-oss-20b"), target, "lora", []) == "code"
    page = (ROOT / "docs" / "reference" / "coverage.md").read_text(
        "utf-8"
    )  # which the test above holds to what is derived
    assert "load_and_register_kernel" in page.partition("## Why not")[2]


def test_the_catalogue_holds_what_is_wished_or_kept_and_no_more() -> None:
    assert len(PATHS) == len(WISHES) + len(plan_catalogue.kept())
    assert plan_catalogue.kept() <= {path.stem for path in PATHS}
