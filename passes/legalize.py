"""Our own legalisations, where TVM's refuse, or make TIR that schedules or computes badly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tvm import te, tirx
from tvm.ir import Call

from subtune.passes.byte_tables import legalize_take
from subtune.passes.exprs import dims_of, literal
from subtune.passes.legalize_norms import legalize_group_norm, legalize_instance_norm, legalize_row_norm
from subtune.passes.legalize_quantised import legalize_dequantize, legalize_quantize
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

        return te.compute(dims_of(call), compute, name="T_where")

    return bb.call_te(te_where, *(literal(arg) for arg in call.args), primfunc_name_hint="where")


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
    groups, out_shape, out_dtype = int(attrs.groups), dims_of(call), str(call.ty.dtype)

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


def legalize_max_pool(bb: Any, call: Call) -> Any:
    """TVM's, from minus infinity on: its own maximum of nothing but that is the least finite number."""
    attrs, dtype, out_shape = call.attrs, str(call.ty.dtype), dims_of(call)
    spatial = [str(attrs.layout).index(letter) for letter in "DHW" if letter in str(attrs.layout)]
    window, strides, dilation = ([int(v) for v in of] for of in (attrs.pool_size, attrs.strides, attrs.dilation))
    padding = [int(p) for p in attrs.padding]
    before, after = padding[: len(spatial)], padding[len(spatial) :]

    def te_max_pool(data: Any) -> Any:
        dims = [int(d) for d in data.shape]
        padded = list(dims)
        for j, axis in enumerate(spatial):
            reach = (out_shape[axis] - 1) * strides[j] + (window[j] - 1) * dilation[j] + 1
            padded[axis] = max(reach, dims[axis] + before[j] + after[j])
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

    return bb.call_te(te_max_pool, *call.args, primfunc_name_hint=f"max_pool{len(spatial)}d")


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

        return te.compute(dims_of(call), one, name="extreme")

    return bb.call_te(te_extreme, x, primfunc_name_hint="max" if largest else "min")


LEGALIZATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "relax.where": legalize_where,
    "relax.nn.max_pool2d": legalize_max_pool,
    "relax.nn.max_pool3d": legalize_max_pool,
    "relax.max": partial(legalize_extreme, True),
    "relax.min": partial(legalize_extreme, False),
    "relax.quantize": legalize_quantize,
    "relax.take": legalize_take,
    "relax.dequantize": legalize_dequantize,
    "relax.nn.group_norm": legalize_group_norm,
    "relax.nn.instance_norm": legalize_instance_norm,
    "relax.nn.layer_norm": legalize_row_norm,
    "relax.nn.rms_norm": legalize_row_norm,
    "relax.nn.conv1d_transpose": legalize_conv_transpose,
    "relax.nn.conv2d_transpose": legalize_conv_transpose,
    "relax.nn.conv3d_transpose": legalize_conv_transpose,
}
