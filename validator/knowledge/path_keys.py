"""The keys of a recipe that name a file, a folder or a model, one row for each key. The rows were read from
LLaMA-Factory 0.9.5 (hparams/) and transformers 5.6 (training_args.py). Relative paths start at the working directory,
not at the recipe's folder."""

from __future__ import annotations

from typing import Literal, NamedTuple


class PathKey(NamedTuple):
    """A recipe key that names a path or a model.

    `access`: whether the run reads or writes the path; `either` is a folder that is read if it exists, and written if
    it does not.

    `kind`: what the key names. A `model` or an `adapter` is a folder or a name on a hub. A `file` may also stand in the
    recipe itself, as JSON.

    `comma_list`: LLaMA-Factory splits the value at commas.

    `default`: the path if the recipe does not set the key."""

    name: str
    access: Literal["read", "written", "either"]
    kind: Literal["file", "folder", "data", "model", "adapter"]
    comma_list: bool = False
    default: str | None = None

    @property
    def may_be_on_hub(self) -> bool:
        return self.kind in ("model", "adapter")


# In the order in which commands name them.
PATH_KEYS = (
    PathKey("deepspeed", "read", "file"),
    PathKey("dataset_dir", "read", "data", default="data"),
    PathKey("model_name_or_path", "read", "model"),
    PathKey("adapter_name_or_path", "read", "adapter", comma_list=True),
    PathKey("media_dir", "read", "data"),  # by default the value of dataset_dir
    PathKey("fsdp_config", "read", "file"),
    PathKey("resume_from_checkpoint", "read", "folder"),
    PathKey("reward_model", "read", "model"),
    PathKey("ref_model", "read", "model"),
    PathKey("reward_model_adapters", "read", "adapter", comma_list=True),
    PathKey("ref_model_adapters", "read", "adapter", comma_list=True),
    PathKey("accelerator_config", "read", "file"),
    PathKey("new_special_tokens_config", "read", "file"),
    PathKey("output_dir", "written", "folder"),
    PathKey("tokenized_path", "either", "folder"),
)
PATH_KEY_NAMES = frozenset(key.name for key in PATH_KEYS)
READ_KEYS = tuple(key for key in PATH_KEYS if key.access == "read")
MODEL_KEYS = tuple(key for key in PATH_KEYS if key.kind == "model")
ADAPTER_KEYS = tuple(key for key in PATH_KEYS if key.kind == "adapter")
