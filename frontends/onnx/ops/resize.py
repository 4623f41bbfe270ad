"""Resize and Upsample: separable interpolation, the taps and weights of every axis computed while importing.

For each resized axis two tables are made: which input positions an output position reads, and with which
weights. All modes, coordinate transformations, antialiasing and cropping are then one weighted gather per
axis, or per two axes of two taps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.node import Converter, Expr, Node, axis_in, const, dtype, is_float, rank, shape
from subtune.frontends.onnx.ops.quantize import BYTES
from subtune.frontends.onnx.ops.resize_bytes import bilinear, bilinear_of_images, pairs
from subtune.tir.interpolation import Sum, interpolation, may_go_together

_MIN_CHANNELS = 8
"""Fewer of them make no vectors."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized; `scale` is output per input position, `roi` its crop as fractions."""

    extent: int
    out: int
    scale: float
    roi: tuple[float, float]


def resize(node: Node) -> Expr:
    x = node.x
    if node.opset < 11:
        scales = [float(v) for v in node.array(1, "its scales")]
        plan = {
            a: _Axis(d, int(np.floor(d * s)), s, (0.0, 1.0))
            for a, (d, s) in enumerate(zip(shape(x), scales, strict=True))
        }
        return _resized(node, x, plan, "asymmetric", "floor")
    axes = [axis_in(a, rank(x)) for a in node.attr("axes") or range(rank(x))]
    transform = node.attr("coordinate_transformation_mode", "half_pixel")
    roi = None
    if transform == "tf_crop_and_resize":
        roi = node.array(1, "its roi").reshape(-1).tolist()
    given = node.array(2, "its scales") if node.get(2) is not None else np.empty(0)
    scales, sizes = [float(v) for v in given.reshape(-1)], []
    if not scales:
        sizes = node.ints(3, "its sizes")
    plan = {}
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if sizes and policy != "stretch":
        ratios = [s / shape(x)[a] for a, s in zip(axes, sizes, strict=True)]
        one = min(ratios) if policy == "not_larger" else max(ratios)
        scales = [one] * len(axes)
        sizes = [int(np.floor(one * shape(x)[a] + 0.5)) for a in axes]
    for position, axis in enumerate(axes):
        extent = shape(x)[axis]
        scale = scales[position] if scales else sizes[position] / extent
        begin, end = (roi[position], roi[position + len(axes)]) if roi else (0.0, 1.0)
        if sizes:
            out = sizes[position]
        elif roi:
            out = int(np.floor(extent * (end - begin) * scale))
        else:
            out = int(np.floor(np.float64(np.float32(scale)) * extent))
        plan[axis] = _Axis(extent, out, scale, (begin, end))
    return _resized(node, x, plan, transform, node.attr("nearest_mode", "round_prefer_floor"))


def upsample(node: Node) -> Expr:
    x = node.x
    if node.opset < 7:
        node.refuse("of opsets before 7 is not supported")
    scales = node.attr("scales") if node.opset < 9 else [float(v) for v in node.array(1, "its scales")]
    plan = {
        a: _Axis(d, int(np.floor(d * s)), s, (0.0, 1.0)) for a, (d, s) in enumerate(zip(shape(x), scales, strict=True))
    }
    return _resized(node, x, plan, "asymmetric", "floor")


