#!/usr/bin/env python3
"""Peak-memory ground truth for one-GPU LLM fine-tuning, computed without a GPU.

The real transformers model class, the real PEFT wrapper, LLaMA-Factory's own
adapter and checkpointing set-up code and a real optimizer run training steps under FakeTensorMode; a dispatch mode
follows every storage from birth to death. Not modelled: context, kernels' own buffers other than flash attention's,
padded batches, fused losses, several devices, loading.

    python benchmarks/simulate.py --model qwen3-8b --method lora --seq-len 2048 --by-depth
"""

import argparse
import contextlib
import functools
import gc
import inspect
import json
import os
import sys
import time
import types
import warnings
from pathlib import Path

import stages
import torch
from torch import nn
from torch.nn import functional
from tracker import Tracker, rounded

os.environ.setdefault("DISABLE_VERSION_CHECK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("LLAMAFACTORY_VERBOSITY", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

GIB = 1 << 30


def _cfg(model_type, hidden, width, layers, heads, kv_heads, vocab, tied, **more):
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        **more,
    }


_Q3 = {"head_dim": 128, "max_position_embeddings": 40960}
_Q25 = {"max_position_embeddings": 32768}
_L3 = {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
BUILTIN = {
    "qwen3-0.6b": _cfg("qwen3", 1024, 3072, 28, 16, 8, 151936, True, **_Q3),
    "qwen3-1.7b": _cfg("qwen3", 2048, 6144, 28, 16, 8, 151936, True, **_Q3),
    "qwen3-4b": _cfg("qwen3", 2560, 9728, 36, 32, 8, 151936, True, **_Q3),
    "qwen3-8b": _cfg("qwen3", 4096, 12288, 36, 32, 8, 151936, False, **_Q3),
    "qwen3-14b": _cfg("qwen3", 5120, 17408, 40, 40, 8, 151936, False, **_Q3),
    "qwen3-32b": _cfg("qwen3", 5120, 25600, 64, 64, 8, 151936, False, **_Q3),
    "qwen2.5-7b": _cfg("qwen2", 3584, 18944, 28, 28, 4, 152064, False, **_Q25),
    "qwen2.5-14b": _cfg("qwen2", 5120, 13824, 48, 40, 8, 152064, False, **_Q25),
    "qwen2.5-32b": _cfg("qwen2", 5120, 27648, 64, 40, 8, 152064, False, **_Q25),
    "qwen2.5-72b": _cfg("qwen2", 8192, 29568, 80, 64, 8, 152064, False, **_Q25),
    "llama-3.1-8b": _cfg("llama", 4096, 14336, 32, 32, 8, 128256, False, **_L3),
    "llama-3.1-70b": _cfg("llama", 8192, 28672, 80, 64, 8, 128256, False, **_L3),
    "llama-3.2-3b": _cfg("llama", 3072, 8192, 28, 24, 8, 128256, True, head_dim=128, **_L3),
    "mistral-7b": _cfg("mistral", 4096, 14336, 32, 32, 8, 32768, False, max_position_embeddings=32768,
        sliding_window=None),
    "gemma-2-9b": _cfg("gemma2", 3584, 14336, 42, 16, 8, 256000, True, head_dim=256,
        max_position_embeddings=8192, sliding_window=4096, query_pre_attn_scalar=256,
        hidden_activation="gelu_pytorch_tanh"),
    "qwen3-30b-a3b": _cfg("qwen3_moe", 2048, 6144, 48, 32, 4, 151936, False, head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True, max_position_embeddings=40960),
    # Qwen (1) 7B / 1.8B / 14B expressed in the llama class (same shapes; the original has qkv bias):
    "qwen1-1.8b": _cfg("qwen2", 2048, 5504, 24, 16, 16, 151936, False, max_position_embeddings=32768),
    "qwen1-7b": _cfg("qwen2", 4096, 11008, 32, 32, 32, 151936, False, max_position_embeddings=32768),
    "qwen1-14b": _cfg("qwen2", 5120, 13696, 40, 40, 40, 152064, False, max_position_embeddings=32768),
    # small models for verification by a real CPU run
    "tiny-100m": _cfg("qwen3", 512, 1536, 12, 8, 4, 32000, False, head_dim=64, max_position_embeddings=4096),
    "tiny-200m-llama": _cfg("llama", 768, 2048, 12, 12, 4, 64000, False, max_position_embeddings=4096),
    "tiny-smallvocab": _cfg("qwen3", 512, 1536, 6, 8, 4, 1024, False, head_dim=64,
        max_position_embeddings=4096),
    "tiny-100m-qwen2": _cfg("qwen2", 640, 1792, 10, 10, 2, 48000, True, max_position_embeddings=4096),
}  # fmt: skip


def build_config(model):
    from transformers import AutoConfig

    d = dict(BUILTIN[model]) if isinstance(model, str) else dict(model)
    mt = d.pop("model_type")
    for k in ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map"):
        d.pop(k, None)
    if mt == "qwen2":
        d.setdefault("use_sliding_window", False)
    cfg = AutoConfig.for_model(mt, **d)
    cfg.use_cache = False
    return cfg


def _shim_environment():
    """Make imports work on a CPU-only torch; one autocast state for all devices."""
    try:
        import torchvision
    except ModuleNotFoundError:  # left out on purpose: text models do not use it
        pass
    except Exception:  # a torchvision built for another torch: ignore its op registrations
        for k in [k for k in sys.modules if k.startswith("torchvision")]:
            del sys.modules[k]
        orig = torch.library.register_fake

        def tolerant(op, *a, **k):
            if isinstance(op, str) and op.startswith("torchvision::"):
                return lambda fn: fn
            return orig(op, *a, **k)

        torch.library.register_fake = tolerant
        try:
            import torchvision  # noqa: F401
        finally:
            torch.library.register_fake = orig
    enabled = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda _device_type=None: enabled("cpu")


_shim_environment()


class Amp(contextlib.ContextDecorator):
    """bf16 autocast. The tensors claim to be on the cpu, whose autocast lists agree with CUDA's for the operators of
    these models; whoever asks for the state of CUDA's autocast (PEFT, bitsandbytes, checkpoint) gets this one's."""

    def __enter__(self):
        self.c = torch.autocast("cpu", dtype=torch.bfloat16)
        self.c.__enter__()

    def __exit__(self, *a):
        self.c.__exit__(*a)


_REAL_SDPA = functional.scaled_dot_product_attention


def _amp_cast(*ts):
    if torch.is_autocast_enabled():
        return [t.to(torch.bfloat16) if t is not None and t.is_floating_point() else t for t in ts]
    return list(ts)


def cuda_like_sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_):
    q, k, v = _amp_cast(query, key, value)
    if attn_mask is None:  # FlashAttention-2 kernel: saves q, k, v, out and the fp32 log-sum-exp
        if q.shape[-1] != v.shape[-1]:  # PyTorch's own rule: other kernels take heads of unequal width
            return torch.ops.aten._scaled_dot_product_efficient_attention(
                q, k, v, None, True, dropout_p, is_causal, scale=scale
            )[0]
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    bias = attn_mask
    if bias.dtype == torch.bool:  # CUDA turns the bool mask into an additive one of the query's dtype
        bias = torch.zeros_like(bias, dtype=q.dtype)
    bias = bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, dropout_p, False, scale=scale)[0]


