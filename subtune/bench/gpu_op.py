"""One operator of the GPU suites: the workload that subtune tunes, in tensor expressions, and what is to be said of it.

Products and convolutions sum halves in float32, as every library does; weights of convolutions are constants.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from subtune.core.workload import CONSTANT_ARGS_ATTR, Workload

_SCALE = 0.01


@dataclass(frozen=True, slots=True)
class GpuOp:
    """`kind` names a function of this module; `dims` are its extents.

    Attributes:
        out: the output's dtype; "" is `dtype`, and int32 where that is int8.
        layout: of a product: n or t for A, then for B. nt is A[m, k] B[n, k].
        epilogue: of a product or convolution, joined by +: bias, residual, relu, gelu, requantise.
    """

    kind: str
    dims: tuple[int, ...]
    dtype: str = "float16"
    out: str = ""
    layout: str = "nt"
    epilogue: str = ""

    def workload(self) -> Workload:
        return _BUILDERS[self.kind](self)

    @property
    def out_dtype(self) -> str:
        return self.out or ("int32" if self.dtype == "int8" else self.dtype)

    @property
    def sum_dtype(self) -> str:
        return "int32" if self.dtype == "int8" else "float32"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GpuOp:
        data = json.loads(text)
        return cls(**{**data, "dims": tuple(data["dims"])})


def copy(op: GpuOp) -> Workload:
    """dims: the shape."""
    from tvm import te

    x = te.placeholder(op.dims, op.dtype, "x")
    return _workload([x], te.compute(op.dims, lambda *i: x(*i), "y"))


def add(op: GpuOp) -> Workload:
    from tvm import te

    x, y = (te.placeholder(op.dims, op.dtype, name) for name in "xy")
    return _workload([x, y], te.compute(op.dims, lambda *i: x(*i) + y(*i), "z"))


def row_sum(op: GpuOp) -> Workload:
    """dims: rows, their length."""
    from tvm import te

    rows, length = op.dims
    x, k = te.placeholder(op.dims, op.dtype, "x"), te.reduce_axis((0, length), "k")
    total = te.compute((rows,), lambda i: te.sum(x[i, k].astype("float32"), axis=k), "total")
    return _workload([x], te.compute((rows,), lambda i: total[i].astype(op.out_dtype), "y"))


def row_max(op: GpuOp) -> Workload:
    from tvm import te

    rows, length = op.dims
    x, k = te.placeholder(op.dims, op.dtype, "x"), te.reduce_axis((0, length), "k")
    return _workload([x], te.compute((rows,), lambda i: te.max(x[i, k], axis=k), "y"))


def softmax(op: GpuOp) -> Workload:
    from tvm import te, topi

    x = te.placeholder(op.dims, op.dtype, "x")
    return _workload([x], topi.nn.softmax(x))


def product(op: GpuOp) -> Workload:
    """dims: [batch,] m, n, k."""
    from tvm import te

    *lead, m, n, k = op.dims
    a = te.placeholder((*lead, m, k) if op.layout[0] == "n" else (*lead, k, m), op.dtype, "a")
    b = te.placeholder((*lead, n, k) if op.layout[1] == "t" else (*lead, k, n), op.dtype, "b")
    kk = te.reduce_axis((0, k), "kk")

    def value(*index: Any) -> Any:
        *s, i, j = index
        x = a(*s, i, kk) if op.layout[0] == "n" else a(*s, kk, i)
        y = b(*s, j, kk) if op.layout[1] == "t" else b(*s, kk, j)
        return te.sum(_cast(x, op.dtype, op.sum_dtype) * _cast(y, op.dtype, op.sum_dtype), axis=kk)

    return _finished(op, [a, b], te.compute((*lead, m, n), value, "c"))


def conv(op: GpuOp) -> Workload:
    """NHWC over OHWI; dims: images, height and width, channels in, channels out, kernel, stride, padding."""
    from tvm import te, topi

    images, size, cin, cout, kernel, stride, pad = op.dims
    out = (size + 2 * pad - kernel) // stride + 1
    x = te.placeholder((images, size, size, cin), op.dtype, "x")
    w = te.placeholder((cout, kernel, kernel, cin), op.dtype, "w")
    padded = topi.nn.pad(x, (0, pad, pad, 0)) if pad else x
    rh, rw, rc = (te.reduce_axis((0, n), name) for n, name in ((kernel, "rh"), (kernel, "rw"), (cin, "rc")))

    def value(n: Any, h: Any, v: Any, o: Any) -> Any:
        pixel = _cast(padded[n, h * stride + rh, v * stride + rw, rc], op.dtype, op.sum_dtype)
        return te.sum(pixel * _cast(w[o, rh, rw, rc], op.dtype, op.sum_dtype), axis=[rh, rw, rc])

    return _finished(op, [x, w], te.compute((images, out, out, cout), value, "c"), (1,))


def gemv_i4(op: GpuOp) -> Workload:
    """A vector times a matrix of unsigned 4-bit integers, two in a byte; dims: n, k."""
    from tvm import te, tirx

    n, k = op.dims
    a, packed = te.placeholder((1, k), op.dtype, "a"), te.placeholder((n, k // 2), "int8", "w")
    w = te.compute(
        (n, k),
        lambda j, i: ((packed[j, i // 2] >> ((i % 2) * 4).astype("int8")) & tirx.const(15, "int8")).astype(op.dtype),
        "unpacked",
    )
    r = te.reduce_axis((0, k), "r")
    total = te.compute((1, n), lambda i, j: te.sum(a[i, r].astype("float32") * w[j, r].astype("float32"), axis=r), "t")
    return _workload([a, packed], te.compute((1, n), lambda i, j: total[i, j].astype(op.out_dtype), "y"))


def _finished(op: GpuOp, args: list[Any], sums: Any, constants: tuple[int, ...] = ()) -> Workload:
    from tvm import te, tirx

    def stage(what: Callable[..., Any], name: str) -> Any:
        return te.compute(sums.shape, lambda *i: what(sums(*i), *i), name)

    for step in filter(None, op.epilogue.split("+")):
        if step == "bias":
            bias = te.placeholder((sums.shape[-1],), op.sum_dtype if op.dtype == "int8" else op.dtype, "bias")
            args.append(bias)
            constants = (*constants, len(args) - 1)
            sums = stage(lambda value, *i, b=bias: value + _cast(b[i[-1]], str(b.dtype), op.sum_dtype), "biased")
        elif step == "residual":
            other = te.placeholder(sums.shape, op.dtype, "residual")
            args.append(other)
            sums = stage(lambda value, *i, r=other: value + _cast(r(*i), op.dtype, op.sum_dtype), "added")
        elif step == "relu":
            sums = stage(lambda value, *i: te.max(value, tirx.const(0, op.sum_dtype)), "relu")
        elif step == "gelu":
            sums = stage(lambda value, *i: value * (0.5 + 0.5 * tirx.erf(value * 0.70710678)), "gelu")
        else:
            assert step == "requantise", step
            sums = stage(lambda value, *i: te.min(te.max(tirx.round(value.astype("float32") * _SCALE), -128.0), 127.0),
                         "scaled")  # fmt: skip
    if str(sums.dtype) != op.out_dtype:
        sums = stage(lambda value, *i: value.astype(op.out_dtype), "rounded")
    return _workload([*args, sums][:-1], sums, constants)


def _cast(value: Any, source: str, dtype: str) -> Any:
    return value if source == dtype else value.astype(dtype)


def _workload(inputs: list[Any], output: Any, constants: tuple[int, ...] = ()) -> Workload:
    from tvm import te

    func = te.create_prim_func([*inputs, output])
    return Workload.of(func.with_attr(CONSTANT_ARGS_ATTR, list(constants)), 1)


_BUILDERS: Mapping[str, Callable[[GpuOp], Workload]] = {
    "copy": copy, "add": add, "sum": row_sum, "max": row_max, "softmax": softmax, "product": product, "conv": conv,
    "gemv_i4": gemv_i4,
}  # fmt: skip
