"""Our own legalisations, where TVM's refuse, or make TIR that schedules or computes badly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import Call, GenericConst

from subtune.tir.expressions import lowest, maximum_over, minimum_over


def legalize_where(bb: Any, call: Call) -> Any:
    """`where` with its scalar constants as literals (TVM reads them from memory)."""

    def te_where(*operands: Any) -> Any:
        def at(operand: Any, index: tuple[Any, ...]) -> Any:
            if not isinstance(operand, te.Tensor):
                return operand
            own = index[len(index) - len(operand.shape) :]
            return operand(*(0 if int(dim) == 1 else i for dim, i in zip(operand.shape, own, strict=True)))

        def compute(*index: Any) -> tirx.Select:
            condition, yes, no = (at(operand, index) for operand in operands)
            return tirx.Select(condition.astype("bool"), yes, no)

        return te.compute(_dims(call), compute, name="T_where")

    return bb.call_te(te_where, *(_literal(arg) for arg in call.args), primfunc_name_hint="where")


def legalize_group_norm(bb: Any, call: Call) -> Any:
    """Group norm in two passes, sums of their own (TVM's E[x^2] - E[x]^2 cancels, in one tuple reduction)."""
    attrs = call.attrs
    return _two_pass_norm(bb, call, int(attrs.num_groups), int(attrs.channel_axis), attrs, "group_norm")


def legalize_instance_norm(bb: Any, call: Call) -> Any:
    """Instance norm in two passes: a group norm with as many groups as channels."""
    axis = int(call.attrs.channel_axis)
    channels = int(call.args[0].ty.shape.values[axis])
    return _two_pass_norm(bb, call, channels, axis, call.attrs, "instance_norm")


def legalize_conv_transpose(bb: Any, call: Call) -> Any:
    """Transposed convolution in any layout: zeros between and round the input in one stage, then a convolution.

    Its weights are read back to front where they lie.
    """
    attrs = call.attrs
    data_layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    spatial = [letter for letter in data_layout if letter not in "NC"]
    n_axis, c_axis = data_layout.index("N"), data_layout.index("C")
    s_axes = [data_layout.index(letter) for letter in spatial]
    i_axis, o_axis = kernel_layout.index("I"), kernel_layout.index("O")
    k_axes = [kernel_layout.index(letter) for letter in spatial]
    strides, dilation = [int(s) for s in attrs.strides], [int(d) for d in attrs.dilation]
    groups, out_shape, out_dtype = int(attrs.groups), _dims(call), str(call.ty.dtype)

    def te_conv_transpose(data: Any, weight: Any) -> Any:
        in_dims, w_dims = [int(d) for d in data.shape], [int(d) for d in weight.shape]
        window = [w_dims[axis] for axis in k_axes]
        before = [d * (k - 1) - int(p) for d, k, p in zip(dilation, window, attrs.padding, strict=False)]
        padded = list(in_dims)
        for j, axis in enumerate(s_axes):
            padded[axis] = out_shape[axis] + dilation[j] * (window[j] - 1)

        def spread(*index: Any) -> Any:
            own, conditions = list(index), []
            for j, axis in enumerate(s_axes):
                shifted = index[axis] - before[j]
                own[axis] = tirx.floordiv(shifted, strides[j])
                conditions += [shifted >= 0, shifted < (in_dims[axis] - 1) * strides[j] + 1]
                if strides[j] > 1:
                    conditions.append(tirx.floormod(shifted, strides[j]) == 0)
            return tirx.if_then_else(tirx.all(*conditions), data(*own), tirx.const(0, data.dtype))

        pad = te.compute(padded, spread, name="pad_temp", tag="injective,pad")
        ic_of, oc_of = w_dims[i_axis] // groups, w_dims[o_axis]
        taps = [te.reduce_axis((0, k), name=f"r{letter.lower()}") for k, letter in zip(window, spatial, strict=True)]
        rc = te.reduce_axis((0, ic_of), name="rc")

        def convolve(*index: Any) -> Any:
            group = tirx.floordiv(index[c_axis], oc_of) if groups > 1 else 0
            at_data, at_weight = [index[n_axis]] * len(in_dims), [rc] * len(w_dims)
            at_data[c_axis] = at_weight[i_axis] = group * ic_of + rc
            at_weight[o_axis] = tirx.floormod(index[c_axis], oc_of) if groups > 1 else index[c_axis]
            for j, (axis, k_axis) in enumerate(zip(s_axes, k_axes, strict=True)):
                at_data[axis] = index[axis] + taps[j] * dilation[j]
                at_weight[k_axis] = window[j] - 1 - taps[j]
            product = pad(*at_data).astype(out_dtype) * weight(*at_weight).astype(out_dtype)
            return te.sum(product, axis=[*taps, rc])

        return te.compute(out_shape, convolve, name="conv_transpose")

    return bb.call_te(te_conv_transpose, *call.args, primfunc_name_hint="conv_transpose")


def legalize_max_pool2d(bb: Any, call: Call) -> Any:
    """TVM's, from minus infinity on: its own maximum of nothing but that is the least finite number."""
    attrs, dtype, out_shape = call.attrs, str(call.ty.dtype), _dims(call)
    spatial = [str(attrs.layout).index(letter) for letter in "HW"]
    window, strides, dilation = ([int(v) for v in of] for of in (attrs.pool_size, attrs.strides, attrs.dilation))
    before = [int(p) for p in attrs.padding[:2]]

    def te_max_pool(data: Any) -> Any:
        dims = [int(d) for d in data.shape]
        padded = list(dims)
        for j, axis in enumerate(spatial):
            reach = (out_shape[axis] - 1) * strides[j] + (window[j] - 1) * dilation[j] + 1
            padded[axis] = max(reach, dims[axis] + before[j] + int(attrs.padding[2 + j]))
        taps = [te.reduce_axis((0, k), name=f"rv{j}") for j, k in enumerate(window)]

        def pad(*index: Any) -> Any:
            own, conditions = list(index), []
            for j, axis in enumerate(spatial):
                own[axis] = index[axis] - before[j]
                if before[j]:
                    conditions.append(own[axis] >= 0)
                if padded[axis] > before[j] + dims[axis]:
                    conditions.append(own[axis] < dims[axis])
            return tirx.if_then_else(tirx.all(*conditions), data(*own), lowest(dtype))

        source = te.compute(padded, pad, name="pad_temp", tag="injective,pad") if padded != dims else data

        def pool(*index: Any) -> Any:
            at = list(index)
            for j, axis in enumerate(spatial):
                at[axis] = index[axis] * strides[j] + taps[j] * dilation[j]
            return maximum_over(source(*at), taps)

        return te.compute(out_shape, pool, name="pool_max", tag="pool_max")

    return bb.call_te(te_max_pool, *call.args, primfunc_name_hint="max_pool2d")


def legalize_extreme(largest: bool, bb: Any, call: Call) -> Any:
    """TVM's maximum or minimum, from the infinity on: its own of nothing but that is the last finite number."""
    x, attrs = call.args[0], call.attrs
    rank = len(x.ty.shape.values)
    axes = sorted({int(axis) % rank for axis in attrs.axis}) if attrs.axis is not None else list(range(rank))

    def te_extreme(data: Any) -> Any:
        taps = {axis: te.reduce_axis((0, data.shape[axis]), name=f"k{axis}") for axis in axes}

        def one(*index: Any) -> Any:
            kept = iter(index if not attrs.keepdims else [i for axis, i in enumerate(index) if axis not in taps])
            at = [taps[axis] if axis in taps else next(kept) for axis in range(rank)]
            return (maximum_over if largest else minimum_over)(data(*at), list(taps.values()))

        return te.compute(_dims(call), one, name="extreme")

    return bb.call_te(te_extreme, x, primfunc_name_hint="max" if largest else "min")


def _two_pass_norm(bb: Any, call: Call, groups: int, channel_axis: int, attrs: Any, name: str) -> Any:
    dims, dtype = _dims(call), str(call.ty.dtype)
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
    dims, dtype = _dims(call), str(call.ty.dtype)
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


def _dims(call: Call) -> list[int]:
    return [int(dim) for dim in call.ty.shape.values]


def _literal(arg: Any) -> Any:
    """The immediate for a constant of rank 0; anything else as it is."""
    if not isinstance(arg, GenericConst) or int(arg.ty.ndim) != 0:
        return arg
    return tvm.tirx.const(arg.value.numpy().item(), str(arg.ty.dtype))


LEGALIZATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "relax.where": legalize_where,
    "relax.nn.max_pool2d": legalize_max_pool2d,
    "relax.max": partial(legalize_extreme, True),
    "relax.min": partial(legalize_extreme, False),
    "relax.nn.group_norm": legalize_group_norm,
    "relax.nn.instance_norm": legalize_instance_norm,
    "relax.nn.conv1d_transpose": legalize_conv_transpose,
    "relax.nn.conv2d_transpose": legalize_conv_transpose,
    "relax.nn.conv3d_transpose": legalize_conv_transpose,
}
