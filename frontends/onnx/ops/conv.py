"""Convolutions."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Converter, Expr, Node, dtype, is_float, rank, shape
from subtune.frontends.onnx.ops.window import window_of

_CONVS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_TRANSPOSED = {1: relax.op.nn.conv1d_transpose, 2: relax.op.nn.conv2d_transpose, 3: relax.op.nn.conv3d_transpose}
_DATA = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_KERNEL = {1: "OIW", 2: "OIHW", 3: "OIDHW"}


def convolution(node: Node, x: Expr, w: Expr, out_dtype: str) -> Expr:
    """x (N, C, …) with w (O, C/groups, …), accumulated and returned in `out_dtype`."""
    spatial = rank(x) - 2
    groups = node.attr("group", 1)
    if spatial not in _CONVS:
        node.refuse(f"convolves {spatial} spatial axes")
    if rank(w) != rank(x) or groups < 1 or shape(x)[1] != shape(w)[1] * groups or shape(w)[0] % groups:
        node.refuse(f"has weights {list(shape(w))} for input {list(shape(x))} in {groups} groups")
    window = window_of(node, shape(x)[2:], shape(w)[2:])
    return node.emit(
        _CONVS[spatial](
            x,
            w,
            strides=window.strides,
            padding=window.padding,
            dilation=window.dilations,
            groups=groups,
            data_layout=_DATA[spatial],
            kernel_layout=_KERNEL[spatial],
            out_dtype=out_dtype,
        )
    )


def with_bias(node: Node, y: Expr, bias: Expr | None) -> Expr:
    if bias is None:
        return y
    if shape(bias) != (shape(y)[1],):
        node.refuse(f"has a bias of shape {list(shape(bias))} for {shape(y)[1]} channels")
    column = node.emit(relax.op.reshape(bias, (1, shape(bias)[0], *[1] * (rank(y) - 2))))
    return node.emit(relax.op.add(y, column))


def conv(node: Node) -> Expr:
    """16-bit floats accumulate in float32, as ONNX Runtime does."""
    x, w = node.need(0), node.need(1)
    if not is_float(x) or dtype(x) != dtype(w):
        node.refuse(f"has dtypes {dtype(x)} and {dtype(w)}")
    wide = "float64" if dtype(x) == "float64" else "float32"
    y = convolution(node, x, w, wide)
    return node.cast(with_bias(node, y, _widened(node, node.get(2), wide)), dtype(x))


def _widened(node: Node, x: Expr | None, to: str) -> Expr | None:
    return None if x is None else node.cast(x, to)


def conv_transpose(node: Node) -> Expr:
    """out[n, o, y] = sum over c, k of x[n, c, (y + before - k*dilation) / stride] * w[c, o, k], where that
    divides.
    """
    x, w = node.need(0), node.need(1)
    if not is_float(x) or dtype(x) != dtype(w):
        node.refuse(f"has dtypes {dtype(x)} and {dtype(w)}")
    spatial = rank(x) - 2
    groups = node.attr("group", 1)
    if rank(w) != rank(x) or shape(w)[0] != shape(x)[1] or groups < 1 or shape(x)[1] % groups:
        node.refuse(f"has weights {list(shape(w))} for input {list(shape(x))} in {groups} groups")
    wide = "float64" if dtype(x) == "float64" else "float32"
    strides = tuple(node.attr("strides") or [1] * spatial)
    dilations = tuple(node.attr("dilations") or [1] * spatial)
    extra = tuple(node.attr("output_padding") or [0] * spatial)
    kernel = shape(w)[2:]
    before, out = _transposed_geometry(node, shape(x)[2:], kernel, strides, dilations, extra)
    full = [(i - 1) * s + (k - 1) * d + 1 for i, s, k, d in zip(shape(x)[2:], strides, kernel, dilations, strict=True)]
    after = [f + e - b - o for f, e, b, o in zip(full, extra, before, out, strict=True)]
    simple = all(d == 1 for d in dilations) and all(e < s for e, s in zip(extra, strides, strict=True))
    if spatial in _TRANSPOSED and simple and min(*before, *after) >= 0:
        y = node.emit(
            _TRANSPOSED[spatial](
                x,
                w,
                strides=strides,
                padding=(*before, *after),
                output_padding=extra,
                groups=groups,
                out_dtype=wide,
            )
        )
    else:
        y = transposed(node, x, w, before, out, strides, dilations, groups, wide)
    return node.cast(with_bias(node, y, _widened(node, node.get(2), wide)), dtype(x))


def _transposed_geometry(
    node: Node,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    extra: tuple[int, ...],
) -> tuple[list[int], list[int]]:
    """Pads at the start (possibly negative) and output extents."""
    n = len(spatial)
    full = [(spatial[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + extra[i] for i in range(n)]
    auto = node.attr("auto_pad", "NOTSET")
    wanted = node.attr("output_shape")
    if wanted is not None:
        wanted = list(wanted)[-n:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [spatial[i] * strides[i] for i in range(n)]
    if wanted is not None:
        before = []
        for i in range(n):
            total = full[i] - wanted[i]
            # Where the surplus goes differs between the specification and ONNX Runtime.
            if total < (-1 if auto == "NOTSET" else 0):
                node.refuse(f"has output shape {wanted}, larger than the windows reach")
            before.append(max(0, total // 2 if auto == "SAME_UPPER" else total - total // 2))
        return before, wanted
    pads = [0] * (2 * n) if auto == "VALID" else list(node.attr("pads") or [0] * (2 * n))
    return pads[:n], [full[i] - pads[i] - pads[n + i] for i in range(n)]


def transposed(
    node: Node,
    x: Expr,
    w: Expr,
    before: list[int],
    out: list[int],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
    wide: str,
) -> Expr:
    """The sum of `conv_transpose` for any dtype; `before` may be negative, `out` is what is kept from there on."""
    per_group_in, per_group_out = shape(x)[1] // groups, shape(w)[1]
    spatial = shape(x)[2:]

    def whole(t: Any, u: Any) -> Any:
        c = te.reduce_axis((0, per_group_in), name="c")
        taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(shape(w)[2:])]

        def one(n: Any, o: Any, *at: Any) -> Any:
            index, inside = [], []
            for i, y in enumerate(at):
                moved = y + before[i] - taps[i] * dilations[i]
                index.append(tirx.floordiv(moved, strides[i]))
                inside += [moved >= 0, tirx.floormod(moved, strides[i]) == 0, index[-1] < spatial[i]]
            channel = tirx.floordiv(o, per_group_out) * per_group_in + c
            value = t(n, channel, *index).astype(wide) * u(channel, tirx.floormod(o, per_group_out), *taps).astype(wide)
            return te.sum(tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, wide)), axis=[c, *taps])

        return te.compute((shape(x)[0], per_group_out * groups, *out), one, name="conv_transpose")

    return node.te(whole, x, w)


def conv_integer(node: Node) -> Expr:
    return integer_convolution(node, node.need(0), node.need(1), node.get(2), node.get(3))


def integer_convolution(node: Node, x: Expr, w: Expr, x_zero: Expr | None, w_zero: Expr | None) -> Expr:
    """(x - x_zero) with (w - w_zero) in int32; padding adds zeros after the subtraction."""
    x32, w32 = node.cast(x, "int32"), node.cast(w, "int32")
    if x_zero is not None:
        if prod(shape(x_zero)) != 1:
            node.refuse("has an input zero point per channel")
        zero = node.emit(relax.op.reshape(node.cast(x_zero, "int32"), ()))
        x32 = node.emit(relax.op.subtract(x32, zero))
    if w_zero is not None:
        zero = node.cast(w_zero, "int32")
        dims = (prod(shape(zero)), *[1] * (rank(w) - 1))
        w32 = node.emit(relax.op.subtract(w32, relax.op.reshape(zero, dims)))
    return convolution(node, x32, w32, "int32")


CONVERTERS: dict[str, Converter] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "ConvInteger": conv_integer,
}
