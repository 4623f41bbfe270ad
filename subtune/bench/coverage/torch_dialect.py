"""A case as a PyTorch module, with the functions that a user of PyTorch takes; in float64 it is the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

from subtune.bench.coverage.case import CASE_SUFFIX, Case
from subtune.bench.coverage.dialect import EPSILON, GATES, Dialect, Shape, Value, Window
from subtune.bench.coverage.grammar import body
from subtune.bench.torch_arrays import as_array, as_tensor

_UNARY: dict[str, Callable[..., Any]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "hardswish": F.hardswish, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp, "erf": torch.erf,
    "abs": torch.abs, "neg": torch.neg, "leaky-relu": F.leaky_relu, "elu": F.elu, "softplus": F.softplus,
    "mish": F.mish, "relu6": F.relu6, "square": torch.square,
}  # fmt: skip
_BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip
_CONV: dict[int, Callable[..., Any]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: dict[int, Callable[..., Any]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL: dict[int, Callable[..., Any]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_REDUCE: dict[str, Callable[..., Any]] = {
    "sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin,
}  # fmt: skip
_TORCH_GATES = {"LSTM": "ifco", "GRU": "rzh", "RNN": "i"}
_RECURRENT: dict[str, Callable[..., Any]] = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}


class CaseModule(nn.Module):
    """The case's function of its inputs; the weights are parameters, so that a compiler may freeze them.

    Args:
        weights: by their names in the ONNX model, in order.
    """

    def __init__(self, case: Case, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._case = case
        tensors = [_in_torch_order(name, tensor) for name, tensor in weights.items()]
        self.weights = nn.ParameterList(nn.Parameter(tensor, requires_grad=False) for tensor in tensors)

    def forward(self, *inputs: torch.Tensor) -> Any:
        outputs = body(TorchDialect(list(inputs), list(self.weights)), self._case)
        # What a model gives lies in rows: a view is no result.
        return tuple(value.contiguous() for value in outputs)


def load_case(model: str) -> CaseModule:
    """The module of the case whose description lies beside its ONNX model, with the weights of that."""
    constants = {t.name: t for t in onnx.load(model).graph.initializer if t.name.startswith("w")}
    weights = {name: as_tensor(numpy_helper.to_array(tensor).copy()) for name, tensor in constants.items()}
    return CaseModule(Case.from_json(Path(model).with_suffix(CASE_SUFFIX).read_text()), weights).eval()


def reference(model: str, inputs: Sequence[np.ndarray], device: str, threads: int) -> list[np.ndarray]:
    """What the case gives in float64, from inputs and weights as they were rounded to its type."""
    torch.set_num_threads(threads)
    module = load_case(model).double().to(device)
    tensors = [as_tensor(array).to(device) for array in inputs]
    with torch.inference_mode():
        found = module(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors))
    return [as_array(tensor) for tensor in found]


def _in_torch_order(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A weight whose name says the order of its gates (`Dialect.weight`), with the gates as PyTorch orders them."""
    gates = name.partition(".")[2]
    if not gates:
        return tensor
    kind = next(kind for kind, order in GATES.items() if order == gates)
    parts = tensor.reshape(1, -1, len(gates), tensor.shape[1] // _copies(tensor) // len(gates), *tensor.shape[2:])
    order = [gates.index(gate) for gate in _TORCH_GATES[kind]]
    return parts[:, :, order].reshape(tensor.shape).contiguous()


def _copies(tensor: torch.Tensor) -> int:
    """A bias holds those of W and those of R."""
    return 2 if tensor.ndim == 2 else 1


class TorchDialect(Dialect):
    """Computes at once; `inputs` and `weights` are handed out in order."""

    def __init__(self, inputs: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
        self._inputs, self._weights = inputs, weights
        self._taken = [0, 0]

    def input(self, shape: Shape, kind: str = "normal", dtype: str = "") -> Value:
        self._taken[0] += 1
        return self._inputs[self._taken[0] - 1]

    def weight(self, shape: Shape, kind: str = "normal", order: str = "") -> Value:
        self._taken[1] += 1
        return self._weights[self._taken[1] - 1]

    def unary(self, name: str, x: Value) -> Value:
        return _UNARY[name](x)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        return _BINARY[name](x, y)

    def scaled(self, x: Value, factor: float) -> Value:
        return x * factor

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        return torch.where(condition, x, y)

    def linear(self, x: Value, weight: Value, bias: Value | None, is_transposed: bool) -> Value:
        if is_transposed:
            return F.linear(x, weight, bias)
        if bias is not None and x.ndim == 2:
            return torch.addmm(bias, x, weight)
        product = torch.matmul(x, weight)
        return product if bias is None else product + bias

    def matmul(self, x: Value, y: Value) -> Value:
        return torch.matmul(x, y)

    def attention(self, q: Value, k: Value, v: Value, mask: Value | None, shapes: tuple[Shape, Shape]) -> Value:
        (_, heads, rows, _), (_, groups, keys, _) = shapes
        options: dict[str, Any] = {"enable_gqa": True} if heads != groups else {}
        if mask is True and rows == keys:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
        if mask is True:  # aligned at the end: PyTorch's own flag aligns at the beginning
            ones = torch.ones(rows, keys, dtype=torch.bool, device=q.device)
            mask = None if rows == 1 else ones.tril(keys - rows)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)

    def conv(self, x: Value, weight: Value, bias: Value | None, window: Window, is_transposed: bool = False) -> Value:
        if is_transposed:
            function = _CONV_TRANSPOSE[window.rank]
            return function(
                x, weight, bias, window.stride, window.pad, window.output_pad or 0, window.groups, window.dilation
            )
        return _CONV[window.rank](x, weight, bias, window.stride, window.pad, window.dilation, window.groups)

    def pool(self, kind: str, x: Value, window: Window) -> Value:
        if kind == "max":
            return _MAX_POOL[window.rank](x, window.kernel, window.stride, window.pad, window.dilation)
        return _AVG_POOL[window.rank](x, window.kernel, window.stride, window.pad)

    def layer_norm(self, x: Value, weight: Value, bias: Value, width: int) -> Value:
        return F.layer_norm(x, (width,), weight, bias, EPSILON)

    def rms_norm(self, x: Value, weight: Value, width: int) -> Value:
        return F.rms_norm(x, (width,), weight, EPSILON)

    def group_norm(self, x: Value, groups: int, weight: Value, bias: Value, shape: Shape) -> Value:
        if groups == shape[1]:
            return F.instance_norm(x, weight=weight, bias=bias, eps=EPSILON)
        return F.group_norm(x, groups, weight, bias, EPSILON)

    def batch_norm(self, x: Value, weight: Value, bias: Value, mean: Value, variance: Value) -> Value:
        return F.batch_norm(x, mean, variance, weight, bias, eps=EPSILON)

    def softmax(self, x: Value, axis: int, is_log: bool = False) -> Value:
        return F.log_softmax(x, axis) if is_log else F.softmax(x, axis)

    def reduce(self, kind: str, x: Value, axes: Sequence[int]) -> Value:
        if kind == "prod":
            for axis in axes:
                x = x.prod(axis, keepdim=True)
            return x
        if kind == "l2":
            return torch.linalg.vector_norm(x, dim=tuple(axes), keepdim=True)
        return _REDUCE[kind](x, dim=tuple(axes), keepdim=True)

    def arg_max(self, x: Value, axis: int) -> Value:
        return torch.argmax(x, axis, keepdim=True)

    def top_k(self, x: Value, count: int, axis: int) -> tuple[Value, Value]:
        if count == x.shape[axis]:
            values, indices = torch.sort(x, axis, descending=True)
        else:
            values, indices = torch.topk(x, count, axis)
        return values, indices

    def cumsum(self, x: Value, axis: int) -> Value:
        return torch.cumsum(x, axis)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return x.permute(*perm)

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x.reshape(shape)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return torch.cat(list(values), axis)

    def slice(self, x: Value, axis: int, begin: int, end: int, step: int) -> Value:
        return x[(slice(None),) * axis + (slice(begin, end, step),)]

    def pad(self, x: Value, before: Sequence[int], after: Sequence[int], mode: str) -> Value:
        axes = range(len(before))
        used = axes if mode == "constant" else axes[-2:]
        ends = [number for axis in reversed(used) for number in (before[axis], after[axis])]
        return F.pad(x, ends, mode="replicate" if mode == "edge" else mode)

    def resize(self, x: Value, scale: int, mode: str) -> Value:
        if mode == "nearest":
            return F.interpolate(x, scale_factor=scale, mode="nearest")
        return F.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False)

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        return F.embedding(indices, x) if axis == 0 and x.ndim == 2 else torch.index_select(x, axis, indices)

    def gather_elements(self, x: Value, indices: Value, axis: int) -> Value:
        return torch.gather(x, axis, indices)

    def scatter_elements(self, x: Value, indices: Value, updates: Value, axis: int) -> Value:
        return torch.scatter(x, axis, indices, updates)

    def recurrent(self, kind: str, x: Value, weights: tuple[Value, Value, Value], state: Sequence[Value]) -> Value:
        w, r, b = (weight[0] for weight in weights)
        half = b.shape[0] // 2
        given = (w, r, b[:half], b[half:])
        start = tuple(state) if kind == "LSTM" else state[0]
        # has_biases, layers, dropout, training, bidirectional, batch_first
        return _RECURRENT[kind](x, start, given, True, 1, 0.0, False, False, False)[0]
