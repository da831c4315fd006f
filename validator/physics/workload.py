"""Describes how a model is trained (method, precision, adapter, batch, sharding), and computes from this the bytes per
element of each kind of tensor."""

from __future__ import annotations

from typing import Literal, NamedTuple

Method = Literal["full", "freeze", "lora", "oft"]
Precision = Literal["amp", "pure", "engine", "fp32"]
AttentionImplementation = Literal["sdpa", "flash", "eager"]
Checkpointing = Literal["layer", "off", "offloaded"]
LossKind = Literal["upcast", "shifted", "fused"]
# How a release of transformers runs the experts of a layer. separate: linear modules, one after another in a Python
# loop. sliced: one tensor of all experts, of which a Python loop takes a slice for each expert. grouped: one tensor, in
# grouped matmuls.
ExpertsForm = Literal["separate", "sliced", "grouped"]


# (number of layers in a row, roles of their adapted linear modules), first layers first
AdaptedLayers = tuple[tuple[int, tuple[str, ...]], ...]


class Adapter(NamedTuple):
    """Low-rank (LoRA) or orthogonal (OFT) adapters. `targets` are the roles of adapted linear modules: q k v o gate up
    down (fused roles: qkv, gate_up), and outside the layers embedding, head and inputs. A role such as `routed gate` or
    `shared gate` stands for the modules of routed experts alone, or for all others."""

    rank: int = 8
    targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    layers: AdaptedLayers = ()  # if layers differ in their targets; empty: every layer has `targets`
    experts: int = 0  # adapted experts in a layer; 0: all
    dora: bool = False
    block_size: int = 32  # method oft: size of each orthogonal block
    dropout: bool = False  # a dropout mask is kept for every adapted module
    full_embedding: bool = False  # a trained full-precision copy of the embedding; with freeze the embedding itself
    full_head: bool = False
    full_elements: int = 0  # elements of other modules that train in full precision beside it, in the whole model


# One fp32 maximum for each 256 elements (bitsandbytes, arXiv 2110.02861; torchao with transformers' block size).
EIGHT_BIT_SIZE = 1 + 4 / 256


class Optimizer(NamedTuple):
    """The states that an optimizer keeps, and the work that its step does."""

    moments: int = 2  # for each trained element, if `states` is moments
    moment_size: float = 0.0  # bytes of a moment; 0: those that the precision gives
    states: Literal["moments", "low rank", "factored", "muon", "one layer"] = "moments"
    foreach: bool = False  # its step works on all tensors at once
    largest_copies: int = 0  # fp32 copies of the largest trained tensor that a step allocates
    products: Literal["none", "newton-schulz", "svd", "random"] = "none"  # matrix products of a step
    measured: bool = False  # runs with published figures use it


# By name, which may begin with paged_: the driver moves the moments to main memory under pressure. bitsandbytes keeps
# 32-bit moments in fp32 whatever the weights are.
OPTIMIZERS = {
    "adamw": Optimizer(measured=True),
    "adamw_foreach": Optimizer(foreach=True, measured=True),
    "adamw_32bit": Optimizer(moment_size=4.0),
    "adamw_8bit": Optimizer(moment_size=EIGHT_BIT_SIZE, measured=True),
    "adamw_4bit": Optimizer(moment_size=0.5 + 4 / 256),
    "ademamix": Optimizer(3, 4.0),
    "ademamix_8bit": Optimizer(3, EIGHT_BIT_SIZE),
    "lion": Optimizer(1, 4.0),
    "lion_8bit": Optimizer(1, EIGHT_BIT_SIZE),
    "momentum": Optimizer(1),
    "adagrad": Optimizer(1, foreach=True),
    "rmsprop": Optimizer(1, foreach=True),
    "rmsprop_32bit": Optimizer(1, 4.0),
    "rmsprop_8bit": Optimizer(1, EIGHT_BIT_SIZE),
    "adam_mini": Optimizer(1, largest_copies=2),
    "sgd": Optimizer(0, measured=True),
    "galore": Optimizer(states="low rank", largest_copies=2, products="svd"),
    "galore_8bit": Optimizer(moment_size=EIGHT_BIT_SIZE, states="low rank", largest_copies=2, products="svd"),
    "galore_adafactor": Optimizer(states="factored", largest_copies=2, products="svd"),
    "apollo": Optimizer(states="low rank", largest_copies=2, products="random"),
    "adafactor": Optimizer(states="factored", largest_copies=2, measured=True),
    "muon": Optimizer(states="muon", largest_copies=2, products="newton-schulz"),
    "badam": Optimizer(states="one layer"),
}


