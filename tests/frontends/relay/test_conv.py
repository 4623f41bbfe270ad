"""Convolutions in all layouts against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from subtune.frontends.onnx.ops.node import Refused
from tests.frontends.relay.agree import Agree, Together, floats, ints
from tests.frontends.relay.np_windows import conv, conv_transposed, relaid
from tests.frontends.relay.run import Known, evaluate

_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_KERNEL = {1: "OIW", 2: "OIHW", 3: "OIDHW"}


def _both(value: list[int], n: int) -> list[int]:
    """Pads of both ends from what the attribute may hold."""
    return value * 2 * n if len(value) == 1 else value * 2 if len(value) == n else value


def case(name: str, dims: tuple[int, ...], weights: tuple[int, ...], known: bool = True, **attrs: Any) -> Agree:
    """dims and weights channels first; the layouts of the attributes decide how they are given."""
    n = len(dims) - 2
    x, w = floats(*dims), floats(*weights)
    data, kernel = attrs.get("data_layout", _FIRST[n]), attrs.get("kernel_layout", _KERNEL[n])
    full = w
    if attrs.get("groups", 1) == dims[1] == weights[0] and weights[1] > 1:
        full = w.reshape(-1, 1, *weights[2:])
    expected = conv(
        x,
        full,
        (attrs.get("strides", [1]) * n)[:n],
        _both(attrs.get("padding", [0]), n),
        (attrs.get("dilation", [1]) * n)[:n],
        attrs.get("groups", 1),
    ).astype("float32")
    w = relaid(w, _KERNEL[n], kernel)
    given = [relaid(x, _FIRST[n], data), Known(np.ascontiguousarray(w)) if known else w]
    return Agree(name, f"nn.conv{n}d", given, relaid(expected, _FIRST[n], attrs.get("out_layout") or data), attrs)


def transposed(name: str, dims: tuple[int, ...], weights: tuple[int, ...], **attrs: Any) -> Agree:
    """weights as I, O/groups, taps."""
    n = len(dims) - 2
    x, w = floats(*dims), floats(*weights)
    order = "IO" + _FIRST[n][2:]
    data, kernel = attrs.get("data_layout", _FIRST[n]), attrs.get("kernel_layout", order)
    expected = conv_transposed(
        x,
        w,
        (attrs.get("strides", [1]) * n)[:n],
        _both(attrs.get("padding", [0]), n),
        (attrs.get("output_padding", [0]) * n)[:n],
        attrs.get("groups", 1),
        (attrs.get("dilation", [1]) * n)[:n],
    ).astype("float32")
    given = [relaid(x, _FIRST[n], data), Known(np.ascontiguousarray(relaid(w, order, kernel)))]
    return Agree(name, f"nn.conv{n}d_transpose", given, relaid(expected, _FIRST[n], data), attrs)


def integers(name: str, x: np.ndarray, w: np.ndarray, out: str, **attrs: Any) -> Agree:
    expected = conv(x, w, [1, 1], [1] * 4, [1, 1], attrs.get("groups", 1), "int64").astype(out)
    return Agree(name, "nn.conv2d", [x, w], expected, {"padding": [1, 1], **attrs})


def _halves() -> list[Agree]:
    x, w = floats(1, 4, 5, 5).astype("float16"), floats(3, 4, 3, 3).astype("float16")
    want = conv(x, w, [1, 1], [0] * 4, [1, 1])
    return [
        Agree("half", "nn.conv2d", [x, w], want.astype("float16"), {}, 2e-3, 2e-3),
        Agree("half summed and returned wide", "nn.conv2d", [x, w], want.astype("float32"), {"out_dtype": "float32"}),
    ]


OLD_NAME = transposed("transposed, old name of the kernel layout", (1, 3, 4, 4), (3, 2, 3, 3), channels=2)
CASES = Together(
    [
        case("plain", (2, 3, 6, 5), (4, 3, 3, 3)),
        case("attributes", (1, 3, 9, 8), (4, 3, 3, 2), strides=[2, 1], padding=[1, 2], dilation=[2, 1]),
        case("one pad for all", (1, 2, 5, 5), (3, 2, 3, 3), padding=[1], channels=3, kernel_size=[3, 3]),
        case("pad as an int", (1, 2, 5, 5), (3, 2, 3, 3), padding=[1, 1, 1, 1], out_dtype=""),
        case("four pads", (1, 2, 5, 6), (3, 2, 3, 3), padding=[0, 1, 2, 3]),
        case("groups", (1, 4, 6, 6), (6, 2, 3, 3), groups=2, padding=[1]),
        case("depthwise", (1, 6, 6, 6), (6, 1, 3, 3), groups=6, padding=[1]),
        case("depthwise, multiplier in the outputs", (1, 3, 6, 6), (6, 1, 3, 3), groups=3),
        case("depthwise, multiplier apart", (1, 3, 6, 6), (3, 2, 3, 3), groups=3, channels=6),
        case("channels last, HWIO", (2, 3, 6, 5), (4, 3, 3, 3), data_layout="NHWC", kernel_layout="HWIO"),
        case("channels last, OHWI", (1, 3, 6, 5), (4, 3, 3, 3), data_layout="NHWC", kernel_layout="OHWI", strides=[2]),
        case(
            "channels last, four pads, groups",
            (1, 4, 5, 6),
            (6, 2, 3, 3),
            data_layout="NHWC",
            kernel_layout="HWIO",
            padding=[0, 1, 2, 3],
            groups=2,
        ),
        case(
            "TFLite's depthwise",
            (1, 4, 6, 6),
            (4, 2, 3, 3),
            data_layout="NHWC",
            kernel_layout="HWOI",
            groups=4,
            padding=[0, 0, 1, 1],
            strides=[2, 2],
        ),
        case("HWOI, multiplier 1", (1, 4, 6, 6), (4, 1, 3, 3), data_layout="NHWC", kernel_layout="HWOI", groups=4),
        case("HWCN", (2, 3, 6, 5), (4, 3, 3, 3), data_layout="HWCN", kernel_layout="HWIO"),
        case("another layout out", (1, 3, 6, 5), (4, 3, 3, 3), out_layout="NHWC"),
        case("weights that vary", (1, 3, 6, 5), (4, 3, 3, 3), known=False, data_layout="NHWC", kernel_layout="HWIO"),
        case("1d", (2, 3, 9), (4, 3, 3), strides=[2], padding=[1], dilation=[2]),
        case("1d, two pads", (2, 3, 9), (4, 3, 4), padding=[1, 2]),
        case("1d channels last", (2, 3, 9), (4, 3, 3), data_layout="NWC", kernel_layout="WIO"),
        case("3d", (1, 2, 5, 4, 6), (3, 2, 2, 3, 3), strides=[1, 2, 1], padding=[1, 0, 1]),
        case("3d, six pads, groups", (1, 4, 4, 4, 4), (4, 2, 2, 2, 3), padding=[0, 1, 0, 1, 0, 2], groups=2),
        case("3d channels last", (1, 2, 4, 4, 5), (3, 2, 2, 2, 3), data_layout="NDHWC", kernel_layout="DHWIO"),
        integers("uint8 with int8", ints("uint8", 1, 4, 5, 5), ints("int8", 3, 4, 3, 3), "int32", out_dtype="int32"),
        integers("int8 wraps", ints("int8", 1, 4, 5, 5), ints("int8", 3, 4, 3, 3), "int8"),
        integers(
            "int16, summed in int32",
            ints("int16", 1, 4, 5, 5),
            ints("int16", 4, 2, 3, 3),
            "int32",
            groups=2,
            out_dtype="int32",
        ),
        *_halves(),
        transposed("transposed", (2, 3, 4, 5), (3, 2, 3, 3)),
        transposed(
            "transposed, attributes", (1, 3, 4, 5), (3, 2, 3, 4), strides=[2, 3], padding=[1, 0], output_padding=[1, 2]
        ),
        transposed("transposed, four pads", (1, 3, 4, 5), (3, 2, 3, 4), strides=[2, 2], padding=[1, 0, 0, 2]),
        transposed("transposed, groups", (1, 4, 4, 4), (4, 3, 3, 3), groups=2, strides=[2]),
        transposed("transposed, depthwise", (1, 4, 4, 4), (4, 1, 4, 4), groups=4, strides=[2], padding=[1]),
        transposed("transposed, dilated", (1, 2, 4, 4), (2, 3, 3, 3), dilation=[2, 1], strides=[2]),
        transposed("transposed, OIHW", (1, 3, 4, 4), (3, 2, 3, 3), kernel_layout="OIHW", channels=2),
        transposed("transposed, channels last", (1, 3, 4, 4), (3, 2, 3, 3), data_layout="NHWC", kernel_layout="HWOI"),
        transposed("transposed 1d", (1, 3, 6), (3, 2, 4), strides=[2], padding=[1], output_padding=[1]),
        transposed("transposed 3d", (1, 2, 3, 3, 4), (2, 3, 2, 3, 2), strides=[2], padding=[0, 1, 0]),
        Agree(OLD_NAME.name, OLD_NAME.op, OLD_NAME.args, OLD_NAME.expected, {"kernel_layout": "OIHW", "channels": 2}),
    ]
)


REWRITTEN = (
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


@CASES.parameters()
def test_agrees_with_numpy(name: str) -> None:
    CASES.check(name)


@pytest.mark.parametrize(
    ("op", "dims", "weights", "attrs", "reason"),
    [
        ("nn.conv2d", (1, 2, 4, 4, 4), (8, 1, 3, 3, 4, 4), {"data_layout": "NCHW4c"}, "packed"),
        ("nn.conv2d", (1, 4, 4, 4), (4, 4, 3, 3), {"kernel_layout": "OIHW4o"}, "kernel_layout OIHW4o"),
        ("nn.conv2d", (1, 4, 4, 4), (4, 3, 3, 3), {}, "4 channels in 1 groups"),
        ("nn.conv2d", (1, 4, 2, 2), (4, 4, 3, 3), {}, "window of 3"),
        ("nn.conv2d", (1, 4, 4, 4), (4, 4, 3, 3), {"strides": [1, 1, 1]}, "strides"),
        ("nn.conv2d_transpose", (1, 4, 4, 4), (3, 5, 3, 3), {}, "4 channels"),
        *((op, (1, 4, 4, 4), (4, 4, 3, 3), {}, "layout rewrites") for op in REWRITTEN),
    ],
)
def test_refuses(op: str, dims: Any, weights: Any, attrs: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        evaluate(op, [floats(*dims), floats(*weights)], attrs)


TESTED = {case.op for case in CASES.cases.values()} | set(REWRITTEN)
