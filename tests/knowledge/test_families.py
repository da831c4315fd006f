"""The table of model families: whole, sourced, asked by everything above it, and enough for a new family."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from read_releases import families as generator
from support.every import every
from support.source import modules, nodes

import validator
from validator.check import checking
from validator.knowledge import devices, families, models, tables
from validator.knowledge.architectures import read_architecture
from validator.knowledge.releases import ReleaseRange
from validator.physics import estimate_device_memory, linear_roles
from validator.plan import new_recipe, recipe_text
from validator.recipe.recipe_file import parse_recipe
from validator.run.prediction import predict

PACKAGE = Path(validator.__file__).parent
GENERATED = tables.json_table("families")


@every(families.known_types())
def test_every_entry_is_a_sourced_family(kind: str) -> None:
    assert families.family_of_type(kind).kind == kind
    assert tables.yaml_table("families")[kind]["source"]
    assert families.family_of_type(kind).names(["q", "qkv", "q_a"]), "no linear layer for the queries"


def test_an_entry_repeats_nothing_that_is_generated() -> None:
    for kind, facts in GENERATED["transformers"].items():
        assert not facts.keys() & tables.yaml_table("families")[kind].keys()


def test_the_generated_table_holds_the_types_that_transformers_has() -> None:
    remote = {key for key in tables.yaml_table("models") if tables.yaml_table("models")[key].get("remote_code")}
    without = {tables.yaml_table("models")[key]["config"]["model_type"] for key in remote}
    seeing = set(tables.yaml_table("composites"))
    assert set(families.known_types()) - GENERATED["transformers"].keys() == without - seeing


EXPERTS = {"gate", "gate_proj", "up_proj", "down_proj"}


@every(
    [
        ("qwen2", "qkv_bias", True), ("qwen3", "qkv_bias", False), ("qwen3", "qk_norm", True),
        ("phi3", "fused_qkv", True), ("internlm2", "fused_qkv", True), ("glm4", "fused_qkv", False),
        ("phi3", "fused_gate_up", True), ("glm4", "fused_gate_up", True), ("llama", "fused_gate_up", False),
        ("qwen3_5_text", "mixer", "delta"), ("qwen3", "mixer", None), ("qwen3_5_moe_text", "fused_experts", "5.2.0"),
        ("lfm2", "mixer", "convolution"), ("granitemoehybrid", "mixer", "statespace"),
        ("falcon_h1", "mixer_beside_attention", True), ("jamba", "mixer", "scan"), ("minimax", "mixer", "lightning"),
        ("jamba", "fused_experts", "5.0.0"),
        ("glm", "concatenated", True), ("llama", "concatenated", False),
        ("glm", "norms", 2), ("glm4", "norms", 4), ("gemma2", "norms", 4), ("gemma2", "tied", True),
        ("qwen3_moe", "fused_experts", "5.0.0"), ("deepseek_v3", "fused_experts", "5.0.0"),
        ("gpt_oss", "fused_experts", "4.57.1"), ("llama", "fused_experts", None),
        ("glm4_moe", "qk_norm", True), ("glm4_moe", "optional_qk_norm", True), ("minimax_m2", "qk_norm", False),
        ("minimax_m2", "full_width_qk_norm", True), ("hunyuan_v1_moe", "router", "module"),
        ("hy_v3", "dense_layers", 1),
        ("qwen2_moe", "qkv_bias", True), ("qwen3_moe", "separate", EXPERTS | {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("olmoe", "separate", EXPERTS | {"q_proj", "k_proj", "v_proj", "o_proj"}), ("minimax_m2", "separate", set()),
        ("gpt_oss", "sinks", True), ("gpt_oss", "router", "bias"), ("deepseek_v2", "router", "linear"),
        ("qwen3", "liger", True), ("deepseek_v3", "liger", False), ("internlm2", "liger", False),
        ("mistral", "mixture_of_depths", True), ("qwen2", "mixture_of_depths", False),
        ("llama", "shift_attention", True), ("mistral", "shift_attention", False), ("gpt_oss", "own_kernel", True),
        ("gemma3_text", "layer", "Gemma3DecoderLayer"), ("internlm3", "layer", None),
    ],
)  # fmt: skip
def test_fact(kind: str, field: str, expected: object) -> None:
    assert getattr(families.family_of_type(kind), field) == expected


@pytest.mark.parametrize(
    ("kind", "header", "forms"),
    [
        ("mixtral", {}, {"grouped": "5.6.0", "separate": "4.57.1"}),
        ("mixtral", {"transformers": ">=5"}, {"grouped": "5.6.0"}),
        ("mixtral", {"llamafactory": "0.9.4"}, {"separate": "4.57.1"}), ("mixtral", {"transformers": "?"}, None),
        ("mixtral", {"transformers": "5.2.0", "torch": "<2.9"}, {"sliced": "5.2.0"}),
        ("mixtral", {"transformers": "5.2.0", "torch": ">=2.8"}, {"grouped": "5.2.0"}),
        ("mixtral", {"transformers": "5.6.0", "torch": "<2.9"}, {"grouped": "5.6.0"}),
        ("gpt_oss", {}, {"grouped": "5.6.0", "sliced": "4.57.1"}), ("granitemoe", {}, {"sliced": "5.6.0"}),
        ("llama4_text", {}, {"grouped": "5.6.0"}), ("llama4_text", {"transformers": "4.57.1"}, {"grouped": "4.57.1"}),
        ("minimax_m2", {}, {"grouped": "5.6.0"}), ("minimax_m2", {"transformers": "4.57.1"}, {"grouped": "4.57.1"}),
    ],
)  # fmt: skip
def test_the_experts_are_those_of_the_releases_that_a_header_admits(
    kind: str, header: dict[str, str], forms: dict[str, str] | None
) -> None:
    family = families.family_of_type(kind)
    assert family.forms(ReleaseRange(header)) == (forms or family.forms(ReleaseRange()))


@pytest.mark.parametrize(
    ("name", "config", "shape", "expected"),
    [
        ("hunyuan-a13b", {"moe_topk": [8, 4], "moe_intermediate_size": [3072, 3072]}, "experts_per_token", 8),
        ("hunyuan-a13b", {}, "shared_width", 3072), ("qwen2-57b-a14b", {}, "shared_width", 20480),
        ("ernie-4.5-21b-a3b", {}, "shared_width", 3072), ("ernie-4.5-21b-a3b", {}, "dense_layers", 1),
        ("hy3", {}, "dense_layers", 1), ("glm-4.5", {}, "dense_layers", 3),
        ("qwen1.5-moe-a2.7b", {}, "shared_gate", True),
    ],
)  # fmt: skip
def test_a_mixture_of_a_new_family(name: str, config: dict[str, Any], shape: str, expected: object) -> None:
    published = tables.yaml_table("models")[name]["config"]
    assert getattr(read_architecture({**published, **config}).ffn, shape) == expected


@pytest.mark.parametrize(
    ("name", "lora_target", "codes"),
    [
        ("phi-4", "q_proj,v_proj", {"TRA207"}), ("phi-4", "qkv_proj", set()), ("phi-4", "qkv_proj,q_proj", {"TRA216"}),
        ("glm-4-9b", "gate_up_proj", set()), ("glm-4-9b", "q_proj,up_proj", {"TRA216"}),
        ("qwen3-30b-a3b", "gate_proj", {"TRA207"}), ("qwen3-30b-a3b", "q_proj,up_proj", {"TRA216"}),
        ("deepseek-v2-lite", "q_proj,gate_proj", set()), ("deepseek-v2-lite", "q_proj,q_a_proj", {"TRA216"}),
        ("internlm2.5-7b", "wqkv,w1", set()), ("internlm2.5-7b", "q_proj", {"TRA207"}),
        ("gemma-3-4b", "fc1", set()),  # a layer of the part that sees images
    ],
)  # fmt: skip
def test_targets_are_judged_by_the_family(name: str, lora_target: str, codes: set[str]) -> None:
    recipe = f"model_name_or_path: {models.find_model(name).name}\ndo_train: true\nlora_target: {lora_target}\n"
    assert raised(recipe) & {"TRA207", "TRA216"} == codes


@pytest.mark.parametrize(
    ("releases", "line", "code"),
    [
        ('">=5"', "lora_target: gate_proj", "TRA207"), ('"<5"', "lora_target: gate_proj", None),
        ('">=5"', "quantization_bit: 4", "TRA311"), ('"<5"', "quantization_bit: 4", None),
    ],
)  # fmt: skip
def test_experts_are_judged_by_the_releases_of_the_recipe(releases: str, line: str, code: str | None) -> None:
    header = f"# /// recipe\n# transformers: {releases}\n# ///\n"
    codes = raised(f"{header}model_name_or_path: Qwen/Qwen3-30B-A3B\ndo_train: true\n{line}\n")
    assert codes & {"TRA207", "TRA311"} == ({code} if code else set())


def raised(recipe: str) -> set[str]:
    return {each.code for each in checking.check_document(parse_recipe("x.yaml", recipe)).diagnostics}


def published(kind: str) -> dict[str, Any]:
    """The first config of the table with this type, of four layers; where there is none, the class's own defaults."""
    layers = 4
    configs = (
        entry["config"] for entry in tables.yaml_table("models").values() if entry["config"]["model_type"] == kind
    )
    config = next(configs, {"model_type": kind})
    kept = {name: value for name, value in config.items() if name not in {"model_type", "quantization_config"}}
    if "layer_types" in kept:  # one word for each layer
        kept["layer_types"] = kept["layer_types"][:layers]
    return kept | {"num_hidden_layers": layers}


