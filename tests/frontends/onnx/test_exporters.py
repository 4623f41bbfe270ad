"""Quantised patterns as Intel Neural Compressor, PyTorch and Hugging Face Optimum export them, against ONNX Runtime.

Integers are the same to the bit, but for the patterns of `NEAR`: those are at most one step off, and rarely.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import subtune
from tests.qdq_graph import F, QdqGraph, feeds_of
from tests.whole import IS_WHOLE

IMAGE = (2, 8, 9, 10)
Pattern = Callable[[str], onnx.ModelProto]


def graph(dtype: str, *shapes: tuple[int, ...], **given: Any) -> QdqGraph:
    """Asymmetric of uint8, as Neural Compressor and Optimum have it by default; symmetric of int8, as PyTorch has."""
    return QdqGraph(*(shapes or (IMAGE,)), dtype=dtype, zero=0 if dtype == "int8" else 128, **given)


def at(dtype: str, zero: int) -> int:
    """A zero point of uint8 as one of `dtype`."""
    return zero if dtype == "uint8" else zero - 128


def unary(kind: str, scale: float, zero: int | None, *extra: Any, opset: int = 17, **attrs: Any) -> Pattern:
    """`zero` of None: the grid's zero point stays."""

    def build(dtype: str) -> onnx.ModelProto:
        g = graph(dtype, opset=opset)
        y = g.op(kind, g.operand(), *map(g.constant, extra), **attrs)
        return g.model(g.quantised(y, scale, g.zero if zero is None else at(dtype, zero)))

    return build


def pair(kind: str, scale: float = 0.05, **attrs: Any) -> Pattern:
    def build(dtype: str) -> onnx.ModelProto:
        g = graph(dtype, IMAGE)
        other = g.floats(g.quantised(g.op("Sin", g.operand()), 0.03, at(dtype, 100)), 0.03, at(dtype, 100))
        return g.model(g.quantised(g.op(kind, g.operand(), other, **attrs), scale, at(dtype, 90)))

    return build


def gelu_by_erf(dtype: str) -> onnx.ModelProto:
    """As PyTorch writes it below opset 20."""
    g = graph(dtype)
    x = g.operand()
    inner = g.op("Add", g.op("Erf", g.op("Div", x, g.constant(F(2**0.5)))), g.constant(F(1)))
    return g.model(g.quantised(g.op("Mul", g.op("Mul", x, inner), g.constant(F(0.5))), 0.02, at(dtype, 20)))


def layer_norm(dtype: str) -> onnx.ModelProto:
    g = graph(dtype, (30, 48))
    shift = [g.constant(g.rng.random(48, F)) for _ in range(2)]
    return g.model(g.quantised(g.op("LayerNormalization", g.operand(), *shift, axis=-1), 0.03, at(dtype, 128)))


def gather(dtype: str) -> onnx.ModelProto:
    """Rows of a quantised table, whose dequantised form nobody wants in memory."""
    g = graph(dtype, (40, 12))
    y = g.op("Gather", g.operand(), g.constant(np.array([[2, 0], [33, 3]])), axis=0)
    return g.model(g.quantised(y, g.scale, g.zero))


def split(dtype: str) -> onnx.ModelProto:
    g = graph(dtype)
    parts = g.ops("Split", g.operand(), count=2, axis=1)
    return g.model(*(g.quantised(part, g.scale, g.zero) for part in parts))


