"""What people type first, before they have read the help: the last line leads on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import program

RECIPE = "qwen3-8b-4090x1-lora"
# Command line, exit code, and what the last line says.
TYPED = [
    ("", 2, "Start with `lmf-recipes plan --machine 2xrtx-4090`"),
    ("help", 0, "Start with `lmf-recipes plan --machine 2xrtx-4090`"),
    ("help train", 0, "Show this message and exit."),
    ("run x.yaml", 2, "did you mean `lmf-recipes train`?"),
    ("finetune", 2, "did you mean `lmf-recipes train`?"),
    ("validate x.yaml", 2, "did you mean `lmf-recipes check`?"),
    ("vram qwen3-8b", 2, "did you mean `lmf-recipes explain`?"),
    ("fit qwen3-32b", 2, "did you mean `lmf-recipes plan`?"),
    ("init", 2, "did you mean `lmf-recipes plan`?"),
    ("recipes", 2, "did you mean `lmf-recipes list`?"),
    ("lst", 2, "did you mean `lmf-recipes list`?"),
    ("explian x.yaml", 2, "did you mean `lmf-recipes explain`?"),
    ("qwen3-8b", 2, "did you mean `lmf-recipes plan --model qwen3-8b`?"),
    ("qwen3-8b 2x3090", 2, "did you mean `lmf-recipes plan --model qwen3-8b --machine 2x3090`?"),
    ("2x3090 qwen3-8b lora", 2, "did you mean `lmf-recipes plan --machine 2x3090 --model qwen3-8b --method lora`?"),
    ("nothing", 2, "`lmf-recipes --help` shows all"),
    (f"{RECIPE} --machine 4090", 2, f"`lmf-recipes train {RECIPE}` trains by it"),
    ("chats.jsonl", 2, "`lmf-recipes data chats.jsonl` says what the file holds"),
    ("llamafactory-cli train x.yaml", 2, "the command comes first: `lmf-recipes train mine.yaml`"),
    ("export", 2, "`llamafactory-cli export` merges an adapter, by the keys `model_name_or_path`"),
    ("merge x.yaml", 2, "`train` ends with the whole command (docs/tutorials/first-run.md)"),
    ("chat", 2, "`llamafactory-cli chat` talks with a model, by the keys `model_name_or_path`"),
    ("serve", 2, "`llamafactory-cli api` serves a model, by the keys"),
    ("webui", 2, "`llamafactory-cli webui` starts LLaMA Board"),
    ("eval", 2, "do_train=false do_predict=true predict_with_generate=true eval_dataset=NAME` predicts by a recipe"),
    ("download", 2, "the model is fetched when `lmf-recipes train` starts"),
    ("convert", 2, "`lmf-recipes data FILE` takes data in their own form"),
    ("version", 2, "`lmf-recipes --version` prints it"),
    ("-v", 2, "Write `--version`."),
    ("benchmark", 2, "did you mean `lmf-recipes calibrate`?"),
    ("x.yaml", 2, "`lmf-recipes check x.yaml` checks a file, `lmf-recipes train x.yaml` trains by it"),
    ("--hepl", 2, "Did you mean '--help'?"),
    ("list qwen3", 2, "write `--model qwen3`"),
    ("list lora", 2, "write `--method lora`"),
    ("list models", 2, "a model is named by `--model`, a machine is named by `--machine`"),
    ("plan qwen3-8b --machine 1xrtx-4090", 2, "write `--model qwen3-8b`"),
    ("plan 4090 qwen3-8b", 2, "write `--machine 4090 --model qwen3-8b`"),
    ("plan x.yaml", 2, "`lmf-recipes explain x.yaml` says what a recipe needs"),
    ("plan --model x.yaml", 1, "`x.yaml` is the name of a recipe, not of a model; `lmf-recipes explain x.yaml` says"),
    ("plan --machine gpu", 2, "`auto` is this machine"),
    ("check 8xa100", 1, "it is a machine: see `lmf-recipes list --machine 8xa100`"),
    ("explain Qwen/Qwen3-8B", 1, "it is a model: see `lmf-recipes list --model Qwen3-8B`"),
    ("data Qwen/Qwen3-8B", 1, "it is a model: see `lmf-recipes list --model Qwen3-8B`"),
    ("train stage=sft", 1, "a setting comes behind the recipe, such as `mine.yaml stage=sft`"),
    (f"explain {RECIPE} 4090", 2, "`4090` is no KEY=VALUE; write `--machine 4090`"),
    (f"explain {RECIPE} x.yaml", 2, "`x.yaml` is no KEY=VALUE; give one recipe at a time"),
    (f"train {RECIPE} learning_rate:1e-4", 1, "is not of the form KEY=VALUE, such as learning_rate=1e-4"),
    (f"train {RECIPE} -- --bf16", 1, "override `--bf16` is not of the form KEY=VALUE, such as bf16=VALUE"),
    ("plan cutoff_len=2048", 2, "`plan` takes no KEY=VALUE, `data`, `explain` and `train` do"),
    ("submit x.yaml --to slurm --hours 24:00:00", 2, "Write a number, such as 24."),
    (f"submit {RECIPE} --to slurm --network ethernet-25g", 2, "`# network: 8xroce-100g` in the header block"),
    ("check x.yaml --network ethernet-25g", 2, "`# network: 8xroce-100g` in the header block"),
    ("train", 2, "a name that `lmf-recipes list` shows"),
    ("train qwen3-8b", 1, "see `lmf-recipes list --model qwen3-8b`"),
    ("train x.yaml", 1, "x.yaml"),
    ("explain", 2, "a name that `lmf-recipes list` shows"),
    ("explain https://example.org/x.yaml", 1, "download it, and give the file"),
    ("explain qwen3-8b", 1, "see `lmf-recipes list --model qwen3-8b`"),
    ("copy", 2, "a name that `lmf-recipes list` shows"),
    (f"copy {RECIPE}", 0, f"run: lmf-recipes train {RECIPE}.yaml"),
    ("explain qwen3", 1, "it is a family of models: `qwen3-0.6b`, `qwen3-1.7b`"),
    ("plan qwen3-8b-lora", 2, "write `--model qwen3-8b`"),
    ("copy qwen3-8b-instruct", 1, "see `lmf-recipes list --model qwen3-8b`"),
    ("copy qwen3-8b-lora", 1, "see `lmf-recipes list --model qwen3-8b --method lora`"),
    ("copy nothing", 1, "`lmf-recipes list` shows all"),
    (
        "check",
        2,
        "give a recipe, a folder, or a name of the catalogue (`lmf-recipes list` shows them, `lmf-recipes plan`",
    ),
    (f"check {RECIPE} media_dir=photos", 1, "`media_dir=photos` is no file; `check` takes no KEY=VALUE"),
    (f"check --strict {RECIPE} dataset=a.json", 1, "`check` takes no KEY=VALUE, `data`, `explain` and `train` do"),
    ("data alpaca_en_demo", 1, "and no name of a data set"),
    (
        f"check recipes/{RECIPE}.yaml",
        0,
        f"taken: the catalogue's recipe `{RECIPE}`, as there is no file `recipes/{RECIPE}",
    ),
    (
        f"explain {RECIPE}.yaml --machine 4xh100-80g",
        0,
        f"taken: the catalogue's recipe `{RECIPE}`, as there is no file",
    ),
    (f"explain {RECIPE} --machine 4xh100-80g", 0, f"run: lmf-recipes train {RECIPE} --machine 4xh100-80g"),
    (f"explain {RECIPE} --host-ram 64", 0, f"run: lmf-recipes train {RECIPE} --host-ram 64"),
    (f"check {RECIPE}", 0, "1 file: 0 errors, 0 warnings"),
    ("data", 2, "or a file of data such as `chats.jsonl`"),
    ("diff mine.yaml", 2, "Give the file that was copied from the recipe."),
    ("submit", 2, "a name that `lmf-recipes list` shows"),
    (f"submit {RECIPE} --to k8s", 2, "'kubernetes'"),
    ("calibrate", 2, "a name that `lmf-recipes list` shows"),
    # A machine is no command, and neither is a model whose name ends like one.
    ("4090", 2, "did you mean `lmf-recipes plan --machine 4090`?"),
    ("8xh100", 2, "did you mean `lmf-recipes plan --machine 8xh100`?"),
    ("rtx-4090", 2, "did you mean `lmf-recipes plan --machine rtx-4090`?"),
    ("2x8xa100-80g", 2, "did you mean `lmf-recipes plan --machine 2x8xa100-80g`?"),
    ("2x48g", 2, "did you mean `lmf-recipes plan --machine 2x48g`?"),
    ("qwen72b", 2, "did you mean `lmf-recipes plan --model qwen72b`?"),
    # Options that other programs have.
    ("plan --gpu 4090", 2, "Write `--machine 4090`."),
    ("list --gpus 4090", 2, "Write `--machine 4090`."),
    ("train x.yaml --gpus 0,1", 2, "`NPROC_PER_NODE=2` before the command says"),
    ("plan --model qwen3-8b --machine m3", 2, "is of Apple, and runs are judged for NVIDIA, AMD and Ascend alone; a"),
    ("plan --model qwen3-8b --machines m3max", 2, "is of Apple"),
    ("plan --ctx 8192", 2, "Write `--cutoff-len 8192`."),
    ("plan --max_length 8192", 2, "Write `--cutoff-len 8192`."),
    ("plan --vram 24GB", 2, "Write `--machine 1x24g`."),
    ("train x.yaml --resume", 2, "The same command resumes an interrupted run."),
    ("train x.yaml --output-dir out", 2, "Write `output_dir=out`."),
    ("plan --model qwen3-8b --machine 4090 --method DPO", 2, "Write `--stage dpo`."),
    ("plan --model qwen3-8b --machine 4090 --stage lora", 2, "Write `--method lora`."),
    ("plan --model qwen3-8b --machine 4090 --method q-lora", 2, "is not one of 'lora', 'qlora', 'full', 'freeze'."),
    ("plan --qlora", 2, "Write `--method qlora`."),
    ("plan --json", 2, "Write `--format json`."),
    ("explain x.yaml --cutoff-len 8192", 2, "Write `cutoff_len=8192`."),
    ("train x.yaml --context 8192", 2, "Write `cutoff_len=8192`."),
    ("train x.yaml --max_grad_norm 1", 2, "is written `max_grad_norm=1`."),
    ("train x.yaml --lr 1e-4", 2, "Write `learning_rate=1e-4`."),
    ("plan --lr 1e-4", 2, "It is a setting of the recipe: `lmf-recipes train FILE.yaml learning_rate=1e-4`"),
    ("plan --max_grad_norm 1", 2, "`lmf-recipes train FILE.yaml max_grad_norm=1`, or a line of the file."),
    ("plan --epochs 3", 2, "num_train_epochs=3`"),
    ("plan --lora-rank 16", 2, "lora_rank=16`"),
    ("plan --batch-size 4", 2, "per_device_train_batch_size=4`"),
    ("plan --quantization 4", 2, "Write `--method qlora`."),
    ("plan --quant 4bit", 2, "Write `--method qlora`."),
    ("plan --gpus=4", 2, "Write `--machine 4xNAME`."),
    ("plan --dataset x", 2, "Write `--data x`."),
    ("copy x --quantization 4", 2, "`lmf-recipes train FILE.yaml quantization_bit=4`"),
    ("copy x --lr 1e-4", 2, "`lmf-recipes train FILE.yaml learning_rate=1e-4`"),
    ("copy x --gpu a100", 2, "`lmf-recipes list --machine a100` names the recipes for a machine."),
    ("train x.yaml --quantization 4", 2, "Write `quantization_bit=4`."),
    ("train x.yaml --lora-rank 16", 2, "Write `lora_rank=16`."),
    ("train x.yaml --dataset x", 2, "Write `dataset=x`."),
    ("check x.yaml --epochs 3", 2, "`lmf-recipes train FILE.yaml num_train_epochs=3`"),
    ("train x.yaml --foo_bar 1", 2, "No such option '--foo_bar'."),
    ("train x.yaml --model qwen3-8b", 2, "plan --model qwen3-8b --machine MACHINE --write FILE.yaml` makes"),
    ("train x.yaml --data a.jsonl", 2, "--data a.jsonl --write FILE.yaml` makes a recipe"),
    ("copy --model qwen3-8b", 2, "`lmf-recipes list --model qwen3-8b` names the recipes"),
    ("submit x.yaml --to Slurm", 1, "x.yaml"),
    ("submit x.yaml --slurm", 2, "Write `--to slurm`."),
    ("explain x.yaml --dry-run", 2, "Nothing is changed or started without it."),
    ("doctor --gpu", 2, "The devices of this machine are looked at without it; `--machine 8xa100-80g` names others."),
    ("doctor --fix", 2, "`doctor` changes nothing; each of its lines ends with what to do."),
    ("doctor --verbose", 2, "Write `--format json`."),
    ("explain x.yaml -v", 2, "Write `--full`."),
    ("check x.yaml --verbose", 2, "Write `--pedantic`."),
    ("check -q x.yaml", 2, "`>/dev/null` behind the command hides its answer; the exit code says how it ended."),
    ("train --config x.yaml", 2, "A file is named without an option: `lmf-recipes train x.yaml`."),
    ("check --file x.yaml", 2, "A file is named without an option: `lmf-recipes check x.yaml`."),
    ("plan -m qwen3-8b", 2, "Write `--model qwen3-8b`."),
    ("plan --model_name_or_path qwen3-8b", 2, "Write `--model qwen3-8b`."),
    ("train --stage sft --model_name_or_path X", 2, "Write `stage=sft`."),
    ("train x.yaml --deepspeed ds.json", 2, "Write `deepspeed=ds.json`."),
    ("data a.jsonl --cutoff-len 8192", 2, "Write `cutoff_len=8192`. The recipe comes first;"),
    ("data a.jsonl --template qwen", 2, "A template is a model's, and `--model M` names the model."),
    ("plan --load-in-4bit", 2, "Write `--method qlora`."),
    ("submit x.yaml --to slurm --partition gpu", 2, "`--site FILE` names a file that has it"),
    ("submit x.yaml --to slurm --nodes 2", 2, "Write `--machine 2xCARDSxNAME`."),
    ("submit x.yaml --to slurm --time 4:00:00", 2, "Write `--hours HOURS`."),
    ("list --stage dpo", 2, "Write `--method dpo`."),
    ("list --all", 2, "`lmf-recipes list | cat` has all rows and columns."),
    ("list --output x.csv", 2, "`> FILE` behind the command keeps its answer."),
    (f"copy {RECIPE} --force", 2, "Nothing is asked, and what you changed is never overwritten; name another place."),
    ("plan model=qwen3-8b machine=4090", 2, "write `--model qwen3-8b --machine 4090`"),
    ("plan qwen3-8b on 4090", 2, "write `--model qwen3-8b --machine 4090`"),
    ("how much for qwen3-8b", 2, "did you mean `lmf-recipes plan --model qwen3-8b`?"),
    ("torchrun x.yaml", 2, "`lmf-recipes train x.yaml` starts the launcher"),
    ("prüfen x.yaml", 2, "`lmf-recipes check x.yaml` checks a file"),
    ("docker run", 2, "docs/howto/install.md says how"),
    ("train x.yaml --wandb", 2, "Write `report_to=wandb`."),
    # An option before the command, and a setting before or without a recipe.
    ("--model qwen3-8b plan", 2, "Options come behind the command: `lmf-recipes plan --model qwen3-8b`."),
    ("--model qwen3-8b", 2, "Options come behind the command: `lmf-recipes plan --model qwen3-8b`."),
    ("train --model_name_or_path Qwen/Qwen3-8B", 2, "Write `model_name_or_path=Qwen/Qwen3-8B`. The recipe comes"),
    ("train dataset=mydata", 1, "--data FILE --write mine.yaml` makes a recipe"),
    ("train mine.yaml", 1, "--data FILE --write mine.yaml` makes a recipe"),
    ("train num_train_epochs=1 mine.yaml", 2, "the recipe comes first: `mine.yaml num_train_epochs=1`"),
    ("train x.yaml --epochs", 2, "Write `num_train_epochs=N`."),
    ("train x.yaml --stage dpo", 2, "Write `stage=dpo`."),
    # A file of data, where a command or an option was to stand.
    ("plan --model qwen3-8b a.json --machine 4090", 2, "write `--data a.json`"),
    ("list a.jsonl", 2, "`lmf-recipes plan --data a.jsonl` how to train on it"),
    ("data add a.json", 2, "`lmf-recipes data a.json --register NAME`"),
    ("a.json", 2, "`lmf-recipes plan --data a.json` how to train on it"),
    ("add a.json", 2, "`lmf-recipes data a.json --register NAME`"),
    ("dpo a.json", 2, "`lmf-recipes plan --data a.json` how to train on it"),
    ("list --model qwen3 8b", 2, "write `--model qwen3-8b`"),
    ("list --model qwen3-8b nothing", 2, "(nothing); a machine is named by `--machine`"),
    ("dpo qwen3-8b", 2, "did you mean `lmf-recipes plan --stage dpo --model qwen3-8b`?"),
    ("finetune qwen3-8b", 2, "did you mean `lmf-recipes plan --model qwen3-8b`?"),
    ("fix x.yaml", 2, "`lmf-recipes check --fix x.yaml` makes the fixes"),
    ("dry-run x.yaml", 2, "`lmf-recipes train x.yaml --dry-run` checks"),
    ("plan --methd lora", 2, "Did you mean '--method'?"),
    # Values in another form.
    ("plan --host-ram 64GB", 2, "'64GB' is a number with a unit; write 64, a number of GiB."),
    ("plan --host-ram 1TB", 2, "write 1024, a number of GiB."),
    ("plan --samples 10k", 2, "'10k' is not written in digits; write 10000."),
    ("plan --samples 1.5M", 2, "write 1500000."),
    ("plan --samples 10,000", 2, "write 10000."),
    ("plan --cutoff-len 8k", 2, "write 8192."),
    ("plan --samples many", 2, "'many' is not a valid integer range."),
    ("plan --model qwen3-0.6b --machine 4090 --method QLoRA --stage SFT --samples 10_000", 0,
     "--samples 10000 --method qlora"),
    # A search that ends nowhere names the command to go on.
    ("plan --model deepseek-r1 --machine 8xh100 --method lora --host-ram 64", 1,
     "next: lmf-recipes plan --model deepseek-r1 --method lora --machines all"),
    ("plan --model deepseek-r1 --machines h100 --method lora", 1,
     "next: lmf-recipes plan --model deepseek-r1 --method lora --machines all"),
    ("list --model qwen3-8b --machine 4090 --method Full", 1,
     "plan --model qwen3-8b --machine 4090 --method full --write FILE.yaml"),
    ("list --model qwen3-8b --machine t4 --method dpo", 1, "--machine t4 --stage dpo --write FILE.yaml"),
    ("list --model qwen3-8b --machine t4 --method galore", 1, "plan --model qwen3-8b --machine t4 --write FILE.yaml"),
    # A family is no model, and another size or suffix names the models near it.
    ("plan --model qwen3 --machine 4090", 1, "it is a family of models: `qwen3-0.6b`, `qwen3-1.7b`, `qwen3-4b`"),
    ("list --model llama3", 1, "it is a family of models: `llama3-8b`, `llama3-70b`, `llama3.3-70b`"),
    ("plan --model qwen3-8b-chat --machine 4090", 1, "did you mean `qwen3-8b`?"),
    ("plan --model ./my-modell --machine 4090", 1, "it is no folder with a config.json"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "last"), TYPED, ids=[line for line, _, _ in TYPED])
def test_the_last_line_leads_on(line: str, code: int, last: str, tmp_path: Path) -> None:
    answer = program.answer(*line.split(), cwd=tmp_path)
    said = (answer.stdout + answer.stderr).decode().strip().splitlines()
    assert answer.returncode == code
    assert last in " ".join(" ".join(said[-3:]).split())


# Files and folders that lie there, a command line, and what the last line says.
LYING = [
    ({"mine.yaml": "stage: sft"}, "check mine", "did you mean `mine.yaml`?"),
    ({"mine.yaml": "stage: sft"}, "check Mine.yml", "no such file or directory; did you mean `mine.yaml`?"),
    (
        {"sub/mine.yaml": "stage: sft"},
        "check sub\\mine.yaml",
        "no such file or directory; did you mean `sub/mine.yaml`?",
    ),
    ({"mine.yaml": "stage:\n\t- sft"}, "check mine.yaml", ", indent by spaces [LOA002]"),
    (
        {"data/a.jsonl": "{}"},
        "explain data",
        "`lmf-recipes check` takes a folder of recipes, `lmf-recipes data` one of",
    ),
    ({"data/a.jsonl": "{}"}, "check data", "`lmf-recipes data` looks at a folder of data"),
    ({"a.csv": "instruction,output"}, "train a.csv", "is a file of data, not a recipe; `lmf-recipes data FILE` says"),
    ({"my a.yaml": "stage: sft"}, "explain my a.yaml", "a name with a space is quoted: `'my a.yaml'`"),
    ({"a.json": "[]"}, "copy a.json", "`lmf-recipes data a.json --register NAME`"),
    (
        {"a.json": "[]", "data/dataset_info.json": '{"my": {"file_name": "../a.json"}}'},
        "plan --model qwen3-8b --machine 4090 --data my",
        "`my` does not exist; it is a name of dataset_info.json: give its file, `a.json`",
    ),
    ({"a.json": "[]"}, f"train {RECIPE} dataset=a.json", f"run `lmf-recipes copy {RECIPE} . --data a.json`"),
    ({"ds.json": '{"zero_optimization": {"stage": 2}}'}, "train ds.json", "name the recipe (.yaml) that uses it"),
    (
        {"ds.json": '{"zero_optimization": {"stage": 2}}'},
        "data ds.json",
        "is a DeepSpeed file, not data; name the recipe",
    ),
]


@pytest.mark.parametrize(("files", "line", "last"), LYING, ids=[line for _, line, _ in LYING])
def test_what_lies_there_leads_on(files: dict[str, str], line: str, last: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    answer = program.answer(*line.split(), cwd=tmp_path)
    said = (answer.stdout + answer.stderr).decode()
    assert answer.returncode == 1
    assert last in " ".join(said.split())


def test_explain_says_what_the_device_cannot_do_and_asks_for_nothing_that_it_cannot_use(tmp_path: Path) -> None:
    done = program.answer("explain", RECIPE, "--machine", "8xv100-32g", "flash_attn=fa2", "bf16=null", cwd=tmp_path)
    shown = done.stdout.decode()
    assert "v100-32g has no FlashAttention-2, so LLaMA-Factory goes on without it" in shown
    assert "flash-attn" not in shown