# Held to their classes by the cells of benchmarks/simulation/grid.py and by counts alone: layers of two kinds, norms
# without parameters, layers that are called otherwise, experts that the published models do without.
UNLIKE = {
    "dbrx",
    "falcon",
    "falcon_h1",
    "gpt2",
    "jamba",
    "granitemoehybrid",
    "lfm2",
    "minimax",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "olmo",
    "bloom",
    "llama4_text",
    "ernie4_5_vl_moe_text",
    "gemma4_text",
    "mllama_text_model",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(GENERATED["transformers"].keys() - UNLIKE))
def test_generated_facts_are_those_of_the_real_class(kind: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    linear = pytest.importorskip("llamafactory.model.model_utils.misc").find_all_linear_modules
    family = families.family_of_type(kind)
    config = transformers.CONFIG_MAPPING[kind](**published(kind))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    layers = model.model.layers
    assert {type(layer).__name__ for layer in layers} == {family.layer}
    assert set(linear(model, True)) == family.names(
        linear_roles(read_architecture(config.to_dict() | {"model_type": kind}))
    )
    # what LLaMA-Factory lets freeze tuning choose from (model/adapter.py)
    parts = {name.split(".0.")[-1].split(".")[0] for name, _ in model.named_parameters() if ".0." in name}
    assert parts == family.parts
    # and what it lets it add to them
    outside = {name.split(".")[-2] for name, _ in model.named_parameters() if not re.search(r"\.\d+\.", name)}
    assert outside == {"embed_tokens", family.last_norm} | (set() if config.tie_word_embeddings else {"lm_head"})
    assert sum("Norm" in type(part).__name__ for part in layers[0].children()) == family.norms
    assert any(weight.dim() == 3 for weight in model.parameters()) == (family.fused_experts is not None)
    assert transformers.CONFIG_MAPPING[kind]().tie_word_embeddings == family.tied


# A family of known parts: fused q, k and v, four norms, experts that transformers 5 fused, and no rotation of its own.
MODELING = """
class NovaRMSNorm(nn.Module):
    def __init__(self, size):
        self.weight = nn.Parameter(torch.ones(size))

class NovaAttention(nn.Module):
    def __init__(self, config):
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=True)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

class NovaExperts(nn.Module):
    def __init__(self, config):
        self.gate_up_proj = nn.Parameter(torch.empty(config.num_experts, 2, config.hidden_size))

class NovaBlock(nn.Module):
    def __init__(self, config):
        self.experts = NovaExperts(config)

class NovaDecoderLayer(GradientCheckpointingLayer):
    def __init__(self, config):
        self.self_attn = NovaAttention(config)
        self.mlp = NovaBlock(config)
        self.one_norm = NovaRMSNorm(config.hidden_size)
        self.two_norm = NovaRMSNorm(config.hidden_size)
        self.three_norm = NovaRMSNorm(config.hidden_size)
        self.four_norm = NovaRMSNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

class NovaPreTrainedModel(PreTrainedModel):
    _no_split_modules = ["NovaDecoderLayer"]
"""
OLDER = MODELING.replace("nn.Parameter(torch.empty(config.num_experts, 2, config.hidden_size))", "nn.ModuleList()")
CONFIGURATION = """
class NovaConfig(PreTrainedConfig):
    model_type = "nova"
    tie_word_embeddings: bool = True
"""
LIGER = """
def apply_liger_kernel(config):
    if model_type == "llama":
        from liger_kernel.transformers import apply_liger_kernel_to_llama as apply_liger_kernel
    elif model_type in ["nova", "novae"]:
        from liger_kernel.transformers import apply_liger_kernel_to_nova as apply_liger_kernel
    elif model_type == "zero":
        return
"""
VISUAL = """
def _register_composite_model(model_type, projector_keys=None, lora_conflict_keys=None):
    COMPOSITE_MODELS[model_type] = CompositeModel(
        projector_keys=projector_keys or ["projector"], lora_conflict_keys=lora_conflict_keys or []
    )

_register_composite_model(model_type="nova")
_register_composite_model(model_type="zero", projector_keys=["visual.merger"])
"""
CONSTANTS = "MOD_SUPPORTED_MODELS = {'llama'}\nSUPPORTED_CLASS_FOR_S2ATTN = {'llama'}"
ENTRY = "nova:\n  source: made up\n  router: bias\n  targets: qkv_proj\n  lora_remark: the experts are fused\n"
CONFIG = {
    "model_type": "nova", "hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 1000, "num_attention_heads": 4,
    "intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
}  # fmt: skip


def sources(modeling: str) -> dict[str, ast.Module]:
    folder = "transformers.models.nova"
    return {f"{folder}.modeling_nova": ast.parse(modeling), f"{folder}.configuration_nova": ast.parse(CONFIGURATION)}


def generated() -> dict[str, dict[str, object]]:
    llamafactory = {
        "llamafactory.model.model_utils.liger_kernel": ast.parse(LIGER),
        "llamafactory.model.model_utils.attention": ast.parse(""),
        "llamafactory.data.collator": ast.parse(""),
        "llamafactory.model.model_utils.moe": ast.parse(""),
        "llamafactory.extras.constants": ast.parse(CONSTANTS),
        "llamafactory.model.model_utils.visual": ast.parse(VISUAL),
    }
    transformers = {"5.6.0": sources(MODELING).__getitem__, "4.57.1": sources(OLDER).__getitem__}
    return generator.table(["nova", "absent"], "0.9.5", llamafactory.__getitem__, transformers)


def test_columns_are_generated_from_source() -> None:
    table = generated()
    assert table["llamafactory"] == {
        "liger": ["llama", "nova", "novae"], "own_kernel": [], "no_neat_packing": [], "aux_loss": [],
        "mixture_of_depths": ["llama"], "shift_attention": ["llama"],
    }  # fmt: skip
    assert table["composites"] == {
        "nova": {"projector_keys": ["projector"], "lora_conflict_keys": []},
        "zero": {"projector_keys": ["visual.merger"], "lora_conflict_keys": []},
    }
    norms = ["four_norm", "one_norm", "three_norm", "two_norm"]
    assert table["transformers"] == {
        "nova": {
            "layer": "NovaDecoderLayer", "parts": sorted([*norms, "mlp", "self_attn"]),
            "linear": ["self_attn.o_proj", "self_attn.qkv_proj"], "norms": 4, "qkv_bias": True, "tied": True,
            "blocks": sorted(["dropout", *norms, "mlp", "mlp.experts", "self_attn"]), "fused_experts": "5.6.0",
            "separate": ["self_attn.o_proj", "self_attn.qkv_proj"],
        },
    }  # fmt: skip


# Layers of two classes, of which one chooses between two feed-forward parts.
CHOOSING = MODELING.replace(
    "class NovaPreTrainedModel",
    """class NovaMixer(nn.Module):
    def __init__(self, config):
        self.in_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

class NovaDense(nn.Module):
    def __init__(self, config):
        self.up_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

class NovaMixerDecoderLayer(GradientCheckpointingLayer):
    def __init__(self, config):
        chosen = NovaBlock if config.num_experts > 1 else NovaDense
        self.feed_forward = chosen(config)
        self.mixer = NovaMixer(config)

class NovaPreTrainedModel""",
).replace('["NovaDecoderLayer"]', '["NovaDecoderLayer", "NovaMixerDecoderLayer"]')


def test_layers_of_several_classes_are_read_together() -> None:
    facts = generator.decoder_layer_facts(ast.parse(CHOOSING))
    assert facts["layer"] == "NovaDecoderLayer"
    assert facts["linear"] == [
        "feed_forward.up_proj", "mixer.in_proj", "self_attn.o_proj", "self_attn.qkv_proj",
    ]  # fmt: skip
    assert {"feed_forward", "mixer", "mlp", "self_attn"} <= set(facts["parts"])
    assert generator.fuses_experts(ast.parse(CHOOSING))


def test_a_part_that_is_called_a_norm_and_holds_norms_counts_as_these() -> None:
    holding = MODELING.replace(
        "class NovaDecoderLayer",
        """class NovaNormAttentionNorm(nn.Module):
    def __init__(self, config):
        self.first = NovaRMSNorm(config.hidden_size)
        self.second = nn.LayerNorm(config.hidden_size)

class NovaDecoderLayer""",
    ).replace("self.one_norm = NovaRMSNorm(", "self.one_norm = NovaNormAttentionNorm(")
    assert (
        generator.decoder_layer_facts(ast.parse(holding))["norms"]
        == generator.decoder_layer_facts(ast.parse(MODELING))["norms"] + 1
    )


@pytest.fixture
def nova(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model of a family that the tables got by one entry and the command that generates columns."""
    shutil.copytree(tables.DATA_FOLDER, tmp_path / "data")
    with (tmp_path / "data/families.yaml").open("a") as table:
        table.write(f"\n{ENTRY}")
    columns = json.loads(json.dumps(GENERATED))
    columns["transformers"] |= generated()["transformers"]
    columns["llamafactory"]["liger"].append("nova")
    (tmp_path / "data/families.json").write_text(json.dumps(columns))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setattr(tables, "DATA_FOLDER", tmp_path / "data")
    forget()
    yield tmp_path / "model"
    forget()


def forget() -> None:
    for known in (
        tables.json_table,
        tables.yaml_table,
        families.family_of_type,
        models._catalogue_model,
        models._model_in_folder,
    ):
        known.cache_clear()


def test_a_new_family_of_known_parts_is_one_entry(nova: Path) -> None:
    model = models.find_model(str(nova))
    attention, experts = model.arch.attn, model.arch.ffn
    assert (attention.fused_qkv, attention.qkv_bias, model.arch.norms_per_layer, model.arch.tied) == (
        True,
        True,
        4,
        True,
    )
    assert (experts.experts, experts.router_bias) == (8, True)
    assert model.family.names(linear_roles(model.arch)) == {"qkv_proj", "o_proj"}


def test_a_plan_for_a_new_family_knows_its_targets_and_its_layer(nova: Path) -> None:
    plan = new_recipe.NewRecipe(
        models.find_model(str(nova)), devices.parse_machine("8xa100-80g", 512.0), "lora", "fsdp", liger=True
    )
    text = recipe_text.render_recipe(plan)
    assert "lora_target: qkv_proj  # the experts are fused" in text
    assert "transformer_layer_cls_to_wrap: [NovaDecoderLayer]" in text
    workload = predict(plan.run).workload
    assert workload is not None
    assert workload.fused_kernels
    assert workload.adapter.targets == ("qkv",)
    assert plan.run.model is not None
    assert estimate_device_memory(plan.run.model.arch, workload, plan.machine.device.runtime(True)).expected > 0


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("lora_target: q_proj", "TRA207"), ("lora_target: qkv_proj,up_proj", "TRA216"), ("lora_target: o_proj", None),
        ("finetuning_type: freeze\nfreeze_trainable_modules: input_layernorm", "TRA217"),
        ("finetuning_type: freeze\nfreeze_trainable_modules: one_norm", None),
        ("quantization_bit: 4", "TRA311"), ("shift_attn: true", "TRA709"), ("mixture_of_depths: convert", "TRA710"),
        ("enable_liger_kernel: true", None),
    ],
)  # fmt: skip
def test_rules_answer_for_a_new_family(nova: Path, line: str, code: str | None) -> None:
    codes = raised(f"model_name_or_path: {nova}\ndo_train: true\n{line}\n")
    judged = {"TRA207", "TRA216", "TRA217", "TRA311", "TRA707", "TRA709", "TRA710"}
    assert codes & judged == ({code} if code else set())


def test_no_list_of_model_types_stands_outside_the_tables() -> None:
    kinds = {*families.known_types(), *(kind for column in GENERATED["llamafactory"].values() for kind in column)}
    named = set()
    for module in modules():
        if not module.startswith("knowledge/"):
            texts = {node.value for node in nodes(module) if isinstance(node, ast.Constant)}
            named |= {(f"{module}.py", text) for text in texts & kinds}
    assert named == set()


@pytest.mark.slow
def test_experts_are_merged_on_loading_where_transformers_says_so() -> None:
    mapping = pytest.importorskip("transformers.conversion_mapping").get_checkpoint_conversion_mapping
    merged = {
        kind
        for kind in families.known_types()
        for step in mapping(kind.removesuffix("_text")) or ()
        if hasattr(step, "operations") and any("experts" in target for target in step.target_patterns)
    }
    assert merged == {kind for kind in families.known_types() if families.family_of_type(kind).merges}
