"""What layers have in place of attention, or beside it: shapes, linear modules, and all else that they hold."""

# Annotations are not postponed, as workload.py says: each start would pay for it.

from typing import NamedTuple

from .linear import Linear


class Delta(NamedTuple):
    """Shapes of one gated delta net (arXiv 2412.06464), attention that is linear in the length."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int  # tokens that the convolution before it sees
    paired: bool = False  # two linear modules make all inputs, instead of four
    kernels: bool = False  # flash-linear-attention computes it, which keeps little more than inputs and output

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages with the fused kernels of this mixer, which run only if all of these are installed."""
        return ("flash-linear-attention",)

    @property
    def rare(self) -> str:
        """What has few published measurements, in words."""
        return "linear attention" + ("" if self.kernels else " (less is needed with flash-linear-attention)")

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        keys, values, heads = self.key_width, self.value_width, self.value_heads
        inputs = {"in_qkv": 2 * keys + values, "in_z": values, "in_b": heads, "in_a": heads}
        if self.paired:
            inputs = {"in_qkvz": 2 * (keys + values), "in_ba": 2 * heads}
        return (*(Linear(role, hidden, width) for role, width in inputs.items()), Linear("out", values, hidden))

    def vectors(self, _hidden: int) -> int:
        """Elements of its convolution, decay and bias of each head, and a norm over one."""
        convolved = 2 * self.key_width + self.value_width
        return self.kernel * convolved + 2 * self.value_heads + self.value_dim


class Convolution(NamedTuple):
    """A gated convolution over each channel of the hidden state."""

    kernel: int  # tokens that it sees
    bias: bool = False
    kernels: bool = True  # as much is kept whether or not causal-conv1d computes it

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages with the fused kernels of this mixer, which run only if all of these are installed."""
        return ()

    @property
    def rare(self) -> str:
        """What has few published measurements, in words."""
        return "short convolutions"

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        return Linear("in", hidden, 3 * hidden, bias=self.bias), Linear("out", hidden, hidden, bias=self.bias)

    def vectors(self, hidden: int) -> int:
        """Elements of the convolution."""
        return (self.kernel + int(self.bias)) * hidden


class StateSpace(NamedTuple):
    """Shapes of one Mamba-2 layer (arXiv 2405.21060)."""

    heads: int
    head_dim: int
    state: int  # of each channel
    groups: int  # of heads that share what goes into the state and out of it
    kernel: int  # tokens that the convolution before it sees
    chunk: int  # tokens that see each other directly
    bias: bool = False  # of its linear modules
    convolution_bias: bool = True
    normed: bool = True  # the gated result goes through a norm
    kernels: bool = False  # mamba-ssm computes it, which keeps little more than inputs and output

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages with the fused kernels of this mixer, which run only if all of these are installed."""
        return ("mamba-ssm", "causal-conv1d")

    @property
    def rare(self) -> str:
        """What has few published measurements, in words."""
        return "state spaces" + ("" if self.kernels else " (far less is needed with mamba-ssm and causal-conv1d)")

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels that the convolution reads."""
        return self.width + 2 * self.groups * self.state

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        inputs = Linear("in", hidden, self.width + self.convolved + self.heads, bias=self.bias)
        return inputs, Linear("out", self.width, hidden, bias=self.bias)

    def vectors(self, _hidden: int) -> int:
        """Elements of its convolution, three numbers of each head, and a norm."""
        norm = self.width if self.normed else 0
        return (self.kernel + int(self.convolution_bias)) * self.convolved + 3 * self.heads + norm


class Scan(NamedTuple):
    """Shapes of one Mamba layer (arXiv 2312.00752), with norms on what it selects by."""

    width: int
    state: int  # of each channel
    rank: int  # of the step in time
    kernel: int  # tokens that the convolution before it sees
    bias: bool = False  # of its first and last linear module
    convolution_bias: bool = True
    kernels: bool = False  # mamba-ssm and causal-conv1d compute it, which keep no states

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages with the fused kernels of this mixer, which run only if all of these are installed."""
        return ("mamba-ssm", "causal-conv1d")

    @property
    def rare(self) -> str:
        """What has few published measurements, in words."""
        return "state spaces" + ("" if self.kernels else " (far less is needed with mamba-ssm and causal-conv1d)")

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        selecting = Linear("x", self.width, self.rank + 2 * self.state), Linear("dt", self.rank, self.width, bias=True)
        first, last = (
            Linear("in", hidden, 2 * self.width, bias=self.bias),
            Linear("out", self.width, hidden, bias=self.bias),
        )
        return first, *selecting, last

    def vectors(self, _hidden: int) -> int:
        """Elements of its convolution, decay and bias of each channel, and three norms."""
        convolution = self.kernel + int(self.convolution_bias)
        return self.width * (convolution + self.state + 1) + self.rank + 2 * self.state


class Lightning(NamedTuple):
    """Shapes of one layer of lightning attention (arXiv 2401.04658), which is linear in the length."""

    heads: int
    head_dim: int
    chunk: int  # tokens that see each other directly
    kernels: bool = True  # its class knows none, so as much is always kept

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages with the fused kernels of this mixer, which run only if all of these are installed."""
        return ()

    @property
    def rare(self) -> str:
        """What has few published measurements, in words."""
        return "lightning attention"

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        inputs = Linear("in", hidden, 3 * self.width), Linear("in_gate", hidden, self.width)
        return *inputs, Linear("out", self.width, hidden)

    def vectors(self, _hidden: int) -> int:
        """Elements of the norm over its result."""
        return self.width


Mixer = Delta | Convolution | StateSpace | Scan | Lightning