def fa2_forward(_module, query, key, value, _mask, dropout=0.0, scaling=None, **_):
    q, k, v = _amp_cast(query, key, value)
    if q.dtype == torch.float32:
        q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True, scale=scaling)[0]
    return out.transpose(1, 2), None


def _skips_mask(padded, _mask, query_length, kv_length, _offset=0, window=None):
    """masking_utils._ignore_causal_mask_sdpa, told whether there is padding: a FakeTensor's values cannot say it."""
    return not padded and query_length == kv_length and (window is None or kv_length < window)


def _install_attention(attn, padded=False):
    from transformers import masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if "simfa2" not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register("simfa2", fa2_forward)
        masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("simfa2", lambda *_, **__: None)
    # a FakeTensor is not a trace: without padding the real run skips the mask and lets SDPA be causal
    masking_utils.is_tracing = lambda *_, **__: False
    masking_utils._ignore_causal_mask_sdpa = functools.partial(_skips_mask, padded)
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # not asked when a mask is passed
    return {"sdpa": "sdpa", "eager": "eager", "fa2": "simfa2"}[attn]


@functools.cache
def _kernels_as_on_cuda():
    """Kernels compute nothing: what they allocate, their callers allocate, on the path that CUDA tensors take."""
    from liger_kernel.ops import fused_linear_cross_entropy as fused
    from triton.runtime.jit import KernelInterface

    KernelInterface.__getitem__ = lambda _kernel, _grid: lambda *_, **__: None
    fused._can_use_mm_out = lambda *_: True
    source = inspect.getsource(fused.fused_linear_cross_entropy_forward).replace("out_dtype=torch.float32,", "")
    for asked in ('grad_weight.device.type == "cuda"', "torch.cuda.get_device_capability(grad_weight.device)[0] >= 8"):
        source = source.replace(asked, "True")
    exec(source, vars(fused))


