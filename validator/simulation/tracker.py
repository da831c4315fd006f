"""Follows the storage of every tensor from allocation to release, and finds the memory peak of each phase and layer in
that log.

torch.distributed._tools.mem_tracker was considered: it has no categories for logits or weight casts, and is private."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from validator.simulation.fake_tensors import kernel_workspace
from validator.simulation.simulated_memory import STATE_CATEGORIES


def allocated_size(size: int) -> int:
    """Bytes that the CUDA allocator reserves for a tensor of `size` bytes: the next multiple of 512."""
    return -(-size // 512) * 512


@dataclass
class Allocation:
    """One storage of a tensor: its bytes, its category (param, grad, optim, act, logits, weight_cast, workspace), and
    the operator that created it. `phase` and `segment` are the phase of the step and the decoder layer at that time."""

    size: int
    category: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    phase: str
    segment: str


# The number of a storage's allocation (None if another storage took its bytes over), and the storage.
_StorageEntry = tuple[int | None, "weakref.ref[torch.UntypedStorage]"]


class Tracker(TorchDispatchMode):
    """A dispatch mode that logs every allocation and release of memory. An entry of the log is the index of the
    allocation plus one; the entry is negative for a release. `vocab` is the vocabulary size, by which logits are
    recognized. `padded` is true if the batch has padding."""

    def __init__(self, vocab: int | None = None, padded: bool = False) -> None:
        super().__init__()
        self.vocab, self.padded = vocab, padded
        self.allocations: list[Allocation] = []
        self.log: list[int] = []
        self.phase, self.segment = "init", ""
        self._alive: dict[int, _StorageEntry] = {}

    def track(self, tensor: Any, category: str = "act", operator: str = "?") -> None:
        """Follow the tensor's storage from now on, unless the storage is followed already. `category` is the category
        of its memory (act, an activation, becomes logits if the tensor has the shape of logits), `operator` the name of
        the operator that created the tensor."""
        if not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta" or operator == "get_rng_state":
            return
        try:
            storage = tensor.untyped_storage()
        except Exception:  # sparse tensors have none
            return
        key = storage._cdata
        if key in self._alive or not storage.nbytes():
            return
        if category == "act" and self._are_logits(tensor):
            category = "logits"
        number = self._add(storage.nbytes(), category, operator, tuple(tensor.shape), str(tensor.dtype))
        self._alive[key] = (number, weakref.ref(storage, functools.partial(self._release, key, number)))

    def set_category(self, tensor: torch.Tensor, category: str) -> None:
        """Set the category of the tensor's allocation, whatever operator created the tensor."""
        number = self._number(tensor)
        if number is not None:
            self.allocations[number].category = category

    def __torch_dispatch__(self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return torch.device("cpu")
        if func is torch.ops.aten._local_scalar_dense.default:
            value = args[0]
            if isinstance(value, FakeTensor) and value.constant is None:  # small tensors keep theirs (`fake_tensors`)
                return self._scalar_value(value)
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1] if hasattr(func, "_schema") else str(func)
        if name == "add" and self._accumulates(args, out):
            return out
        casts = name == "dequantize_4bit" or (name == "_to_copy" and self._is_parameter(args[0]))
        for tensor in out if isinstance(out, (list, tuple)) else [out]:
            self.track(tensor, "weight_cast" if casts else "act", name)
        if workspace := kernel_workspace(name, args):  # taken and given back within the operator
            self.log.append(-(self._add(workspace, "workspace", name, (workspace,), "bytes") + 1))
        return out

    def _scalar_value(self, tensor: torch.Tensor) -> bool | float:
        """Return a value for `tensor.item()` on a fake tensor. The results of `mask.all()` and `mask.any()` follow from
        `padded`; every other condition is False; a float is 0.0. Raises TypeError for an integer, because shapes may
        depend on it."""
        if tensor.dtype.is_floating_point:
            return 0.0
        if tensor.dtype != torch.bool:
            raise TypeError("sizes hang on values, which a simulation does not have")
        number = self._number(tensor)
        operator = "" if number is None else self.allocations[number].operator
        return not self.padded if operator == "all" else self.padded and operator == "any"

    def _add(self, size: int, category: str, operator: str, shape: tuple[int, ...], dtype: str) -> int:
        dtype = dtype.removeprefix("torch.")
        self.allocations.append(
            Allocation(allocated_size(size), category, operator, shape, dtype, self.phase, self.segment)
        )
        self.log.append(len(self.allocations))
        return len(self.allocations) - 1

    def _release(self, key: int, number: int | None, reference: weakref.ref[torch.UntypedStorage]) -> None:
        entry = self._alive.get(key)
        if entry is None or entry[1] is not reference:
            return
        del self._alive[key]
        if number is not None:
            self.log.append(-(number + 1))

    def _number(self, tensor: torch.Tensor) -> int | None:
        entry = self._alive.get(tensor.untyped_storage()._cdata)
        return entry[0] if entry else None

    def _are_logits(self, tensor: torch.Tensor) -> bool:
        vocab = self.vocab
        return vocab is not None and tensor.dim() >= 2 and tensor.is_floating_point() and tensor.shape[-1] == vocab

    def _is_parameter(self, tensor: Any) -> bool:
        number = self._number(tensor) if isinstance(tensor, torch.Tensor) else None
        return number is not None and self.allocations[number].category == "param"

    def _accumulates(self, args: Sequence[Any], out: torch.Tensor) -> bool:
        """True if an addition sums gradients into a buffer that nothing else refers to. The autograd engine performs
        this addition in place."""
        old, new = args[0], args[1]
        return (
            self.phase.endswith("bwd")
            and not torch.is_grad_enabled()
            and isinstance(new, torch.Tensor)
            and (old.shape, old.dtype) == (new.shape, new.dtype)
            and torch._C._storage_Use_Count(old.untyped_storage()._cdata) <= 2
            and self._reuses(old, out)
        )

    def _reuses(self, old: torch.Tensor, new: torch.Tensor) -> bool:
        """True if the tensor `new` can take over the storage of the tensor `old`. The tracker then counts the two as
        one allocation. The autograd engine itself reuses the storage of all tensors except those of a subclass, such as
        fake tensors."""
        number, before, after = self._number(old), old.untyped_storage(), new.untyped_storage()
        if number is None or before.nbytes() != after.nbytes() or after._cdata in self._alive:
            return False
        for storage, of in ((before, None), (after, number)):
            key = storage._cdata
            self._alive[key] = (of, weakref.ref(storage, functools.partial(self._release, key, of)))
        self.allocations[number].operator = "grad_accumulate"
        return True


