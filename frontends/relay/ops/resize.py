"""Resizing, through the ONNX converter: taps and weights are computed while importing, in any layout."""

from __future__ import annotations

from math import floor

import numpy as np

from subtune.frontends.onnx.ops.node import Expr, array_const, dtype, is_float, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.layout import layout_of, spatial_axes

_METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
_ROUNDINGS = {
    "round": "round_prefer_ceil",  # halves away from zero, and only coordinates above zero have halves that matter
    "round_prefer_ceil": "round_prefer_ceil",
    "round_prefer_floor": "round_prefer_floor",
    "floor": "floor",
    "ceil": "ceil",
}
_TRANSFORMS = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_crop_and_resize")


def resize(spatial: int) -> Converter:
    def convert(call: Call) -> Expr:
        return resized(
            call,
            call.per_axis("size", spatial),
            call.text("method", "linear"),
            call.text("coordinate_transformation_mode", "half_pixel"),
            "round" if call.attr("rounding_method") is None else str(call.attr("rounding_method")),
        )

    return convert


def old_resize(call: Call) -> Expr:
    """`image.resize` of TVM before 0.8, whose methods are named bilinear and bicubic."""
    method = call.text("method", "bilinear")
    transform = call.text("coordinate_transformation_mode", "half_pixel")
    if call.attr("align_corners"):
        transform = "align_corners"
    rounding = "round" if call.attr("rounding_method") is None else str(call.attr("rounding_method"))
    return resized(call, call.per_axis("size", 2), method.removeprefix("bi"), transform, rounding)


def upsampling(spatial: int) -> Converter:
    """To the nearest whole size; nearest pixels are those below. The first versions had one `scale` and upper case."""

    def convert(call: Call) -> Expr:
        layout = layout_of(call, call.x, spatial)
        names = ("scale_d", "scale_h", "scale_w")[3 - spatial :]
        scales = [float(call.attr(name, call.attr("scale", 1.0))) for name in names]
        extents = [shape(call.x)[axis] for axis in spatial_axes(layout)]
        sizes = [floor(extent * scale + 0.5) for extent, scale in zip(extents, scales, strict=True)]
        method = call.text("method", "nearest_neighbor").lower().removeprefix("bi").removeprefix("tri")
        if spatial == 3:
            transform = call.text("coordinate_transformation_mode", "half_pixel")
        else:
            transform = "align_corners" if call.attr("align_corners", False) else "asymmetric"
        return resized(call, sizes, method, transform, "")

    return convert


def resized(call: Call, sizes: list[int], method: str, transform: str, rounding: str) -> Expr:
    """`rounding` "" is Relay's choice: whole numbers below, but the nearest when corners are aligned."""
    x = call.x
    axes = spatial_axes(layout_of(call, x, len(sizes)))
    extents = [shape(x)[axis] for axis in axes]
    rounding = rounding or ("round" if transform == "align_corners" else "floor")
    if transform == "tf_half_pixel_for_nn" and method == "nearest_neighbor" and rounding == "floor":
        transform, rounding = "half_pixel", "round"  # floor((x + 0.5) * scale), said in another way
    if method == "nearest_neighbor" and transform == "asymmetric" and len(sizes) == 2:
        # TVM divides whole numbers there, whatever the rounding.
        whole = [size % extent == 0 for size, extent in zip(sizes, extents, strict=True)]
        if any(whole) and not all(whole) and rounding != "floor":
            call.refuse(f"rounds by {rounding} along one axis and divides along the other")
        rounding = "floor" if all(whole) else rounding
    if transform == "pytorch_half_pixel" and 1 in sizes and method == "cubic":
        if set(sizes) != {1}:
            call.refuse("interpolates by cubics to an extent of 1 as PyTorch does")
        transform = "asymmetric"
    if method not in _METHODS or transform not in _TRANSFORMS or rounding not in _ROUNDINGS:
        call.refuse(f"has method {method}, transformation {transform} and rounding {rounding}, which is not supported")
    if min(sizes) < 1:
        call.refuse(f"has size {sizes}")
    roi = call.attr("roi") if transform == "tf_crop_and_resize" else None
    if transform == "tf_crop_and_resize" and (roi is None or len(roi) != 2 * len(sizes)):
        call.refuse(f"has roi {roi}")
    wanted = call.dtype(dtype(x), "out_dtype")
    interpolated = x if method == "nearest_neighbor" or is_float(x) else call.cast(x, "float32")
    y = call.onnx(
        "Resize",
        interpolated,
        None if roi is None else array_const(np.array(roi, "float32")),
        None,
        array_const(np.array(sizes, "int64")),
        axes=axes,
        mode=_METHODS[method],
        coordinate_transformation_mode=transform,
        nearest_mode=_ROUNDINGS[rounding],
        cubic_coeff_a=float(call.attr("cubic_alpha", call.attr("bicubic_alpha", -0.5))),
        exclude_outside=int(call.attr("cubic_exclude", call.attr("bicubic_exclude", 0)) or 0),
        extrapolation_value=float(call.attr("extrapolation_value", 0.0)),
    )
    return call.onnx("CastLike", y, array_const(np.zeros((), wanted))) if dtype(y) != wanted else y


CONVERTERS: dict[str, Converter] = {
    "image.resize1d": resize(1),
    "image.resize2d": resize(2),
    "image.resize3d": resize(3),
    "image.resize": old_resize,
    "nn.upsampling": upsampling(2),
    "nn.upsampling3d": upsampling(3),
}
