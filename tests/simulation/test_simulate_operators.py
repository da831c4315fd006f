"""Operators of the simulator keep what CUDA's keep."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from validator.simulation.fake_tensors import as_on_cuda, keep_small_int_values  # noqa: E402
from validator.simulation.tracker import Tracker  # noqa: E402

pytestmark = pytest.mark.slow  # they import torch


def test_autocast_gives_a_layer_norm_fp32() -> None:
    hidden, norm = torch.ones(2, 8, dtype=torch.bfloat16), torch.nn.LayerNorm(8, dtype=torch.bfloat16)
    with as_on_cuda():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert norm(hidden).dtype == torch.float32
        assert norm(hidden).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm(hidden).dtype == torch.bfloat16, "the CPU's own"


@pytest.mark.parametrize(("p", "training", "kept"), [(0.5, True, torch.bool), (0.0, True, None), (0.5, False, None)])
def test_dropout_keeps_a_mask_of_one_byte(p: float, training: bool, kept: object) -> None:
    saved = []
    hidden = torch.ones(4, 4, requires_grad=True)
    with (
        as_on_cuda(),
        torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each.dtype), lambda each: each),
    ):
        torch.nn.functional.dropout(hidden, p, training)
    assert saved == ([kept] if kept else [])


def test_a_picture_s_grid_is_read_and_an_unknown_number_refused() -> None:
    with torch._subclasses.fake_tensor.FakeTensorMode(), Tracker(), keep_small_int_values(0):
        assert torch.tensor([[1, 4, 6]]).tolist() == [[1, 4, 6]]
        assert torch.triu(torch.ones(3, 3, dtype=torch.bool)).shape == (3, 3)
        with pytest.raises(TypeError, match="sizes hang on values"):
            int(torch.empty(1, dtype=torch.int64))


def test_whole_numbers_that_are_made_or_written_stay_known() -> None:
    """By those, encoders of sound cut it into pieces of one length and mask what the last lacks."""
    with torch._subclasses.fake_tensor.FakeTensorMode(), Tracker(), keep_small_int_values(0):
        pieces = torch.full((3,), 200, dtype=torch.long)
        pieces[torch.tensor([2])] = torch.tensor([50])
        assert torch.where(pieces == 50, 7, pieces).tolist() == [200, 200, 7]
        mask = torch.zeros((2, 4), dtype=torch.long)
        mask[1, : torch.tensor(3)] = 1
        assert torch.empty(2, 4, 8)[mask.bool()].shape == (3, 8)
        assert torch.full((2,), 0.5).shape == torch.zeros(2).shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_are_multiplied_in_fp32_too(dtype: Any) -> None:
    with torch._subclasses.fake_tensor.FakeTensorMode(), as_on_cuda():
        rows = torch.empty(32, 16, dtype=dtype, requires_grad=True)
        weights = torch.empty(4, 16, 64, dtype=dtype, requires_grad=True)
        made = torch.nn.functional.grouped_mm(rows, weights, offs=torch.empty(4, dtype=torch.int32))
        made.backward(torch.empty_like(made))
    assert (made.shape, made.dtype) == ((32, 64), dtype)
    assert (rows.grad.shape, weights.grad.shape) == (rows.shape, weights.shape)
