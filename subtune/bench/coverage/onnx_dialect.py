"""A case as an ONNX model, written as exporters write it: GELU, RMS norm and attention in their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from subtune.bench.coverage.dialect import EPSILON, GATES, Dialect, Shape, Value, Window

_OPSET, _BFLOAT16_OPSET = 18, 22
"""What exporters write; and the first in which every operator takes bfloat16."""
_ELEMENT = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64, "bool": TensorProto.BOOL,
}  # fmt: skip
_UNARY = {
    "relu": "Relu", "hardswish": "HardSwish", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "erf": "Erf",
    "abs": "Abs", "neg": "Neg", "leaky-relu": "LeakyRelu", "elu": "Elu", "softplus": "Softplus", "mish": "Mish",
}  # fmt: skip
_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min"}
_REDUCE = {
    "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd",
    "l2": "ReduceL2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """An input or a weight of the model: its values are drawn as `kind` says. `order`: see `Dialect.weight`."""

    name: str
    shape: Shape
    kind: str
    dtype: str


class OnnxDialect(Dialect):
    """Nodes in the order of the calls. `inputs` and `weights` are what was asked for; values are names."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.inputs: list[Given] = []
        self.weights: list[Given] = []
        self._nodes: list[onnx.NodeProto] = []
        self._numbers: list[onnx.TensorProto] = []

    def model(self, outputs: Sequence[str], weights: Sequence[np.ndarray] | None) -> onnx.ModelProto:
        """The model with these weights; without them a skeleton for shape inference, whose weights are inputs."""
        given = list(self.inputs)
        initialisers = list(self._numbers)
        if weights is None:
            given += self.weights
        else:
            initialisers += [_tensor(g.name, a, g.dtype) for g, a in zip(self.weights, weights, strict=True)]
        infos = [helper.make_tensor_value_info(g.name, _ELEMENT[g.dtype], g.shape) for g in given]
        graph = helper.make_graph(self._nodes, "case", infos, [_unknown(name) for name in outputs], initialisers)
        opset = helper.make_opsetid("", _BFLOAT16_OPSET if self.dtype == "bfloat16" else _OPSET)
        made = helper.make_model(graph, opset_imports=[opset], ir_version=helper.find_min_ir_version_for([opset]))
        inferred = onnx.shape_inference.infer_shapes(made, check_type=True, strict_mode=True, data_prop=True)
        return inferred

    def input(self, shape: Shape, kind: str = "normal", dtype: str = "") -> Value:
        self.inputs.append(Given(f"x{len(self.inputs)}", shape, kind, dtype or self.dtype))
        return self.inputs[-1].name

    def weight(self, shape: Shape, kind: str = "normal", order: str = "") -> Value:
        name = f"w{len(self.weights)}" + (f".{order}" if order else "")
        self.weights.append(Given(name, shape, kind, self.dtype))
        return name

    def unary(self, name: str, x: Value) -> Value:
        if name == "gelu":
            erf = self._op("Erf", self._op("Div", x, self._float(math.sqrt(2.0))))
            return self._op("Mul", self._op("Mul", x, self._op("Add", erf, self._float(1.0))), self._float(0.5))
        if name == "gelu-tanh":
            cubic = self._op("Mul", self._op("Mul", self._op("Mul", x, x), x), self._float(0.044715))
            inner = self._op("Mul", self._op("Add", x, cubic), self._float(math.sqrt(2.0 / math.pi)))
            half = self._op("Mul", x, self._float(0.5))
            return self._op("Mul", half, self._op("Add", self._op("Tanh", inner), self._float(1.0)))
        if name == "silu":
            return self._op("Mul", x, self._op("Sigmoid", x))
        if name == "relu6":
            return self._op("Clip", x, self._float(0.0), self._float(6.0))
        if name == "square":
            return self._op("Mul", x, x)
        return self._op(_UNARY[name], x)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        return self._op(_BINARY[name], x, y)

    def scaled(self, x: Value, factor: float) -> Value:
        return self._op("Mul", x, self._float(factor))

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        return self._op("Where", condition, x, y)

    def linear(self, x: Value, weight: Value, bias: Value | None, is_transposed: bool) -> Value:
        product = self._op("MatMul", x, self._op("Transpose", weight, perm=(1, 0)) if is_transposed else weight)
        return product if bias is None else self._op("Add", product, bias)

    def matmul(self, x: Value, y: Value) -> Value:
        return self._op("MatMul", x, y)

    def attention(self, q: Value, k: Value, v: Value, mask: Value | None, shapes: tuple[Shape, Shape]) -> Value:
        (batch, heads, rows, size), (_, groups, keys, _) = shapes
        if groups != heads:
            k, v = (self._repeated(x, (batch, groups, heads // groups, keys, size)) for x in (k, v))
        scores = self._op("MatMul", q, self._op("Transpose", k, perm=(0, 1, 3, 2)))
        scores = self._op("Mul", scores, self._float(1.0 / math.sqrt(size)))
        if mask is True:
            mask = self._array("causal", np.triu(np.full((rows, keys), -np.inf), keys - rows + 1), self.dtype)
        if mask is not None:
            scores = self._op("Add", scores, mask)
        return self._op("MatMul", self._op("Softmax", scores, axis=3), v)

    def conv(self, x: Value, weight: Value, bias: Value | None, window: Window, is_transposed: bool = False) -> Value:
        given = (x, weight) if bias is None else (x, weight, bias)
        extra: dict[str, Any] = {"output_padding": window.output_pad} if window.output_pad else {}
        return self._op(
            "ConvTranspose" if is_transposed else "Conv", *given, kernel_shape=window.kernel, strides=window.stride,
            pads=window.pad * 2, dilations=window.dilation, group=window.groups, **extra,
        )  # fmt: skip

    def pool(self, kind: str, x: Value, window: Window) -> Value:
        size: dict[str, Any] = {"kernel_shape": window.kernel, "strides": window.stride, "pads": window.pad * 2}
        if kind == "max":
            return self._op("MaxPool", x, **size, dilations=window.dilation)
        return self._op("AveragePool", x, **size, count_include_pad=1)

    def layer_norm(self, x: Value, weight: Value, bias: Value, width: int) -> Value:
        return self._op("LayerNormalization", x, weight, bias, axis=-1, epsilon=EPSILON)

    def rms_norm(self, x: Value, weight: Value, width: int) -> Value:
        square = self._op("ReduceMean", self._op("Pow", x, self._float(2.0)), self._ints([-1]), keepdims=1)
        root = self._op("Sqrt", self._op("Add", square, self._float(EPSILON)))
        return self._op("Mul", weight, self._op("Mul", x, self._op("Reciprocal", root)))

    def group_norm(self, x: Value, groups: int, weight: Value, bias: Value, shape: Shape) -> Value:
        if groups == shape[1]:
            return self._op("InstanceNormalization", x, weight, bias, epsilon=EPSILON)
        ones, zeros = (self._array(name, np.full(groups, value), self.dtype) for name, value in (("one", 1), ("0", 0)))
        y = self._op("Reshape", x, self._ints([shape[0], groups, -1]))
        y = self._op("InstanceNormalization", y, ones, zeros, epsilon=EPSILON)
        y = self._op("Reshape", y, self._ints(shape))
        wide = self._ints((shape[1], *(1,) * (len(shape) - 2)))
        return self._op("Add", self._op("Mul", y, self._op("Reshape", weight, wide)), self._op("Reshape", bias, wide))

    def batch_norm(self, x: Value, weight: Value, bias: Value, mean: Value, variance: Value) -> Value:
        return self._op("BatchNormalization", x, weight, bias, mean, variance, epsilon=EPSILON)

    def softmax(self, x: Value, axis: int, is_log: bool = False) -> Value:
        return self._op("LogSoftmax" if is_log else "Softmax", x, axis=axis)

    def reduce(self, kind: str, x: Value, axes: Sequence[int]) -> Value:
        return self._op(_REDUCE[kind], x, self._ints(axes), keepdims=1)

    def arg_max(self, x: Value, axis: int) -> Value:
        return self._op("ArgMax", x, axis=axis, keepdims=1)

    def top_k(self, x: Value, count: int, axis: int) -> tuple[Value, Value]:
        values, indices = self._multi("TopK", (x, self._ints([count])), 2, axis=axis, largest=1, sorted=1)
        return values, indices

    def cumsum(self, x: Value, axis: int) -> Value:
        return self._op("CumSum", x, self._array("axis", np.array(axis), "int64"))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return self._op("Transpose", x, perm=tuple(perm))

    def reshape(self, x: Value, shape: Shape) -> Value:
        return self._op("Reshape", x, self._ints(shape))

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return self._op("Concat", *values, axis=axis)

    def slice(self, x: Value, axis: int, begin: int, end: int, step: int) -> Value:
        return self._op("Slice", x, *(self._ints([number]) for number in (begin, end, axis, step)))

    def pad(self, x: Value, before: Sequence[int], after: Sequence[int], mode: str) -> Value:
        zero = (self._float(0.0),) if mode == "constant" else ()
        return self._op("Pad", x, self._ints([*before, *after]), *zero, mode=mode)

    def resize(self, x: Value, scale: int, mode: str) -> Value:
        scales = self._array("scales", np.array([1, 1, scale, scale]), "float32")
        where = "asymmetric" if mode == "nearest" else "half_pixel"
        return self._op("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=where, nearest_mode="floor")

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        return self._op("Gather", x, indices, axis=axis)

    def gather_elements(self, x: Value, indices: Value, axis: int) -> Value:
        return self._op("GatherElements", x, indices, axis=axis)

    def scatter_elements(self, x: Value, indices: Value, updates: Value, axis: int) -> Value:
        return self._op("ScatterElements", x, indices, updates, axis=axis)

    def recurrent(self, kind: str, x: Value, weights: tuple[Value, Value, Value], state: Sequence[Value]) -> Value:
        hidden = next(given.shape[2] for given in self.weights if given.name == weights[1])
        extra: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
        assert kind in GATES, f"no recurrent cell {kind}"
        (y,) = self._multi(kind, (x, *weights, "", *state), 1, hidden_size=hidden, **extra)
        return self._op("Squeeze", y, self._ints([1]))

    def _repeated(self, x: Value, dims: Shape) -> Value:
        """Heads of keys, each for a group of the queries': Unsqueeze, Expand, Reshape, as transformers writes it."""
        batch, groups, times, keys, size = dims
        wide = self._op("Expand", self._op("Unsqueeze", x, self._ints([2])), self._ints(dims))
        return self._op("Reshape", wide, self._ints([batch, groups * times, keys, size]))

    def _op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self._multi(op_type, inputs, 1, **attributes)[0]

    def _multi(self, op_type: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        outputs = [f"{op_type.lower()}_{len(self._nodes)}_{index}" for index in range(count)]
        self._nodes.append(helper.make_node(op_type, inputs, outputs, **attributes))
        return outputs

    def _float(self, value: float) -> str:
        return self._array("c", np.array(value), self.dtype)

    def _ints(self, values: Sequence[int]) -> str:
        return self._array("i", np.array(values), "int64")

    def _array(self, name: str, array: np.ndarray, dtype: str) -> str:
        self._numbers.append(_tensor(f"{name}_{len(self._numbers)}", array, dtype))
        return self._numbers[-1].name


def _tensor(name: str, array: np.ndarray, dtype: str) -> onnx.TensorProto:
    raw = np.ascontiguousarray(array.astype(helper.tensor_dtype_to_np_dtype(_ELEMENT[dtype])))
    return helper.make_tensor(name, _ELEMENT[dtype], array.shape, raw.tobytes(), raw=True)


def _unknown(name: str) -> onnx.ValueInfoProto:
    """An output whose type and shape are to be inferred."""
    return onnx.ValueInfoProto(name=name)
