"""Values and mappings as YAML that people read: what is read back is what was written."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from validator.recipe.recipe_file import Document, path_override, with_overrides
from validator.recipe.yaml_writer import Commented, comment_lines, format_scalar, reads_as, yaml_document

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/recipe/yaml_writer.py"])

HARD = [
    "yes",
    "No",
    "null",
    "~",
    "1",
    "1e3",
    "12:30",
    "a: b",
    "- a",
    "#",
    " a\nb",
    "a\n\n",
    "\n",
    "a\r\nb\n",
    "\tx\n y",
]
TEXTS = some.text(max_size=30) | some.sampled_from(HARD)
VALUES = some.recursive(
    TEXTS | some.integers() | some.booleans() | some.none() | some.floats(-1e3, 1e3) | some.just(1e-05),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXTS.filter(len), inner, max_size=3),
)


@given(some.dictionaries(TEXTS.filter(len), VALUES, max_size=4))
def test_what_is_read_back_is_what_was_written(value: dict[str, Any]) -> None:
    assert (yaml.safe_load(yaml_document(value)) or {}) == value


WORDS = ["on", "null", "y", "2024", "1e5", "1.0e-4", ".5", ".inf", "0o17", "2024-01-01", "a, b", "~", "-", "a:b:c"]


@given(TEXTS | some.sampled_from(WORDS) | some.integers() | some.booleans() | some.none() | some.floats(-1e300, 1e300))
def test_a_value_is_read_back_by_yaml_and_by_omegaconf(value: object) -> None:
    assert reads_as(format_scalar(value), value)
    assert reads_as(f"[{format_scalar(value, in_brackets=True)}, x]", [value, "x"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("LoRA fine-tuning of Qwen3, on one A100 (40 GB)", "LoRA fine-tuning of Qwen3, on one A100 (40 GB)"),
        ("~/data/x@2", "~/data/x@2"),
        ("中文", "中文"),
        ("2024", '"2024"'),
        ("off", '"off"'),
        (1e-4, "1.0e-4"),
        (1.25e-5, "1.25e-5"),
        (0.001, "0.001"),
        (1e16, "1.0e+16"),
        (True, "true"),
    ],
)
def test_a_value_has_quotes_and_an_exponent_only_where_it_needs_them(value: object, text: str) -> None:
    assert format_scalar(value) == text


@pytest.mark.parametrize("path", ["2024", "1e5", "null", "on", "/a b/c", "x: y", "a,b", "~", "[x"])
def test_an_override_sets_a_path_to_the_text_that_it_is(path: str) -> None:
    assert with_overrides(Document("x.yaml"), [path_override("output_dir", path)]).values == {"output_dir": path}


def test_is_as_people_write_it() -> None:
    text = yaml_document(
        {
            "image": "docker:hiyouga/llamafactory:0.9.5",
            "cpus": "48+",
            "several": ["bash", {"name": "run", "more": [1, 2]}, Commented({"name": "shm"}, "Why.")],
            "none": {},
            "count": Commented(8, "of these"),
            "run": "set -e\n\nllamafactory-cli train x.yaml  # here\n",
            "cost": 3.5,
        }
    )
    assert text == (
        "image: docker:hiyouga/llamafactory:0.9.5\n"
        'cpus: "48+"\n'
        "several:\n"
        "  - bash\n"
        "  - name: run\n"
        "    more:\n"
        "      - 1\n"
        "      - 2\n"
        "  # Why.\n"
        "  - name: shm\n"
        "none: {}\n"
        "# of these\n"
        "count: 8\n"
        "run: |\n"
        "  set -e\n"
        "\n"
        "  llamafactory-cli train x.yaml  # here\n"
        "cost: 3.5\n"
    )


@pytest.mark.parametrize("indent", ["", "          "])
def test_comments_are_folded(indent: str) -> None:
    lines = [f"{indent}{line}" for line in comment_lines("word " * 60, indent)]
    assert all(line.startswith(f"{indent}# word") and len(line) <= 120 for line in lines)
    assert len(lines) > 2
