"""A repository as a stranger's pull request may leave it: modules that shadow real ones, code where data are expected.

Whatever of it is run leaves its name in a folder; whatever of a file outside is shown holds `SECRET`.
"""

from __future__ import annotations

import json
import pickle
import textwrap
from pathlib import Path

# What the program, its packages and the processes it starts import, by the names of files in the working folder.
# The modules of the standard library that Python itself imports for `-m`, before any program is asked, are not here.
MODULES = (
    "yaml", "click", "cerberus", "orjson", "numpy", "pyarrow", "tokenizers", "rensa", "xxhash", "packaging", "torch",
    "transformers", "llamafactory", "sitecustomize", "usercustomize", "conftest", "setup", "json", "argparse",
    "functools", "tempfile", "traceback", "difflib", "dataclasses", "subprocess", "multiprocessing", "struct", "random",
)  # fmt: skip
PACKAGES = ("deepspeed", "data", "recipes", "accelerate")
_TOOLS = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[tool.pytest.ini_options]
addopts = "-p evil"
"""
_RECIPE = """\
model_name_or_path: {model}
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
template: qwen
dataset: scripted,pickled,rows
dataset_dir: data
output_dir: saves/x
bf16: true
"""


class _Run:
    """What pickle would run."""

    def __init__(self, ran: Path) -> None:
        self._ran = ran

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self._ran / "pickle",)


def repository(folder: Path, ran: Path) -> Path:
    """Write it; what is run leaves a file in `ran`. Returns the folder."""
    ran.mkdir(parents=True)
    for name in MODULES:
        _write(folder / f"{name}.py", _code(ran, name))
    for name in PACKAGES:
        _write(folder / name / "__init__.py", _code(ran, name))
    _write(folder / "pyproject.toml", _TOOLS)
    _model(folder / "model", ran)
    _data(folder / "data", ran)
    _write(folder / "recipes/remote.yaml", _RECIPE.format(model="model"))
    _write(folder / "recipes/known.yaml", _RECIPE.format(model="Qwen/Qwen2.5-7B-Instruct"))
    call = f'!!python/object/apply:os.system ["touch {ran}/yaml-tag"]'
    _write(folder / "recipes/tagged.yaml", _RECIPE.format(model=call))
    text = _RECIPE.format(model=f"${{oc.env:HOME}}$(touch {ran}/shell)")
    _write(folder / "recipes/interpolated.yaml", f"{text}evaluation_strategy: 'no'\n")  # which --fix renames
    return folder


def _code(ran: Path, name: str) -> str:
    return f"open({str(ran / name)!r}, 'w').close()\nraise SystemExit('{name}.py was run')\n"


def _model(folder: Path, ran: Path) -> None:
    """A model that brings code of its own, and pickles."""
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    config = {"model_type": "mamba", "architectures": ["Model"], "auto_map": classes, "hidden_size": 64,
              "num_hidden_layers": 2, "vocab_size": 256}  # fmt: skip
    _write(folder / "config.json", json.dumps(config))
    _write(folder / "evil.py", _code(ran, "auto_map"))
    template = "{{ cycler.__init__.__globals__.os.system('touch %s/jinja') }}" % ran  # noqa: UP031
    _write(folder / "tokenizer_config.json", json.dumps({"chat_template": template, "auto_map": classes}))
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(pickle.dumps(_Run(ran)))


def _data(folder: Path, ran: Path) -> None:
    """Data sets that are a script, a pickle and plain rows."""
    entries = {
        "scripted": {"script_url": "loader.py"},
        "pickled": {"file_name": "rows.pkl"},
        "rows": {"file_name": "rows.json"},
    }
    _write(folder / "dataset_info.json", json.dumps(entries))
    _write(folder / "loader.py", _code(ran, "script_url"))
    (folder / "rows.pkl").write_bytes(pickle.dumps(_Run(ran)))
    _write(folder / "rows.json", json.dumps([{"instruction": "a", "output": "b"}] * 3))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), "utf-8")
