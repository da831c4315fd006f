"""Registry entries of report.py: a right entry with one thing wrong or unusual, and the files they name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

FILE = {"file_name": "rows.json"}
PICTURES = {"prompt": "instruction", "response": "output", "images": "images"}
# What is added to FILE, by the name of the data set.
ADDED: dict[str, dict[str, Any]] = {
    "ranking in quotes": {"ranking": "false"},
    "ranking 0": {"ranking": 0},
    "ranking 1": {"ranking": 1},
    "ranking null": {"ranking": None},
    "samples in quotes": {"num_samples": "4"},
    "samples 0": {"num_samples": 0},
    "samples -1": {"num_samples": -1},
    "samples 2.5": {"num_samples": 2.5},
    "samples true": {"num_samples": True},
    "samples 40": {"num_samples": 40},
    "samples 4.0": {"num_samples": 4.0},
    "samples null": {"num_samples": None},
    "cloud beside a file": {"cloud_file_name": "bucket/x"},
    "split test": {"split": "test"},
    "split slice": {"split": "train[:8]"},
    "split null": {"split": None},
    "split 5": {"split": 5},
    "split share": {"split": "train[:50%]"},
    "split broken slice": {"split": "train[:x]"},
    "split sum": {"split": "train+train"},
    "split list": {"split": ["train"]},
    "split all": {"split": "all"},
    "split empty": {"split": ""},
    "split training": {"split": "training"},
    "split space": {"split": "train [:4]"},
    "split end": {"split": "train[-4:]"},
    "subset": {"subset": "x"},
    "folder": {"folder": "x"},
    "columns list": {"columns": ["instruction"]},
    "columns text": {"columns": "instruction"},
    "columns null": {"columns": None},
    "columns empty": {"columns": {}},
    "columns number": {"columns": {"prompt": 1, "response": "output"}},
    "columns nested": {"columns": {"prompt": ["instruction"], "response": "output"}},
    "columns empty text": {"columns": {"prompt": "instruction", "response": "output", "query": ""}},
    "columns of absent pictures": {"columns": PICTURES},
    "tags null": {"tags": None},
    "tags list": {"tags": []},
    "tags of alpaca": {"tags": {"role_tag": "role"}},
    "formatting null": {"formatting": None},
    "formatting in capitals": {"formatting": "Alpaca"},
    "formatting empty": {"formatting": ""},
    "hub null": {"hf_hub_url": None},
    "hub empty": {"hf_hub_url": ""},
    "other hub null": {"ms_hub_url": None},
}
# Whole entries.
WHOLE: dict[str, Any] = {
    "script": {"script_url": "script.py"},
    "script folder": {"script_url": "folder"},
    "cloud without protocol": {"cloud_file_name": "bucket/x.json"},
    "cloud of the web": {"cloud_file_name": "https://x.y/z.json"},
    "cloud null": {"cloud_file_name": None},
    "cloud in capitals": {"cloud_file_name": "S3://bucket/x.json"},
    "file null": {"file_name": None},
    "file number": {"file_name": 5},
    "file list": {"file_name": ["rows.json"]},
    "file empty": {"file_name": ""},
    "file here": {"file_name": "."},
    "file in a folder": {"file_name": "./rows.json"},
    "file above": {"file_name": "../data/rows.json"},
    "file pattern": {"file_name": "*.json"},
    "file in capitals": {"file_name": "ROWS.JSON"},
    "file with a space": {"file_name": " rows.json"},
    "file packed": {"file_name": "rows.json.gz"},
    "file of the web": {"file_name": "https://x.y/rows.json"},
    "null": None,
    "list": [],
    "text": "rows.json",
    "empty": {},
    "hub of a local folder": {"hf_hub_url": "data/folder"},
    "picture for a text template": {"file_name": "pictures.json", "columns": PICTURES},
}


def names() -> list[str]:
    """The data sets, in order."""
    return [*ADDED, *WHOLE]


def add(folder: Path) -> None:
    """Add the entries to dataset_info.json in a folder of data, and the files they name."""
    info = json.loads((folder / "dataset_info.json").read_text())
    info |= {name: {**FILE, **more} for name, more in ADDED.items()} | WHOLE
    (folder / "dataset_info.json").write_text(json.dumps(info))
    rows = (folder / "rows.json").read_text()
    (folder / "folder").mkdir()
    (folder / "folder" / "rows.json").write_text(rows)
    (folder / "rows.json.gz").write_bytes(gzip.compress(rows.encode()))
    (folder / "script.py").write_text('"""A loading script, which is never run."""\n')
    shown = [{**row, "images": ["absent.png"]} for row in json.loads(rows)]
    (folder / "pictures.json").write_text(json.dumps(shown))
