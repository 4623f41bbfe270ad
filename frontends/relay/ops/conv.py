"""Convolutions in every layout: grouped, depthwise, transposed."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from subtune.frontends.onnx.ops.conv import transposed as transposed_sum
from subtune.frontends.onnx.ops.node import Expr, dtype, is_float, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.layout import first, last, layout_of, permuted, reshaped, spatial_axes

_CONVS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def convolution(spatial: int) -> Converter:
    def convert(call: Call) -> Expr:
        x, w = widened(call, call.arg(0), call.arg(1))
        return call.cast(convolve(call, x, w, spatial), call.dtype(dtype(call.x), "out_dtype"))

    return convert


def widened(call: Call, x: Expr, w: Expr) -> tuple[Expr, Expr]:
    """Two operands in one dtype: integers as int32 (int64 where asked for), in which products are summed."""
    if is_float(x) != is_float(w):
        call.refuse(f"has dtypes {dtype(x)} and {dtype(w)}")
    if is_float(x):
        return x, call.cast(w, dtype(x))
    wide = "int64" if "int64" in (dtype(x), dtype(w), call.dtype("int32", "out_dtype")) else "int32"
    return call.cast(x, wide), call.cast(w, wide)


def groups_of(call: Call) -> int:
    groups = int(call.attr("groups", 1) or 1)
    return groups if groups > 0 else call.refuse(f"has {groups} groups")


def convolve(call: Call, x: Expr, w: Expr, spatial: int) -> Expr:
    """x with w by the call's attributes, in the dtype it is summed in and the layout the call wants.

    Channels last stays so, with O...I weights: the form that the passes make of channels first.
    """
    layout = layout_of(call, x, spatial, "data_layout")
    channels = shape(x)[layout.index("C")]
    w = _weights(call, w, f"OI{first(spatial)[2:]}", channels)
    before, after = call.pads(spatial)
    strides, dilation = call.per_axis("strides", spatial), call.per_axis("dilation", spatial)
    for axis, i in zip(spatial_axes(layout), range(spatial), strict=True):
        reach = (shape(w)[2 + i] - 1) * dilation[i] + 1
        if reach > shape(x)[axis] + before[i] + after[i] or min(before[i], after[i]) < 0:
            call.refuse(f"has a window of {reach} over an extent of {shape(x)[axis]} padded by {before[i]}, {after[i]}")
    kept = last(spatial) if layout == last(spatial) else first(spatial)
    kernel_layout = kept.replace("N", "O").replace("C", "I")
    y = call.emit(
        _CONVS[spatial](
            permuted(call, x, layout, kept),
            permuted(call, w, f"OI{first(spatial)[2:]}", kernel_layout),
            strides=strides,
            padding=[*before, *after],
            dilation=dilation,
            groups=groups_of(call),
            data_layout=kept,
            kernel_layout=kernel_layout,
            out_dtype="float32" if dtype(x) in ("float16", "bfloat16") else dtype(x),
        )
    )
    return _out(call, y, kept, layout)


def _out(call: Call, y: Expr, kept: str, layout: str) -> Expr:
    wanted = call.text("out_layout", layout)
    if sorted(wanted) != sorted(layout):
        call.refuse(f"has out_layout {wanted}, which is not supported")
    return permuted(call, y, kept, wanted)


def _weights(call: Call, w: Expr, order: str, channels: int) -> Expr:
    """w as O, I/groups, taps. Depthwise weights may hold the channels and their multiplier as two axes."""
    layout = call.text("kernel_layout", order)
    if sorted(layout) != sorted(order) or len(shape(w)) != len(order):
        call.refuse(f"has kernel_layout {layout} for weights {list(shape(w))}, which is not supported")
    w = permuted(call, w, layout, order)
    groups = groups_of(call)
    out, each, *taps = shape(w)
    if groups > 1 and groups == channels == out:
        return reshaped(call, w, (out * each, 1, *taps))
    if each * groups != channels or out % groups:
        call.refuse(f"has weights {list(shape(w))} (as {order}) for {channels} channels in {groups} groups")
    return w


def transposed_convolution(spatial: int) -> Converter:
    def convert(call: Call) -> Expr:
        x, w = widened(call, call.arg(0), call.arg(1))
        return call.cast(convolve_transposed(call, x, w, spatial), call.dtype(dtype(call.x), "out_dtype"))

    return convert


def convolve_transposed(call: Call, x: Expr, w: Expr, spatial: int) -> Expr:
    """The transposed convolution; float16 results that are wanted wider are summed wider."""
    layout = layout_of(call, x, spatial, "data_layout")
    x = permuted(call, x, layout, first(spatial))
    w = _transposed_weights(call, w, spatial, shape(x)[1])
    before, after = call.pads(spatial)
    strides, dilation = call.per_axis("strides", spatial), call.per_axis("dilation", spatial)
    extra, groups = call.per_axis("output_padding", spatial, 0), groups_of(call)
    if is_float(x):
        wide = call.dtype(dtype(x), "out_dtype")
        if wide in ("float32", "float64"):
            x, w = call.cast(x, wide), call.cast(w, wide)
        y = call.onnx(
            "ConvTranspose",
            x,
            w,
            strides=strides,
            dilations=dilation,
            pads=[*before, *after],
            output_padding=extra,
            group=groups,
        )
        return _out(call, y, first(spatial), layout)
    out = [
        (extent - 1) * strides[i] + (shape(w)[2 + i] - 1) * dilation[i] + 1 + extra[i] - before[i] - after[i]
        for i, extent in enumerate(shape(x)[2:])
    ]
    node = call.node("ConvTranspose", x, w)
    y = transposed_sum(node, x, w, before, out, tuple(strides), tuple(dilation), groups, dtype(x))
    return _out(call, y, first(spatial), layout)


def _transposed_weights(call: Call, w: Expr, spatial: int, channels: int) -> Expr:
    """w as I, O/groups, taps. Until TVM 0.9 this order was called OI..., so shapes decide what that means."""
    inner = first(spatial)[2:]
    order, groups = f"IO{inner}", groups_of(call)
    layout = call.text("kernel_layout", order)
    if sorted(layout) != sorted(order) or len(shape(w)) != len(order):
        call.refuse(f"has kernel_layout {layout} for weights {list(shape(w))}, which is not supported")
    wanted = call.attr("channels")

    def fits(candidate: Expr) -> bool:
        return shape(candidate)[0] == channels and wanted in (None, shape(candidate)[1] * groups)

    read = permuted(call, w, layout, order)
    if not fits(read):
        swapped = layout.translate(_SWAP)
        read = permuted(call, w, swapped, order)
    if not fits(read) or channels % groups:
        call.refuse(f"has weights {list(shape(w))} ({layout}) for {channels} channels in {groups} groups")
    return read


_SWAP = str.maketrans("IO", "OI")


def refused(why: str) -> Converter:
    """Operators that only a scheduler's rewrites make."""

    def convert(call: Call) -> Sequence[Expr]:
        call.refuse(why)

    return convert


_REWRITTEN = "is made by TVM's own layout rewrites: save the model from before relay.build"

CONVERTERS: dict[str, Converter] = {
    "nn.conv1d": convolution(1),
    "nn.conv2d": convolution(2),
    "nn.conv3d": convolution(3),
    "nn.conv1d_transpose": transposed_convolution(1),
    "nn.conv2d_transpose": transposed_convolution(2),
    "nn.conv3d_transpose": transposed_convolution(3),
    **{
        name: refused(_REWRITTEN)
        for name in (
            "nn.contrib_conv2d_NCHWc",
            "nn.contrib_depthwise_conv2d_NCHWc",
            "nn.contrib_conv2d_winograd_without_weight_transform",
            "nn.contrib_conv2d_winograd_weight_transform",
            "nn.contrib_conv2d_winograd_nnpack_weight_transform",
            "nn.contrib_conv2d_gemm_without_weight_transform",
            "nn.contrib_conv2d_gemm_weight_transform",
            "nn.contrib_conv3d_winograd_without_weight_transform",
            "nn.contrib_conv3d_winograd_weight_transform",
            "nn.contrib_dense_pack",
            "nn.internal.sparse_dense_padded",
        )
    },
}
