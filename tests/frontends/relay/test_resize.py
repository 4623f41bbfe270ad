"""Resizing, pads and sampled pixels against NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from subtune.frontends.onnx.ops.node import Refused
from tests.frontends.relay.agree import Agree, Together, floats, ints
from tests.frontends.relay.np_windows import relaid, windows
from tests.frontends.relay.run import Known, evaluate

_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def _origin(out: int, extent: int, transform: str, roi: tuple[float, float] = (0, 1)) -> np.ndarray:
    """Relay's `get_inx` for every output position."""
    at, scale = np.arange(out, dtype="float64"), extent / out
    match transform:
        case "half_pixel":
            return (at + 0.5) * scale - 0.5
        case "pytorch_half_pixel":
            return (at + 0.5) * scale - 0.5 if out > 1 else np.zeros(1)
        case "align_corners":
            return at * (extent - 1) / (out - 1)
        case "asymmetric":
            return at * scale
        case "tf_half_pixel_for_nn":
            return (at + 0.5) * scale
    assert transform == "tf_crop_and_resize"
    return roi[0] * (extent - 1) + at * (roi[1] - roi[0]) * (extent - 1) / (out - 1)


def _rounded(v: np.ndarray, how: str) -> np.ndarray:
    if how == "round":
        return np.where(v < 0, np.ceil(v - 0.5), np.floor(v + 0.5))
    if how == "round_prefer_floor":
        return np.ceil(v - 0.5)
    if how == "round_prefer_ceil":
        return np.floor(v + 0.5)
    return np.floor(v + 1e-5) if how == "floor" else np.ceil(v - 1e-5)


def _spline(t: np.ndarray, a: float) -> list[np.ndarray]:
    return [
        a * (t**3 - 2 * t**2 + t),
        (a + 2) * t**3 - (3 + a) * t**2 + 1,
        -(a + 2) * t**3 + (3 + 2 * a) * t**2 - a * t,
        -a * t**3 + a * t**2,
    ]


def _line(y: np.ndarray, axis: int, v: np.ndarray, method: str, how: str, a: float, exclude: bool) -> np.ndarray:
    """One axis of y resized: its pixels at the coordinates v."""
    extent = y.shape[axis]
    if method == "nearest_neighbor":
        return y.take(np.clip(_rounded(v, how), 0, extent - 1).astype(int), axis)
    low, t = np.floor(v).astype(int), v - np.floor(v)
    weights = [1 - t, t] if method == "linear" else _spline(t, a)
    start = 0 if method == "linear" else -1
    taps = [low + start + i for i in range(len(weights))]
    if exclude:
        weights = [np.where((tap < 0) | (tap >= extent), 0, w) for tap, w in zip(taps, weights, strict=True)]
        total = sum(weights)
        weights = [w / total for w in weights]
    dims = [-1 if i == axis else 1 for i in range(y.ndim)]
    pixels = [y.take(np.clip(tap, 0, extent - 1), axis) for tap in taps]
    return sum(p * w.reshape(dims) for p, w in zip(pixels, weights, strict=True))


def resized(x: np.ndarray, sizes: list[int], attrs: dict[str, Any]) -> np.ndarray:
    """x channels first."""
    method = attrs.get("method", "linear")
    transform = attrs.get("coordinate_transformation_mode", "half_pixel")
    how = attrs.get("rounding_method", "round") or ("round" if transform == "align_corners" else "floor")
    n, y = len(sizes), x.astype("float64")
    beyond = np.zeros(sizes, bool)
    for i, size in enumerate(sizes):
        extent = x.shape[2 + i]
        roi = (attrs["roi"][i], attrs["roi"][n + i]) if "roi" in attrs else (0, 1)
        v = _origin(size, extent, transform, roi)
        divides = method == "nearest_neighbor" and transform == "asymmetric" and n == 2 and size % extent == 0
        beyond |= ((v < 0) | (v > extent - 1)).reshape([-1 if a == i else 1 for a in range(n)])
        y = _line(
            y,
            2 + i,
            v,
            method,
            "floor" if divides else how,
            attrs.get("cubic_alpha", -0.5),
            bool(attrs.get("cubic_exclude")),
        )
    if transform == "tf_crop_and_resize":
        y = np.where(beyond, attrs.get("extrapolation_value", 0.0), y)
    return y.astype(attrs.get("out_dtype") or x.dtype)


