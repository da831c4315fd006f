"""Make a Qwen3 model of 180 thousand random parameters, with a tokenizer that knows Qwen's chat tokens.

It learns nothing of use, but LLaMA-Factory treats it as the real thing: same classes, same files. The same versions of
torch and tokenizers always give the same bytes.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

DATA = Path(__file__).resolve().parent.parent / "data" / "tiny_demo.json"
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, 336 tokens, trained on the demo data."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=336,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((text for row in rows for text in row.values()), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, chat_template=CHAT_TEMPLATE, model_max_length=2048
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Four layers of width 64, weights drawn with a fixed seed, bf16."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).to(torch.bfloat16)


def main(target: Path) -> None:
    """Write model and tokenizer to `target`, which appears only when it is complete."""
    unfinished = target.with_name(target.name + ".unfinished")
    for old in (unfinished, target):
        shutil.rmtree(old, ignore_errors=True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(target)
    print(f"{target}: Qwen3, {model.num_parameters():,} parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
