"""Pads, and the moves between space, depth and batch."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, array_const, const, dtype, known_array, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.layout import first, last, layout_of, permuted

_MIN_CHANNELS = 8
"""Fewer of them make no vectors."""


def pad(call: Call) -> Expr:
    """By constants, edges or reflections; the value is the second argument, or an attribute of older models."""
    before, after = _widths(call, "pad_width", rank(call.x))
    mode = call.text("pad_mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        call.refuse(f"has pad_mode {mode}")
    value = call.arg(1) if len(call.args) > 1 else const(call.attr("pad_value", 0), dtype(call.x))
    return padded(call, call.x, before, after, _scalar(call, value, dtype(call.x)), mode)


def padded(call: Call, x: Expr, before: list[int], after: list[int], value: Expr, mode: str = "constant") -> Expr:
    if not any(before + after):
        return x
    n = rank(x) - 2
    if mode != "constant" and n in (1, 2, 3) and shape(x)[1] >= _MIN_CHANNELS and not (before[1] or after[1]):
        # Pixels of channels first: between two permutations, which cancel with those of the convolutions around.
        begins, ends = ([*v[:1], *v[2:], v[1]] for v in (before, after))
        y = _pad(call, permuted(call, x, first(n), last(n)), begins, ends, value, mode)
        return permuted(call, y, last(n), first(n))
    return _pad(call, x, before, after, value, mode)


def _pad(call: Call, x: Expr, before: list[int], after: list[int], value: Expr, mode: str) -> Expr:
    return call.onnx("Pad", x, array_const(np.array([*before, *after], "int64")), value, mode=mode)


def _scalar(call: Call, value: Expr, to: str) -> Expr:
    """One number in dtype `to`; a constant stays one."""
    array = known_array(value, {})
    if prod(shape(value)) != 1:
        call.refuse(f"pads with a value of shape {list(shape(value))}")
    if array is not None:
        return const(array.reshape(()), to)
    return call.emit(relax.op.reshape(call.cast(value, to), ()))


def _widths(call: Call, name: str, axes: int) -> tuple[list[int], list[int]]:
    """The first and the second of `axes` pairs."""
    pairs = call.attr(name)
    if not isinstance(pairs, (list, tuple)) or len(pairs) != axes:
        call.refuse(f"has {name} {pairs} for {axes} axes")
    if any(not isinstance(p, (list, tuple)) or len(p) != 2 for p in pairs):
        call.refuse(f"has {name} {pairs}, which are no pairs")
    return [int(p[0]) for p in pairs], [int(p[1]) for p in pairs]


def mirror_pad(call: Call) -> Expr:
    """SYMMETRIC repeats the edge, REFLECT does not."""
    x = call.x
    before, after = _widths(call, "pad_width", rank(x))
    mode = call.text("mode", "SYMMETRIC")
    if mode not in ("SYMMETRIC", "REFLECT"):
        call.refuse(f"has mode {mode}")
    if mode == "REFLECT":
        return padded(call, x, before, after, const(0, dtype(x)), "reflect")
    dims = shape(x)
    if any(max(b, a) > d for b, a, d in zip(before, after, dims, strict=True)):
        call.refuse(f"mirrors more than the extent of shape {list(dims)}")

    def whole(t: Any) -> Any:
        def one(*i: Any) -> Any:
            index = []
            for at, b, a, extent in zip(i, before, after, dims, strict=True):
                moved = at - b
                moved = tirx.Select(moved < 0, -moved - 1, moved) if b else moved
                index.append(tirx.Select(moved >= extent, 2 * extent - 1 - moved, moved) if a else moved)
            return t(*index)

        out = [b + d + a for b, d, a in zip(before, dims, after, strict=True)]
        return te.compute(out, one, name="mirror_pad")

    return call.te(whole, x)


def dilate(call: Call) -> Expr:
    """`strides` apart, with `dilation_value` in between."""
    x = call.x
    strides, fill = call.per_axis("strides", rank(x)), call.attr("dilation_value", 0.0)
    dims = [(d - 1) * s + 1 for d, s in zip(shape(x), strides, strict=True)]

    def whole(t: Any) -> Any:
        def one(*i: Any) -> Any:
            hit = [tirx.floormod(at, s) == 0 for at, s in zip(i, strides, strict=True) if s > 1]
            value = t(*(tirx.floordiv(at, s) for at, s in zip(i, strides, strict=True)))
            return tirx.if_then_else(tirx.all(*hit), value, tirx.const(fill, t.dtype)) if hit else value

        return te.compute(dims, one, name="dilate")

    return call.te(whole, x)


def depth_to_space(call: Call) -> Expr:
    """Channels to pixels, channels last: DCR has the block before the channels that stay, CRD (CDR) after them."""
    layout = layout_of(call, call.x, 2)
    x = permuted(call, call.x, layout, "NHWC")
    n, h, w, c = shape(x)
    b = _block(call, c)
    left = c // (b * b)
    if call.text("mode", "DCR") == "DCR":
        split, order = (n, h, w, b, b, left), [0, 1, 3, 2, 4, 5]
    else:
        split, order = (n, h, w, left, b, b), [0, 1, 4, 2, 5, 3]
    moved = relax.op.permute_dims(relax.op.reshape(x, split), order)
    return permuted(call, call.emit(relax.op.reshape(moved, (n, h * b, w * b, left))), "NHWC", layout)


def space_to_depth(call: Call) -> Expr:
    layout = layout_of(call, call.x, 2)
    x = permuted(call, call.x, layout, "NHWC")
    n, h, w, c = shape(x)
    b = _block(call, h, w, square=False)
    split = relax.op.reshape(x, (n, h // b, b, w // b, b, c))
    moved = relax.op.permute_dims(split, [0, 1, 3, 2, 4, 5])
    y = call.emit(relax.op.reshape(moved, (n, h // b, w // b, b * b * c)))
    return permuted(call, y, "NHWC", layout)


def _block(call: Call, *extents: int, square: bool = True) -> int:
    block = int(call.attr("block_size", 1))
    if block < 1 or any(e % (block * block if square else block) for e in extents):
        call.refuse(f"has block_size {block} for extents {list(extents)}")
    return block


def space_to_batch(call: Call) -> Expr:
    """Pads the axes after the batch, and moves blocks of them into the batch."""
    x = call.x
    blocks = _blocks(call)
    before, after = _widths(call, "paddings", len(blocks))
    rest = [0] * (rank(x) - 1 - len(blocks))
    fill = const(call.attr("pad_value", 0), dtype(x))
    x = padded(call, x, [0, *before, *rest], [0, *after, *rest], fill)
    batch, *dims = shape(x)
    n = len(blocks)
    if any(d % b for d, b in zip(dims, blocks, strict=False)):
        call.refuse(f"has blocks {blocks} for extents {dims[:n]}")
    outer = [d // b for d, b in zip(dims, blocks, strict=False)]
    split = [v for pair in zip(outer, blocks, strict=True) for v in pair]
    y = call.emit(relax.op.reshape(x, (batch, *split, *dims[n:])))
    order = [*(2 + 2 * i for i in range(n)), 0, *(1 + 2 * i for i in range(n))]
    y = call.emit(relax.op.permute_dims(y, [*order, *range(1 + 2 * n, 1 + n + len(dims))]))
    return call.emit(relax.op.reshape(y, (batch * prod(blocks), *outer, *dims[n:])))


def batch_to_space(call: Call) -> Expr:
    """The inverse: blocks of the batch beside each other, then crops."""
    x = call.x
    blocks = _blocks(call)
    before, after = _widths(call, "crops", len(blocks))
    batch, *dims = shape(x)
    n = len(blocks)
    if batch % prod(blocks):
        call.refuse(f"has blocks {blocks} for a batch of {batch}")
    y = call.emit(relax.op.reshape(x, (*blocks, batch // prod(blocks), *dims)))
    order = [n, *(axis for i in range(n) for axis in (n + 1 + i, i))]
    y = call.emit(relax.op.permute_dims(y, [*order, *range(2 * n + 1, n + 1 + len(dims))]))
    spatial = [d * b for d, b in zip(dims, blocks, strict=False)]
    y = call.emit(relax.op.reshape(y, (batch // prod(blocks), *spatial, *dims[n:])))
    if not any(before + after):
        return y
    ends = [d - a for d, a in zip(spatial, after, strict=True)]
    return call.emit(relax.op.strided_slice(y, list(range(1, 1 + n)), before, ends))


def _blocks(call: Call) -> list[int]:
    blocks = call.attr("block_shape", [1, 1])
    blocks = [int(b) for b in blocks] if isinstance(blocks, (list, tuple)) else [int(blocks)]
    if not 0 < len(blocks) < rank(call.x) or min(blocks) < 1:
        call.refuse(f"has block_shape {blocks} for rank {rank(call.x)}")
    return blocks


CONVERTERS: dict[str, Converter] = {
    "nn.pad": pad,
    "nn.mirror_pad": mirror_pad,
    "nn.dilate": dilate,
    "nn.depth_to_space": depth_to_space,
    "nn.space_to_depth": space_to_depth,
    "nn.space_to_batch_nd": space_to_batch,
    "nn.batch_to_space_nd": batch_to_space,
}