def conv(act: str = "", bias: str = "int32", axis: int | None = 0, group: int = 1, out: bool = True) -> Pattern:
    def build(dtype: str) -> onnx.ModelProto:
        g = graph(dtype)
        w, scales = g.weight((12, 8 // group, 3, 3), axis)
        b = [g.bias(12, scales, bias)] if bias else []
        y = g.op("Conv", g.operand(), w, *b, pads=[1] * 4, group=group)
        if act == "Clip":
            y = g.op("Clip", y, g.constant(F(0)), g.constant(F(6)))
        elif act == "Silu":
            y = g.op("Mul", y, g.op("Sigmoid", y))
        elif act:
            y = g.op(act, y)
        return g.model(g.quantised(y, 0.11, at(dtype, 120 if not act else 3)) if out else y)

    return build


def linear(kind: str, bias: str = "float", axis: int | None = 0) -> Pattern:
    """`Linear` of PyTorch: weights [out, in], transposed by the product, by a node, or when they were exported."""

    def build(dtype: str) -> onnx.ModelProto:
        g = graph(dtype, (7, 48))
        turned = kind == "MatMul"
        w, scales = g.weight((48, 24) if turned else (24, 48), axis if axis is None else int(turned))
        w = g.op("Transpose", w, perm=[1, 0]) if kind == "Transpose" else w
        b = g.bias(24, scales, bias)
        y = g.op("Gemm", g.operand(), w, b, transB=1) if kind == "Gemm" else None
        y = y or g.op("Add", g.op("MatMul", g.operand(), w), b)
        return g.model(g.quantised(y, 0.2, at(dtype, 120)))

    return build


def trained(dtype: str) -> onnx.ModelProto:
    """Weights in float32 that the model quantises, as training with quantisation leaves them."""
    g = graph(dtype, (7, 48))
    w = g.rng.standard_normal((24, 48)).astype(F)
    grid = [g.constant((np.abs(w).max(1) / 127).astype(F)), g.constant(np.zeros(24, np.int8))]
    held = g.op("QuantizeLinear", g.constant(w), *grid, axis=0)
    y = g.op(
        "Gemm", g.operand(), g.op("DequantizeLinear", held, *grid, axis=0), g.constant(g.rng.random(24, F)), transB=1
    )
    return g.model(g.quantised(y, 0.2, at(dtype, 128)))


def residual(dtype: str) -> onnx.ModelProto:
    """Convolution, batch norm folded, plus its input; then ReLU and a global pool."""
    g = graph(dtype)
    w, scales = g.weight((8, 8, 3, 3))
    y = g.quantised(g.op("Conv", g.operand(), w, g.bias(8, scales), pads=[1] * 4), 0.11, at(dtype, 128))
    total = g.op("Relu", g.op("Add", g.floats(y, 0.11, at(dtype, 128)), g.operand()))
    z = g.floats(g.quantised(total, 0.06, at(dtype, 0)), 0.06, at(dtype, 0))
    return g.model(g.quantised(g.op("GlobalAveragePool", z), 0.03, at(dtype, 0)))


AREA = {"kernel_shape": [3, 3], "pads": [1] * 4}
RESIZE = (np.zeros(0, F), F([1, 1, 2, 2]))
PATTERNS: dict[str, Pattern] = {
    "add": pair("Add"),
    "mul": pair("Mul", 0.03),
    "sub": pair("Sub"),
    "concat": pair("Concat", 0.03, axis=1),
    "relu": unary("Relu", 0.02, 0),
    "clip": unary("Clip", 0.02, 0, F(0), F(1.5)),
    "sigmoid": unary("Sigmoid", 1 / 256, 0),
    "tanh": unary("Tanh", 1 / 128, 128),
    "softmax": unary("Softmax", 1 / 256, 0, axis=-1),
    "hard swish": unary("HardSwish", 0.02, 20),
    "leaky relu": unary("LeakyRelu", 0.02, 50, alpha=0.1),
    "gelu": unary("Gelu", 0.02, 20, opset=20),
    "gelu by erf": gelu_by_erf,
    "layer norm": layer_norm,
    "average pool": unary("AveragePool", 0.02, None, **AREA),
    "average pool with pads": unary("AveragePool", 0.02, None, count_include_pad=1, **AREA),
    "global average pool": unary("GlobalAveragePool", 0.005, None),
    "mean": unary("ReduceMean", 0.005, None, axes=[2, 3]),
    "max pool": unary("MaxPool", 0.02, None, strides=[2, 2], **AREA),
    "transpose": unary("Transpose", 0.02, None, perm=[0, 2, 3, 1]),
    "reshape": unary("Reshape", 0.02, None, np.array([16, 90])),
    "slice": unary("Slice", 0.02, None, np.array([1]), np.array([7]), np.array([2])),
    "pad": unary("Pad", 0.02, None, np.array([0, 0, 1, 1, 0, 0, 1, 1]), F(0)),
    "pad with another number": unary("Pad", 0.02, None, np.array([0, 0, 1, 1, 0, 0, 1, 1]), F(0.53)),
    "resize, nearest": unary("Resize", 0.02, None, *RESIZE, mode="nearest", nearest_mode="floor"),
    "resize, linear": unary("Resize", 0.02, None, *RESIZE, mode="linear"),
    "gather": gather,
    "split": split,
    "conv": conv(),
    "conv, one scale": conv(axis=None),
    "conv, no bias": conv(bias=""),
    "conv, float bias": conv(bias="float"),
    "conv, groups": conv(group=4),
    "conv, relu": conv("Relu"),
    "conv, clip": conv("Clip"),
    "conv, hard swish": conv("HardSwish"),
    "conv, silu": conv("Silu"),
    "conv, floats": conv(out=False),
    "gemm": linear("Gemm"),
    "gemm, bias of int32": linear("Gemm", "int32"),
    "matmul": linear("MatMul"),
    "matmul, bias of int32": linear("MatMul", "int32"),
    "matmul, one scale": linear("MatMul", axis=None),
    "matmul, turned weights": linear("Transpose"),
    "trained": trained,
    "residual": residual,
}
NEAR = {
    "mul": "ONNX Runtime multiplies by sa sb / sc in one step",
    "average pool": "ONNX Runtime adds in another order",
    "average pool with pads": "ONNX Runtime adds in another order",
    "resize, linear": "ONNX Runtime interpolates the integers",
    "matmul, one scale": "ONNX Runtime adds the bias of int8 products elsewhere",
}


def onnx_runtime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, feeds)
    return found


DTYPES = ("uint8", "int8")
"""The one or the other in turns, where not the whole suite is asked for."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for i, name in enumerate(PATTERNS) for dtype in (DTYPES if IS_WHOLE else DTYPES[i % 2 :: 2])],
)
def test_static(name: str, dtype: str, tmp_path: Path) -> None:
    model = PATTERNS[name](dtype)
    feeds = feeds_of(model)
    wanted = onnx_runtime(model, feeds)
    got = subtune.compile(model, output=tmp_path / "a", tune=False, verify=False).run(feeds)
    for a, b in zip(got.values(), wanted, strict=True):
        assert a.dtype == b.dtype
        if b.dtype == F:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
            continue
        assert np.ptp(b.astype(int)) > 40
        apart = np.abs(a.astype(int) - b.astype(int))
        assert apart.max() <= (name in NEAR)
        assert apart.mean() < 0.05


def dynamic(kind: str, dtype: str, zero: int, axis: int | None = None) -> onnx.ModelProto:
    """Activations are quantised by what they are: DynamicQuantizeLinear, a product of integers, Cast, Mul."""
    is_conv = kind == "ConvInteger"
    g = QdqGraph((2, 8, 9, 10) if is_conv else (2, 5, 48))
    limits, shape = np.iinfo(dtype), (12, 8, 3, 3) if is_conv else (48, 24)
    bits = g.rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    dims = () if axis is None else (shape[axis],)
    scales = (0.01 * (1 + g.rng.random(dims))).astype(F)
    x, scale, point = g.ops("DynamicQuantizeLinear", "x0", count=3)
    operands = (x, g.constant(bits), point, g.constant(np.full(dims, zero, dtype)))
    acc = g.op(kind, *operands, **({"pads": [1] * 4} if is_conv else {}))
    y = g.op("Mul", g.op("Cast", acc, to=1), g.op("Mul", scale, g.constant(scales)))
    return g.model(y if is_conv else g.op("Add", y, g.constant(g.rng.random(24, F))))


DYNAMIC = {
    "symmetric": ("MatMulInteger", "int8", 0),
    "of columns": ("MatMulInteger", "int8", 0, 1),
    "asymmetric": ("MatMulInteger", "uint8", 77),
    "around 128": ("MatMulInteger", "uint8", 128),
    "of columns, asymmetric": ("MatMulInteger", "int8", 9, 1),
    "convolution": ("ConvInteger", "uint8", 128),
    "convolution, asymmetric": ("ConvInteger", "uint8", 90),
    "convolution, symmetric": ("ConvInteger", "int8", 0),
}


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.grid
def test_dynamic(name: str, tmp_path: Path) -> None:
    """Sums of integers are exact; what follows is of float32."""
    model = dynamic(*DYNAMIC[name])
    feeds = feeds_of(model)
    (got,) = subtune.compile(model, output=tmp_path / "a", tune=False).run(feeds).values()
    np.testing.assert_allclose(got, onnx_runtime(model, feeds)[0], rtol=1e-5, atol=2e-5)
