"""Pooling against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from subtune.frontends.onnx.ops.node import Refused
from tests.frontends.relay.agree import Agree, Together, floats, ints
from tests.frontends.relay.np_windows import pool, relaid
from tests.frontends.relay.run import evaluate

_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def case(kind: str, x: np.ndarray, **attrs: Any) -> Agree:
    """x channels first."""
    n = x.ndim - 2
    pads = attrs.get("padding", [0])
    want = pool(
        x,
        kind,
        (attrs["pool_size"] * n)[:n],
        (attrs.get("strides", [1]) * n)[:n],
        pads * 2 * n if len(pads) == 1 else pads * 2 if len(pads) == n else pads,
        (attrs.get("dilation", [1]) * n)[:n],
        bool(attrs.get("ceil_mode", False)),
        bool(attrs.get("count_include_pad", False)),
    )
    layout = attrs.get("layout", _FIRST[n])
    name = f"{kind}{n}d {x.dtype} {' '.join(f'{k}={v}' for k, v in attrs.items())}"
    want = np.trunc(want) if x.dtype.kind in "iu" else want
    given = [np.ascontiguousarray(relaid(x, _FIRST[n], layout))]
    return Agree(name, f"nn.{kind}_pool{n}d", given, relaid(want.astype(x.dtype), _FIRST[n], layout), attrs)


def adaptive(op: str, x: np.ndarray, size: Any, sizes: list[int], layout: str | None = None) -> Agree:
    first = _FIRST[x.ndim - 2]
    y = np.asarray(x, "float64")
    for axis, s in enumerate(sizes, start=2):
        extent = x.shape[axis]
        parts = [y.take(range(i * extent // s, -(-(i + 1) * extent // s)), axis=axis) for i in range(s)]
        reduced = [p.mean(axis, keepdims=True) if "avg" in op else p.max(axis, keepdims=True) for p in parts]
        y = np.concatenate(reduced, axis)
    attrs = {"output_size": size} | ({"layout": layout} if layout else {})
    given = np.ascontiguousarray(relaid(x, first, layout or first))
    return Agree(f"{op} {size} {layout}", op, [given], relaid(y.astype(x.dtype), first, layout or first), attrs)


INTS = ints("int32", 2, 3, 4, 5)
X1, X2, X3 = floats(2, 3, 11), floats(2, 3, 9, 8), floats(1, 2, 5, 6, 7)
CASES = Together(
    [
        *(
            case(kind, X2, **attrs)
            for kind in ("max", "avg")
            for attrs in (
                {"pool_size": [3, 3], "strides": [2, 2]},
                {"pool_size": [2, 3], "strides": [2, 1], "padding": [1]},
                {"pool_size": [3, 3], "strides": [2, 2], "padding": [1, 1], "ceil_mode": True},
                {"pool_size": [3, 2], "strides": [3, 3], "padding": [0, 1, 2, 1], "ceil_mode": 1},
                {"pool_size": [2, 2], "strides": [2, 2], "padding": [1, 1], "ceil_mode": True, "layout": "NHWC"},
                {"pool_size": [2, 2], "dilation": [2, 3], "padding": [1, 2]},
            )
        ),
        *(
            case("avg", X2, count_include_pad=True, **attrs)
            for attrs in (
                {"pool_size": [3, 3], "strides": [2, 2], "padding": [1, 1]},
                {"pool_size": [3, 3], "strides": [2, 2], "padding": [1, 1], "ceil_mode": True},
                {"pool_size": [3, 3], "strides": [3, 3], "padding": [1, 0, 2, 1], "ceil_mode": True, "layout": "NHWC"},
                {"pool_size": [2, 2], "dilation": [2, 2], "padding": [1, 1]},
            )
        ),
        case("max", X1, pool_size=[3], strides=[2], padding=[1], ceil_mode=True),
        case("max", X1, pool_size=[4], strides=[3], padding=[0, 2], layout="NWC"),
        case("avg", X1, pool_size=[3], strides=[2], padding=[1], ceil_mode=True, count_include_pad=True),
        case("avg", X1, pool_size=[3], strides=[2], padding=[1]),
        case("max", X3, pool_size=[2, 3, 2], strides=[2, 2, 2], padding=[1, 1, 0], ceil_mode=True),
        case("avg", X3, pool_size=[2, 2, 3], strides=[2, 1, 2], padding=[0, 0, 1, 1, 1, 0], layout="NDHWC"),
        case("max", ints("int8", 1, 2, 6, 6), pool_size=[2, 2], strides=[2, 2], padding=[1, 1]),
        case("max", ints("uint8", 1, 2, 6, 6), pool_size=[3, 3], layout="NHWC"),
        case("avg", ints("int32", 1, 2, 6, 6), pool_size=[3, 3], padding=[1, 1]),
        case("avg", ints("int32", 2, 3, 5, 6), pool_size=[5, 6], strides=[5, 6], layout="NHWC"),
        case("avg", ints("int32", 1, 3, 9, 6), pool_size=[3, 2], strides=[2, 2], ceil_mode=True, layout="NHWC"),
        case("max", X2, pool_size=[9, 8]),
        case("avg", X1, pool_size=[2], strides=[2], dilation=[2], layout="NWC"),
        case("max", X2.astype("float16"), pool_size=[3, 3], padding=[1, 1]),
        Agree(
            "global avg of int32",
            "nn.global_avg_pool2d",
            [INTS],
            np.trunc(INTS.mean((2, 3), keepdims=True)).astype("int32"),
        ),
        Agree("global avg", "nn.global_avg_pool2d", [X2], X2.mean((2, 3), keepdims=True)),
        Agree("global avg NHWC", "nn.global_avg_pool2d", [X2], X2.mean((1, 2), keepdims=True), {"layout": "NHWC"}),
        Agree("global max", "nn.global_max_pool2d", [X2], X2.max((2, 3), keepdims=True)),
        Agree("global max NHWC", "nn.global_max_pool2d", [X2], X2.max((1, 2), keepdims=True), {"layout": "NHWC"}),
        adaptive("nn.adaptive_avg_pool2d", X2, [1, 1], [1, 1]),
        adaptive("nn.adaptive_avg_pool2d", X2, [3, 4], [3, 4]),
        adaptive("nn.adaptive_avg_pool2d", X2, [4], [4, 4]),
        adaptive("nn.adaptive_avg_pool2d", X2, 7, [7, 7], "NHWC"),
        adaptive("nn.adaptive_avg_pool2d", X2, None, [9, 8]),
        adaptive("nn.adaptive_max_pool2d", X2, [], [9, 8]),
        adaptive("nn.adaptive_max_pool2d", X2, [1, 1], [1, 1], "NHWC"),
        adaptive("nn.adaptive_max_pool2d", X2, [3, 2], [3, 2]),
        adaptive("nn.adaptive_max_pool2d", X2, [4, 5], [4, 5]),
        adaptive("contrib.adaptive_avg_pool2d", X2, [2, 3], [2, 3]),
        adaptive("contrib.adaptive_max_pool2d", X2, [2, 3], [2, 3]),
        adaptive("nn.adaptive_avg_pool1d", X1, [4], [4]),
        adaptive("nn.adaptive_max_pool1d", X1, 3, [3], "NWC"),
        adaptive("nn.adaptive_avg_pool3d", X3, [2, 4, 1], [2, 4, 1]),
        adaptive("nn.adaptive_max_pool3d", X3, [3], [3, 3, 3], "NDHWC"),
    ]
)


@CASES.parameters()
def test_agrees_with_numpy(name: str) -> None:
    CASES.check(name)


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"pool_size": [2, 2], "layout": "NCHW8c"}, "packed"),
        ({"pool_size": [20, 2]}, "window of 20"),
        ({"pool_size": [2, 2], "out_layout": "NHWC"}, "out_layout"),
        ({"pool_size": [2, 2, 2]}, "pool_size"),
    ],
)
def test_refuses(attrs: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        evaluate("nn.max_pool2d", [X2], attrs)


TESTED = {case.op for case in CASES.cases.values()}
