"""The quantised operators: integer products as in `onnx.ops`, and what TVM's lowering makes of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, axis_in, const, dtype, known_array, rank, shape
from subtune.frontends.relay.ops import pool
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.conv import convolve, convolve_transposed
from subtune.frontends.relay.ops.layout import reshaped
from subtune.frontends.relay.ops.linear import summed_product
from subtune.frontends.relay.ops.requantize import (
    clamped,
    dequantised,
    fixed_point,
    parameter,
    quantised,
    requantised,
    shifted,
)

Quantum = tuple[Expr, Expr]  # scale and zero point


def conv2d(call: Call) -> Expr:
    """(x - its zero) with (w - its zero), summed in integers; pads are zeros after the subtraction."""
    x = shifted(call, call.x, _one(call, call.arg(2)))
    return call.cast(convolve(call, x, _weights(call, "OIHW"), 2), call.dtype("int32", "out_dtype"))


def conv2d_transpose(call: Call) -> Expr:
    x = shifted(call, call.x, _one(call, call.arg(2)))
    return call.cast(convolve_transposed(call, x, _weights(call, "IOHW"), 2), call.dtype("int32", "out_dtype"))


def _one(call: Call, zero: Expr) -> Expr:
    if np.prod(shape(zero)) != 1:
        call.refuse("has an input zero point per channel")
    return zero


def _weights(call: Call, order: str) -> Expr:
    """w - zero; a zero per channel lies along O, or along O and I of depthwise weights."""
    w, zero = call.arg(1), call.arg(3)
    layout = call.text("kernel_layout", order)
    count = int(np.prod(shape(zero)))
    if count == 1 or "O" not in layout or count == shape(w)[layout.index("O")]:
        return shifted(call, w, zero, layout.index("O") if "O" in layout else 0)
    dims = [extent if axis in "OI" else 1 for axis, extent in zip(layout, shape(w), strict=True)]
    if int(np.prod(dims)) != count:
        call.refuse(f"has {count} weight zero points for weights {list(shape(w))}")
    wide = relax.op.subtract(call.cast(w, "int32"), reshaped(call, call.cast(zero, "int32"), dims))
    return call.emit(wide)


def dense(call: Call) -> Expr:
    x, w = shifted(call, call.x, _one(call, call.arg(2))), shifted(call, call.arg(1), call.arg(3), 0)
    return _product(call, x, w)


def batch_matmul(call: Call) -> Expr:
    """The second operand is transposed always: Relay has no other."""
    x, y = shifted(call, call.x, _one(call, call.arg(2))), shifted(call, call.arg(1), _one(call, call.arg(3)))
    return _product(call, x, y)


def _product(call: Call, x: Expr, y: Expr) -> Expr:
    wanted = call.dtype("int32", "out_dtype")
    return call.cast(summed_product(call, x, y, False, True, wanted), wanted)


def _same(a: Quantum, b: Quantum) -> bool:
    """Whether two quanta are known to be equal."""
    pairs = [(known_array(p, {}), known_array(q, {})) for p, q in zip(a, b, strict=True)]
    return all(p is not None and q is not None and p.size == q.size == 1 and (p == q).all() for p, q in pairs)


def _quantum(call: Call, index: int) -> Quantum:
    return call.arg(index), call.arg(index + 1)


def _brought(call: Call, x: Expr, source: Quantum, target: Quantum, axis: int = -1) -> Expr:
    """x in the target's quantum, as int32."""
    return call.cast(x, "int32") if _same(source, target) else requantised(call, x, source, target, "int32", axis)


def sum_of(op: Callable[[Expr, Expr], Expr], back: Callable[[Expr, Expr], Expr]) -> Converter:
    """Both operands in the output's quantum; its zero point is taken back once."""

    def convert(call: Call) -> Expr:
        a, b, target = call.arg(0), call.arg(1), _quantum(call, 6)
        left = _brought(call, a, _quantum(call, 2), target, call.attr("lhs_axis", -1))
        right = _brought(call, b, _quantum(call, 4), target, call.attr("rhs_axis", -1))
        total = call.emit(op(left, right))
        total = call.emit(back(total, parameter(call, target[1], total, -1, "int32")))
        return clamped(call, total, dtype(a))

    return convert


def multiply(call: Call) -> Expr:
    """The product of the shifted operands, whose scale is the product of theirs."""
    a, b, target = call.arg(0), call.arg(1), _quantum(call, 6)
    axes = call.attr("lhs_axis", -1), call.attr("rhs_axis", -1)
    left, right = shifted(call, a, call.arg(3), axes[0]), shifted(call, b, call.arg(5), axes[1])
    product = call.emit(relax.op.multiply(left, right))
    first, second = known_array(call.arg(2), {}), known_array(call.arg(4), {})
    if first is None or second is None:
        call.refuse("has scales that are no constants")
    if max(first.size, second.size) > 1 and axes[0] != axes[1]:
        call.refuse(f"has scales along axes {axes[0]} and {axes[1]}")
    source = (const(first.reshape(-1) * second.reshape(-1), "float32"), const(0, "int32"))
    return requantised(call, product, source, target, dtype(a), axes[0])


