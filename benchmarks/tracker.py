"""Follows every tensor's storage from birth to death, and replays the log through CUDA's caching allocator."""

import bisect
import functools
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def rounded(n):
    return -(-n // 512) * 512 if n else 0


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
            bsize = (
                self.S_BUF
                if size <= self.SMALL
                else self.L_BUF
                if size < self.MIN_LARGE
                else -(-size // self.ROUND_L) * self.ROUND_L
            )
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


def _workspace(name, args):
    """Bytes that a CUDA kernel allocates for itself: flash attention's fp32 query gradient, softmax sums and expanded
    key and value gradients; the dequantized weight of a 4-bit product."""
    if name == "_scaled_dot_product_flash_attention_backward":
        q, k = args[1], args[2]
        batch, heads, length, width = q.shape
        rows, columns = -(-length // 128) * 128, -(-width // 32) * 32
        expanded = 2 * q.element_size() * batch * k.shape[2] * heads * width if k.shape[1] != heads else 0
        return 4 * batch * heads * rows * (columns + 1) + expanded
    if name == "gemm_4bit":
        outputs, inputs = args[2]
        return 2 * outputs * inputs + 4 * (outputs * inputs // 64)
    return 0


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

    # -- bookkeeping
    def _new(self, nbytes, cat, op, shape, dtype):
        b = rounded(nbytes) if self.rounding else nbytes
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

    def __torch_dispatch__(self, func, types_, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            return torch.device("cpu")
        out = func(*args, **(kwargs or {}))
        self.n_ops += 1
        name = func._schema.name.split("::")[-1] if hasattr(func, "_schema") else str(func)
        if name == "add" and self._accumulates(args, out):
            return out
        cat = "wcast" if name == "dequantize_4bit" or (name == "_to_copy" and self._is_parameter(args[0])) else "act"
        for tensor in out if isinstance(out, (list, tuple)) else [out]:
            self.see(tensor, cat, name)
        if self.workspaces:
            self.transient(_workspace(name, args), name)
        return out

    def _is_parameter(self, t):
        hit = self.live.get(t.untyped_storage()._cdata) if isinstance(t, torch.Tensor) else None
        return hit is not None and hit[0] is not None and self.info[hit[0]][1] == "param"

    def _accumulates(self, args, out):
        """A sum of gradients into a buffer that nobody else holds, which the autograd engine makes in place."""
        old, new = args[0], args[1]
        return (
            self.phase.endswith("bwd")
            and not torch.is_grad_enabled()
            and isinstance(new, torch.Tensor)
            and (old.shape, old.dtype) == (new.shape, new.dtype)
            and torch._C._storage_Use_Count(old.untyped_storage()._cdata) <= 2
            and self.reuse(old, out, "grad_accumulate")
        )

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
                where[e - 1] = a.alloc(max(512, rounded(self.info[e - 1][0])))
            else:
                a.release(where.pop(-e - 1))
        return a.peak_reserved
