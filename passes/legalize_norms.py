"""Norms as loops: in two passes, sums of their own. TVM's E[x^2] - E[x]^2 cancels, in one tuple reduction."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import Call

from subtune.passes.exprs import dims_of, literal


def legalize_group_norm(bb: Any, call: Call) -> Any:
    """Group norm in two passes, sums of their own (TVM's E[x^2] - E[x]^2 cancels, in one tuple reduction)."""
    attrs = call.attrs
    return _two_pass_norm(bb, call, int(attrs.num_groups), int(attrs.channel_axis), attrs, "group_norm")


def legalize_instance_norm(bb: Any, call: Call) -> Any:
    """Instance norm in two passes: a group norm with as many groups as channels."""
    axis = int(call.attrs.channel_axis)
    channels = int(call.args[0].ty.shape.values[axis])
    return _two_pass_norm(bb, call, channels, axis, call.attrs, "instance_norm")


def legalize_row_norm(bb: Any, call: Call) -> Any:
    """LayerNorm and RMSNorm with numbers for scale and shift; TVM's own loops where they are vectors."""
    name = str(call.op.name)
    numbers = [literal(arg) for arg in call.args[1:]]
    if not all(isinstance(number, tirx.FloatImm) for number in numbers):
        return tvm.ir.Op.get(name).get_attr("FLegalize")(bb, call)
    scale, *shift = (float(number.value) for number in numbers)
    dims, dtype = dims_of(call), str(call.ty.dtype)
    accumulator = "float64" if dtype == "float64" else "float32"
    axes = sorted(int(axis) % len(dims) for axis in call.attrs.axes)
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    outer = [dims[axis] for axis in kept] or [1]
    count = tirx.const(prod(dims[axis] for axis in axes), accumulator)

    def te_norm(data: Any) -> Any:
        def total(what: Callable[..., Any], label: str) -> Any:
            reduced = [te.reduce_axis((0, dims[axis]), name=f"k{axis}") for axis in axes]

            def compute(*row: Any) -> Any:
                at = dict(zip((*kept, *axes), (*row[: len(kept)], *reduced), strict=True))
                return te.sum(
                    what(data(*(at[axis] for axis in range(len(dims)))).astype(accumulator), row), axis=reduced
                )

            return te.compute(outer, compute, name=label)

        mean: Any = None
        if shift:  # RMSNorm has none, and takes no mean away
            total_x = total(lambda x, _: x, "norm_sum")
            mean = te.compute(outer, lambda *row: total_x(*row) / count, name="norm_mean")

        def centred(x: Any, row: Any) -> Any:
            return x - mean(*row) if shift else x

        squares = total(lambda x, row: centred(x, row) * centred(x, row), "norm_var_sum")

        def normalized(*index: Any) -> Any:
            row = [index[axis] for axis in kept] or [0]
            inverse = tirx.rsqrt(squares(*row) / count + tirx.const(float(call.attrs.epsilon), accumulator))
            result = centred(data(*index).astype(accumulator), row) * inverse * tirx.const(scale, accumulator)
            return (result + tirx.const(sum(shift), accumulator)).astype(dtype)

        return te.compute(dims, normalized, name=f"T_{name.rpartition('.')[2]}")

    return bb.call_te(te_norm, call.args[0], primfunc_name_hint=name.rpartition(".")[2])


def _two_pass_norm(bb: Any, call: Call, groups: int, channel_axis: int, attrs: Any, name: str) -> Any:
    dims, dtype = dims_of(call), str(call.ty.dtype)
    rank, accumulator = len(dims), "float64" if dtype == "float64" else "float32"
    channel_axis %= rank
    reduced = [int(axis) % rank for axis in attrs.axes if int(axis) % rank != channel_axis]
    kept = [axis for axis in range(rank) if axis not in reduced and axis != channel_axis]
    in_group = dims[channel_axis] // groups
    count = in_group * prod(dims[axis] for axis in reduced)
    if channel_axis == rank - 1 and in_group > 1:
        return _norm_by_channels(bb, call, in_group, reduced, count, name)

    def te_norm(data: Any, gamma: Any, beta: Any) -> Any:
        stats = [*(dims[axis] for axis in kept), groups]

        def total(what: Callable[..., Any], label: str) -> Any:
            axes = [te.reduce_axis((0, dims[axis]), name=f"k{axis}") for axis in reduced]
            rc = te.reduce_axis((0, in_group), name="rc")

            def compute(*index: Any) -> Any:
                at = [index[-1] * in_group + rc] * rank
                for axis, i in zip(kept, index, strict=False):
                    at[axis] = i
                for axis, k in zip(reduced, axes, strict=True):
                    at[axis] = k
                # in the order of memory: a template's vectors lie along the last of them
                order = [rc, *axes] if channel_axis < min(reduced, default=rank) else [*axes, rc]
                return te.sum(what(data(*at).astype(accumulator), index), axis=order)

            return te.compute(stats, compute, name=label)

        total_x = total(lambda x, _: x, "norm_sum")
        mean = te.compute(stats, lambda *index: total_x(*index) / tirx.const(count, accumulator), name="norm_mean")
        squares = total(lambda x, index: (x - mean(*index)) * (x - mean(*index)), "norm_var_sum")

        def normalized(*index: Any) -> Any:
            channel = index[channel_axis]
            at = [*(index[axis] for axis in kept), tirx.floordiv(channel, in_group)]
            variance = squares(*at) / tirx.const(count, accumulator)
            scale = tirx.rsqrt(variance + tirx.const(float(attrs.epsilon), accumulator))
            x = (data(*index).astype(accumulator) - mean(*at)) * scale
            return (x * gamma(channel).astype(accumulator) + beta(channel).astype(accumulator)).astype(dtype)

        return te.compute(dims, normalized, name=f"T_{name}")

    return bb.call_te(te_norm, *call.args, primfunc_name_hint=name)


def _norm_by_channels(bb: Any, call: Call, in_group: int, reduced: list[int], count: int, name: str) -> Any:
    """Group norm channels last: sums for every channel, in vectors, and those of a group added after."""
    dims, dtype = dims_of(call), str(call.ty.dtype)
    channels, groups = dims[-1], dims[-1] // in_group
    accumulator = "float64" if dtype == "float64" else "float32"
    kept = [axis for axis in range(len(dims) - 1) if axis not in reduced]
    outer = [dims[axis] for axis in kept]

    def te_norm(data: Any, gamma: Any, beta: Any) -> Any:
        def mean_of(what: Callable[..., Any], label: str) -> Any:
            """For every channel, the mean over its group of `what(x, index)`."""
            axes = [te.reduce_axis((0, dims[axis]), name=f"k{axis}") for axis in reduced]

            def total(*index: Any) -> Any:
                at: list[Any] = [index[-1]] * len(dims)
                for axis, i in zip(kept, index, strict=False):
                    at[axis] = i
                for axis, k in zip(reduced, axes, strict=True):
                    at[axis] = k
                return te.sum(what(data(*at).astype(accumulator), index), axis=axes)

            by_channel = te.compute([*outer, channels], total, name=f"{label}_by_channel")
            rc = te.reduce_axis((0, in_group), name="rc")
            by_group = te.compute(
                [*outer, groups],
                lambda *index: te.sum(by_channel(*index[:-1], index[-1] * in_group + rc), axis=rc),
                name=f"{label}_by_group",
            )
            return te.compute(
                [*outer, channels],
                lambda *index: (
                    by_group(*index[:-1], tirx.floordiv(index[-1], in_group)) / tirx.const(count, accumulator)
                ),
                name=label,
            )

        mean = mean_of(lambda x, _: x, "norm_mean")
        variance = mean_of(lambda x, index: (x - mean(*index)) * (x - mean(*index)), "norm_var")
        scale = te.compute(
            [*outer, channels],
            lambda *index: (
                tirx.rsqrt(variance(*index) + tirx.const(float(call.attrs.epsilon), accumulator))
                * gamma(index[-1]).astype(accumulator)
            ),
            name="norm_scale",
        )

        def normalized(*index: Any) -> Any:
            at = [*(index[axis] for axis in kept), index[-1]]
            x = (data(*index).astype(accumulator) - mean(*at)) * scale(*at)
            return (x + beta(index[-1]).astype(accumulator)).astype(dtype)

        return te.compute(dims, normalized, name=f"T_{name}")

    return bb.call_te(te_norm, *call.args, primfunc_name_hint=name)