def _resized(node: Node, x: Expr, plan: dict[int, _Axis], transform: str, nearest: str, is_moved: bool = False) -> Expr:
    mode = node.attr("mode", "nearest")
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(mode, mode)
    if mode not in ("nearest", "linear", "cubic"):
        node.refuse(f"has mode {mode}")
    source = dtype(x)
    outside = None
    if mode != "nearest" and not is_float(x):
        return _of_bytes(node, x, plan, transform, mode)
    if mode != "nearest" and transform != "tf_crop_and_resize" and not is_moved and _is_image(x, plan):
        return _channels_last(node, x, plan, transform, nearest)
    sums: list[Sum] = []
    result = x if mode == "nearest" else node.cast(x, "float64" if source == "float64" else "float32")
    for axis, one in plan.items():
        if one.out < 1:
            node.refuse(f"makes an empty axis {axis}")
        if one.out == one.extent and one.scale == 1.0 and transform != "tf_crop_and_resize":
            continue
        origin = _origins(node, one, transform)
        if transform == "tf_crop_and_resize":
            beyond = (origin < 0) | (origin > one.extent - 1)
            dims = [-1 if a == axis else 1 for a in range(rank(x))]
            mask = beyond.reshape(dims)
            outside = mask if outside is None else outside | mask
        if mode == "nearest":
            taps = np.clip(_nearest(node, origin, nearest), 0, one.extent - 1)
            times = one.out // one.extent
            if np.array_equal(taps, np.arange(one.extent).repeat(times)):  # plain index arithmetic fuses with others
                result = node.emit(relax.op.repeat(result, times, axis))
            else:
                result = node.emit(relax.op.take(result, const(taps, "int64"), axis=axis, mode="clip"))
        else:
            sums.append(Sum(axis, *_weights(node, one, origin, mode)))
    innermost = rank(x) - 1
    for some in _stages(sums, shape(x)):
        result = _weighted(node, result, some, any(one.axis == innermost for one in sums))
    if outside is not None and outside.any():
        fill = const(node.attr("extrapolation_value", 0.0), dtype(result))
        mask = np.broadcast_to(outside, shape(result))
        result = node.emit(relax.op.where(const(mask, "bool"), fill, result))
    return node.cast(result, source)


def _of_bytes(node: Node, x: Expr, plan: dict[int, _Axis], transform: str, mode: str) -> Expr:
    """Bilinear, of the two last axes. ONNX Runtime computes all else in fixed-point numbers, or not at all."""
    resized = [axis for axis, one in plan.items() if (one.out, one.scale) != (one.extent, 1.0)]
    is_plain = mode == "linear" and rank(x) in (2, 4) and not node.attr("antialias", 0)
    if dtype(x) not in BYTES or not is_plain or transform == "tf_crop_and_resize":
        node.refuse(f"interpolates dtype {dtype(x)} other than bilinearly" if is_plain else f"interpolates {dtype(x)}")
    if any(axis < rank(x) - 2 for axis in resized):
        node.refuse(f"interpolates dtype {dtype(x)} along axis {min(resized)}, and only images in planes are supported")
    if not resized:
        return x
    both = []
    for axis in (rank(x) - 2, rank(x) - 1):
        one = plan.get(axis, _Axis(shape(x)[axis], shape(x)[axis], 1.0, (0.0, 1.0)))
        if one.out < 1:
            node.refuse(f"makes an empty axis {axis}")
        at = np.arange(one.out, dtype=np.float32)
        both.append(pairs(at if one.scale == 1.0 else _origins(node, one, transform, np.float32), one.extent))
    if rank(x) == 4 and shape(x)[1] >= _MIN_CHANNELS:
        return bilinear_of_images(node, x, *both)
    return bilinear(node, x, (rank(x) - 2, rank(x) - 1), *both)


def _is_image(x: Expr, plan: dict[int, _Axis]) -> bool:
    resized = [axis for axis, one in plan.items() if one.out != one.extent]
    return rank(x) > 2 and min(resized, default=0) >= 2 and shape(x)[1] >= _MIN_CHANNELS


def _channels_last(node: Node, x: Expr, plan: dict[int, _Axis], transform: str, nearest: str) -> Expr:
    """The same between two permutations, which cancel with those of the convolutions round it.

    A weighted gather along the innermost axis reads single elements; with the channels there it reads vectors.
    """
    last = [0, *range(2, rank(x)), 1]
    moved = node.emit(relax.op.permute_dims(x, last))
    below = {last.index(axis): one for axis, one in plan.items()}
    result = _resized(node, moved, below, transform, nearest, is_moved=True)
    return node.emit(relax.op.permute_dims(result, [0, rank(x) - 1, *range(1, rank(x) - 1)]))


def _origins(node: Node, axis: _Axis, transform: str, of: type[np.floating[Any]] = np.float64) -> np.ndarray:
    """The input coordinate of every output position, computed in the type `of`."""
    at, scale = np.arange(axis.out, dtype=of), of(axis.scale)
    width = axis.scale * axis.extent
    if transform == "align_corners":
        if abs(width - axis.out) > 1e-6 * width:  # ONNX's reference uses the fraction, ONNX Runtime does not
            node.refuse(f"aligns corners at a length of {width:g}, which is no whole number")
        width = axis.out
        return np.zeros(axis.out) if width == 1 else at * (axis.extent - 1) / (width - 1)
    if transform == "asymmetric":
        return at / scale
    if transform == "tf_crop_and_resize":
        begin, end = axis.roi
        last = axis.extent - 1
        if axis.out == 1:
            return np.full(1, (begin + end) * last / 2)
        return begin * last + at * (end - begin) * last / (axis.out - 1)
    if transform == "pytorch_half_pixel" and axis.out == 1:
        return np.full(1, -0.5)
    half = (at + of(0.5)) / scale - of(0.5)
    if transform == "half_pixel_symmetric":
        return axis.extent / 2 * (1 - axis.out / width) + half
    if transform not in ("half_pixel", "pytorch_half_pixel"):
        node.refuse(f"has coordinate_transformation_mode {transform}")
    return half


def _nearest(node: Node, origin: np.ndarray, mode: str) -> np.ndarray:
    # Coordinates that are whole numbers but for rounding errors must not be pushed to the next one.
    near = np.round(origin)
    origin = np.where(np.abs(origin - near) < 1e-6 * np.maximum(1, np.abs(near)), near, origin)
    if mode == "floor":
        return np.floor(origin).astype(np.int64)
    if mode == "ceil":
        return np.ceil(origin).astype(np.int64)
    if mode == "round_prefer_ceil":
        return np.floor(origin + 0.5).astype(np.int64)
    if mode != "round_prefer_floor":
        node.refuse(f"has nearest_mode {mode}")
    return np.ceil(origin - 0.5).astype(np.int64)


def _weights(node: Node, axis: _Axis, origin: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Taps (out, n) within the axis, and their weights."""
    reach = 1.0 if mode == "linear" else 2.0
    shrink = min(axis.scale, 1.0) if node.attr("antialias", 0) else 1.0
    if shrink < 1.0 and axis.out == 1 and node.attr("coordinate_transformation_mode") == "pytorch_half_pixel":
        node.refuse("antialiases to a single pixel, where ONNX's reference and ONNX Runtime disagree")
    span = int(np.ceil(reach / shrink))
    base = np.floor(origin).astype(np.int64)
    taps = base[:, None] + np.arange(1 - span, span + 1)[None, :]
    distance = np.abs(taps - origin[:, None]) * shrink
    if mode == "linear":
        weights = np.clip(1.0 - distance, 0.0, 1.0)
    else:
        a = node.attr("cubic_coeff_a", -0.75)
        inner = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        outer = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, inner, np.where(distance < 2, outer, 0.0))
    if node.attr("exclude_outside", 0):
        weights = np.where((taps < 0) | (taps >= axis.extent), 0.0, weights)
    if node.attr("exclude_outside", 0) or node.attr("antialias", 0):
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(taps, 0, axis.extent - 1), weights


def _stages(sums: list[Sum], dims: tuple[int, ...]) -> list[list[Sum]]:
    """Which axes are summed over together, in order.

    Two at a time where that is no more arithmetic: what lies between would go through memory. But the innermost axis of
    x, a tensor of `dims`, goes alone: along it single elements are read, along the others vectors. So it comes where
    they are few: first where it grows with the others, last where all shrink.
    """
    alone = [one for one in sums if one.axis == len(dims) - 1 and len(sums) > 1]
    others = [one for one in sums if one not in alone]
    stages = []
    while others:
        together = 2 if len(others) > 1 and may_go_together(*others[:2]) else 1
        stages.append(others[:together])
        del others[:together]
    grown = math.prod(one.extent / dims[one.axis] for one in sums if one not in alone)
    if not alone:
        return stages
    return [alone, *stages] if grown > 1 else [*stages, alone]


def _weighted(node: Node, x: Expr, sums: list[Sum], in_rows: bool) -> Expr:
    found = interpolation(shape(x), dtype(x), sums, in_rows)
    tables = [const(table, str(table.dtype)) for table in found.tables]
    return node.te(found.te, x, *tables, attrs=found.attrs)


CONVERTERS: dict[str, Converter] = {"Resize": resize, "Upsample": upsample}