class TowerWorkload(NamedTuple):
    """The workload of one tower: how many tokens it reads, and which parts of it train."""

    tokens: int = 0  # tower tokens of one sequence
    trains: bool = False  # its weights train (methods full and freeze)
    projector: bool = False  # the projector's weights train
    never_frozen: bool = False  # what is never frozen trains (method full)
    trainable_layers: int = 0  # how many layers train without the rest
    input_requires_grad: bool = (
        False  # gradients are asked for what enters the layers, whether or not anything trains there
    )
    recomputed: bool | None = None  # its layers are; None: as those of the decoder, if anything of them trains
    targets: tuple[str, ...] = ()  # roles of adapted linear modules, of the tower and of the projector
    adapted_modules: tuple[tuple[str, int], ...] = ()  # number of those of a role, if not all of them
    attends_to_batch: bool = (
        False  # its sdpa gets the tokens of a whole batch as one sequence without a batch dimension
    )


class ShardingStrategy(NamedTuple):
    """The states that data parallelism shards over all devices, and the moments at which devices exchange them."""

    name: str
    engine: Literal["torch", "deepspeed", "fsdp"]  # the software that runs the step
    shards_optimizer_states: bool = False
    shards_gradients: bool = False
    shards_weights: bool = False
    gathers: Literal["never", "module", "layer"] = "never"  # the unit in which sharded weights are gathered
    keeps_gathered: bool = False  # gathered weights stay from the forward to the backward pass
    reduces: Literal["last micro batch", "every micro batch"] = "last micro batch"  # after which gradients are reduced
    collective: Literal["all_reduce", "reduce_scatter"] = "all_reduce"  # that reduces gradients
    sums_gradients_in_fp32: bool = False  # in a buffer of all gradients that each device has from the start

    @property
    def deepspeed(self) -> bool:
        return self.engine == "deepspeed"

    @property
    def fsdp(self) -> bool:
        return self.engine == "fsdp"

    @property
    def has_gradient_buffer(self) -> bool:
        """True if sharded gradients have a buffer of their own from the start of the run (deepspeed, runtime/zero)."""
        return self.deepspeed and self.shards_gradients


# DistributedDataParallel, and runs on one device; ZeRO by stage (arXiv 1910.02054), and DeepSpeed's BF16_Optimizer, by
# which some releases run stage 0 (run/deepspeed.py, sharding_strategy); FSDP by its own words. DeepSpeed reduces the
# gradients of stages 1 and 2 by whole all-reduces (runtime/zero/stage_1_and_2.py, allreduce_bucket).
DDP = ShardingStrategy("none", "torch")
ZERO_0 = ShardingStrategy("zero_0", "deepspeed")
BF16_OPTIMIZER = ShardingStrategy("bf16_optimizer", "deepspeed", True, sums_gradients_in_fp32=True)
ZERO_1 = ShardingStrategy("zero_1", "deepspeed", shards_optimizer_states=True)
ZERO_2 = ShardingStrategy("zero_2", "deepspeed", True, True, reduces="every micro batch")
ZERO_3 = ShardingStrategy("zero_3", "deepspeed", True, True, True, "module", reduces="every micro batch",
                          collective="reduce_scatter")  # fmt: skip
FSDP_SHARD_GRAD_OP = ShardingStrategy("shard_grad_op", "fsdp", True, True, True, "layer", keeps_gathered=True,
                                      collective="reduce_scatter")  # fmt: skip
FSDP_FULL_SHARD = ShardingStrategy("full_shard", "fsdp", True, True, True, "layer", collective="reduce_scatter")
ZERO_STAGES = (ZERO_0, ZERO_1, ZERO_2, ZERO_3)


