#!/usr/bin/env python3
"""Peak-memory ground truth for one-GPU LLM fine-tuning, computed without a GPU.

The real transformers model class, the real PEFT wrapper, LLaMA-Factory's own
adapter/checkpointing set-up code and a real optimizer run two (or more) training steps
under FakeTensorMode; a dispatch mode follows every storage from birth to death.
See README.md next to this file.
"""
import argparse
import bisect
import contextlib
import functools
import gc
import json
import os
import sys
import time
import types
import warnings
import weakref

os.environ.setdefault("DISABLE_VERSION_CHECK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("LLAMAFACTORY_VERBOSITY", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

GIB = 1 << 30

# ---------------------------------------------------------------------------------------
# Architecture facts (from the models' published config.json); "n" = published parameter count
# ---------------------------------------------------------------------------------------
def _cfg(model_type, h, i, layers, heads, kv, vocab, tied, n, **kw):
    d = dict(model_type=model_type, hidden_size=h, intermediate_size=i, num_hidden_layers=layers,
             num_attention_heads=heads, num_key_value_heads=kv, vocab_size=vocab,
             tie_word_embeddings=tied)
    d.update(kw)
    return d, n


_Q3 = dict(head_dim=128, max_position_embeddings=40960)
_Q25 = dict(max_position_embeddings=32768)
_L3 = dict(max_position_embeddings=131072, rms_norm_eps=1e-5)
BUILTIN = {
    "qwen3-0.6b": _cfg("qwen3", 1024, 3072, 28, 16, 8, 151936, True, 596_049_920, **_Q3),
    "qwen3-1.7b": _cfg("qwen3", 2048, 6144, 28, 16, 8, 151936, True, 1_720_574_976, **_Q3),
    "qwen3-4b": _cfg("qwen3", 2560, 9728, 36, 32, 8, 151936, True, 4_022_468_096, **_Q3),
    "qwen3-8b": _cfg("qwen3", 4096, 12288, 36, 32, 8, 151936, False, 8_190_735_360, **_Q3),
    "qwen3-14b": _cfg("qwen3", 5120, 17408, 40, 40, 8, 151936, False, 14_768_307_200, **_Q3),
    "qwen3-32b": _cfg("qwen3", 5120, 25600, 64, 64, 8, 151936, False, 32_762_123_264, **_Q3),
    "qwen2.5-7b": _cfg("qwen2", 3584, 18944, 28, 28, 4, 152064, False, 7_615_616_512, **_Q25),
    "qwen2.5-14b": _cfg("qwen2", 5120, 13824, 48, 40, 8, 152064, False, 14_770_033_664, **_Q25),
    "qwen2.5-32b": _cfg("qwen2", 5120, 27648, 64, 40, 8, 152064, False, 32_763_876_352, **_Q25),
    "qwen2.5-72b": _cfg("qwen2", 8192, 29568, 80, 64, 8, 152064, False, 72_706_203_648, **_Q25),
    "llama-3.1-8b": _cfg("llama", 4096, 14336, 32, 32, 8, 128256, False, 8_030_261_248, **_L3),
    "llama-3.1-70b": _cfg("llama", 8192, 28672, 80, 64, 8, 128256, False, 70_553_706_496, **_L3),
    "llama-3.2-3b": _cfg("llama", 3072, 8192, 28, 24, 8, 128256, True, 3_212_749_824, head_dim=128, **_L3),
    "mistral-7b": _cfg("mistral", 4096, 14336, 32, 32, 8, 32768, False, 7_248_023_552,
                       max_position_embeddings=32768, sliding_window=None),
    "gemma-2-9b": _cfg("gemma2", 3584, 14336, 42, 16, 8, 256000, True, 9_241_705_984, head_dim=256,
                       max_position_embeddings=8192, sliding_window=4096, query_pre_attn_scalar=256,
                       hidden_activation="gelu_pytorch_tanh"),
    "qwen3-30b-a3b": _cfg("qwen3_moe", 2048, 6144, 48, 32, 4, 151936, False, 30_532_122_624,
                          head_dim=128, num_experts=128, num_experts_per_tok=8,
                          moe_intermediate_size=768, norm_topk_prob=True,
                          max_position_embeddings=40960),
    # Qwen (1) 7B / 1.8B / 14B expressed in the llama class (same shapes; the original has qkv bias):
    "qwen1-1.8b": _cfg("qwen2", 2048, 5504, 24, 16, 16, 151936, False, None, max_position_embeddings=32768),
    "qwen1-7b": _cfg("qwen2", 4096, 11008, 32, 32, 32, 151936, False, None, max_position_embeddings=32768),
    "qwen1-14b": _cfg("qwen2", 5120, 13696, 40, 40, 40, 152064, False, None, max_position_embeddings=32768),
    # small models for verification by a real CPU run
    "tiny-100m": _cfg("qwen3", 512, 1536, 12, 8, 4, 32000, False, None, head_dim=64, max_position_embeddings=4096),
    "tiny-200m-llama": _cfg("llama", 768, 2048, 12, 12, 4, 64000, False, None, max_position_embeddings=4096),
    "tiny-smallvocab": _cfg("qwen3", 512, 1536, 6, 8, 4, 1024, False, None, head_dim=64, max_position_embeddings=4096),
    "tiny-100m-qwen2": _cfg("qwen2", 640, 1792, 10, 10, 2, 48000, True, None, max_position_embeddings=4096),
}


def build_config(model):
    from transformers import AutoConfig
    d = dict(BUILTIN[model][0]) if isinstance(model, str) else dict(model)
    mt = d.pop("model_type")
    for k in ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map"):
        d.pop(k, None)
    if mt == "qwen2":
        d.setdefault("use_sliding_window", False)
    cfg = AutoConfig.for_model(mt, **d)
    cfg.use_cache = False
    return cfg


# ---------------------------------------------------------------------------------------
# Environment shims
# ---------------------------------------------------------------------------------------
def _shim_environment():
    """Make imports work on a CPU-only torch; one autocast state for all devices."""
    try:
        import torchvision  # noqa: F401
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
    torch.is_autocast_enabled = lambda device_type=None: enabled("cpu")


_shim_environment()


class Amp(contextlib.ContextDecorator):
    """bf16 autocast. The tensors claim to be on the cpu, whose autocast lists agree with CUDA's for the operators of
    these models; whoever asks for the state of CUDA's autocast (PEFT, bitsandbytes, checkpoint) gets this one's."""

    def __enter__(self):
        self.c = torch.autocast("cpu", dtype=torch.bfloat16)
        self.c.__enter__()

    def __exit__(self, *a):
        self.c.__exit__(*a)


# ---------------------------------------------------------------------------------------
# CUDA caching allocator (public behaviour of PyTorch's default configuration)
# ---------------------------------------------------------------------------------------
class CachingAllocator:
    SMALL, S_BUF, L_BUF, MIN_LARGE, ROUND_L = 1 << 20, 2 << 20, 20 << 20, 10 << 20, 2 << 20

    def __init__(self):
        self.free = ([], [])  # sorted lists of (size, addr) for the small/large pools
        self.blk = {}  # addr -> [size, prev_addr, next_addr, is_free, pool]
        self.reserved = self.peak_reserved = 0
        self.next_seg = 1 << 40

    def alloc(self, size):
        pool = 0 if size <= self.SMALL else 1
        lst = self.free[pool]
        i = bisect.bisect_left(lst, (size, 0))
        if i < len(lst):
            bsize, addr = lst.pop(i)
            b = self.blk[addr]
        else:
            bsize = (self.S_BUF if size <= self.SMALL else self.L_BUF if size < self.MIN_LARGE
                     else -(-size // self.ROUND_L) * self.ROUND_L)
            addr = self.next_seg
            self.next_seg += bsize + (1 << 30)
            b = self.blk[addr] = [bsize, None, None, True, pool]
            self.reserved += bsize
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        rem = bsize - size
        if (pool == 0 and rem >= 512) or (pool == 1 and rem > self.SMALL):
            ra = addr + size
            nxt = b[2]
            self.blk[ra] = [rem, addr, nxt, True, pool]
            if nxt is not None:
                self.blk[nxt][1] = ra
            b[2] = ra
            b[0] = size
            bisect.insort(lst, (rem, ra))
        b[3] = False
        return addr

    def release(self, addr):
        b = self.blk[addr]
        lst = self.free[b[4]]
        b[3] = True
        n = b[2]
        if n is not None and self.blk[n][3]:
            nb = self.blk.pop(n)
            lst.pop(bisect.bisect_left(lst, (nb[0], n)))
            b[0] += nb[0]
            b[2] = nb[2]
            if nb[2] is not None:
                self.blk[nb[2]][1] = addr
        p = b[1]
        if p is not None and self.blk[p][3]:
            pb = self.blk[p]
            lst.pop(bisect.bisect_left(lst, (pb[0], p)))
            pb[0] += b[0]
            pb[2] = b[2]
            if b[2] is not None:
                self.blk[b[2]][1] = p
            del self.blk[addr]
            addr, b = p, pb
        bisect.insort(lst, (b[0], addr))


# ---------------------------------------------------------------------------------------
# Storage tracker
# ---------------------------------------------------------------------------------------
aten = torch.ops.aten


def _round512(n):
    return -(-n // 512) * 512 if n else 0


class Tracker(TorchDispatchMode):
    """Follows the life of every storage; keeps an event log so that the live set at the peak and
    the allocator's segments can be rebuilt afterwards."""

    def __init__(self, vocab=None, rounding=True, workspaces=True):
        super().__init__()
        self.live = {}  # storage key -> (id, weakref)
        self.info = []  # id -> [bytes, category, op, shape, dtype, phase]
        self.log = []  # +id+1 / -(id+1)
        self.cur = 0
        self.vocab, self.rounding, self.workspaces = vocab, rounding, workspaces
        self.phase = "init"
        self.seg = ""  # which decoder layer is at work
        self.segs = []  # id -> segment at birth
        self.n_ops = 0
        self.hist = {} if os.environ.get("SIM_HIST") else None

    # -- bookkeeping
    def _new(self, nbytes, cat, op, shape, dtype):
        b = _round512(nbytes) if self.rounding else nbytes
        self.info.append([b, cat, op, shape, dtype, self.phase])
        self.segs.append(self.seg)
        i = len(self.info) - 1
        self.log.append(i + 1)
        self.cur += b
        return i

    def _dead(self, key, i, ref):
        hit = self.live.get(key)
        if hit is None or hit[1] is not ref:
            return
        del self.live[key]
        if i is None:
            return
        self.log.append(-(i + 1))
        self.cur -= self.info[i][0]

    def see(self, t, cat="act", op="?"):
        if not isinstance(t, torch.Tensor) or t.device.type == "meta":
            return None
        try:
            st = t.untyped_storage()
        except Exception:
            return None
        key = st._cdata
        hit = self.live.get(key)
        if hit is not None:
            return hit[0]
        n = st.nbytes()
        if n == 0:
            return None
        if cat == "act" and op == "get_rng_state":
            return None
        if cat == "act" and self.vocab and t.dim() >= 2 and t.is_floating_point() and t.shape[-1] == self.vocab:
            cat = "logits"
        i = self._new(n, cat, op, tuple(t.shape), str(t.dtype).replace("torch.", ""))
        self.live[key] = (i, weakref.ref(st, functools.partial(self._dead, key, i)))
        return i

    def mark(self, t, cat):
        hit = self.live.get(t.untyped_storage()._cdata)
        if hit is not None and hit[0] is not None:
            self.info[hit[0]][1] = cat

    def reuse(self, old, new, op):
        """`new` takes over the bytes of `old`: the autograd engine adds in place into a gradient buffer that
        nobody else holds, which it refuses to do only because these tensors are a subclass."""
        ko, so, sn = old.untyped_storage()._cdata, old.untyped_storage(), new.untyped_storage()
        hit = self.live.get(ko)
        if hit is None or hit[0] is None or so.nbytes() != sn.nbytes() or sn._cdata in self.live:
            return False
        i = hit[0]
        self.live[ko] = (None, weakref.ref(so, functools.partial(self._dead, ko, None)))
        kn = sn._cdata
        self.live[kn] = (i, weakref.ref(sn, functools.partial(self._dead, kn, i)))
        self.info[i][2] = op
        return True

    def transient(self, nbytes, op):
        if nbytes > 0 and self.workspaces:
            i = self._new(nbytes, "workspace", op, (nbytes,), "bytes")
            self.log.append(-(i + 1))
            self.cur -= self.info[i][0]

    def seen(self, t):
        return t.untyped_storage()._cdata in self.live

    # -- dispatch
    def __torch_dispatch__(self, func, types_, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            return torch.device("cpu")
        out = func(*args, **(kwargs or {}))
        self.n_ops += 1
        name = func._schema.name if hasattr(func, "_schema") else str(func)
        name = name.split("::")[-1]
        cat = "act"
        if (name == "add" and self.phase.endswith("bwd") and not torch.is_grad_enabled()
                and isinstance(args[1], torch.Tensor) and args[0].shape == args[1].shape
                and args[0].dtype == args[1].dtype and torch._C._storage_Use_Count(args[0].untyped_storage()._cdata) <= 2
                and self.reuse(args[0], out, "grad_accumulate")):
            return out
        if self.hist is not None:
            self.hist[name] = self.hist.get(name, 0) + 1
        if name == "_to_copy" and isinstance(args[0], torch.Tensor):
            h = self.live.get(args[0].untyped_storage()._cdata)
            if h is not None and h[0] is not None and self.info[h[0]][1] == "param":
                cat = "wcast"
        elif name == "dequantize_4bit":
            cat = "wcast"
        if isinstance(out, torch.Tensor):
            self.see(out, cat, name)
        elif isinstance(out, (list, tuple)):
            for o in out:
                if isinstance(o, torch.Tensor):
                    self.see(o, cat, name)
        if self.workspaces:
            if name == "_scaled_dot_product_flash_attention_backward":
                q, k = args[1], args[2]
                B, H, S, D = q.shape
                sr, dr = -(-S // 128) * 128, -(-D // 32) * 32
                extra = 4 * B * H * sr * dr + 4 * B * H * sr  # fp32 dq accumulator, softmax_d
                if k.shape[1] != H:
                    extra += 2 * q.element_size() * B * k.shape[2] * H * D  # expanded dk, dv
                self.transient(extra, "flash_bwd")
            elif name == "gemm_4bit":
                n, k = args[2]
                self.transient(2 * n * k + 4 * (n * k // 64), "gemm_4bit_dequant")
        return out

    # -- results
    def peak(self):
        cur = best = 0
        at = -1
        for pos, e in enumerate(self.log):
            cur += self.info[e - 1][0] if e > 0 else -self.info[-e - 1][0]
            if cur > best:
                best, at = cur, pos
        live = set()
        for e in self.log[: at + 1]:
            if e > 0:
                live.add(e - 1)
            else:
                live.discard(-e - 1)
        return best, at, live

    def label_peaks(self):
        """Peak per (phase, segment) with the categories of the live set at that moment."""
        cur, cats, out = 0, {}, {}
        for e in self.log:
            i = abs(e) - 1
            b, cat = self.info[i][0], self.info[i][1]
            if e < 0:
                cur -= b
                cats[cat] -= b
                continue
            cur += b
            cats[cat] = cats.get(cat, 0) + b
            lab = (self.info[i][5], self.segs[i])
            old = out.get(lab)
            if old is None or cur > old[0]:
                out[lab] = (cur, dict(cats), self.info[i][2])
        return out

    def reserved_peak(self):
        a = CachingAllocator()
        where = {}
        for e in self.log:
            if e > 0:
                where[e - 1] = a.alloc(max(512, _round512(self.info[e - 1][0])))
            else:
                a.release(where.pop(-e - 1))
        return a.peak_reserved


# ---------------------------------------------------------------------------------------
# Attention as CUDA does it
# ---------------------------------------------------------------------------------------
_REAL_SDPA = F.scaled_dot_product_attention


def _amp_cast(*ts):
    if torch.is_autocast_enabled():
        return [t.to(torch.bfloat16) if t is not None and t.is_floating_point() else t for t in ts]
    return list(ts)


def cuda_like_sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    q, k, v = _amp_cast(query, key, value)
    if attn_mask is None:  # FlashAttention-2 kernel: saves q, k, v, out and the fp32 log-sum-exp
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    bias = attn_mask
    if bias.dtype == torch.bool:  # CUDA turns the bool mask into an additive one of the query's dtype
        bias = torch.zeros_like(bias, dtype=q.dtype)
    bias = bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, dropout_p, False, scale=scale)[0]


def fa2_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kw):
    q, k, v = _amp_cast(query, key, value)
    if q.dtype == torch.float32:
        q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))
    out = aten._scaled_dot_product_flash_attention(q, k, v, dropout, True, scale=scaling)[0]
    return out.transpose(1, 2), None


def _install_attention(attn):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers import masking_utils
    if "simfa2" not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register("simfa2", fa2_forward)
        masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("simfa2", lambda *a, **k: None)
    # a FakeTensor is not a trace: without padding the real run skips the mask and lets SDPA be causal
    masking_utils.is_tracing = lambda *a, **k: False
    masking_utils.find_packed_sequence_indices = lambda *a, **k: None  # not asked when a mask is passed
    return {"sdpa": "sdpa", "eager": "eager", "fa2": "simfa2"}[attn]


# ---------------------------------------------------------------------------------------
# QLoRA: bitsandbytes modules with fake packed weights
# ---------------------------------------------------------------------------------------
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
                q = bnb.nn.Linear4bit(i, o, bias=False, compute_dtype=compute_dtype, compress_statistics=double_quant,
                                      quant_type=quant_type, quant_storage=compute_dtype)
            q.bias = child.bias
            nb = -(-o * i // 64)
            if real:
                q.weight = bnb.nn.Params4bit(child.weight.data.clone(), requires_grad=False, compress_statistics=double_quant,
                                             quant_type=quant_type, quant_storage=compute_dtype, module=q).to("cpu")
                st = q.weight.quant_state
            else:
                w = nn.Parameter(torch.empty(o * i // 4, 1, dtype=compute_dtype), requires_grad=False)
                code = torch.empty(16, dtype=torch.float32)
                if double_quant:
                    st2 = QuantState(absmax=torch.empty(-(-nb // 256), dtype=torch.float32), code=torch.empty(256),
                                     blocksize=256, dtype=torch.float32)
                    st = QuantState(absmax=torch.empty(nb, dtype=torch.uint8), shape=torch.Size((o, i)), code=code,
                                    blocksize=64, quant_type=quant_type, dtype=compute_dtype,
                                    offset=torch.empty(()), state2=st2)
                else:
                    st = QuantState(absmax=torch.empty(nb, dtype=torch.float32), shape=torch.Size((o, i)), code=code,
                                    blocksize=64, quant_type=quant_type, dtype=compute_dtype)
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


# ---------------------------------------------------------------------------------------
# One cell
# ---------------------------------------------------------------------------------------
DEFAULTS = dict(model="qwen3-0.6b", method="lora", lora_rank=8, lora_targets="all", precision_mode="bf16",
                seq_len=1024, micro_batch=1, grad_ckpt=True, attn="sdpa", optimizer="adamw", grad_accum=1,
                freeze_layers=2, steps=2, warm=False)


def _import_lf():
    from llamafactory.hparams import FinetuningArguments, ModelArguments
    from llamafactory.model.adapter import init_adapter
    from llamafactory.model.model_utils.checkpointing import prepare_model_for_training
    return ModelArguments, FinetuningArguments, init_adapter, prepare_model_for_training


def build_model(c, real=False):
    """What LLaMA-Factory's load_model does for a bf16 checkpoint, minus reading the weights."""
    from transformers import AutoModelForCausalLM
    ModelArguments, FinetuningArguments, init_adapter, prepare = _import_lf()
    cfg = build_config(c["model"])
    impl = _install_attention(c["attn"])
    if cfg.model_type.endswith("moe"):
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
    fa = FinetuningArguments(
        finetuning_type="lora" if method == "qlora4" else method,
        lora_rank=c["lora_rank"] or 8,
        lora_target={"all": "all", "qv": "q_proj,v_proj"}.get(c["lora_targets"], c["lora_targets"] or "all"),
        freeze_trainable_layers=c["freeze_layers"],
        pure_bf16=c["precision_mode"] == "pure_bf16",
    )
    prepare(model, ma)
    model = init_adapter(cfg, model, ma, fa, True)
    model.train()
    return cfg, model, extra


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


def make_optimizer(name, params):
    if name == "adamw":
        return torch.optim.AdamW(params, lr=1e-5, fused=True)
    if name == "adamw_foreach":
        return torch.optim.AdamW(params, lr=1e-5, foreach=True)
    if name == "adafactor":
        from transformers.optimization import Adafactor
        return Adafactor(params, lr=1e-5, scale_parameter=False, relative_step=False)
    if name == "adamw_8bit":
        return Analytic8bit(params)
    if name == "sgd":
        return torch.optim.SGD(params, lr=1e-5, foreach=False)
    raise ValueError(name)


class Analytic8bit(torch.optim.Optimizer):
    """State storage of bitsandbytes' 8-bit AdamW: two uint8 moments + fp32 absmax per 256 elements for
    tensors of at least 4096 elements, fp32 moments below that; the update kernel works in place."""

    def __init__(self, params):
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
                    if n >= 4096:
                        s[k] = torch.zeros(p.shape, dtype=torch.uint8, device=p.device)
                        s[k + "_absmax"] = torch.zeros(-(-n // 256), device=p.device)
                    else:
                        s[k] = torch.zeros(p.shape, dtype=torch.float32, device=p.device)


def run_cell(c, real=False, top=0, rounding=True, workspaces=True, labels=False):
    from torch._subclasses.fake_tensor import FakeTensorMode
    c = {**DEFAULTS, **c}
    t0 = time.time()
    gc.collect()
    es = contextlib.ExitStack()
    if not real:
        es.enter_context(FakeTensorMode())
        F.scaled_dot_product_attention = cuda_like_sdpa
    else:
        F.scaled_dot_product_attention = _REAL_SDPA
    with es:
        try:
            return _run(c, real, top, rounding, workspaces, labels, t0)
        finally:
            F.scaled_dot_product_attention = _REAL_SDPA


def _run(c, real, top, rounding, workspaces, want_labels, t0):
    torch.manual_seed(0)
    with contextlib.nullcontext() if real else _plain_module_apply():
        cfg, model, extra = build_model(c, real)
    V = cfg.vocab_size
    B, S = c["micro_batch"], c["seq_len"]
    trainable = [p for p in model.parameters() if p.requires_grad]
    n_all = sum({id(p): p.numel() for p in model.parameters()}.values())
    n_train = sum(p.numel() for p in trainable)

    amp = c["precision_mode"] == "bf16"
    if amp:  # accelerate.Accelerator.prepare_model with mixed_precision="bf16"
        from accelerate.utils.operations import convert_outputs_to_fp32
        inner = Amp()(model.forward.__func__)
        model.forward = types.MethodType(inner, model)
        model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__func__), model)

    tr = Tracker(vocab=V, rounding=rounding, workspaces=workspaces)
    for p in model.parameters():
        tr.see(p, "param", "param")
    for b in list(model.buffers()) + extra:
        tr.see(b, "param", "buffer")
    params_bytes = tr.cur
    handles = [p.register_post_accumulate_grad_hook(lambda q: q.grad is not None and tr.mark(q.grad, "grad")) for p in trainable]
    opt = make_optimizer(c["optimizer"], trainable)

    _mark_layers(model, cfg, tr)
    with tr:
        if c["warm"]:  # create the optimizer state first, so that one step is already the steady state
            tr.phase = "warm.opt"
            for p in trainable:
                p.grad = torch.zeros_like(p)
            opt.step()
            for st in opt.state.values():
                for v in st.values():
                    if isinstance(v, torch.Tensor):
                        tr.see(v, "optim", "state")
                        tr.mark(v, "optim")
            model.zero_grad(set_to_none=True)
        for step in range(c["steps"]):
            for micro in range(c["grad_accum"]):
                tr.phase, tr.seg = f"s{step}.fwd", "pre"
                if real:
                    ids = torch.randint(0, V, (B, S))
                else:
                    ids = torch.empty(B, S, dtype=torch.int64)
                mask = torch.ones(B, S, dtype=torch.int64) if real else None  # all ones: no 4-D mask is built
                labels = ids.clone()
                nitems = torch.tensor(float(B * S)) if real else torch.empty(())
                loss = train_forward(model, ids, mask, labels, nitems)
                del ids, mask, labels
                tr.phase, tr.seg = f"s{step}.bwd", "head"
                loss.backward()
                del loss
            tr.phase, tr.seg = f"s{step}.opt", ""
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            opt.step()
            for st in opt.state.values():
                for v in st.values():
                    if isinstance(v, torch.Tensor):
                        tr.see(v, "optim", "state")
                        tr.mark(v, "optim")
            grads_total = sum(_round512(p.grad.numel() * p.grad.element_size()) for p in trainable if p.grad is not None)
            model.zero_grad(set_to_none=True)
    for h in handles:
        h.remove()

    if want_labels:
        lp = tr.label_peaks()
        return dict(labels={k: v for k, v in lp.items()}, grads_total=grads_total, n_params=n_all, n_trainable=n_train,
                    optim_total=sum(_round512(v.numel() * v.element_size()) for st in opt.state.values()
                                    for v in st.values() if isinstance(v, torch.Tensor)))
    best, at, live = tr.peak()
    cats = {}
    for i in live:
        cats[tr.info[i][1]] = cats.get(tr.info[i][1], 0) + tr.info[i][0]
    # phase peaks of the last step
    phase_peak, cur = {}, 0
    ph = "init"
    for pos, e in enumerate(tr.log):
        if e > 0:
            cur += tr.info[e - 1][0]
            ph = tr.info[e - 1][5]
            phase_peak[ph] = max(phase_peak.get(ph, 0), cur)
        else:
            cur -= tr.info[-e - 1][0]
    optim_total = sum(_round512(v.numel() * v.element_size()) for st in opt.state.values() for v in st.values() if isinstance(v, torch.Tensor))
    act = sum(v for k, v in cats.items() if k not in ("param", "grad", "optim"))
    last = tr.info[tr.log[at] - 1]
    g = lambda x: round(x / GIB, 4)
    res = dict(
        peak_gib=g(best), params_gib=g(cats.get("param", 0)), grads_gib=g(cats.get("grad", 0)),
        optim_gib=g(cats.get("optim", 0)), activations_gib=g(act), logits_gib=g(cats.get("logits", 0)),
        weight_cast_gib=g(cats.get("wcast", 0)), workspace_gib=g(cats.get("workspace", 0)),
        grads_total_gib=g(grads_total), optim_total_gib=g(optim_total),
        reserved_gib=g(tr.reserved_peak()), peak_phase=last[5], peak_op=last[2],
        peak_fwd_gib=g(phase_peak.get(f"s{c['steps']-1}.fwd", 0)), peak_bwd_gib=g(phase_peak.get(f"s{c['steps']-1}.bwd", 0)),
        peak_opt_gib=g(phase_peak.get(f"s{c['steps']-1}.opt", 0)),
        n_params=n_all, n_trainable=n_train, seconds=round(time.time() - t0, 1), n_ops=tr.n_ops, peak_bytes=best,
    )
    if top:
        groups = {}
        for i in live:
            b, cat, op, shape, dt, phs = tr.info[i]
            key = (cat, op, shape if cat not in ("param", "grad", "optim") else "", dt)
            n, tot = groups.get(key, (0, 0))
            groups[key] = (n + 1, tot + b)
        res["top"] = [dict(cat=k[0], op=k[1], shape=k[2], dtype=k[3], count=n, gib=g(t))
                      for k, (n, t) in sorted(groups.items(), key=lambda x: -x[1][1])[:top]]
    if tr.hist:
        print(sorted(tr.hist.items(), key=lambda x: -x[1])[:25])
    return res


def _mark_layers(model, cfg, tr):
    """Tell the tracker which decoder layer is at work (no tensors are made or kept alive)."""
    layers = next(m for n, m in model.named_modules() if n.endswith("layers") and isinstance(m, nn.ModuleList))
    L = len(layers)

    def name(i):
        return f"L{i}" if i < 2 else f"L-{L - i}" if i >= L - 2 else "mid"

    def pre(i):
        def hook(mod, args, kwargs):
            tr.seg = name(i)
            h = args[0] if args else kwargs.get("hidden_states")
            if torch.is_grad_enabled() and isinstance(h, torch.Tensor) and h.requires_grad:
                h.register_hook(lambda g: setattr(tr, "seg", name(i - 1) if i else "emb"))
        return hook

    for i, layer in enumerate(layers):
        layer.register_forward_pre_hook(pre(i), with_kwargs=True)
    layers[-1].register_forward_hook(lambda m, a, o: setattr(tr, "seg", "head") if tr.phase.endswith("fwd") else None)


def run_cell_by_depth(c, depths=(4, 6)):
    """The same peak from two shallow copies of the model. Live bytes at a given point of the first two, last two
    layers, head and optimizer are linear in the number of layers, and points in between lie between their
    neighbours; so each label's line is extended to the real depth and the highest label wins."""
    c = {**DEFAULTS, **c}
    d = dict(BUILTIN[c["model"]][0]) if isinstance(c["model"], str) else dict(c["model"])
    L = d["num_hidden_layers"]
    t0 = time.time()
    runs = []
    for n in depths:
        r = run_cell({**c, "model": {**d, "num_hidden_layers": n}}, labels=True)
        runs.append(r)
    n1, n2 = depths
    if runs[0]["labels"].keys() != runs[1]["labels"].keys() - {k for k in runs[1]["labels"] if k[1] == "mid"}:
        raise RuntimeError("labels differ between depths")

    def ext(a, b):
        return a + (b - a) * (L - n1) // (n2 - n1)

    best, phases, moments = None, {}, {}
    for lab, (pa, ca, op) in runs[0]["labels"].items():
        pb, cb, _ = runs[1]["labels"][lab]
        p = ext(pa, pb)
        if lab[0].startswith("s"):
            moments[moment(*lab)] = max(moments.get(moment(*lab), 0), p)
        phases[lab[0]] = max(phases.get(lab[0], 0), p)
        if best is None or p > best[0]:
            best = (p, {k: ext(ca.get(k, 0), cb.get(k, 0)) for k in ca.keys() | cb.keys()}, lab, op)
    p, cats, lab, op = best
    g = lambda x: round(x / GIB, 4)
    sN = f"s{c['steps'] - 1}"
    return dict(
        peak_gib=g(p), params_gib=g(cats.get("param", 0)), grads_gib=g(cats.get("grad", 0)), optim_gib=g(cats.get("optim", 0)),
        activations_gib=g(sum(v for k, v in cats.items() if k not in ("param", "grad", "optim"))),
        logits_gib=g(cats.get("logits", 0)), weight_cast_gib=g(cats.get("wcast", 0)), workspace_gib=g(cats.get("workspace", 0)),
        grads_total_gib=round(ext(runs[0]["grads_total"] , runs[1]["grads_total"]) / GIB, 4),
        optim_total_gib=round(ext(runs[0]["optim_total"], runs[1]["optim_total"]) / GIB, 4),
        reserved_gib="", peak_phase=lab[0], peak_seg=lab[1], peak_op=op, peak_fwd_gib=g(phases.get(sN + ".fwd", 0)),
        peak_bwd_gib=g(phases.get(sN + ".bwd", 0)), peak_opt_gib=g(phases.get(sN + ".opt", 0)),
        n_params=ext(runs[0]["n_params"], runs[1]["n_params"]), n_trainable=ext(runs[0]["n_trainable"], runs[1]["n_trainable"]),
        seconds=round(time.time() - t0, 1), peak_bytes=p, moments=moments)


def moment(phase, segment):
    """The part of a training step that a label belongs to."""
    part = phase.split(".")[1]
    return part if part == "opt" else part + "_" + (segment if segment in ("head", "emb", "pre") else "layers")


def train_forward(model, ids, mask, labels, nitems):
    """transformers.Trainer.compute_loss: the outputs object (and its logits) dies on return."""
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=nitems)
    return outputs["loss"]


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", default="qwen3-0.6b", help="built-in name, or a config.json path")
    ap.add_argument("--method", default="lora", choices=["full", "freeze", "lora", "qlora4"])
    ap.add_argument("--lora-rank", type=int, default=8)
    ap.add_argument("--lora-targets", default="all")
    ap.add_argument("--precision-mode", default="bf16", choices=["bf16", "pure_bf16"])
    ap.add_argument("--seq-len", type=int, default=1024)
    ap.add_argument("--micro-batch", type=int, default=1)
    ap.add_argument("--no-grad-ckpt", action="store_true")
    ap.add_argument("--attn", default="sdpa", choices=["sdpa", "fa2", "eager"])
    ap.add_argument("--optimizer", default="adamw", choices=["adamw", "adamw_foreach", "adamw_8bit", "adafactor", "sgd"])
    ap.add_argument("--grad-accum", type=int, default=1, help="2 stands for any value above 1")
    ap.add_argument("--freeze-layers", type=int, default=2)
    ap.add_argument("--top", type=int, default=12, help="list the largest live groups at the peak")
    ap.add_argument("--by-depth", action="store_true", help="from 4- and 6-layer runs instead of the whole model (fast)")
    ap.add_argument("--real", action="store_true", help="run on the CPU for real (small models only)")
    a = ap.parse_args()
    model = a.model
    if model.endswith(".json"):
        with open(model) as f:
            model = json.load(f)
    c = dict(model=model, method=a.method, lora_rank=a.lora_rank, lora_targets=a.lora_targets,
             precision_mode=a.precision_mode, seq_len=a.seq_len, micro_batch=a.micro_batch,
             grad_ckpt=not a.no_grad_ckpt, attn=a.attn, optimizer=a.optimizer, grad_accum=a.grad_accum,
             freeze_layers=a.freeze_layers)
    r = run_cell_by_depth({**c, "steps": 1, "warm": True}) if a.by_depth else run_cell(c, real=a.real, top=a.top)
    rows = r.pop("top", [])
    print(json.dumps(r, indent=1))
    for t in rows:
        print("%8.3f GiB %5dx %-8s %-22s %-10s %s" % (t["gib"], t["count"], t["cat"], t["op"], t["dtype"], t["shape"]))


if __name__ == "__main__":
    main()
