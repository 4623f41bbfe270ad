"""Matrix products and the bias after them."""

from __future__ import annotations

from tvm import relax

from subtune.frontends.onnx.ops.linear import product
from subtune.frontends.onnx.ops.node import Expr, axis_in, dtype, is_float, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.conv import widened
from subtune.frontends.relay.ops.layout import along, transposed


def dense(call: Call) -> Expr:
    """x @ w.T: the weights are (units, features)."""
    return matrix_product(call, call.arg(0), call.arg(1), False, True)


def matmul(call: Call) -> Expr:
    return matrix_product(call, call.arg(0), call.arg(1), *_flags(call))


def batch_matmul(call: Call) -> Expr:
    """Over batches; one of 1 is repeated."""
    if rank(call.arg(0)) != 3 or rank(call.arg(1)) != 3:
        call.refuse(f"multiplies shapes {list(shape(call.arg(0)))} and {list(shape(call.arg(1)))}")
    return matrix_product(call, call.arg(0), call.arg(1), *_flags(call))


def _flags(call: Call) -> tuple[bool, bool]:
    return bool(call.attr("transpose_a", False)), bool(call.attr("transpose_b", False))


def matrix_product(call: Call, a: Expr, b: Expr, transpose_a: bool, transpose_b: bool) -> Expr:
    """In the dtype that the call asks for, else in a's; sums are in float32 or in int32 at least."""
    wanted = call.dtype(dtype(a), "out_dtype")
    return call.cast(summed_product(call, a, b, transpose_a, transpose_b, wanted), wanted)


def summed_product(call: Call, a: Expr, b: Expr, transpose_a: bool, transpose_b: bool, wanted: str) -> Expr:
    a, b = widened(call, _turned(call, a, transpose_a), _turned(call, b, transpose_b))
    if is_float(a) and dtype(a) in ("float16", "bfloat16") and wanted in ("float32", "float64"):
        a, b = call.cast(a, wanted), call.cast(b, wanted)
    return product(call.node("MatMul", a, b), a, b)


def _turned(call: Call, x: Expr, turn: bool) -> Expr:
    if rank(x) < 2:
        call.refuse(f"multiplies shape {list(shape(x))}")
    axes = list(range(rank(x)))
    return transposed(call, x, [*axes[:-2], axes[-1], axes[-2]]) if turn else x


def bias_add(call: Call) -> Expr:
    """A vector added along `axis` (1 unless given)."""
    x, bias = call.arg(0), call.arg(1)
    axis = axis_in(call.attr("axis", 1), rank(x))
    if shape(bias) not in ((shape(x)[axis],), (1,)):
        call.refuse(f"adds a bias of shape {list(shape(bias))} along axis {axis} of {list(shape(x))}")
    return call.emit(relax.op.add(x, along(call, call.cast(bias, dtype(x)), axis, rank(x))))


CONVERTERS: dict[str, Converter] = {
    "nn.dense": dense,
    "nn.matmul": matmul,
    "nn.batch_matmul": batch_matmul,
    "nn.bias_add": bias_add,
}
