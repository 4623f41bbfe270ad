"""layout_transform: NCHW, NHWC, NCHW4c, OIHW16i16o … into one another."""

from __future__ import annotations

import re
from math import prod

from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.movement import to_shape

_AXIS = re.compile(r"([A-Z])|(\d+)([a-z])")


def parsed(call: Call, layout: str) -> list[tuple[str, int]]:
    """The axes of a layout: a capital and 0, or for a blocked part such as 4c the capital and its factor."""
    axes = [(m.group(1) or m.group(3).upper(), 0 if m.group(1) else int(m.group(2))) for m in _AXIS.finditer(layout)]
    text = "".join(f"{factor}{name.lower()}" if factor else name for name, factor in axes)
    names = [name for name, factor in axes if not factor]
    blocked = [name for name, factor in axes if factor]
    if text != layout or not axes or len(set(names)) < len(names) or len(set(blocked)) < len(blocked):
        call.refuse(f"has layout {layout!r}")
    if not set(blocked) <= set(names):
        call.refuse(f"has layout {layout!r}, which blocks an axis that it lacks")
    return axes


def layout_transform(call: Call) -> Expr:
    """Joins every axis with its block, orders the axes anew, and splits them into the other's blocks."""
    x = call.x
    source = parsed(call, str(call.attr("src_layout", "")))
    target = parsed(call, str(call.attr("dst_layout", "")))
    names = [name for name, factor in target if not factor]
    if len(source) != rank(x) or sorted(names) != sorted(name for name, factor in source if not factor):
        call.refuse(f"cannot make {call.attr('dst_layout')} of {call.attr('src_layout')} {list(shape(x))}")
    if any(factor and factor != d for (_, factor), d in zip(source, shape(x), strict=True)):
        call.refuse(f"has shape {list(shape(x))} in layout {call.attr('src_layout')}")
    blocks = dict(axis for axis in target if axis[1])
    order = sorted(range(len(source)), key=lambda a: (names.index(source[a][0]), source[a][1] > 0))
    joined = [prod(shape(x)[a] for a in order if source[a][0] == name) for name in names]
    if any(d % blocks.get(name, 1) for name, d in zip(names, joined, strict=True)):
        call.refuse(f"cannot divide {dict(zip(names, joined, strict=True))} into blocks {call.attr('dst_layout')}")
    y = x if order == sorted(order) else call.emit(relax.op.permute_dims(x, order))
    parts, dims = [], []
    for name, extent in zip(names, joined, strict=True):
        block = blocks.get(name, 0)
        parts += [(name, 0), (name, block)] if block else [(name, 0)]
        dims += [extent // block, block] if block else [extent]
    y = to_shape(call, y, dims)
    back = [parts.index(axis) for axis in target]
    return y if back == sorted(back) else relax.op.permute_dims(y, back)


CONVERTERS: dict[str, Converter] = {"layout_transform": layout_transform}
