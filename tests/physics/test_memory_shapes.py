"""Elements and bytes of parts of a model that few models have, by what has to hold whatever their sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from validator.physics import (
    Architecture,
    AttentionShape,
    FeedForwardShape,
    LayerKind,
    Workload,
    attention,
    linear_roles,
    trainable_parameter_count,
)
from validator.physics.decoder_layers import build_layers
from validator.physics.lightning_attention import LightningAttention
from validator.physics.mamba import Mamba2
from validator.physics.training_step import TrainingStep, trained_matrices

GQA = AttentionShape(4, 2, 16)
LATENT = AttentionShape(4, 4, 24, value_dim=12, q_rank=12, kv_rank=20, rope_dim=8)
EXPERTS = FeedForwardShape(96, experts=8, experts_per_token=2, expert_width=24)
MIXTURES = {
    "plain": EXPERTS,
    "biased": EXPERTS._replace(expert_bias=True),
    "shared": EXPERTS._replace(shared_width=40, shared_gate=True),
    "not gated": EXPERTS._replace(gated=False, expert_bias=True),
}


def model(attn: AttentionShape = GQA, ffn: FeedForwardShape | None = None, **more: Any) -> Architecture:
    return Architecture(64, 3, 131, attn, ffn or FeedForwardShape(96), **more)


def elements(arch: Architecture, fused: bool) -> int:
    return sum(count * block.elements for count, block in build_layers(arch, fused))


@pytest.mark.parametrize("ffn", MIXTURES.values(), ids=MIXTURES)
def test_experts_in_one_tensor_are_as_many_as_in_modules_of_their_own(ffn: FeedForwardShape) -> None:
    arch = model(ffn=ffn, kinds=(LayerKind(experts=True),) * 3)
    assert elements(arch, fused=True) == elements(arch, fused=False)


@pytest.mark.parametrize("fused", [True, False])
def test_each_expert_trains_once(fused: bool) -> None:
    work = Workload(method="full", experts="grouped" if fused else "separate")
    run = TrainingStep(model(ffn=EXPERTS, kinds=(LayerKind(experts=True),) * 3), work)
    experts = [(48, 64), (64, 24)] if fused else [(24, 64), (64, 24)]  # gate and up are one tensor
    found = {(each.outputs, each.inputs): each.number for each in trained_matrices(run)}
    assert [found[shape] for shape in experts] == [3 * 8, 3 * 8]


def test_each_low_rank_step_of_latent_attention_has_a_norm() -> None:
    """One more number for each row of the rank, beside its two matrices."""
    more = LATENT._replace(q_rank=LATENT.q_rank + 1), LATENT._replace(kv_rank=LATENT.kv_rank + 1)
    before = elements(model(LATENT), fused=True)
    by_query, by_key = (elements(model(attn), fused=True) - before for attn in more)
    assert by_query == 3 * (64 + 4 * 24 + 1)
    assert by_key == 3 * (64 + 4 * (24 - 8 + 12) + 1)


def test_lightning_attention_keeps_more_of_a_token_once_there_is_a_second_chunk() -> None:
    """Decayed queries of all chunks but the first, keys of all but the last: in two chunks, half of each."""
    mixer = LightningAttention(heads=4, head_dim=16, chunk=256)
    arch = model(mixer=mixer, kinds=(LayerKind(False, True),) * 3)
    ((_, block),) = build_layers(arch, True)[:1]
    one, two = (TrainingStep(arch, Workload(length=length)) for length in (256, 512))
    kept = [mixer.saved_bytes(run, block) / run.tokens for run in (one, two)]
    assert kept[1] - kept[0] == 2.0 * mixer.width


def test_states_of_a_kernel_are_there_once_a_chunk_and_have_a_gradient() -> None:
    """In fp32; twice as many chunks, twice as many."""
    mixer = Mamba2(heads=8, head_dim=16, state=32, groups=1, kernel=4, chunk=128, kernels=True)
    run = TrainingStep(model(mixer=mixer, kinds=(LayerKind(False, True),) * 3), Workload(length=1024))
    more = replace(mixer, chunk=64).backward_workspace(run) - mixer.backward_workspace(run)
    assert more == run.tokens * 2 * 4.0 * 8 * 16 * 32 / 128


@pytest.mark.parametrize(("half_scores", "bytes_each"), [(False, 8.0), (True, 12.0)])
def test_squares_of_the_backward_of_eager_attention(half_scores: bool, bytes_each: float) -> None:
    """The softmax and its gradient in fp32; where scores in half precision are raised, that of the masked sum too. One
    in half precision takes no place of its own."""
    arch = model(GQA._replace(softmax_in_half=half_scores), norm="layer")
    one, two = (TrainingStep(arch, Workload(length=length, attention="eager")) for length in (1024, 2048))
    more = (
        attention._attention_backward_workspace(two) / two.tokens
        - attention._attention_backward_workspace(one) / one.tokens
    )
    assert more == (bytes_each - 2.0) * 4 * 1024


def test_adapters_on_all_linear_modules_leave_fused_experts_out() -> None:
    """One tensor of all experts is no linear module; what is not said of a mixture is that it has such."""
    arch = model(ffn=EXPERTS._replace(shared_width=40), kinds=(LayerKind(experts=True),) * 3)
    assert linear_roles(arch) == linear_roles(arch, fused=True)
    separate = {linear.role for _, block in build_layers(arch, False) for linear in block.linears if linear.routed}
    assert separate <= {*linear_roles(arch, fused=False)}


def test_the_last_layers_train_and_nothing_else() -> None:
    arch = model()
    ((number, block),) = build_layers(arch, True)
    work = Workload(method="freeze", trainable_layers=2)
    assert (number, trainable_parameter_count(arch, work)) == (3, 2 * block.elements)