def concatenate(call: Call) -> Expr:
    parts, target = call.fields(0), (call.arg(3), call.arg(4))
    scales, zeros = call.fields(1), call.fields(2)
    if not len(parts) == len(scales) == len(zeros):
        call.refuse(f"has {len(parts)} tensors, {len(scales)} scales and {len(zeros)} zero points")
    moved = [
        x if _same((s, z), target) else requantised(call, x, (s, z), target, dtype(x))
        for x, s, z in zip(parts, scales, zeros, strict=True)
    ]
    return call.emit(relax.op.concat(moved, axis=axis_in(call.attr("axis", 0), rank(parts[0]))))


def leaky_relu(call: Call) -> Expr:
    """alpha * q + (1 - alpha) * zero below the input's zero point, both products by fixed point."""
    x, source, target = call.x, _quantum(call, 1), _quantum(call, 3)
    alpha, zero = float(call.attr("alpha", 0.25)), known_array(call.arg(4), {})
    if zero is None:
        call.refuse("has a zero point that is no constant")
    q = _brought(call, x, source, target)
    scaled = fixed_point(call, q, np.array([alpha]), -1)
    rest = fixed_point(call, const(zero.reshape(()), "int32"), np.array([1 - alpha]), -1)
    below = relax.op.less(call.cast(x, "int32"), parameter(call, source[1], x, -1, "int32"))
    return clamped(call, call.emit(relax.op.where(below, relax.op.add(scaled, rest), q)), dtype(x))


def avg_pool2d(call: Call) -> Expr:
    """The mean of the requantised numbers, truncated."""
    q = _brought(call, call.x, _quantum(call, 1), _quantum(call, 3))
    inner = Call(call.bb, "nn.avg_pool2d", (q,), call.attrs)
    return clamped(call, pool.CONVERTERS["nn.avg_pool2d"](inner), dtype(call.x))


def softmax(call: Call) -> Expr:
    """TVM's integer softmax: powers of two by shifts (I-ViT, arXiv 2207.01405, algorithm 1)."""
    scale = known_array(call.arg(1), {})
    if scale is None or scale.size != 1 or not 0 < float(scale) <= 1:
        call.refuse("has an input scale that is no constant between 0 and 1")
    axis = [axis_in(call.attr("axis", -1), rank(call.x))]

    def c(value: int) -> Expr:
        return const(value, "int32")

    one = int(np.floor(np.float32(1) / np.float32(scale.reshape(())) + np.float32(0.5)))
    x = shifted(call, call.x, call.arg(2))
    x = call.emit(relax.op.subtract(x, relax.op.max(x, axis=axis, keepdims=True)))
    x = call.emit(relax.op.subtract(relax.op.add(x, relax.op.right_shift(x, c(1))), relax.op.right_shift(x, c(4))))
    # x is not above 0, so the division of whole numbers rounds down.
    q = relax.op.floor_divide(relax.op.negative(x), c(one))
    q = call.emit(relax.op.minimum(relax.op.maximum(q, c(0)), c(20)))
    rest = relax.op.add(x, relax.op.multiply(q, c(one)))
    base = relax.op.add(relax.op.right_shift(rest, c(1)), c(one))
    top = relax.op.max(q, axis=axis, keepdims=True)
    powers = call.emit(relax.op.left_shift(base, relax.op.subtract(top, q)))
    total = call.emit(relax.op.sum(powers, axis=axis, keepdims=True))
    share = relax.op.multiply(relax.op.floor_divide(c(1 << 30), total), powers)
    y = call.emit(relax.op.right_shift(share, c(23)))
    return requantised(call, y, (const(1 / 128, "float32"), c(0)), _quantum(call, 3), "int8")


def elementwise(op: Callable[[Expr], Expr]) -> Converter:
    """As a float32 function between the two quanta."""

    def convert(call: Call) -> Expr:
        y = call.emit(op(dequantised(call, call.x, call.arg(1), call.arg(2))))
        return quantised(call, y, call.arg(3), call.arg(4), dtype(call.x))

    return convert


def _hard_swish(x: Any) -> Expr:
    gate = relax.op.clip(relax.op.add(x, const(3, "float32")), 0.0, 6.0)
    return relax.op.divide(relax.op.multiply(x, gate), const(6, "float32"))


CONVERTERS: dict[str, Converter] = {
    "qnn.conv2d": conv2d,
    "qnn.conv2d_transpose": conv2d_transpose,
    "qnn.dense": dense,
    "qnn.batch_matmul": batch_matmul,
    "qnn.add": sum_of(relax.op.add, relax.op.subtract),
    "qnn.subtract": sum_of(relax.op.subtract, relax.op.add),
    "qnn.mul": multiply,
    "qnn.concatenate": concatenate,
    "qnn.leaky_relu": leaky_relu,
    "qnn.avg_pool2d": avg_pool2d,
    "qnn.softmax": softmax,
    "qnn.tanh": elementwise(relax.op.tanh),
    "qnn.exp": elementwise(relax.op.exp),
    "qnn.sqrt": elementwise(relax.op.sqrt),
    "qnn.rsqrt": elementwise(relax.op.rsqrt),
    "qnn.erf": elementwise(relax.op.erf),
    "qnn.sigmoid": elementwise(relax.op.sigmoid),
    "qnn.hardswish": elementwise(_hard_swish),
    "qnn.log": elementwise(relax.op.log),
    "qnn.abs": elementwise(relax.op.abs),
}
