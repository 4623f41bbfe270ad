"""Pooling and resizing, which know layouts by name: run on channels-last data where that is what is there."""

from __future__ import annotations

from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, ints, op_name, shape_of
from subtune.passes.layout_axes import to_first
from subtune.passes.normalize_cleanup import permutation
from subtune.passes.rewriter import Walk

_FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}

_POOLS = {
    f"relax.nn.{kind}_pool{n}d": getattr(relax.op.nn, f"{kind}_pool{n}d") for kind in ("max", "avg") for n in (1, 2, 3)
}
_ADAPTIVE = {f"relax.nn.adaptive_avg_pool{n}d": getattr(relax.op.nn, f"adaptive_avg_pool{n}d") for n in (1, 2, 3)}
_RESIZES = {"relax.image.resize2d": relax.op.image.resize2d, "relax.image.resize3d": relax.op.image.resize3d}

WINDOWED = (*_POOLS, *_ADAPTIVE, *_RESIZES)


def sink_windowed(walk: Walk, call: Call) -> Expr | None:
    """`pool(permute(y, NCHW))` -> `permute(pool(y, layout=NHWC), NCHW)`. Dims of 1 may lie anywhere in `y`."""
    below = walk.defined_by(call.args[0], "relax.permute_dims")
    if below is None or shape_of(call) is None:
        return None
    rank = len(call.ty.shape)
    layout, shape, (batch, channels, *space) = str(call.attrs.layout), shape_of(below.args[0]), permutation(below)
    if shape is None or layout != _FIRST[rank]:
        return None
    order = [batch, *space, channels]
    moved = [axis for axis in order if shape[axis] != 1]
    if moved != sorted(moved) or (moved and moved[-1] != channels):
        return None
    data = below.args[0] if order == sorted(order) else relax.op.reshape(below.args[0], [shape[a] for a in order])
    return relax.op.permute_dims(_on_layout(call, data, f"N{layout[2:]}C"), to_first(rank))


def _on_layout(call: Call, data: Expr, layout: str) -> Expr:
    name, attrs = op_name(call), call.attrs
    if name in _ADAPTIVE:
        size = None if attrs.output_size is None else ints(attrs.output_size)
        return _ADAPTIVE[name](data, size, layout, layout)
    if name in _RESIZES:
        return _RESIZES[name](
            data,
            call.args[1],
            roi=tuple(float(value) for value in attrs.roi),
            layout=layout,
            method=str(attrs.method),
            coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
            rounding_method=str(attrs.rounding_method),
            cubic_alpha=float(attrs.cubic_alpha),
            cubic_exclude=int(attrs.cubic_exclude),
            extrapolation_value=float(attrs.extrapolation_value),
            out_dtype=attrs.out_dtype,
        )
    return _POOLS[name](
        data,
        ints(attrs.pool_size),
        ints(attrs.strides),
        ints(attrs.padding),
        ints(attrs.dilation),
        bool(attrs.ceil_mode),
        bool(attrs.count_include_pad),
        layout,
        layout,
    )
