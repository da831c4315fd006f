"""Did you mean … ? Apt ones, and words that are no slip of any name. And remedies that are settings of evaluation,
checkpoints, logging and warm-up: they do not lead to the next finding."""

from __future__ import annotations

import re

import pytest
from support import cases

from validator.knowledge import tables
from validator.recipe.recipe_file import parse_recipe
from validator.recipe.suggestions import edit_distance, nearest_name
from validator.rules import all_rules, recipe_schema

TEMPLATES = tables.json_table("templates")["templates"]


def said(text: str) -> list[str]:
    """The messages of SCH001 for a recipe."""
    return [each.message for each in recipe_schema.check_schema(parse_recipe("x.yaml", text)) if each.code == "SCH001"]


# What strangers wrote on the left is from real files, but for the slips of the hand.
@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("learing_rate", "did you mean `learning_rate`?"),
        ("eval_step", "did you mean `eval_steps`?"),
        ("gradient_checkpoint", "did you mean `gradient_checkpointing`?"),
        ("do_trian", "did you mean `do_train`?"),
        ("tempalte", "did you mean `template`?"),
        ("bf_16", "did you mean `bf16`?"),
        ("max_grad", "did you mean `max_grad_norm`?"),
        ("messages", "belong in dataset_info.json"),
        ("formatting", "belong in dataset_info.json"),
        ("wandb_project", "set WANDB_PROJECT in the environment"),
        ("wandb_run_name", "write `run_name`"),
        ("batch_size", "write `per_device_train_batch_size`"),
        ("train_batch_size", "write `per_device_train_batch_size`"),
        ("micro_batch_size", "write `per_device_train_batch_size`"),
        ("num_epochs", "write `num_train_epochs`"),
        ("base_model", "write `model_name_or_path`"),
        ("sequence_len", "write `cutoff_len`"),
        ("lora_r", "write `lora_rank`"),
        ("lora_target_modules", "write `lora_target`"),
        ("flash_attention", "write `flash_attn: fa2`"),
        ("load_in_4bit", "`quantization_bit: 4`"),
        ("datasets", "a name that dataset_info.json defines"),
        ("evaluation_strategy", "write `eval_strategy`"),
        ("use_eaft_losss", "did you mean `use_eaft_loss`?"),
        ("lang", "it belongs to `eval`"),
    ],
)
def test_a_key_gets_the_remedy_that_is_apt(key: str, remedy: str) -> None:
    (message,) = said(f"{key}: 1\n")
    assert message.endswith(remedy) or remedy in message


@pytest.mark.parametrize(
    "key",
    [
        "learning_rate_lm", "compute_exact_match", "num_latent_thinking_token", "image_max_tokens", "top_p_2",
        "reward_model_modpo", "is_caldpo", "train_size", "alpha", "loss_func", "total_pixels", "entropy_type", "x",
    ],
)  # fmt: skip
def test_a_key_of_a_fork_gets_no_name_that_it_was_not_meant_for(key: str) -> None:
    (message,) = said(f"{key}: 1\n")
    assert message.endswith("is not a key of LLaMA-Factory 0.9.5 or of any other known release; is it from a fork?")


def test_keys_of_one_origin_are_one_finding() -> None:
    fork, entry = sorted(said("entropy_type: a\ntop_p_2: 1\nmessages: a\ntags: {}\nis_x: 1\n"))
    assert fork.startswith("`entropy_type`, `top_p_2`, `is_x` are not keys")
    assert entry.startswith("`messages`, `tags` are not keys")