def case(x: np.ndarray, sizes: list[int], op: str = "", **attrs: Any) -> Agree:
    n = x.ndim - 2
    layout = attrs.get("layout", _FIRST[n])
    want = relaid(resized(x, sizes, attrs), _FIRST[n], layout)
    name = f"{n}d {x.dtype} {x.shape[2:]} {sizes} {' '.join(str(v) for v in attrs.values())}"
    given = [np.ascontiguousarray(relaid(x, _FIRST[n], layout))]
    return Agree(name, op or f"image.resize{n}d", given, want, {"size": sizes, **attrs})


def renamed(case: Agree, op: str, attrs: dict[str, Any], name: str = "") -> Agree:
    """The same result by another operator."""
    return Agree(f"{op} {name or attrs}", op, case.args, case.expected, attrs)


def mirrored(mode: str) -> Agree:
    x = floats(2, 3, 4)
    widths = [[0, 0], [1, 3 if mode == "SYMMETRIC" else 2], [2, 0]]
    return Agree(
        f"mirror_pad {mode}", "nn.mirror_pad", [x], np.pad(x, widths, mode.lower()), {"mode": mode, "pad_width": widths}
    )


def padded(
    name: str, x: np.ndarray, widths: list[list[int]], more: list[Any], want: dict[str, Any], **attrs: Any
) -> Agree:
    return Agree(f"pad {name}", "nn.pad", [x, *more], np.pad(x, widths, **want), {"pad_width": widths, **attrs})


def blocks(x: np.ndarray, block: list[int], pads: list[list[int]], value: float = 0.0) -> np.ndarray:
    """Pixel (i, j) of a block goes to batch (i * width + j) * N + n."""
    rest = [(0, 0)] * (x.ndim - 1 - len(block))
    x = np.pad(x, [(0, 0), *map(tuple, pads), *rest], constant_values=value)
    parts = [
        x[(slice(None), *(slice(o, None, b) for o, b in zip(offset, block, strict=True)))]
        for offset in product(*(range(b) for b in block))
    ]
    return np.concatenate(parts, 0)


def _batches() -> list[Agree]:
    x, pads = floats(2, 4, 5, 3), [[0, 2], [1, 0]]
    there = blocks(x, [3, 2], pads, 0.5)
    return [
        Agree(
            "space_to_batch",
            "nn.space_to_batch_nd",
            [x],
            there,
            {"block_shape": [3, 2], "paddings": pads, "pad_value": 0.5},
        ),
        Agree("batch_to_space", "nn.batch_to_space_nd", [there], x, {"block_shape": [3, 2], "crops": pads}),
        Agree(
            "one axis, no pads",
            "nn.space_to_batch_nd",
            [x],
            blocks(x, [2], [[0, 0]]),
            {"block_shape": [2], "paddings": [[0, 0]]},
        ),
        Agree(
            "and back", "nn.batch_to_space_nd", [blocks(x, [2], [[0, 0]])], x, {"block_shape": [2], "crops": [[0, 0]]}
        ),
    ]


def depths(layout: str) -> list[Agree]:
    x = floats(2, 12, 2, 3)
    n, c, h, w = x.shape
    dcr = x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)
    cdr = x.reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // 4, 2 * h, 2 * w)
    x, dcr, cdr = (np.ascontiguousarray(relaid(v, "NCHW", layout)) for v in (x, dcr, cdr))
    attrs = {"block_size": 2, "layout": layout}
    return [
        Agree(f"depth_to_space {layout}", "nn.depth_to_space", [x], dcr, attrs),
        Agree(f"depth_to_space CDR {layout}", "nn.depth_to_space", [x], cdr, {**attrs, "mode": "CDR"}),
        Agree(f"space_to_depth {layout}", "nn.space_to_depth", [dcr], x, attrs),
    ]


def _pixel(image: np.ndarray, y: float, x: float, edge: bool) -> np.ndarray:
    """Bilinear between the pixels (C, H, W) round (y, x); beyond the image the edge or zeros."""
    total: Any = 0.0
    height, width = image.shape[1:]
    for i, j in product((0, 1), (0, 1)):
        a, b = int(np.floor(y)) + i, int(np.floor(x)) + j
        weight = (1 - abs(y - a)) * (1 - abs(x - b))
        if edge or (0 <= a < height and 0 <= b < width):
            total = total + weight * image[:, min(max(a, 0), height - 1), min(max(b, 0), width - 1)]
    return total if not isinstance(total, float) else np.zeros(image.shape[0])


