"""Pad, in all its modes."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Converter, Expr, Node, axis_in, const, dtype, is_float, rank, shape


def pad(node: Node) -> Expr:
    """Pads, or crops where negative; modes constant, reflect, edge and wrap."""
    x, mode = node.x, node.attr("mode", "constant")
    before, after = _amounts(node)
    value: Expr | None = const(node.attr("value", 0.0), dtype(x)) if node.opset < 11 else node.get(2)
    dims = [b + d + a for b, d, a in zip(before, shape(x), after, strict=True)]
    if min(dims, default=1) < 0 or mode not in ("constant", "reflect", "edge", "wrap"):
        node.refuse(f"pads {list(shape(x))} by {before + after} with mode {mode}")
    if 0 in dims:
        return const(np.empty(dims), dtype(x))
    if mode == "reflect" and any(max(b, a) >= d and (b or a) for b, d, a in zip(before, shape(x), after, strict=True)):
        node.refuse(f"reflects more than the extent of shape {list(shape(x))}")
    fill: Any = None
    if value is not None and mode == "constant":
        known = node.known(2) if node.opset >= 11 else np.asarray(node.attr("value", 0.0))
        if known is not None and known.size == 1:
            fill, value = known.reshape(()).item(), None
    if mode == "constant" and fill is None and value is None:
        fill = 0
    if mode == "constant" and value is None and is_float(x) and min(before + after, default=0) >= 0:
        flat = [p for pair in zip(before, after, strict=True) for p in pair]
        if np.isfinite(fill):
            return relax.op.nn.pad(x, flat, pad_value=float(fill))
    in_dims = shape(x)

    def whole(t: Any, *given: Any) -> Any:
        def one(*i: Any) -> Any:
            index, inside = [], []
            for axis, at in enumerate(i):
                moved = at - before[axis]
                extent = in_dims[axis]
                if before[axis] <= 0 and after[axis] <= 0:
                    index.append(moved)
                    continue
                if mode == "constant":
                    inside += [moved >= 0, moved < extent]
                    index.append(moved)
                elif mode == "edge":
                    index.append(tirx.max(tirx.min(moved, extent - 1), 0))
                elif mode == "wrap":
                    index.append(tirx.floormod(moved, extent))
                else:
                    folded = tirx.abs(moved)
                    index.append(tirx.Select(folded < extent, folded, 2 * (extent - 1) - folded))
            if not inside:
                return t(*index)
            other = given[0](*[0] * len(given[0].shape)) if given else tirx.const(fill, t.dtype)
            return tirx.if_then_else(tirx.all(*inside), t(*index), other)

        return te.compute(dims, one, name="pad")

    return node.te(whole, x, *([] if value is None else [value]))


def _amounts(node: Node) -> tuple[list[int], list[int]]:
    """Elements before and after every axis."""
    n = rank(node.x)
    axes = list(range(n))
    if node.opset < 11:
        pads = list(node.attr("pads") or node.attr("paddings"))
    else:
        pads = node.ints(1, "its pads")
        if node.get(3) is not None:
            axes = [axis_in(axis, n) for axis in node.ints(3, "its axes")]
    before, after = [0] * n, [0] * n
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    return before, after


CONVERTERS: dict[str, Converter] = {
    "Pad": pad,
}