@pytest.mark.parametrize(
    ("name", "near"),
    [("qwen_3", "qwen3"), ("lama3", "llama3"), ("mistrall", "mistral"), ("efficoder", None), ("my_web", None)],
)
def test_templates(name: str, near: str | None) -> None:
    assert nearest_name(name, TEMPLATES) == near


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("host_ram", ["host_ram_gib", "machine"], "host_ram_gib"),
        ("rank", ["lora_rank", "oft_rank"], None),  # either
        ("SFT", ["sft", "pt"], "sft"),
        ("sfd", ["sft", "pt"], "sft"),
        ("dpo", ["ipo", "simpo"], None),  # another word of three letters
        ("a" * 1000, ["a" * 999], None),
    ],
)
def test_nearest(name: str, known: list[str], near: str | None) -> None:
    assert nearest_name(name, known) == near


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [
        ("abc", "abc", 0),
        ("abc", "acb", 1),
        ("abc", "ab", 1),
        ("abc", "abxc", 1),
        ("ca", "abc", 3),
        ("abc", "xyz", None),
    ],
)
def test_edits(one: str, other: str, edits: int | None) -> None:
    """`ca` and `abc` are what tells optimal string alignment from unrestricted Damerau-Levenshtein."""
    assert edit_distance(one, other, 3 if edits is not None else 2) == edits


def test_each_stranger_leads_to_a_key_that_there_is() -> None:
    known, renamed = tables.json_table("arguments")["arguments"], tables.yaml_table("renamed")
    for key, meant in tables.yaml_table("strangers").items():
        assert key not in known, key
        assert key not in renamed, key
        assert meant.get("now", "stage") in known, key
        assert {*meant} <= {"now", "how", "belongs", "variable", "engine"}, key


def test_among_more_names_than_can_be_looked_at_none_is_meant() -> None:
    known = [f"name_{number}" for number in range(5_000)]
    assert nearest_name("name_4999x", known) == "name_4999"
    assert nearest_name("name_4999x", [*known, "another"]) is None


SETTING = r"`([a-z_]+): ([^`]+)`"
REMEDY = re.compile(
    rf"; (?:set|write) ({SETTING}(?:(?: with|,| and) {SETTING})*)( instead)?((?:, and remove [a-z_` ]+)?)(?=$|,| about)"
)
OF_THE_SCHEDULE = re.compile("eval_|save_|val_size|warmup_|logging_|metric_")
# TRA421 proposes a share, of which DeepSpeed's own scheduler or a release of transformers may have another opinion. FIT
# and CUR judge the numbers of a run that has changed.
ANOTHER_MATTER = ("FIT", "CUR", "PAR02")


PROPOSING = [each for each in all_rules.all_codes() if each.startswith(("DAT", "FIT", "TRA"))]


@pytest.mark.sample(one_in=8, whole_for=["validator/rules/evaluating.py", "validator/rules/good_practice.py"])
@pytest.mark.parametrize("code", PROPOSING)
def test_a_setting_that_is_proposed_mends_the_finding_and_brings_no_other(code: str) -> None:
    for case in cases.read_file(cases.RULES / f"{code}.yml"):
        if case.kind == "fail":
            apply_proposals(case)


def apply_proposals(case: cases.Case) -> None:
    """Fail if a setting of the schedule that a message proposes leaves its finding, or brings another."""
    before = cases.judge(case).files[0].diagnostics
    for finding in before:
        remedy = REMEDY.search(finding.message)
        settings = dict(re.findall(SETTING, remedy[1])) if remedy else {}
        if remedy is None or finding.path or not OF_THE_SCHEDULE.match(next(iter(settings))):
            continue
        removed = [*re.findall("`(.*?)`", remedy.groups()[-1]), *([finding.key] if remedy.groups()[-2] else [])]
        lines = "".join(f"{key}: {value}\n" for key, value in settings.items())
        text = cases.changed(case.files[case.path].decode(), lines, [str(key) for key in removed])
        after = cases.judge(case._replace(files={**case.files, case.path: text.encode()})).files[0].diagnostics
        known = {(each.code, each.key) for each in before} - {(finding.code, finding.key)}
        fresh = [
            f"{each.code}: {each.message}"
            for each in after
            if (each.code, each.key) not in known
            and (each.severity != "note" or each.code in (finding.code, "TRA803"))
            and not each.code.startswith(ANOTHER_MATTER)
        ]
        assert not fresh, f"{case}: {finding.message} [{finding.code}]"