def _fuse(cfg, stage):
    """LLaMA-Factory's enable_liger_kernel."""
    from llamafactory.hparams import ModelArguments
    from llamafactory.model.model_utils.liger_kernel import apply_liger_kernel

    _kernels_as_on_cuda()
    arguments = ModelArguments(model_name_or_path="none", enable_liger_kernel=True)
    apply_liger_kernel(cfg, arguments, is_trainable=True, require_logits=stage != "sft")


def _quantize_linears(model, compute_dtype, double_quant=True, quant_type="nf4", real=False):
    import bitsandbytes as bnb
    from bitsandbytes.functional import QuantState
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    skip = {id(model.get_output_embeddings())}
    extra = []
    for mod in list(model.modules()):
        for cname, child in list(mod.named_children()):
            if type(child) is not nn.Linear or id(child) in skip:
                continue
            o, i = child.out_features, child.in_features
            with unset_fake_temporarily(), torch.device("meta"):
                q = bnb.nn.Linear4bit(
                    i,
                    o,
                    bias=False,
                    compute_dtype=compute_dtype,
                    compress_statistics=double_quant,
                    quant_type=quant_type,
                    quant_storage=compute_dtype,
                )
            q.bias = child.bias
            nb = -(-o * i // 64)
            if real:
                q.weight = bnb.nn.Params4bit(
                    child.weight.data.clone(),
                    requires_grad=False,
                    compress_statistics=double_quant,
                    quant_type=quant_type,
                    quant_storage=compute_dtype,
                    module=q,
                ).to("cpu")
                st = q.weight.quant_state
            else:
                w = nn.Parameter(torch.empty(o * i // 4, 1, dtype=compute_dtype), requires_grad=False)
                code = torch.empty(16, dtype=torch.float32)
                if double_quant:
                    st2 = QuantState(
                        absmax=torch.empty(-(-nb // 256), dtype=torch.float32),
                        code=torch.empty(256),
                        blocksize=256,
                        dtype=torch.float32,
                    )
                    st = QuantState(
                        absmax=torch.empty(nb, dtype=torch.uint8),
                        shape=torch.Size((o, i)),
                        code=code,
                        blocksize=64,
                        quant_type=quant_type,
                        dtype=compute_dtype,
                        offset=torch.empty(()),
                        state2=st2,
                    )
                else:
                    st = QuantState(
                        absmax=torch.empty(nb, dtype=torch.float32),
                        shape=torch.Size((o, i)),
                        code=code,
                        blocksize=64,
                        quant_type=quant_type,
                        dtype=compute_dtype,
                    )
                w.quant_state, w.bnb_quantized, w.compress_statistics = st, True, double_quant
                w.quant_type, w.blocksize, w.quant_storage, w.module = quant_type, 64, compute_dtype, None
                q.weight = w
            q.quant_state = st
            extra += [t for t in (st.absmax, st.code, st.offset) if t is not None]
            if st.state2 is not None:
                extra += [st.state2.absmax, st.state2.code]
            setattr(mod, cname, q)
    model.is_loaded_in_4bit = True
    model.quantization_method = "bitsandbytes"
    return extra


def _quantize_linears_8bit(model):
    """bitsandbytes' 8-bit linear modules on the path that CUDA takes, without outliers: these are few."""
    import bitsandbytes as bnb
    from bitsandbytes.autograd import _functions
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    _functions.MatMul8bitFp = _functions.MatMul8bitLt  # the path of CPUs
    head, extra = id(model.get_output_embeddings()), []
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or id(child) == head:
                continue
            outputs, inputs = child.out_features, child.in_features
            with unset_fake_temporarily(), torch.device("meta"):
                quantized = bnb.nn.Linear8bitLt(inputs, outputs, bias=False, has_fp16_weights=False)
            quantized.bias = child.bias
            weight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.int8), requires_grad=False)
            weight.CB, scales = None, torch.empty(outputs)
            quantized.state.CB, quantized.state.SCB, quantized.weight = weight.data, scales, weight
            extra.append(scales)
            setattr(module, name, quantized)
    model.is_loaded_in_8bit = True
    model.quantization_method = "bitsandbytes"
    return extra


# No autocast, everything in one type: half-precision ZeRO engines (without their master weights), no mixed precision.
UNIFORM = {"engine": torch.bfloat16, "fp32": torch.float32}
DEFAULTS = {
    "model": "qwen3-0.6b",
    "method": "lora",
    "lora_rank": 8,
    "lora_targets": "all",
    "precision_mode": "bf16",
    "seq_len": 1024,
    "micro_batch": 1,
    "grad_ckpt": True,
    "attn": "sdpa",
    "optimizer": "adamw",
    "grad_accum": 1,
    "freeze_layers": 2,
    "stage": "sft",
    "padded": False,
    "liger": False,
    "additional_target": "",
    "steps": 2,
    "warm": False,
}


def build_model(c, real=False):
    """What LLaMA-Factory's load_model does for a bf16 checkpoint, minus reading the weights."""
    from llamafactory.hparams import FinetuningArguments, ModelArguments
    from llamafactory.model.adapter import init_adapter
    from llamafactory.model.model_utils.checkpointing import prepare_model_for_training
    from transformers import AutoModelForCausalLM

    cfg = build_config(c["model"])
    impl = _install_attention(c["attn"], c["padded"])
    if c["liger"]:
        _fuse(cfg, c["stage"])
    if cfg.model_type.endswith("moe") or cfg.model_type in ("mixtral", "deepseek_v2", "deepseek_v3"):
        cfg._experts_implementation = "grouped_mm"
    cfg._attn_implementation = impl
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.bfloat16, attn_implementation=impl)
    ma = ModelArguments(model_name_or_path="none", disable_gradient_checkpointing=not c["grad_ckpt"])
    ma.compute_dtype = torch.bfloat16
    extra = []
    method = c["method"]
    if method == "qlora4":
        ma.quantization_bit = 4
        extra = _quantize_linears(model, torch.bfloat16, ma.double_quantization, ma.quantization_type, real)
    elif method == "qlora8":
        ma.quantization_bit = 8
        extra = _quantize_linears_8bit(model)
    fa = FinetuningArguments(
        finetuning_type="lora" if method in ("qlora4", "qlora8", "dora") else method,
        use_dora=method == "dora",
        lora_rank=c["lora_rank"] or 8,
        lora_target={"all": "all", "qv": "q_proj,v_proj"}.get(c["lora_targets"], c["lora_targets"] or "all"),
        freeze_trainable_layers=c["freeze_layers"],
        additional_target=c["additional_target"] or None,
        pure_bf16=c["precision_mode"] == "pure_bf16",
    )
    prepare_model_for_training(model, ma)
    model = init_adapter(cfg, model, ma, fa, True)
    if c["precision_mode"] in UNIFORM:
        with torch.no_grad():
            for p in model.parameters():
                p.data = p.data.to(UNIFORM[c["precision_mode"]])
    if c["stage"] == "rm":
        model = stages.with_value_head(model)
    model.train()
    return cfg, model, extra


def _reference(c, cfg):
    """LLaMA-Factory's create_ref_model: none beside LoRA, whose base model is the reference."""
    from transformers import AutoModelForCausalLM

    if not stages.compares(c["stage"]) or c["method"] not in ("full", "freeze"):
        return None
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.bfloat16, attn_implementation=cfg._attn_implementation)
    return model.requires_grad_(False).eval()


@contextlib.contextmanager
def _plain_module_apply():
    """nn.Module.to cannot swap FakeTensor parameters; set .data instead while the model is built."""
    orig = nn.Module._apply

    def _apply(self, fn, recurse=True):
        for m in self.modules() if recurse else [self]:
            for p in m._parameters.values():
                if p is not None:
                    with torch.no_grad():
                        p.data = fn(p.data)
            for k, b in m._buffers.items():
                if b is not None:
                    m._buffers[k] = fn(b)
        return self

    nn.Module._apply = _apply
    try:
        yield
    finally:
        nn.Module._apply = orig


OPTIMIZERS = ("adamw", "adamw_foreach", "adamw_8bit", "adafactor", "sgd")


def make_optimizer(name, model):
    params = [p for p in model.parameters() if p.requires_grad]
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(params, lr=1e-5, scale_parameter=False, relative_step=False)
    if name == "adamw_8bit":
        precise = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        return Analytic8bit(params, precise)
    if name == "sgd":
        return torch.optim.SGD(params, lr=1e-5, foreach=False)
    return torch.optim.AdamW(params, lr=1e-5, **{"foreach" if name.endswith("foreach") else "fused": True})


class Analytic8bit(torch.optim.Optimizer):
    """State storage of bitsandbytes' 8-bit AdamW: two uint8 moments + fp32 absmax per 256 elements for
    tensors of at least 4096 elements, fp32 moments below that and for embeddings, which transformers' Trainer excepts
    (`precise`: their ids); the update kernel works in place."""

    def __init__(self, params, precise):
        self.precise = precise
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None or self.state[p]:
                    continue
                n = p.numel()
                s = self.state[p]
                for k in ("state1", "state2"):
                    if n >= 4096 and id(p) not in self.precise:
                        s[k] = torch.zeros(p.shape, dtype=torch.uint8, device=p.device)
                        s[k + "_absmax"] = torch.zeros(-(-n // 256), device=p.device)
                    else:
                        s[k] = torch.zeros(p.shape, dtype=torch.float32, device=p.device)


def run_cell(c, real=False, top=0, labels=False):
    """One training run: peak bytes by category. `real` computes on the CPU; `labels` gives the peak of every part."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    c, started = {**DEFAULTS, **c}, time.time()
    FakeTensorMode.__deepcopy__ = lambda mode, _memo: mode  # PEFT copies modules that are saved in full
    gc.collect()
    with contextlib.nullcontext() if real else FakeTensorMode():
        functional.scaled_dot_product_attention = _REAL_SDPA if real else cuda_like_sdpa
        try:
            return _run(c, real, top, labels, started)
        finally:
            functional.scaled_dot_product_attention = _REAL_SDPA


def _autocast(model):
    """accelerate.Accelerator.prepare_model with mixed_precision="bf16"."""
    from accelerate.utils.operations import convert_outputs_to_fp32

    model.forward = types.MethodType(Amp()(model.forward.__func__), model)
    model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__func__), model)


def _states(optimizer):
    return [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]


def _step(model, optimizer, trainable, tracker):
    """The optimizer's step. Returns the bytes of all gradients."""
    torch.nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    for state in _states(optimizer):
        tracker.see(state, "optim", "state")
        tracker.mark(state, "optim")
    gradients = sum(rounded(p.grad.numel() * p.grad.element_size()) for p in trainable if p.grad is not None)
    model.zero_grad(set_to_none=True)
    return gradients


def _micro_step(model, reference, c, vocab, real, tracker, step):
    tracker.phase, tracker.seg = f"s{step}.fwd", "pre"
    shape = (c["micro_batch"] * stages.sequences(c["stage"]), c["seq_len"])
    ids = torch.randint(0, vocab, shape) if real else torch.empty(shape, dtype=torch.int64)
    mask = torch.ones(shape, dtype=torch.int64)
    if c["stage"] == "sft":
        items = torch.tensor(float(shape[0] * shape[1])) if real else torch.empty(())
        loss = train_forward(model, ids, mask, ids.clone(), items)
    else:
        loss = stages.loss(c["stage"], model, reference, {"input_ids": ids, "attention_mask": mask, "labels": ids})
    del ids, mask
    tracker.phase, tracker.seg = f"s{step}.bwd", "head"
    loss.backward()


def _run(c, real, top, want_labels, started):
    torch.manual_seed(0)
    with contextlib.nullcontext() if real else _plain_module_apply():
        cfg, model, extra = build_model(c, real)
    trainable = [p for p in model.parameters() if p.requires_grad]
    reference = _reference(c, cfg)
    counts = {
        "n_params": sum({id(p): p.numel() for p in model.parameters()}.values()),
        "n_trainable": sum(p.numel() for p in trainable),
    }
    if c["precision_mode"] == "bf16":
        _autocast(model)
        if reference:
            _autocast(reference)
    tracker = Tracker(vocab=cfg.vocab_size)
    for tensor in [*model.parameters(), *model.buffers(), *extra, *(reference.parameters() if reference else ())]:
        tracker.see(tensor, "param", "param")
    handles = [
        p.register_post_accumulate_grad_hook(lambda q: q.grad is not None and tracker.mark(q.grad, "grad"))
        for p in trainable
    ]
    optimizer = make_optimizer(c["optimizer"], model)
    _mark_layers(model, tracker)
    with tracker:
        if c["warm"]:  # create the optimizer state first, so that one step is already the steady state
            tracker.phase = "warm.opt"
            for p in trainable:
                p.grad = torch.zeros_like(p)
            _step(model, optimizer, trainable, tracker)
        for step in range(c["steps"]):
            for _ in range(c["grad_accum"]):
                with contextlib.nullcontext() if real else stages.numbers_unread():
                    _micro_step(model, reference, c, cfg.vocab_size, real, tracker, step)
            tracker.phase, tracker.seg = f"s{step}.opt", ""
            gradients = _step(model, optimizer, trainable, tracker)
    for handle in handles:
        handle.remove()
    totals = {
        "grads_total": gradients,
        "optim_total": sum(rounded(v.numel() * v.element_size()) for v in _states(optimizer)),
    }
    if want_labels:
        return {"labels": tracker.label_peaks(), **totals, **counts}
    return {**_summary(tracker, totals, top), **counts, "seconds": round(time.time() - started, 1)}


def _gib(size):
    return round(size / GIB, 4)


def _categories(cats, totals):
    states = ("param", "grad", "optim")
    return {
        "params_gib": _gib(cats.get("param", 0)),
        "grads_gib": _gib(cats.get("grad", 0)),
        "optim_gib": _gib(cats.get("optim", 0)),
        "activations_gib": _gib(sum(v for k, v in cats.items() if k not in states)),
        "logits_gib": _gib(cats.get("logits", 0)),
        "weight_cast_gib": _gib(cats.get("wcast", 0)),
        "workspace_gib": _gib(cats.get("workspace", 0)),
        "grads_total_gib": _gib(totals["grads_total"]),
        "optim_total_gib": _gib(totals["optim_total"]),
    }


def _summary(tracker, totals, top):
    best, at, live = tracker.peak()
    cats, groups = {}, {}
    for i in live:
        size, cat, op, shape, dtype, _ = tracker.info[i]
        cats[cat] = cats.get(cat, 0) + size
        key = (cat, op, "" if cat in ("param", "grad", "optim") else shape, dtype)
        number, total = groups.get(key, (0, 0))
        groups[key] = (number + 1, total + size)
    last = tracker.info[tracker.log[at] - 1]
    largest = sorted(groups.items(), key=lambda pair: -pair[1][1])[:top]
    return {
        "peak_bytes": best,
        "peak_gib": _gib(best),
        **_categories(cats, totals),
        "reserved_gib": _gib(tracker.reserved_peak()),
        "peak_phase": last[5],
        "peak_op": last[2],
        "top": [(_gib(total), number, *key) for key, (number, total) in largest],
    }


def _mark_layers(model, tracker):
    """Tell the tracker which decoder layer is at work (no tensors are made or kept alive)."""
    layers = next(m for n, m in model.named_modules() if n.endswith("layers") and isinstance(m, nn.ModuleList))
    count = len(layers)

    def name(i):
        return f"L{i}" if i < 2 else f"L-{count - i}" if i >= count - 2 else "mid"

    def pre(i):
        def hook(_module, args, kwargs):
            tracker.seg = name(i)
            hidden = args[0] if args else kwargs.get("hidden_states")
            if torch.is_grad_enabled() and isinstance(hidden, torch.Tensor) and hidden.requires_grad:
                hidden.register_hook(lambda _: setattr(tracker, "seg", name(i - 1) if i else "emb"))

        return hook

    for i, layer in enumerate(layers):
        layer.register_forward_pre_hook(pre(i), with_kwargs=True)
    layers[-1].register_forward_hook(
        lambda *_: setattr(tracker, "seg", "head") if tracker.phase.endswith("fwd") else None
    )


def run_cell_by_depth(c):
    """The same peak from two shallow copies of the model. Live bytes at a given point of the first two, last two
    layers, head and optimizer are linear in the number of layers, and points in between lie between their
    neighbours; so each label's line is extended to the real depth and the highest label wins."""
    c, started = {**DEFAULTS, **c}, time.time()
    config = dict(BUILTIN[c["model"]]) if isinstance(c["model"], str) else dict(c["model"])
    frozen_below = c["freeze_layers"] if c["method"] == "freeze" else 0
    shallow = max(4, frozen_below + 4 if frozen_below > 2 else 0)
    small, large = (
        run_cell({**c, "model": {**config, "num_hidden_layers": depth}}, labels=True)
        for depth in (shallow, shallow + 2)
    )
    if {k for k in small["labels"] if k[1] != "mid"} != {k for k in large["labels"] if k[1] != "mid"}:
        raise RuntimeError("labels differ between depths")

    def extended(a, b):
        return a + (b - a) * (config["num_hidden_layers"] - shallow) // 2

    peaks = {label: extended(peak, large["labels"][label][0]) for label, (peak, _, _) in small["labels"].items()}
    moments = {}
    for label, peak in peaks.items():
        if label[0].startswith("s"):
            moments[moment(*label)] = max(moments.get(moment(*label), 0), peak)
    label = max(peaks, key=peaks.get)
    (_, near, op), (_, far, _) = small["labels"][label], large["labels"][label]
    cats = {k: extended(near.get(k, 0), far.get(k, 0)) for k in near.keys() | far.keys()}
    totals = {k: extended(small[k], large[k]) for k in ("grads_total", "optim_total", "n_params", "n_trainable")}
    return {
        "peak_bytes": peaks[label],
        "peak_gib": _gib(peaks[label]),
        **_categories(cats, totals),
        "peak_phase": label[0],
        "peak_seg": label[1],
        "peak_op": op,
        "n_params": totals["n_params"],
        "n_trainable": totals["n_trainable"],
        "seconds": round(time.time() - started, 1),
        "moments": moments,
    }


def moment(phase, segment):
    """The part of a training step that a label belongs to."""
    part = phase.split(".")[1]
    return part if part == "opt" else part + "_" + (segment if segment in ("head", "emb", "pre") else "layers")


def train_forward(model, ids, mask, labels, nitems):
    """transformers.Trainer.compute_loss: the outputs object (and its logits) dies on return."""
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=nitems)
    return outputs["loss"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="qwen3-0.6b", help="built-in name, or a config.json path")
    ap.add_argument("--method", default="lora", choices=["full", "freeze", "lora", "qlora4", "qlora8", "dora", "oft"])
    ap.add_argument("--lora-rank", type=int, default=8)
    ap.add_argument("--lora-targets", default="all")
    ap.add_argument("--precision-mode", default="bf16", choices=["bf16", "pure_bf16", *UNIFORM])
    ap.add_argument("--seq-len", type=int, default=1024)
    ap.add_argument("--micro-batch", type=int, default=1)
    ap.add_argument("--no-grad-ckpt", dest="grad_ckpt", action="store_false")
    ap.add_argument("--attn", default="sdpa", choices=["sdpa", "fa2", "eager"])
    ap.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
    ap.add_argument("--grad-accum", type=int, default=1, help="2 stands for any value above 1")
    ap.add_argument("--freeze-layers", type=int, default=2)
    ap.add_argument("--stage", default="sft", choices=stages.STAGES)
    ap.add_argument("--padded", action="store_true", help="batches hold padding")
    ap.add_argument("--liger", action="store_true", help="fused kernels and loss; needs liger-kernel and triton")
    ap.add_argument("--additional-target", default="", help="modules trained in full beside the adapter")
    ap.add_argument("--top", type=int, default=12, help="list the largest live groups at the peak")
    ap.add_argument("--by-depth", action="store_true", help="from two shallow copies of the model (fast)")
    ap.add_argument("--real", action="store_true", help="run on the CPU for real (small models only)")
    cell = vars(ap.parse_args())
    real, top, by_depth = cell.pop("real"), cell.pop("top"), cell.pop("by_depth")
    if cell["model"].endswith(".json"):
        cell["model"] = json.loads(Path(cell["model"]).read_text(encoding="utf-8"))
    found = run_cell_by_depth({**cell, "steps": 1, "warm": True}) if by_depth else run_cell(cell, real=real, top=top)
    largest = found.pop("top", [])
    print(json.dumps(found, indent=1))
    for size, number, category, op, shape, dtype in largest:
        print(f"{size:8.3f} GiB {number:5}x {category:8} {op:22} {dtype:10} {shape}")


if __name__ == "__main__":
    main()
