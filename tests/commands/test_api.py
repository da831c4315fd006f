"""The Python interface: functions answer as the commands do, and the examples of its page print what stands there."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from validator import api, errors
from validator.cli import group
from validator.output import json_output

pytestmark = pytest.mark.usefixtures("from_the_root")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
NAME = "qwen3-8b-a100x1-lora"


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=["fits", "grows"])
def test_an_example_of_the_page_prints_what_stands_there(code: str, printed: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    assert out.getvalue() == printed


def command(words: str) -> object:
    return json.loads(CliRunner().invoke(group, [*words.split(), "--format", "json"]).stdout)


def test_explain_answers_as_the_command() -> None:
    assert json.loads(json_output.format_json(api.explain(NAME).rounded())) == command(f"explain {NAME}")


def test_plan_answers_as_the_command() -> None:
    answer = api.plan("qwen3-8b", "2xrtx-4090", samples=5000)
    assert json.loads(json_output.format_json(answer)) == command(
        "plan --model qwen3-8b --machine 2xrtx-4090 --samples 5000"
    )


def test_check_finds_what_the_command_finds(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nlora_rnak: 8\n")
    report = api.check(recipe, machine="1xa100-80g")
    assert [each.code for each in report.diagnostics] == [
        each["code"]
        for each in command(f"check {recipe} --machine 1xa100-80g")["files"][0]["diagnostics"]  # type: ignore[index]
    ]


@pytest.mark.parametrize("ask", [api.device_memory, api.host_memory, api.step_time])
def test_what_is_not_known_is_one_message(ask: object, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model_name_or_path: nobody/knows-it\nstage: sft\ndo_train: true\n")
    with pytest.raises(errors.RecipeError, match=r"mine\.yaml`: its model or its machine is not known"):
        ask(recipe, machine="1xa100-80g")  # type: ignore[operator]
    with pytest.raises(errors.RecipeError, match="a999"):
        ask(recipe, machine="1xa999-80g")  # type: ignore[operator]


@pytest.mark.process
def test_the_interface_imports_no_training_package() -> None:
    code = "import sys; from validator import api; print({'torch', 'numpy', 'llamafactory'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
