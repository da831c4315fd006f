"""What is trained and how: the inputs of every memory formula.

Named tuples, because Python builds one in a third of the time of a dataclass, and every `check` pays for that. For the
same reason annotations are not postponed here: typing would compile each from its text."""

from typing import TYPE_CHECKING, Literal, NamedTuple

from .tower import Tower

if TYPE_CHECKING:
    from .mixers import Mixer  # which few models have

Method = Literal["full", "freeze", "lora", "oft"]
Precision = Literal["amp", "pure", "engine", "fp32"]
Attention = Literal["sdpa", "flash", "eager"]
Checkpointing = Literal["layer", "off", "offloaded"]
Loss = Literal["upcast", "shifted", "fused"]
# RMSNorm, its weight applied before (rms) or after (rms_fp32) the result is rounded; nn.LayerNorm; one without bias,
# whose result is brought back to its input's precision; a LayerNorm without bias that is written out in fp32; one
# without any weight
Norm = Literal["rms", "rms_fp32", "layer", "layer_back", "layer_fp32", "bare"]


class Attn(NamedTuple):
    """Shapes of one attention block. Multi-head latent attention sets the `*_rank` and `rope_dim` fields."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0  # 0: head_dim
    q_rank: int = 0  # low-rank query projection (MLA); 0: none
    kv_rank: int = 0  # latent key/value width (MLA); 0: ordinary attention
    rope_dim: int = 0  # rotary part of each MLA key
    qkv_bias: bool = False
    out_bias: bool = False
    head_norms: bool = False  # a norm weight of head_dim on queries and on keys
    whole_norms: bool = False  # a norm weight over all queries and one over all keys
    bare_norms: float = 0.0  # share of the layers with norms without weights over each head of queries and keys
    half_scores: bool = False  # where all pairs of tokens are written out, their softmax is made in half precision
    sinks: bool = False  # one learned scalar for each head
    window: int = 0  # sliding window in tokens; 0: none
    window_share: float = 0.5  # of the layers that have it
    fused: bool = False  # one linear module makes q, k and v
    copied: bool = False  # and these are copied out of its result, or read there as they are
    repeated: bool = False  # keys and values are there for each head of the queries
    masked: bool = False  # sdpa is given a mask, whether or not there is padding
    broadcast: bool = False  # all heads share keys in a way that no kernel of PyTorch knows
    written: bool = False  # biases by distance: no kernel is used, all pairs of tokens are written out
    clipped: bool = False  # what one linear module makes of them is clipped
    concatenated: bool = False  # rotated and plain parts are joined head by head, so the output is copied once more
    gated: bool = False  # queries are made with a gate as wide, whose sigmoid scales what attention gives
    value_norms: bool = False  # a norm without weights over each head of values
    joint: bool = False  # one linear module makes keys and values
    borrowed: bool = False  # keys and values are those of an earlier layer
    crossed: bool = False  # keys and values are made of what towers give, and two gates scale what is added


class Ffn(NamedTuple):
    """Shapes of one feed-forward block; `experts` > 0 makes it a mixture."""

    width: int
    gated: bool = True
    quick: bool = False  # the activation is its input times a sigmoid, and keeps both (quick GELU)
    fused_gate_up: bool = False
    bias: bool = False
    stepwise: bool = False  # the activation is written out, and keeps what each step does
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_width: int = 0  # width of the always-on expert; 0: none
    shared_gate: bool = False
    router_bias: bool = False
    router_linear: bool = False  # the router is an ordinary linear module, which adapters reach
    separate_router_linear: bool = True  # the same, where the experts are linear modules themselves
    router_bias_fixed: bool = False  # the router's bias is a parameter that never trains
    router_bias_buffer: bool = False  # a correction bias kept as a buffer, not a parameter
    expert_bias: bool = False
    clamped: bool = False  # experts clamp the results of gate and up
    indexed: bool = False  # what the chosen experts of a token give is added up by index, which keeps each of them
    dense_layers: int = 0  # leading layers with an ordinary block of `width`
    seeing_width: int = 0  # of as many experts for pictures, which idle: no token is said to be one's
    router_scaled: bool = False  # the router has a norm of its own and scales for its input and for each expert


class Counted(NamedTuple):
    """`number` layers that are alike, as their class holds them. Of each: its linear modules (name, inputs, outputs,
    how many, whether biased), elements of experts in one tensor, and of all else."""

    number: int
    linears: tuple[tuple[str, int, int, int, bool], ...]
    experts: int
    vectors: int


class LayerKind(NamedTuple):
    """What a layer is made of."""

    attends: bool = True
    mixes: bool = False
    experts: bool = False


class Architecture(NamedTuple):
    """A decoder, by its shapes. All widths are elements, never bytes."""

    hidden: int
    layers: int
    vocab: int
    attn: Attn
    ffn: Ffn
    tied: bool = False
    norms_per_layer: int = 2  # 1: parallel halves share it; 4: each half norms its result, too
    norm: Norm = "rms"
    parallel: bool = False  # attention and feed-forward block read the same hidden state
    dropout: bool = False  # a mask drops a part of what each half of a layer adds
    head_bias: bool = False
    embedding_norm: bool = False  # the first layer reads a norm's result
    positions: int = 0  # rows of an embedding of places
    recast: bool = False  # autocast copies the weights of linear modules anew for each product
    logit_softcap: bool = False
    parameters: int | None = None  # a published count; None: derived from the shapes
    towers: tuple[Tower, ...] = ()  # encoders of images, video or sound before the decoder
    counted: tuple[Counted, ...] = ()  # of a model that no formula knows, in place of `attn` and `ffn`
    mixer: "Mixer | None" = None  # of some layers, in place of `attn` or beside it
    kinds: tuple[LayerKind, ...] = ()  # of each layer; none: all attend, and all but the first have experts if any do
    runs: tuple[
        tuple[int, "Architecture"], ...
    ] = ()  # layers in a row, and the decoder whose they are, if shapes differ
    layer_input: int = 0  # width of what each layer reads of an embedding of its own
    layer_vocab: int = 0  # rows of that embedding
    more_rows: int = 0  # of the embedding, which the output layer lacks
    idle: int = 0  # layers for further tokens, which are loaded and never run

    @property
    def crosses(self) -> bool:
        """Whether some layers read what towers give."""
        return any(decoder.attn.crossed for _, decoder in self.runs)

    @property
    def borrows(self) -> bool:
        """True if the last layers read keys and values of earlier layers."""
        return any(decoder.attn.borrowed for _, decoder in self.runs)

    @property
    def mixtures(self) -> int:
        """Layers with experts."""
        if self.kinds:
            return sum(kind.experts for kind in self.kinds)
        return self.layers - self.ffn.dense_layers if self.ffn.experts else 0


class Adapter(NamedTuple):
    """Low-rank or orthogonal adapters. `targets` are roles: q k v o gate up down (fused roles: qkv, gate_up)."""

    rank: int = 8
    targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    dora: bool = False
    block: int = 32  # method oft: size of each orthogonal block
    dropout: bool = False  # a dropout mask is kept for every adapted module
    full_embedding: bool = False  # a trained full-precision copy of the embedding
    full_head: bool = False


class Encoding(NamedTuple):
    """What a run asks of one tower of the architecture: how much it reads, and what of it trains."""

    tokens: int = 0  # tower tokens of one sequence
    trains: bool = False  # its weights train (methods full and freeze)
    projector: bool = False  # the projector's weights train
    loose: bool = False  # what is never frozen trains (method full)
    trainable_layers: int = 0  # how many layers train without the rest
    watched: bool = False  # gradients are asked for what enters the layers, whether or not anything trains there
    recomputed: bool | None = None  # its layers are; None: as those of the decoder, if anything of them trains
    targets: tuple[str, ...] = ()  # roles of adapted linear modules, of the tower and of the projector


class Sharding(NamedTuple):
    """How states are spread over `nodes * devices_per_node` devices. Bucket sizes are elements."""

    nodes: int = 1
    devices_per_node: int = 1
    stage: int = 0  # ZeRO stage; 0 with several devices: plain data parallel
    fsdp: bool = False  # stage 2 then keeps gathered weights from the forward to the backward pass
    engine: bool = False  # a ZeRO engine runs the step (also at stage 0)
    offload_optimizer: bool = False
    offload_parameters: bool = False
    pin_memory: bool = True
    reduce_bucket: int = 500_000_000
    allgather_bucket: int = 500_000_000
    prefetch_bucket: int = 50_000_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group: int = 1_000_000_000  # ZeRO-3 updates this many elements of a partition at a time
    persistence_threshold: int = 100_000
    overlap: bool = False
    contiguous_gradients: bool = True
    gather_on_save: bool = False
    sharded_load: bool = True  # weights are spread as they are read; False: each device holds all of them first
    loaders: int = 1  # processes of a node that keep the whole model in main memory until FSDP has spread it
    raised: bool = False  # FSDP2: frozen weights are raised to fp32, too, where precision is mixed

    @property
    def world(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def zero(self) -> int:
        """ZeRO stage of an engine; 0 under FSDP, which has its own way of sharding."""
        return 0 if self.fsdp else self.stage


class Given(NamedTuple):
    """What the fused attention of PyTorch is given."""

    repeated: bool = False  # keys and values once for each head of the queries
    copied: bool = False  # copies, head after head; the result is then copied back to token after token
    added: bool = False  # a mask of numbers in the precision of the hidden states, in place of booleans


class Workload(NamedTuple):
    """One training run, as it really executes. `length` is tokens per sequence, `micro_batch` sequences per device."""

    method: Method = "lora"
    precision: Precision = "amp"
    half: Literal["bf16", "fp16"] = "bf16"
    base_bytes: float = 2.0  # stored bytes per element of unquantized frozen weights
    quant_bits: int = 0  # 0: none; 4 or 8: linear layers are quantized
    unpacked: bool = False  # the checkpoint is quantized, and unpacked while it loads
    double_quant: bool = True
    quant_grouped: bool = False  # GPTQ/AWQ style groups instead of bitsandbytes blocks
    experts_fused: bool = True  # experts are 3-D parameters: neither adapters nor quantization reach them
    experts_merged: bool = False  # such a parameter is made of the experts' matrices while the checkpoint loads
    upcast_norms: bool = False
    adapter: Adapter = Adapter()
    trainable_layers: int = 2  # method freeze: how many trailing (or leading) layers train
    optimizer: str = "adamw"
    optimizer_rank: int = 0  # GaLore/APOLLO rank
    layerwise_update: bool = False  # each tensor is updated and its gradient freed during the backward pass
    micro_batch: int = 1
    sequences_per_sample: int = 1  # 2 for a pair in one batch
    length: int = 2048
    accumulation: int = 1
    checkpointing: Checkpointing = "layer"
    reentrant: bool = True  # checkpointing computes layers again as a whole, else up to the last tensor that is needed
    attention: Attention = "sdpa"
    given: Given = Given()
    padded: bool = True  # batches hold padding, so sdpa may need a dense mask
    loss: Loss = "upcast"
    logits_raised: bool = False  # the output layer's result is made fp32 at once
    fused_kernels: bool = False  # norms and gated activations are one kernel each, which keeps its inputs only
    needs_full_logits: bool = False  # a preference or reward stage keeps log-probabilities
    supervised: bool = False  # and makes the supervised loss, too, which it drops
    value_head: bool = False  # a scalar head instead of the vocabulary (reward model)
    reference_copies: int = 0  # whole frozen copies of the model beside it
    reference_logits: bool = False  # a second, gradient-free pass per step (preference stages with a reference)
    estimates_kl: bool = False  # each pass is followed by a gradient-free one over mismatched answers (KTO)
    eval_batch: int = 0  # 0: no evaluation
    eval_length: int = 0
    loader_workers: int = 0
    dataset_tokens: int = 0
    encodings: tuple[Encoding, ...] = ()  # one for each tower
    low_memory_load: bool = True  # each process maps the weights instead of materializing them
    sharding: Sharding = Sharding()
