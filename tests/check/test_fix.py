"""Fixes of recipes: `repair` on texts, `check --fix` on files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import cases
from support.laws import examples
from support.program import Answer, answer
from support.real_parser import Parser

from validator.check.autofix import FixedDocument, apply_fixes, skipped_fixes
from validator.check.checking import check_document
from validator.finding import Diagnostic, FileReport, Severity
from validator.recipe.recipe_file import parse_recipe

ROOT = Path(__file__).parents[2]
BASE = """\
# a comment
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
dataset: alpaca_gpt4_en  # ours
template: qwen
cutoff_len: 1024
output_dir: saves/case
bf16: true
"""
# The releases since which a share may stand as `warmup_steps`.
FIVE = "# /// recipe\n# transformers: '>=5'\n# ///\n"
CASES = [case for case in cases.read() if any(line.endswith(("--fix", "--unsafe-fixes")) for line in case.finds)]


def everything(_: Diagnostic) -> bool:
    return True


def fixed(text: str, unsafe: bool = False) -> FixedDocument:
    return apply_fixes(parse_recipe("x.yaml", text), check_document, everything, unsafe)


def faults(report: FileReport) -> Counter[tuple[str, str | None]]:
    return Counter((each.code, each.key) for each in report.diagnostics if each.severity is not Severity.NOTE)


# What stands in the place of the planted line after safe fixes; None: the line stays.
PLANTED = [
    ("evaluation_strategy: 'no'\n", "eval_strategy: 'no'\n"),
    ("warmup_ratio: 0.1  # a tenth\n", None),  # transformers 4 takes no share as warmup_steps
    ("warmup_steps: 0.1  # a tenth\n", "warmup_ratio: 0.1  # a tenth\n"),
    ("warmup_ratio: 1\n", None),  # all steps; as warmup_steps one step
    ("warmup_ratio: 0.1\nwarmup_steps: 0\n", None),
    ("save_safetensors: true\n", ""),
    ("group_by_length: true\n", None),  # the new name came with transformers 5.2
    ("half_precision_backend: apex\n", None),
    ("fp16_opt_level: O2\n", None),
    ("save_safetensors: false\n", None),
    ("jit_mode_eval: true\n", None),
    ("no_cuda: true\n", "use_cpu: true\n"),  # both names with 4.57.1
    ("group_by_length: false\n", ""),
    ("learning_rate: '1e-4'\n", "learning_rate: 1.0e-4\n"),
    ("num_train_epochs: \"3\"\n", "num_train_epochs: 3.0\n"),
    ("lr_scheduler_type: Cosine\n", "lr_scheduler_type: cosine\n"),
    ("save_strategy: no\n", "save_strategy: \"no\"\n"),
    ("plot_loss: 1\n", "plot_loss: true\n"),
    ("do_eval: null\n", "do_eval: false\n"),
    ("plot_loss: 'false'\n", None),  # counts as true
    ("cutoff_len: 1024\n", ""),
    ("cutoff_len: 2048\n", None),
    ("oft_rank: 4\n", ""),
    ("pref_beta: 0.2\n", ""),
    ("eval_steps: 10\n", ""),
    ("galore_rank: 8\n", None),
    ("ddp_timeout: 180000000\n", "ddp_timeout: 604800\n"),
    ("max_steps: 10\nnum_train_epochs: 2\n", "max_steps: 10\n"),
    ("max_samples: 1000\n", None),
    ("report_to: wandb,tensorboard\n", "report_to: [\"wandb\", \"tensorboard\"]\n"),
    ("report_to: None\n", "report_to: none\n"),
    ("infer_backend: vllm\n", ""),
    ("lora_r: 8\n", None),
    ("learing_rate: 1.0e-4\n", None),
    ("export_dir: merged\n", None),
    ("x: &n 1\nlearning_rate: *n\n", None),
]  # fmt: skip


@pytest.mark.parametrize(("planted", "after"), PLANTED)
def test_safe_fixes(planted: str, after: str | None) -> None:
    assert fixed(BASE + planted).document.text == BASE + (planted if after is None else after)


# A method for preferences, and settings that only it reads: nothing is removed before it is written right.
HANGING = [
    (
        "stage: sft\n",
        "stage: dpo\ndpo_loss: simpo\nsimpo_gamma: 0.05\n",
        "stage: dpo\npref_loss: simpo\nsimpo_gamma: 0.05\n",
    ),
    ("stage: sft\n", "stag: dpo\npref_loss: orpo\n", None),
    *(
        ("stage: sft\n", f"stage: {word}\npref_loss: simpo\npref_beta: 0.2\n", None)
        for word in ("grpo", "orpo", "null")
    ),
    ("finetuning_type: lora\n", "fine_tuning_type: freeze\nfreeze_trainable_layers: 4\n", None),
    ("bf16: true\n", "bf16: true\nloraplus_ratio: 16\nloraplus_lr_embedding: 1.0e-5\n", None),
    ("bf16: true\n", "bf16: true\nuse_pissa: true\npissa_iter: 8\n", None),
    (
        "bf16: true\n",
        "bf16: true\nval_size: 0.1\nevaluation_strategy: steps\neval_steps: 100\nmetric_for_best_model: loss\n",
        "bf16: true\nval_size: 0.1\neval_strategy: steps\neval_steps: 100\nmetric_for_best_model: loss\n",
    ),
]


@pytest.mark.parametrize(("sound", "planted", "after"), HANGING)
def test_what_hangs_on_a_key_that_is_written_wrong_stays(sound: str, planted: str, after: str | None) -> None:
    assert fixed(BASE.replace(sound, planted)).document.text == BASE.replace(sound, after or planted)


def test_what_hangs_on_a_key_that_is_written_wrong_is_not_said_to_have_no_effect() -> None:
    for switch in (
        "evaluation_strategy: steps\nval_size: 0.1\neval_steps: 100\n",
        "dpo_loss: simpo\nsimpo_gamma: 0.05\n",
    ):
        stage = "stage: dpo\n" if "dpo" in switch else "stage: sft\n"
        report = check_document(parse_recipe("x.yaml", BASE.replace("stage: sft\n", stage) + switch))
        assert "no effect" not in "".join(each.message for each in report.diagnostics if "steps" in str(each.key))
        assert [each.code for each in report.diagnostics if each.key == "simpo_gamma"] == []


@pytest.mark.parametrize(
    ("planted", "after"),
    [
        ("max_samples: 1000\n", "max_samples: 1000\n"),  # the user wants a short run
        ("lora_r: 8\n", "lora_rank: 8\n"),
        ("learing_rate: 1.0e-4\n", "learning_rate: 1.0e-4\n"),
        ("plot_loss: 'false'\n", "plot_loss: false\n"),
        ("export_dir: merged\n", ""),
        ("use_liger_kernel: true\n", "enable_liger_kernel: true\n"),
        ("gradient_checkpointing: false\n", "disable_gradient_checkpointing: true\n"),
        ("lora_r: 8\nlora_rank: 16\n", "lora_r: 8\nlora_rank: 16\n"),
    ],
)
def test_unsafe_fixes(planted: str, after: str) -> None:
    assert fixed(BASE + planted, unsafe=True).document.text == BASE + after


LINES = [line for planted, _ in PLANTED for line in planted.splitlines() if "*" not in line and "&" not in line]


@given(
    st.lists(st.sampled_from(LINES), max_size=6, unique_by=lambda line: line.partition(":")[0]),
    st.lists(st.sampled_from(["", "  # why", " #"]), min_size=6, max_size=6),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
@examples(24)
def test_whatever_is_planted_no_other_line_changes_and_nothing_is_found_that_was_not(
    planted: list[str], comments: list[str], end: str, unsafe: bool
) -> None:
    lines = [line + comment for line, comment in zip(planted, comments, strict=False) if "#" not in line]
    text = BASE.replace("cutoff_len: 1024\n", "").replace("\n", end) + "".join(line + end for line in lines)
    before = parse_recipe("x.yaml", text)
    now = apply_fixes(before, check_document, everything, unsafe)
    assert not faults(now.report) - faults(check_document(before))
    assert apply_fixes(now.document, check_document, everything, unsafe).done == []
    keys = {edit.key for each in now.done if each.fix for edit in each.fix.edits}
    stays = [line for line in text.splitlines(keepends=True) if line.partition(":")[0] not in keys]
    after = iter(now.document.text.splitlines(keepends=True))
    assert all(line in after for line in stays)  # in their order
    assert len(now.document.text.splitlines()) <= len(text.splitlines())


def test_what_is_left_is_told_with_the_reason() -> None:
    now = fixed(BASE.replace("template: qwen\n", "template: llama3\n") + "evaluation_strategy: steps\n")
    assert now.done == []
    assert {each.code: why for each, why in skipped_fixes(now, everything)} == {
        "TRA605": "it may change what is trained: --unsafe-fixes",
        "SCH001": "it would bring TRA101",
    }


def test_a_large_file_is_judged_a_few_times_only() -> None:
    text = "stage: sft\n" + "bf16: true\n" * 100 + "# comment\n" * 20_000
    now = fixed(text)
    assert now.document.text.count("bf16") == 94
    assert {why for _, why in skipped_fixes(now, everything)} == {
        "there are more fixes than are tried at once: run again"
    }


def test_only_what_is_wanted_is_fixed() -> None:
    document = parse_recipe("x.yaml", FIVE + BASE + "ddp_timeout: 180000000\nwarmup_ratio: 0.1\n")
    now = apply_fixes(document, check_document, lambda each: each.code == "SCH006", unsafe=False)
    assert now.document.text == FIVE + BASE + "ddp_timeout: 180000000\nwarmup_steps: 0.1\n"


@pytest.mark.parametrize(
    ("planted", "after"),
    [
        ("group_by_length: true\n", "train_sampling_strategy: group_by_length\n"),
        ("half_precision_backend: apex\n", ""),
        ("save_safetensors: false\n", ""),
    ],
)
def test_a_key_that_no_release_of_the_range_reads_is_renamed_or_removed(planted: str, after: str) -> None:
    header = "# /// recipe\n# transformers: '>=5.2'\n# ///\n"
    assert fixed(header + BASE + planted).document.text == header + BASE + after


def test_a_suppressed_finding_is_not_fixed() -> None:
    text = BASE + "ddp_timeout: 180000000  # lmf-recipes: ignore TRA011\n"
    assert fixed(text).document.text == text


def test_a_key_of_an_older_release_stays_where_the_recipe_names_that() -> None:
    text = "# /// recipe\n# transformers: '<5'\n# llamafactory: '==0.9.4'\n# ///\n" + BASE + "warmup_ratio: 0.1\n"
    assert fixed(text).document.text == text


@pytest.mark.sample(one_in=10)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("unsafe", [False, True], ids=["safe", "unsafe"])
def test_a_fix_brings_no_finding_and_the_next_finds_nothing_to_do(case: cases.Case, unsafe: bool) -> None:
    with cases.laid_out(case):
        before = parse_recipe(case.path, case.files[case.path].decode())
        now = apply_fixes(before, check_document, everything, unsafe)
        if before.readable:
            assert not faults(now.report) - faults(check_document(before))
        again = apply_fixes(now.document, check_document, everything, unsafe)
        assert (again.document.text, again.done) == (now.document.text, [])
        keys = {edit.key for each in now.done if each.fix for edit in each.fix.edits}
        touched = set(before.text.splitlines()) - set(now.document.text.splitlines())
        assert all(line.split(":")[0].strip("\"' ") in keys for line in touched)


def lmf(*words: str | Path, stdin: bytes = b"") -> Answer:
    return answer("check", *map(str, words), stdin=stdin)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """With a mark of byte order, line ends of Windows, and one finding of each kind that can be fixed."""
    path = tmp_path / "x.yaml"
    path.write_bytes(
        b"\xef\xbb\xbf" + (FIVE + BASE + "warmup_ratio: 0.1\nexport_dir: merged\n").replace("\n", "\r\n").encode()
    )
    path.chmod(0o640)
    return path


def test_a_file_is_fixed_and_what_is_left_is_printed(recipe: Path) -> None:
    before = recipe.read_bytes()
    done = lmf("--fix", recipe)
    assert recipe.read_bytes() == before.replace(b"warmup_ratio", b"warmup_steps")
    assert recipe.stat().st_mode & 0o777 == 0o640
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"{recipe}: fixed `warmup_ratio` [SCH006]".encode() in done.stdout
    assert b"left `export_dir` [SCH007]: it may change what is trained: --unsafe-fixes" in done.stdout
    assert lmf("--fix", "--unsafe-fixes", recipe).returncode == 0
    assert b"export_dir" not in recipe.read_bytes()


def test_a_diff_writes_nothing(recipe: Path) -> None:
    before = recipe.read_bytes()
    done = lmf("--diff", recipe)
    assert (done.returncode, recipe.read_bytes()) == (1, before)
    lines = [line for line in done.stdout.decode().splitlines() if line[:1] in "+-"]
    assert lines[2:] == ["-warmup_ratio: 0.1", "+warmup_steps: 0.1"]
    recipe.write_text(BASE)
    assert (lmf("--diff", recipe).returncode, lmf("--diff", recipe).stdout) == (0, b"")


@pytest.mark.parametrize("again", [".", "./x.yaml"])
def test_a_file_named_twice_is_fixed_once(recipe: Path, again: str) -> None:
    twice = (recipe, f"{recipe.parent}/{again}")
    assert lmf("--diff", *twice).stdout == lmf("--diff", recipe).stdout
    done = lmf("--fix", *twice, "--format", "json")
    assert (done.returncode, done.stderr, len(json.loads(done.stdout)["files"])) == (0, b"", 1)


def test_json_says_what_was_done_and_what_can_be(recipe: Path) -> None:
    (plain,) = json.loads(lmf(recipe, "--format", "json").stdout)["files"]
    fixes = {each["code"]: each["fix"] for each in plain["diagnostics"]}
    assert fixes["SCH006"] == {"safe": True, "edits": [{"do": "rename", "key": "warmup_ratio", "to": "warmup_steps"}]}
    assert not fixes["SCH007"]["safe"]
    (file,) = json.loads(lmf("--fix", recipe, "--format", "json").stdout)["files"]
    assert [each["code"] for each in file["fixed"]] == ["SCH006"]
    assert [(each["code"], each["why"][:6]) for each in file["left"]] == [("SCH007", "it may")]


def test_standard_input_goes_fixed_to_standard_output(recipe: Path) -> None:
    before = recipe.read_bytes()
    done = lmf("--fix", "-", stdin=before)
    assert done.stdout == before.replace(b"warmup_ratio", b"warmup_steps")
    assert b"fixed `warmup_ratio`" in done.stderr
    clean = lmf("--fix", "-", stdin=BASE.encode())
    assert clean.stdout == BASE.encode()


def read_only(path: Path) -> None:
    path.chmod(0o440)


def in_a_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("prepare", "says"),
    [(read_only, b"is read-only; nothing is written"), (in_a_file, b"holds no recipe"), (Path.unlink, b"no such file")],
)
def test_what_cannot_be_written(recipe: Path, prepare: Callable[[Path], None], says: bytes) -> None:
    prepare(recipe)
    before = recipe.read_bytes() if recipe.is_file() else b""
    done = lmf("--fix", recipe)
    assert done.returncode == 1
    assert says in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr
    assert not recipe.is_file() or recipe.read_bytes() == before


def test_a_link_stays_and_its_file_is_fixed(recipe: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(recipe)
    lmf("--fix", link)
    assert link.is_symlink()
    assert b"warmup_steps" in recipe.read_bytes()


def test_a_deepspeed_file_and_a_recipe_of_the_catalogue_are_only_judged(tmp_path: Path) -> None:
    config = tmp_path / "z.json"
    config.write_text('{"zero_optimization": {"stage": 2}, "x": 1}')
    before = config.read_text()
    assert b"[PAR" in lmf("--fix", config, "qwen3-8b-a100-lora").stdout
    assert config.read_text() == before


def test_unsafe_fixes_alone_are_wrong_usage(recipe: Path) -> None:
    assert lmf("--unsafe-fixes", recipe).returncode == 2


@pytest.mark.parametrize("form", ["json", "sarif", "github"])
def test_a_diff_has_no_other_format(recipe: Path, form: str) -> None:
    before = recipe.read_bytes()
    done = lmf("--diff", "--format", form, recipe)
    assert (done.returncode, done.stdout, recipe.read_bytes()) == (2, b"", before)
    assert b"--diff prints a plain diff; leave --format out" in done.stderr


@pytest.mark.slow
@pytest.mark.real
def test_the_real_parser_resolves_the_same_after_safe_fixes(tmp_path: Path, parser: Parser) -> None:
    """Or refused it before. What was left out was ignored, so nothing but itself may differ."""
    texts = [BASE + planted for planted, after in PLANTED if after is not None]
    now = [fixed(text) for text in texts]
    for number, (text, each) in enumerate(zip(texts, now, strict=True)):
        (tmp_path / f"{number}-before.yaml").write_text(text)
        (tmp_path / f"{number}-after.yaml").write_text(each.document.text)
    answers = {Path(answer["path"]).stem: answer for answer in parser(ROOT, *tmp_path.glob("*.yaml"))}
    for number, each in enumerate(now):
        before, after = answers[f"{number}-before"], answers[f"{number}-after"]
        assert "error" not in after, (texts[number], after["error"])
        keys = {str(name) for one in each.done if one.fix for edit in one.fix.edits for name in (edit.key, edit.to)}
        if "error" not in before:
            differ = {name for name, value in before["resolved"].items() if after["resolved"][name] != value}
            assert differ <= keys, texts[number]