class Sharding(NamedTuple):
    """Data parallelism over `nodes * devices_per_node` devices, with its sharding strategy and settings. Bucket sizes
    are numbers of elements."""

    nodes: int = 1
    devices_per_node: int = 1
    strategy: ShardingStrategy = DDP
    offload_optimizer: bool = False
    offload_parameters: bool = False
    pin_memory: bool = True
    reduce_bucket: int = 500_000_000
    allgather_bucket: int = 500_000_000
    prefetch_bucket: int = 50_000_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000  # ZeRO-3 updates this many elements of a partition at a time
    persistence_threshold: int = 100_000
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    gather_on_save: bool = False
    sharded_load: bool = True  # weights are spread as they are read; False: each device holds all of them first
    full_model_ranks: int = 1  # processes of a node that keep the whole model in main memory until FSDP has spread it
    upcasts_frozen_weights: bool = False  # FSDP2: frozen weights are raised to fp32, too, where precision is mixed
    replicated_across_nodes: bool = False  # each node holds all states among its devices (hybrid sharding, HSDP)
    second_copy_devices: int = 0  # ZeRO-3: devices that hold a second copy of the weights among them (hpZ); 0: no copy
    weights_sent_in_8_bits: bool = False  # ZeRO++ in stage 3: weights are quantized for each all-gather
    gradients_sent_in_4_bits: bool = False  # ZeRO++ in stage 3: matrices of gradients are quantized for their reduction

    @property
    def world_size(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def shard_nodes(self) -> int:
        """Number of nodes over which the states are sharded."""
        return 1 if self.replicated_across_nodes else self.nodes

    @property
    def shard_devices(self) -> int:
        """Number of devices over which the states are sharded."""
        return self.shard_nodes * self.devices_per_node


class SdpaInputs(NamedTuple):
    """How a model prepares the arguments of PyTorch's scaled_dot_product_attention."""

    kv_repeated: bool = False  # keys and values once for each head of the queries
    contiguous_copies: bool = False  # copies, head after head; the result is then copied back to token after token
    additive_mask: bool = False  # a mask of numbers in the precision of the hidden states, in place of booleans


class Rollout(NamedTuple):
    """The rollout of a PPO step: the policy answers prompts, then trains on its answers."""

    new_tokens: int  # tokens of an answer at most
    batches: int = 1  # batches of micro batch x accumulation that are answered before training starts
    epochs: int = 4  # times that the answers are trained on


class Workload(NamedTuple):
    """One training run, with the settings that really take effect. `length`: tokens per sequence. `micro_batch`:
    samples per device in one pass; a sample has `sequences_per_sample` sequences."""

    method: Method = "lora"
    precision: Precision = "amp"
    base_bytes: float = 2.0  # stored bytes per element of unquantized frozen weights
    quant_bits: int = 0  # 0: none; 4 or 8: linear layers are quantized
    dequantized_at_load: bool = False  # the checkpoint is quantized, and unpacked while it loads
    double_quant: bool = True
    quant_grouped: bool = False  # GPTQ/AWQ style groups instead of bitsandbytes blocks
    experts: ExpertsForm = "grouped"
    experts_merged: bool = False  # such a parameter is made of the experts' matrices while the checkpoint loads
    upcast_norms: bool = False
    adapter: Adapter = Adapter()
    input_requires_grad: bool = True  # beside adapters: gradients run through all layers, whether or not they train
    trainable_layers: int = 2  # method freeze: how many layers train, the last ones
    trains_first_layers: bool = False  # method freeze: the first ones instead
    trainable_roles: tuple[str, ...] = ()  # method freeze: linear modules of them that train; empty: the layers whole
    passed_layers: int = 0  # method freeze: frozen layers that gradients pass on their way to what trains
    optimizer: str = "adamw"  # a name of OPTIMIZERS
    optimizer_rank: int = 0  # GaLore/APOLLO rank
    layerwise_update: bool = False  # each tensor is updated and its gradient freed during the backward pass
    micro_batch: int = 1
    sequences_per_sample: int = 1  # 2 for a pair in one batch
    length: int = 2048
    accumulation: int = 1
    checkpointing: Checkpointing = "layer"
    reentrant: bool = True  # checkpointing computes layers again as a whole, else up to the last tensor that is needed
    attention: AttentionImplementation = "sdpa"
    sdpa_inputs: SdpaInputs = SdpaInputs()
    pads_batches: bool = True  # batches hold padding, so sdpa may need a dense mask
    loss: LossKind = "upcast"
    logits_upcast: bool = False  # the output layer's result is made fp32 at once
    compiled: bool = False  # by torch.compile, whose fused kernels and buffers no formula counts
    fused_kernels: bool = False  # norms and gated activations are one kernel each, which keeps its inputs only
    needs_full_logits: bool = False  # a preference or reward stage keeps log-probabilities
    adds_supervised_loss: bool = False  # and makes the supervised loss, too, which it drops
    value_head: bool = False  # a scalar head instead of the vocabulary (reward model)
    reference_copies: int = 0  # whole frozen copies of the model beside it
    reference_logits: bool = False  # a second, gradient-free pass per step (preference stages with a reference)
    estimates_kl: bool = False  # each pass is followed by a gradient-free one over mismatched answers (KTO)
    rollout: Rollout | None = None  # PPO: `length` includes the answer
    eval_batch: int = 0  # 0: no evaluation
    eval_length: int = 0
    loader_workers: int = 0
    dataset_tokens: int = 0
    towers: tuple[TowerWorkload, ...] = ()  # one for each tower
    low_memory_load: bool = True  # each process maps the weights instead of materializing them
    sharding: Sharding = Sharding()

    @property
    def experts_fused(self) -> bool:
        """True if all experts of a layer are one 3-D parameter, which neither adapters nor quantization reach."""
        return self.experts != "separate"


class ElementSizes(NamedTuple):
    """Bytes per element of each kind of tensor in a run. `master` is the full-precision copy of trained parameters that
    the optimizer keeps."""

    base: float  # base weights that do not train
    trained: float  # base weights that train
    adapter: float
    modules_to_save: (
        float  # modules that train whole beside an adapter: weights, gradients and moments; at most the adapter's
    )
    gradient: float
    master: float
    moment: float
    compute: float  # results of matrix products
    residual: float  # hidden states between layers
    autocast_copies: bool  # autocast: every trained linear keeps its own half-precision copy of weight and input


def frozen_element_size(workload: Workload) -> float:
    """Bytes per element of weights that do not train, during training. The weights keep the precision of the
    checkpoint, unless FSDP2 raises them to fp32 under mixed precision (accelerate, utils/fsdp_utils.py,
    fsdp2_prepare_model)."""
    return 4.0 if workload.sharding.upcasts_frozen_weights and workload.precision == "amp" else workload.base_bytes


def _fp32_master_size(workload: Workload) -> float:
    """Bytes per trained element of the master weights beside fp32 weights. ZeRO copies its partition; in stage 0
    DeepSpeed runs the plain optimizer (deepspeed, runtime/engine.py, _do_optimizer_sanity_check)."""
    strategy = workload.sharding.strategy
    return 4.0 if strategy.deepspeed and strategy.shards_optimizer_states else 0.0


def _full_training_sizes(workload: Workload) -> ElementSizes:
    """Return the bytes per element for runs that train weights of the base model. Autocast keeps trained weights, their
    gradients and moments in fp32. A ZeRO engine keeps half-precision weights and gradients beside fp32 master weights
    and moments. Pure half precision has half-precision moments. In fp32 only ZeRO's stages 1 to 3 copy the weights."""
    base = frozen_element_size(workload)
    if (
        workload.sharding.strategy.fsdp and workload.precision == "amp"
    ):  # gathers half-precision weights from fp32 shards
        return ElementSizes(base, 4, 4, 4, 4, 0, 4, 2, 2, autocast_copies=False)
    residual = base if workload.method == "freeze" and not workload.adapter.full_embedding else 4.0
    match workload.precision:
        case "amp":
            return ElementSizes(base, 4, 4, 4, 4, 0, 4, 2, residual, autocast_copies=True)
        case "pure":
            return ElementSizes(base, 2, 4, 2, 2, 0, 2, 2, 2, autocast_copies=False)
        case "engine":
            return ElementSizes(2, 2, 2, 2, 2, 4, 4, 2, 2, autocast_copies=False)
        case "fp32":
            return ElementSizes(
                base,
                4,
                4,
                4,
                4,
                _fp32_master_size(workload),
                4,
                4,
                residual,
                autocast_copies=False,
            )


def _adapter_training_sizes(workload: Workload) -> ElementSizes:
    """Return the bytes per element for runs that train adapters. Adapters are stored and trained in fp32, except under
    a half-precision ZeRO engine, which casts them like everything else. Modules that train in full beside the adapters
    follow the same rule, except that pure half precision keeps the precision in which they were loaded (LLaMA-Factory,
    model/adapter.py; peft casts adapters only).

    An embedding that trains in fp32 makes the hidden states between layers fp32."""
    base = workload.base_bytes
    if workload.precision == "engine":
        return ElementSizes(2, 2, 2, 2, 2, 4, 4, 2, 2, autocast_copies=False)
    master = _fp32_master_size(workload)
    compute = 2.0 if workload.precision == "amp" else base
    residual = 4.0 if workload.precision == "amp" and workload.adapter.full_embedding else base
    full_size = base if workload.precision == "pure" else 4.0
    frozen_size = frozen_element_size(workload)
    return ElementSizes(frozen_size, frozen_size, 4, full_size, 4, master, 4, compute, residual, autocast_copies=False)


def element_sizes(workload: Workload) -> ElementSizes:
    return (
        _full_training_sizes(workload) if workload.method in ("full", "freeze") else _adapter_training_sizes(workload)
    )
