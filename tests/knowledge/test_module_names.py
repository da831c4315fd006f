"""Names of modules, against the real classes of transformers without weights."""

from __future__ import annotations

import pytest

from validator.knowledge import models
from validator.knowledge.module_names import module_names
from validator.knowledge.tables import yaml_table
from validator.physics import linear_roles

# Types whose towers hold linear modules that are named otherwise: a second stack of layers, modules in wrappers.
UNLIKE = {"mllama", "gemma4"}
# Types without a class in transformers, which these tests cannot ask.
OWN_CODE = {"qwen", "dots_ocr", "Keye", "minicpmv", "qwen2_audio", "mimo", "chatglm", "deepseek", "kimi_vl", "exaone",
            "internlm2", "internlm3", "interns1", "minimax_text_01", "minicpm"}  # fmt: skip
OF_KIND = {yaml_table("models")[name]["config"]["model_type"]: name for name in reversed(models.model_ids())}


def test_experts_have_names_where_they_are_modules() -> None:
    model = models.find_model("qwen3-30b-a3b")
    assert not [module for module in module_names(model, fused=True) if module.experts]
    first = next(module for module in module_names(model, fused=False) if module.experts)
    assert first.name == "model.layers.0.mlp.experts.N.down_proj"
    assert first.names[127] == "model.layers.0.mlp.experts.127.down_proj"
    assert len(first.names) == 128


def test_layers_of_a_hybrid_have_the_modules_of_their_kind() -> None:
    names = {module.name for module in module_names(models.find_model("qwen3-next-80b-a3b"), fused=True)}
    assert {"model.layers.2.linear_attn.out_proj", "model.layers.3.self_attn.q_proj"} <= names
    assert (
        not {"model.layers.3.linear_attn.out_proj", "model.layers.2.self_attn", "model.layers.2.self_attn.q_norm"}
        & names
    )


@pytest.mark.parametrize("kind", OF_KIND)
def test_every_linear_role_of_a_model_has_a_module_in_every_form_of_its_experts(kind: str) -> None:
    model = models.find_model(OF_KIND[kind])
    for fused in (True, not model.family.separate):
        named = {module.role for module in module_names(model, fused) if module.layer is not None} - {""}
        roles = {*linear_roles(model.arch, fused)} - {"inputs", "router"}  # a router may be a layer and no parameter
        assert roles <= named


@pytest.mark.sample(one_in=10, whole_for=["release/constraints.txt", "validator/knowledge/module_names.py"])
@pytest.mark.slow  # it imports torch and builds a model of many layers
@pytest.mark.parametrize("kind", sorted(OF_KIND.keys() - UNLIKE - OWN_CODE))
def test_names_are_those_of_the_real_class(kind: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("llamafactory")
    from validator.simulation import model_loading

    config = model_loading.build_config(yaml_table("models")[OF_KIND[kind]]["config"])
    with torch.device("meta"):
        real = dict(model_loading.model_without_weights(config, torch.bfloat16).named_modules())
    modules = module_names(models.find_model(OF_KIND[kind]), fused=True)
    linear = {name for name, module in real.items() if type(module).__name__.endswith(("Linear", "Conv1D"))}
    assert {module.name for module in modules if module.role and module.role != "embedding"} == linear
    assert {module.name for module in modules if module.role == "embedding"} <= real.keys()