BytesByCategory = dict[str, int]
StepPart = tuple[str, str]


class PartPeak(NamedTuple):
    """Memory of one part of a training step (a phase and a layer), in bytes. `size` is the largest total and
    `categories` divides that total by category. `operator` is the operator that reached the peak. `transient` is the
    most memory at any time of the part that is not weights, gradients or optimizer states."""

    size: int
    categories: BytesByCategory
    operator: str
    transient: int


def allocation_events(tracker: Tracker) -> Iterator[tuple[int, Allocation, int]]:
    """Yield for each event of the log the index of the allocation, the allocation, and the change of live bytes
    (negative for a release)."""
    for event in tracker.log:
        allocation = tracker.allocations[abs(event) - 1]
        yield abs(event) - 1, allocation, allocation.size if event > 0 else -allocation.size


def peaks_by_part(tracker: Tracker) -> dict[StepPart, PartPeak]:
    """Return the memory peak of every part of a training step. A part is a pair: the phase and the segment (usually a
    decoder layer)."""
    now = transient = 0
    categories, peaks = BytesByCategory(), dict[StepPart, PartPeak]()
    for _, allocation, change in allocation_events(tracker):
        now += change
        transient += 0 if allocation.category in STATE_CATEGORIES else change
        categories[allocation.category] = categories.get(allocation.category, 0) + change
        if change > 0:
            part = (allocation.phase, allocation.segment)
            old = peaks.get(part) or PartPeak(0, {}, "", 0)
            best = PartPeak(now, dict(categories), allocation.operator, 0) if now > old.size else old
            peaks[part] = best._replace(transient=max(old.transient, transient))
    return peaks