def crops(method: str, layout: str) -> Agree:
    x, boxes = floats(2, 3, 6, 5), np.array([[0, 0, 1, 1], [0.23, 0.1, 0.72, 0.9], [0.93, 0.52, 0.12, 1.2]], "float32")
    which, out = np.array([1, 0, 1], "int32"), np.full((3, 3, 4, 3), 0.25)
    for r, i, j in product(range(3), range(4), range(3)):
        y1, x1, y2, x2 = boxes[r].astype("float64")
        y, at = 5 * (y1 + (y2 - y1) * i / 3), 4 * (x1 + (x2 - x1) * j / 2)
        if -1e-6 <= y <= 5 + 1e-6 and -1e-6 <= at <= 4 + 1e-6:
            image = x[which[r]]
            near = image[:, int(np.floor(y + 0.5)), int(np.floor(at + 0.5))]
            out[r, :, i, j] = _pixel(image, y, at, True) if method == "bilinear" else near
    attrs = {"crop_size": [4, 3], "layout": layout, "method": method, "extrapolation_value": 0.25}
    given = [np.ascontiguousarray(relaid(x, "NCHW", layout)), boxes, which]
    want = relaid(out.astype("float32"), "NCHW", layout)
    return Agree(f"crop_and_resize {method} {layout}", "image.crop_and_resize", given, want, attrs)


def _cubic(t: float) -> float:
    """Keys' kernel with a = -0.75 at the distance t."""
    t, a = abs(t), -0.75
    return (a + 2) * t**3 - (a + 3) * t**2 + 1 if t <= 1 else a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a


def grids(method: str, padding: str, align: bool, *spatial: int) -> Agree:
    """Every sampled pixel as the sum over all pixels of the image, weighted by their distances."""
    n = len(spatial)
    x, out = floats(2, 3, *spatial), (3, 6, 2)[:n]
    grid = np.random.default_rng(3).uniform(-1.3, 1.3, (2, n, *out)).astype("float32")
    want = np.zeros((2, 3, *out))
    for at in product(range(2), *(range(o) for o in out)):
        weights: Any = 1.0
        for axis, extent in enumerate(spatial):
            g = float(grid[(at[0], n - 1 - axis, *at[1:])])
            v = (g + 1) / 2 * (extent - 1) if align else ((g + 1) * extent - 1) / 2
            v = float(np.clip(v, 0, extent - 1)) if padding == "border" else v
            low = int(np.floor(v))
            taps = {"nearest": [int(np.floor(v + 0.5))], "bilinear": [low, low + 1], "bicubic": range(low - 1, low + 3)}
            line = np.zeros(extent)
            for tap in taps[method]:
                if 0 <= tap < extent:
                    line[tap] += {"nearest": 1.0, "bilinear": 1 - abs(v - tap), "bicubic": _cubic(v - tap)}[method]
            weights = np.multiply.outer(weights, line)
        want[(at[0], slice(None), *at[1:])] = (x[at[0]] * weights).sum(tuple(range(1, n + 1)))
    attrs = {"method": method, "padding_mode": padding, "align_corners": align} | (
        {"layout": "NCDHW"} if n == 3 else {}
    )
    return Agree(f"grid_sample {attrs}", "image.grid_sample", [x, grid], want.astype("float32"), attrs)


