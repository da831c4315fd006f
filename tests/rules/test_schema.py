"""Keys and values as LLaMA-Factory's own argument classes take them, with severities as measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.laws import examples

from validator.finding import Place, Severity
from validator.knowledge import tables
from validator.recipe.recipe_file import Document, parse_recipe
from validator.rules import recipe_schema
from validator.rules.rule import Violation


def found(text: str) -> list[Violation]:
    return recipe_schema.check_schema(parse_recipe("x.yaml", text))


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("learing_rate: 1.0e-4", "SCH001", "did you mean `learning_rate`"),
        ("no_cuda: true", "SCH001", "write `use_cpu`"),
        ("evaluation_strategy: steps", "SCH001", "write `eval_strategy`"),
        ("xyzzy: 1", "SCH001", "is not a key of LLaMA-Factory 0.9.5"),
        ("compute_dtype: bf16", "SCH001", "is not a key"),
        ("1: x", "SCH001", "`1` is not a key"),
        ('learning_rate: "1e-4"', "SCH002", "not a number"),
        ("num_train_epochs: three", "SCH002", "not a number"),
        (
            'do_train: "false"',
            "SCH003",
            "counts as true; LLaMA-Factory does not refuse it; write true or false without quotes",
        ),
        ("finetuning_type: qlora", "SCH004", "not one of lora, oft, freeze, full"),
        ("save_strategy: no", "SCH002", "false"),
        ("stage: SFT", "SCH004", "did you mean `sft`"),
        ("lr_scheduler_type: cosin", "SCH004", "did you mean `cosine`"),
        ("infer_dtype: bfloat16", "SCH007", "is taken for one that trains nothing"),
    ],
)
def test_finding(text: str, code: str, says: str) -> None:
    (one,) = [d for d in found(text + "\n") if d.code == code]
    assert says in one.message
    assert one.place.key is not None


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate: 1e-4", "learning_rate: 1", "num_train_epochs: 3", "stage: sft", "max_samples: null", "fsdp: []",
        'save_strategy: "no"', "deepspeed: {a: 1}", "optim: adamw_torch", "dataset: [a, b]", "eval_strategy: steps",
        "bf16: true", "report_to: none", "lora_target: all", "save_steps: 0.1", "warmup_steps: 10",
        "warmup_ratio: 0.1",
        "infer_backend: huggingface", "export_quantization_bit: 4",
    ],
)  # fmt: skip
def test_silent(text: str) -> None:
    assert found(text + "\n") == []


def test_positions_are_the_keys_for_unknown_keys_and_the_values_for_wrong_values() -> None:
    unknown, wrong = found("learing_rate: 1\nstage: sfd\n")
    assert unknown.place == Place(("learing_rate",), key="learing_rate", at_key=True)
    assert wrong.place == Place(("stage",), key="stage")


def test_every_default_is_accepted() -> None:
    """But for those that are no constant of the class: null stands for them."""
    for key, entry in tables.json_table("arguments")["arguments"].items():
        if "in" in entry or entry["default"] is None:
            continue
        document = Document("x.yaml", values={key: entry["default"]})
        assert not [d for d in recipe_schema.check_schema(document) if d.severity is Severity.ERROR], key


def test_every_choice_is_accepted() -> None:
    for key, entry in tables.json_table("arguments")["arguments"].items():
        for choice in entry["choices"] or []:
            if "in" not in entry:
                document = Document("x.yaml", values={key: choice})
                assert not [d for d in recipe_schema.check_schema(document) if d.code < "SCH006"], (key, choice)


@examples(60)
@given(
    st.sampled_from(sorted(tables.json_table("arguments")["arguments"])),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none(), max_size=2)
    | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip
def test_any_value_of_any_key_gives_at_most_one_judgement(key: str, value: object) -> None:
    judged = recipe_schema.check_schema(Document("x.yaml", values={key: value}))
    assert len([d for d in judged if d.code < "SCH006"]) <= 1
    assert all(d.place.key == key for d in judged)


def test_usual_values_need_no_cerberus() -> None:
    """Its import takes as long as the rest of a check."""
    import subprocess
    import sys

    text = (
        "stage: sft\\nfinetuning_type: lora\\nlearning_rate: 1e-4\\nnum_train_epochs: 3\\nlr_scheduler_type: cosine\\n"
    )
    imports = (
        "import sys; from validator.recipe.recipe_file import parse_recipe; from validator.rules import recipe_schema"
    )
    code = f"{imports}; recipe_schema.check_schema(parse_recipe('x', '{text}')); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('cerberus' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr
