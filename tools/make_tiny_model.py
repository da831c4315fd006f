"""Draw the weights of demo/tiny-qwen3, a Qwen3 of 170 thousand parameters, whose tokenizer knows Qwen's chat tokens.

It learns nothing of use, but LLaMA-Factory treats it as the real thing: same classes, same files. The weights are
+-0.02 by chance, which keeps them small in a repository and a wheel. The tokenizer, of 336 tokens, was trained on
data/tiny_demo.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from random import Random

MODEL = Path(__file__).parents[1] / "demo" / "tiny-qwen3"
ONE, PLUS, MINUS = b"\x80\x3f", b"\xa4\x3c", b"\xa4\xbc"  # 1, 0.02 and -0.02 in bf16, little-endian


def weights(config: Mapping[str, int]) -> bytes:
    """All tensors, in the format of safetensors: the length of a JSON header, the header, the data. Always the same."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data, draw = bytearray(), Random(0)
    for name, shape in shapes(config):
        begin = len(data)
        data += b"".join(ONE if len(shape) == 1 else (MINUS, PLUS)[draw.random() < 0.5] for _ in range(prod(shape)))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(data)


def shapes(config: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Qwen3 whose head is its embedding; those of one dimension are norms."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {
        "input_layernorm": (width,), "post_attention_layernorm": (width,),
        "self_attn.q_norm": (head,), "self_attn.k_norm": (head,), "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width), "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner),
    }  # fmt: skip
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    for number in range(config["num_hidden_layers"]):
        yield from ((f"model.layers.{number}.{name}.weight", shape) for name, shape in layer.items())
    yield "model.norm.weight", (width,)


if __name__ == "__main__":
    (MODEL / "model.safetensors").write_bytes(weights(json.loads((MODEL / "config.json").read_text("utf-8"))))