def deformed(layout: str, groups: int, parts: int) -> Agree:
    x, w = floats(2, 4, 5, 6), floats(6, 4 // groups, 3, 2)
    offset = floats(2, 2 * parts * 6, 3, 5)
    out = np.zeros((2, 6, 3, 5))
    for n, i, j, p, q, c in product(range(2), range(3), range(5), range(3), range(2), range(4)):
        at = 2 * ((c // (4 // parts)) * 6 + p * 2 + q)
        y, v = i * 2 - 1 + p + float(offset[n, at, i, j]), j - 1 + q * 2 + float(offset[n, at + 1, i, j])
        if 0 <= y < 5 and 0 <= v < 6:
            g = c // (4 // groups)
            fs = slice(g * 6 // groups, (g + 1) * 6 // groups)
            out[n, fs, i, j] += _pixel(x[n, c : c + 1], y, v, False) * w[fs, c % (4 // groups), p, q]
    attrs = {
        "strides": [2, 1],
        "padding": [1, 1, 1, 0],
        "dilation": [1, 2],
        "groups": groups,
        "deformable_groups": parts,
    }
    kernel = "OIHW" if layout == "NCHW" else "HWIO"
    given = [relaid(x, "NCHW", layout), relaid(offset, "NCHW", layout), relaid(w, "OIHW", kernel)]
    attrs |= {"data_layout": layout, "kernel_layout": kernel}
    given = [np.ascontiguousarray(v) for v in given]
    want = relaid(out.astype("float32"), "NCHW", layout)
    return Agree(f"deformable {layout} {groups} {parts}", "nn.deformable_conv2d", given, want, attrs)


def dilated(layout: str, kernel: str) -> Agree:
    x, w = floats(2, 3, 7, 6), floats(3, 3, 2)
    seen = windows(np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 1)]), (3, 2), (2, 1), (1, 2), (4, 5))
    want = (seen + w[None, :, None, None]).max((4, 5))
    attrs = {
        "strides": [2, 1],
        "padding": [1, 0, 1, 1],
        "dilations": [1, 2],
        "data_layout": layout,
        "kernel_layout": kernel,
    }
    given = [np.ascontiguousarray(relaid(x, "NCHW", layout)), np.ascontiguousarray(relaid(w, "IHW", kernel))]
    return Agree(f"dilation2d {layout}", "image.dilation2d", given, relaid(want, "NCHW", layout), attrs)


def correlated(size: int, reach: int, step: int, apart: int, pad: int, is_product: bool) -> Agree:
    a, b = floats(1, 3, 8, 9), floats(1, 3, 8, 9)
    border, radius = reach + (size - 1) // 2, reach // apart
    out = [-(-(e + 2 * pad - 2 * border) // step) for e in (8, 9)]
    p, q = (np.pad(v, [(0, 0), (0, 0), (pad, pad + step), (pad, pad + step)]) for v in (a, b))
    side = 2 * radius + 1
    want = np.zeros((1, side * side, *out))
    for d, i, j in product(range(side * side), range(out[0]), range(out[1])):
        y, x = i * step + reach, j * step + reach
        v, u = y + (d // side - radius) * apart, x + (d % side - radius) * apart
        first, second = p[:, :, y : y + size, x : x + size], q[:, :, v : v + size, u : u + size]
        want[:, d, i, j] = (first * second if is_product else np.abs(first - second)).sum((1, 2, 3)) / (size**2 * 3)
    attrs = {"kernel_size": size, "max_displacement": reach, "stride1": step, "stride2": apart}
    attrs |= {"padding": [pad, pad], "is_multiply": is_product}
    return Agree(f"correlation {attrs}", "nn.correlation", [a, b], want.astype("float32"), attrs)


def _affine() -> Agree:
    theta = floats(2, 2, 3)
    y, x = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5), indexing="ij")
    want = np.einsum("nij,jhw->nihw", theta, np.stack([x, y, np.ones_like(x)])).astype("float32")
    return Agree("affine_grid", "image.affine_grid", [theta], want, {"target_shape": [4, 5]})


def _dynamic() -> list[Agree]:
    """Sizes as constant arguments."""
    sizes, scales = Known(np.array([8, 9])), [Known(np.array(s, "float32")) for s in (2.0, 1.5, 3.0)]
    flat, deep = case(X, [8, 9]), case(floats(1, 2, 3, 4, 5), [6, 6, 15])
    up = case(X, [8, 9], coordinate_transformation_mode="asymmetric", rounding_method="floor", **NEAREST)
    widths = [[0, 1], [2, 0], [0, 0], [1, 1]]
    pads, value = Known(np.array(widths)), Known(np.array(2, "float32"))
    return [
        Agree("dyn.resize2d", "dyn.image.resize2d", [*flat.args, sizes, Known(np.zeros(4))], flat.expected),
        Agree("dyn.upsampling", "dyn.nn.upsampling", [*up.args, *scales[:2]], up.expected),
        Agree("dyn.upsampling3d", "dyn.nn.upsampling3d", [*deep.args, *scales], deep.expected, {"method": "trilinear"}),
        Agree("dyn.pad", "dyn.nn.pad", [X, pads, value], np.pad(X, widths, constant_values=2)),
    ]


NEAREST, LINEAR, CUBIC = {"method": "nearest_neighbor"}, {"method": "linear"}, {"method": "cubic"}
X, BYTES = floats(1, 3, 4, 6), ints("uint8", 1, 3, 4, 6)
WIDE = floats(1, 9, 4, 6)
V = floats(2, 3, 4)
MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
CASES = Together(
    [
        *(
            case(X, s, **m, coordinate_transformation_mode=t)
            for m in (LINEAR, CUBIC)
            for t in MODES
            for s in ([7, 3], [8, 12])
        ),
        *(
            case(X, s, **NEAREST, coordinate_transformation_mode=t, rounding_method=r)
            for t in MODES
            for r in ("round", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil", "")
            for s in (([7, 3], [8, 12]) if r in ("round", "") else ([7, 3],))
        ),
        case(X, [2, 9]),
        case(X, [8, 12], layout="NHWC"),
        case(WIDE, [8, 12]),
        case(WIDE, [5, 5], layout="NHWC", **CUBIC),
        case(X, [8, 12], layout="NHWC", **NEAREST),
        case(X, [8, 12], coordinate_transformation_mode="tf_half_pixel_for_nn", rounding_method="floor", **NEAREST),
        case(X, [7, 9], cubic_alpha=-0.75, **CUBIC),
        case(X, [7, 9], cubic_alpha=-0.75, cubic_exclude=1, **CUBIC),
        case(BYTES, [8, 12], **LINEAR),
        case(BYTES, [8, 9], out_dtype="float32", **LINEAR),
        case(BYTES, [8, 12], coordinate_transformation_mode="asymmetric", **NEAREST),
        case(
            X,
            [5, 4],
            coordinate_transformation_mode="tf_crop_and_resize",
            roi=[0.1, -0.2, 0.8, 1.1],
            extrapolation_value=0.5,
        ),
        case(floats(2, 3, 5), [8], coordinate_transformation_mode="align_corners"),
        case(floats(2, 3, 5), [9], layout="NWC", **NEAREST),
        case(floats(2, 3, 5), [9], **CUBIC),
        case(floats(1, 2, 3, 4, 5), [5, 4, 7]),
        case(floats(1, 2, 3, 4, 5), [6, 8, 10], layout="NDHWC", coordinate_transformation_mode="asymmetric", **NEAREST),
        renamed(case(X, [8, 12], **LINEAR), "image.resize", {"size": [8, 12], "method": "bilinear"}),
        renamed(
            case(X, [7, 9], **CUBIC, coordinate_transformation_mode="align_corners"),
            "image.resize",
            {
                "size": [7, 9],
                "method": "bicubic",
                "coordinate_transformation_mode": "align_corners",
                "bicubic_alpha": -0.5,
            },
        ),
        renamed(
            case(X, [8, 12], **NEAREST, coordinate_transformation_mode="asymmetric"),
            "nn.upsampling",
            {"scale_h": 2, "scale_w": 2.0},
        ),
        renamed(
            case(X, [8, 12], **NEAREST, coordinate_transformation_mode="asymmetric"),
            "nn.upsampling",
            {"scale": 2, "method": "NEAREST_NEIGHBOR"},
        ),
        renamed(
            case(X, [6, 15], coordinate_transformation_mode="align_corners", layout="NHWC"),
            "nn.upsampling",
            {"scale_h": 1.5, "scale_w": 2.5, "layout": "NHWC", "method": "bilinear", "align_corners": True},
        ),
        renamed(
            case(X, [8, 12], **CUBIC, coordinate_transformation_mode="asymmetric"),
            "nn.upsampling",
            {"scale_h": 2.0, "scale_w": 2.0, "method": "bicubic"},
        ),
        renamed(
            case(floats(1, 2, 3, 4, 5), [6, 8, 10]),
            "nn.upsampling3d",
            {"scale_d": 2, "scale_h": 2, "scale_w": 2, "method": "trilinear"},
        ),
        renamed(
            case(
                floats(1, 2, 3, 4, 5),
                [6, 4, 10],
                coordinate_transformation_mode="asymmetric",
                rounding_method="",
                **NEAREST,
            ),
            "nn.upsampling3d",
            {"scale_d": 2, "scale_h": 1, "scale_w": 2, "coordinate_transformation_mode": "asymmetric"},
        ),
        *_dynamic(),
        padded("zeros", V, [[0, 0], [1, 2], [3, 0]], [], {}),
        padded("attribute", V, [[1, 0], [0, 0], [0, 2]], [], {"constant_values": 1.5}, pad_value=1.5),
        padded("argument", V, [[1, 0], [0, 0], [0, 2]], [np.array(-2, "float32")], {"constant_values": -2}),
        padded("int argument", BYTES[0], [[1, 0], [0, 0], [0, 2]], [np.array(7, "int32")], {"constant_values": 7}),
        padded("none", V, [[0, 0]] * 3, [], {}),
        padded("edge", V, [[1, 0], [2, 1], [0, 5]], [], {"mode": "edge"}, pad_mode="edge"),
        padded(
            "reflect", V, [[0, 0], [2, 1], [3, 0]], [np.array(0, "float32")], {"mode": "reflect"}, pad_mode="reflect"
        ),
        padded("reflect pixels", WIDE, [[0, 0], [0, 0], [2, 1], [3, 0]], [], {"mode": "reflect"}, pad_mode="reflect"),
        mirrored("SYMMETRIC"),
        mirrored("REFLECT"),
        Agree(
            "dilate",
            "nn.dilate",
            [DOTS := floats(2, 3)],
            np.array(
                [
                    [DOTS[0, 0], 5, DOTS[0, 1], 5, DOTS[0, 2]],
                    [5] * 5,
                    [5] * 5,
                    [DOTS[1, 0], 5, DOTS[1, 1], 5, DOTS[1, 2]],
                ],
                "float32",
            ),
            {"strides": [3, 2], "dilation_value": 5.0},
        ),
        *_batches(),
        *depths("NCHW"),
        *depths("NHWC"),
        *(crops(m, layout) for m in ("bilinear", "nearest_neighbor") for layout in ("NCHW", "NHWC")),
        *(grids("bilinear", p, a, 5, 4) for p in ("zeros", "border") for a in (True, False)),
        *(grids(m, "zeros", a, 5, 4) for m in ("nearest", "bicubic") for a in (True, False)),
        grids("bilinear", "zeros", True, 3, 5, 4),
        grids("nearest", "border", False, 3, 5, 4),
        *(deformed(*v) for v in (("NCHW", 1, 1), ("NCHW", 2, 2), ("NHWC", 1, 1))),
        dilated("NCHW", "IHW"),
        dilated("NHWC", "HWI"),
        *(correlated(*v) for v in ((1, 2, 1, 1, 2, True), (3, 2, 2, 2, 1, False))),
        _affine(),
    ]
)


@CASES.parameters()
@pytest.mark.grid
def test_agrees_with_numpy(name: str) -> None:
    CASES.check(name)


@pytest.mark.parametrize(
    ("op", "args", "attrs", "reason"),
    [
        ("image.resize2d", [X], {"size": [8, 8], "layout": "NCHW4c"}, "packed"),
        ("image.resize2d", [X], {"size": [8, 8], "method": "area"}, "method area"),
        ("image.resize2d", [X], {"size": [0, 8]}, "size"),
        (
            "image.resize2d",
            [X],
            {"size": [8, 8], "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
            "half_pixel_for",
        ),
        ("image.resize2d", [X], {"size": [8, 8 << 20]}, "out of range"),
        ("dyn.nn.pad", [X, np.zeros((4, 2), "int64")], {}, "not known at compile time"),
        ("nn.pad", [X], {"pad_width": [[1, 1]]}, "for 4 axes"),
        ("nn.pad", [X], {"pad_width": [1, 1, 1, 1]}, "no pairs"),
        ("nn.pad", [X], {"pad_width": [[1, 1]] * 4, "pad_mode": "wrap"}, "pad_mode wrap"),
        ("nn.mirror_pad", [X], {"pad_width": [[5, 5]] * 4}, "mirrors more"),
        ("nn.depth_to_space", [X], {"block_size": 2}, "block_size 2"),
        ("nn.space_to_batch_nd", [X], {"block_shape": [2], "paddings": [[0, 0]]}, "blocks"),
        ("nn.batch_to_space_nd", [X], {"block_shape": [2], "crops": [[0, 0]]}, "batch of 1"),
        ("image.crop_and_resize", [X, floats(2, 4), ints("int32", 2)], {"crop_size": [1, 4]}, "divides by zero"),
        ("image.grid_sample", [X, floats(1, 2, 3, 3)], {"method": "area"}, "method area"),
        ("image.affine_grid", [floats(1, 2, 3)], {"target_shape": [1, 4]}, "target_shape"),
        ("image.dilation2d", [X, floats(2, 3, 3)], {}, "weights"),
        ("nn.deformable_conv2d", [X, floats(1, 3, 2, 2), floats(2, 3, 3, 3)], {}, "offsets"),
        ("nn.correlation", [X, X], {"max_displacement": 9}, "displaces"),
    ],
)
def test_refuses(op: str, args: Any, attrs: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        evaluate(op, args, attrs)


TESTED = {case.op for case in CASES.cases.values()}
