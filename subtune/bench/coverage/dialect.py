"""The words in which a family of operators says what it computes, once for every framework.

A family's body calls these methods; `OnnxDialect` adds nodes, `TorchDialect` computes with tensors as a user of PyTorch
would write it. Values are whatever the dialect makes them: a name, a tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Value = Any
"""A value of the dialect's own kind."""
Shape = tuple[int, ...]

EPSILON = 1e-5
"""Of every normalisation."""


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution's or a pooling's window, one number for each spatial axis; `pads` are the same at both ends."""

    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape
    groups: int = 1
    output_pad: Shape = ()

    @property
    def rank(self) -> int:
        return len(self.kernel)


class Dialect(ABC):
    """Methods are operators; axes are not negative, `shape`s complete."""

    # What a case is given. Inputs and weights are asked for in the same order in every dialect.

    @abstractmethod
    def input(self, shape: Shape, kind: str = "normal", dtype: str = "") -> Value:
        """An input; `kind` says which values it holds (`arrays.draw`), `dtype` is the case's own if empty."""

    @abstractmethod
    def weight(self, shape: Shape, kind: str = "normal", order: str = "") -> Value:
        """A constant; `order` names the order of a recurrent cell's gates in axis 1, in ONNX's letters."""

    # Elementwise

    @abstractmethod
    def unary(self, name: str, x: Value) -> Value:
        """One of UNARY."""

    @abstractmethod
    def binary(self, name: str, x: Value, y: Value) -> Value:
        """One of BINARY."""

    @abstractmethod
    def scaled(self, x: Value, factor: float) -> Value:
        """x times a number."""

    @abstractmethod
    def where(self, condition: Value, x: Value, y: Value) -> Value: ...

    # Products

    @abstractmethod
    def linear(self, x: Value, weight: Value, bias: Value | None, is_transposed: bool) -> Value:
        """x @ weight, or of a weight[n, k] its transpose, plus bias."""

    @abstractmethod
    def matmul(self, x: Value, y: Value) -> Value: ...

    @abstractmethod
    def attention(self, q: Value, k: Value, v: Value, mask: Value | None, shapes: tuple[Shape, Shape]) -> Value:
        """softmax(q @ k^T / sqrt(head) + mask) @ v of [batch, heads, tokens, head]; a group of q's heads to one of k's.

        Args:
            mask: additive; or True for a causal one, aligned at the end of the keys.
            shapes: q's and k's.
        """

    # Windows

    @abstractmethod
    def conv(self, x: Value, weight: Value, bias: Value | None, window: Window, is_transposed: bool = False) -> Value:
        """Channels first, weight [cout, cin / groups, ...]; transposed: [cin, cout / groups, ...]."""

    @abstractmethod
    def pool(self, kind: str, x: Value, window: Window) -> Value:
        """`max`, or `avg` with the padding counted."""

    # Along axes

    @abstractmethod
    def layer_norm(self, x: Value, weight: Value, bias: Value, width: int) -> Value:
        """Over the last axis, of extent `width`."""

    @abstractmethod
    def rms_norm(self, x: Value, weight: Value, width: int) -> Value: ...

    @abstractmethod
    def group_norm(self, x: Value, groups: int, weight: Value, bias: Value, shape: Shape) -> Value:
        """Channels are axis 1; as many groups as channels is an instance norm."""

    @abstractmethod
    def batch_norm(self, x: Value, weight: Value, bias: Value, mean: Value, variance: Value) -> Value: ...

    @abstractmethod
    def softmax(self, x: Value, axis: int, is_log: bool = False) -> Value: ...

    @abstractmethod
    def reduce(self, kind: str, x: Value, axes: Sequence[int]) -> Value:
        """`sum`, `mean`, `max`, `min`, `prod`, `l2`; axes are kept as 1."""

    @abstractmethod
    def arg_max(self, x: Value, axis: int) -> Value: ...

    @abstractmethod
    def top_k(self, x: Value, count: int, axis: int) -> tuple[Value, Value]:
        """The largest, in falling order, and where they are; of all elements it is a sort."""

    @abstractmethod
    def cumsum(self, x: Value, axis: int) -> Value: ...

    # Movement

    @abstractmethod
    def transpose(self, x: Value, perm: Sequence[int]) -> Value: ...

    @abstractmethod
    def reshape(self, x: Value, shape: Shape) -> Value: ...

    @abstractmethod
    def concat(self, values: Sequence[Value], axis: int) -> Value: ...

    @abstractmethod
    def slice(self, x: Value, axis: int, begin: int, end: int, step: int) -> Value: ...

    @abstractmethod
    def pad(self, x: Value, before: Sequence[int], after: Sequence[int], mode: str) -> Value:
        """mode `constant` (zeros), `reflect` or `edge`; the latter two on the last two axes of four."""

    @abstractmethod
    def resize(self, x: Value, scale: int, mode: str) -> Value:
        """`nearest` or `linear` by a whole number, of the last two axes of four; half-pixel centres."""

    @abstractmethod
    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        """Whole slices: an embedding where axis is 0. Indices of one axis."""

    @abstractmethod
    def gather_elements(self, x: Value, indices: Value, axis: int) -> Value: ...

    @abstractmethod
    def scatter_elements(self, x: Value, indices: Value, updates: Value, axis: int) -> Value:
        """Indices along `axis` are distinct."""

    # Recurrent cells

    @abstractmethod
    def recurrent(self, kind: str, x: Value, weights: tuple[Value, Value, Value], state: Sequence[Value]) -> Value:
        """`LSTM`, `GRU` or `RNN` over x [tokens, batch, features], forward; gives [tokens, batch, hidden].

        Args:
            weights: as ONNX has them: W [1, gates * hidden, features], R, and B [1, 2 * gates * hidden].
            state: [1, batch, hidden] each; of an LSTM the hidden and the cell's.
        """


UNARY = (
    "relu", "gelu", "gelu-tanh", "silu", "hardswish", "sigmoid", "tanh", "exp", "erf", "abs", "neg", "leaky-relu",
    "elu", "softplus", "mish", "relu6", "square",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "max", "min")
GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "i"}
"""A cell's gates in the order of ONNX's weights."""
