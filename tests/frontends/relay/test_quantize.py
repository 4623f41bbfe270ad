"""Quantised operators against NumPy: exact, integer for integer."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest

from subtune.frontends.onnx.ops.node import Refused
from tests.frontends.relay.agree import RNG, Agree, Together, floats, ints
from tests.frontends.relay.np_quantised import Quantum, away, dequantised, fixed, quantised, requantised, saturated
from tests.frontends.relay.np_windows import conv, conv_transposed, pool, relaid
from tests.frontends.relay.run import Known, evaluate


def given(value: Any, dtype: str) -> Known:
    return Known(np.asarray(value, dtype))


def quantum(q: Quantum) -> list[Known]:
    return [given(q[0], "float32"), given(q[1], "int32")]


def requantize(name: str, x: np.ndarray, source: Quantum, target: Quantum, to: str, **attrs: Any) -> Agree:
    compute = attrs.get("compute_dtype", "float32")
    want = requantised(x, source, target, to, attrs.get("axis", -1), attrs.get("rounding", "UPWARD"), compute)
    args = [x, *quantum(source), *quantum(target)]
    return Agree(f"requantize {name}", "qnn.requantize", args, want, {"out_dtype": to, **attrs})


def quantize(name: str, x: np.ndarray, q: Quantum, to: str, **attrs: Any) -> Agree:
    want = quantised(x, q, to, attrs.get("axis", -1))
    return Agree(f"quantize {name}", "qnn.quantize", [x, *quantum(q)], want, {"out_dtype": to, **attrs})


def dequantize(name: str, x: np.ndarray, q: Quantum, **attrs: Any) -> Agree:
    want = dequantised(x, q, attrs.get("axis", -1)).astype(attrs.get("out_dtype", "float32"))
    return Agree(f"dequantize {name}", "qnn.dequantize", [x, *quantum(q)], want, attrs, 1e-6, 0)


def convolved(name: str, x: np.ndarray, w: np.ndarray, zeros: tuple[int, Any], pads: list[int], **attrs: Any) -> Agree:
    """x NCHW and w OIHW; a vector of weight zeros lies along O."""
    layout, kernel = attrs.get("data_layout", "NCHW"), attrs.get("kernel_layout", "OIHW")
    wide = w.astype("int64") - np.asarray(zeros[1]).reshape((-1, 1, 1, 1))
    groups = attrs.get("groups", 1)
    if kernel == "HWOI" and groups > 1:
        wide = wide.reshape(-1, 1, *w.shape[2:])
    y = conv(x.astype("int64") - zeros[0], wide, attrs.get("strides", [1, 1]), pads, [1, 1], groups, "int64")
    want = relaid(y, "NCHW", layout).astype(attrs.get("out_dtype", "int32"))
    args = [
        np.ascontiguousarray(relaid(x, "NCHW", layout)),
        Known(np.ascontiguousarray(relaid(w, "OIHW", kernel))),
        given(zeros[0], "int32"),
        given(zeros[1], "int32"),
        *(given(0.1, "float32"),) * 2,
    ]
    return Agree(f"conv2d {name}", "qnn.conv2d", args, want, {"padding": pads, "out_dtype": "int32", **attrs})


def transposed(layout: str) -> Agree:
    x, w = ints("uint8", 1, 3, 4, 5), ints("int8", 3, 2, 3, 3)
    want = conv_transposed(x.astype("int64") - 7, w.astype("int64") - 2, [2, 1], [1, 0, 1, 0], [1, 0]).astype("int32")
    attrs = {"strides": [2, 1], "padding": [1, 0], "output_padding": [1, 0], "out_dtype": "int32"}
    attrs |= {"data_layout": layout, "kernel_layout": "IOHW" if layout == "NCHW" else "HWOI"}
    given_x = np.ascontiguousarray(relaid(x, "NCHW", layout))
    given_w = Known(np.ascontiguousarray(relaid(w, "IOHW", attrs["kernel_layout"])))
    args = [given_x, given_w, given(7, "int32"), given(2, "int32"), *(given(0.1, "float32"),) * 2]
    return Agree(f"conv2d_transpose {layout}", "qnn.conv2d_transpose", args, relaid(want, "NCHW", layout), attrs)


def product(op: str, x: np.ndarray, y: np.ndarray, zeros: tuple[int, Any], **attrs: Any) -> Agree:
    other = y.astype("int64") - np.asarray(zeros[1]).reshape(-1, 1)
    want = np.matmul(x.astype("int64") - zeros[0], np.swapaxes(other, -1, -2)).astype("int32")
    args = [x, y, given(zeros[0], "int32"), given(zeros[1], "int32"), *(given(0.1, "float32"),) * 2]
    return Agree(f"{op} {x.dtype} {zeros}", op, args, want, {"out_dtype": "int32", **attrs})


def _brought(x: np.ndarray, q: Quantum, target: Quantum) -> np.ndarray:
    return x.astype("int64") if q == target else requantised(x, q, target, "int32").astype("int64")


def binary(op: str, qs: list[Quantum], a: np.ndarray, b: np.ndarray, **attrs: Any) -> Agree:
    left, right, target = qs
    if op == "mul":
        wide = (a.astype("int64") - left[1]) * (b.astype("int64") - right[1])
        want = requantised(wide, (np.float32(left[0]) * np.float32(right[0]), 0), target, str(a.dtype))
    else:
        p, q = _brought(a, left, target), _brought(b, right, target)
        want = saturated(p + q - target[1] if op == "add" else p - q + target[1], str(a.dtype))
    args = [a, b, *quantum(left), *quantum(right), *quantum(target)]
    return Agree(f"{op} {a.dtype} {b.shape} {qs}", f"qnn.{op}", args, want, attrs)


def mul_per_channel() -> Agree:
    a, b, scale = ints("int8", 2, 3, 4), ints("int8", 2, 3, 4), np.array([0.02, 0.05, 0.11], "float32")
    wide = a.astype("int64") * b.astype("int64")
    want = requantised(wide, (scale * scale, 0), (0.3, 4), "int8", 1)
    args = [a, b, *quantum((scale, 0)), *quantum((scale, 0)), *quantum((0.3, 4))]
    return Agree("mul per channel", "qnn.mul", args, want, {"lhs_axis": 1, "rhs_axis": 1})


def concatenate(axis: int) -> Agree:
    parts = [ints("uint8", 2, 3, 4) for _ in range(3)]
    qs: list[Quantum] = [(0.1, 3), (0.25, 10), (0.17, 0)]
    target: Quantum = (0.25, 10)
    want = [x if q == target else requantised(x, q, target, "uint8") for x, q in zip(parts, qs, strict=True)]
    scales, zeros = (tuple(quantum(q)[i] for q in qs) for i in range(2))
    args = [tuple(parts), scales, zeros, *quantum(target)]
    return Agree(f"concatenate {axis}", "qnn.concatenate", args, np.concatenate(want, axis), {"axis": axis})


def leaky(name: str, source: Quantum, target: Quantum, alpha: float) -> Agree:
    x = ints("uint8", 4, 16)
    q = _brought(x, source, target)
    rest = fixed(np.array([target[1]]), np.array(1 - alpha), "UPWARD")[0]
    want = saturated(np.where(x < source[1], fixed(q, np.array(alpha), "UPWARD") + rest, q), "uint8")
    return Agree(
        f"leaky_relu {name}", "qnn.leaky_relu", [x, *quantum(source), *quantum(target)], want, {"alpha": alpha}
    )


def averaged(source: Quantum, target: Quantum, layout: str) -> Agree:
    x = ints("int8", 1, 3, 6, 6)
    q = _brought(x, source, target)
    want = saturated(np.trunc(pool(q, "avg", [3, 3], [2, 2], [1] * 4, [1, 1], False, True)), "int8")
    attrs = {"pool_size": [3, 3], "strides": [2, 2], "padding": [1, 1], "count_include_pad": True, "layout": layout}
    args = [np.ascontiguousarray(relaid(x, "NCHW", layout)), *quantum(source), *quantum(target)]
    return Agree(f"avg_pool2d {source} {layout}", "qnn.avg_pool2d", args, relaid(want, "NCHW", layout), attrs)


def softmax(axis: int, scale: float) -> Agree:
    """Algorithm 1 of I-ViT as TVM writes it, in Python's integers."""
    data, zero, target = ints("int8", 3, 5, 4), 3, (1 / 128, -10)
    x = data.astype("int64") - zero
    x -= x.max(axis, keepdims=True)
    one = int(away(np.float32([1]) / np.float32(scale))[0])
    x = x + (x >> 1) - (x >> 4)
    q = np.clip(-x // one, 0, 20)
    base = ((x + q * one) >> 1) + one
    powers = base << (q.max(axis, keepdims=True) - q)
    y = ((2**30 // powers.sum(axis, keepdims=True)) * powers) >> 23
    want = requantised(y, (1 / 128, 0), target, "int8")
    args = [data, *quantum((scale, zero)), *quantum(target)]
    return Agree(f"softmax {axis} {scale}", "qnn.softmax", args, want, {"axis": axis})


def function(op: str, like: Any, source: Quantum, target: Quantum, x: np.ndarray | None = None) -> Agree:
    x = np.arange(256).astype("uint8") if x is None else x
    want = quantised(like(dequantised(x, source)).astype("float32"), target, str(x.dtype))
    return Agree(op, f"qnn.{op}", [x, *quantum(source), *quantum(target)], want)


def simulated(code: int, dtype: str) -> list[Agree]:
    x, q = floats(3, 4) * 50, (np.array([0.5, 0.3, 0.7, 0.2], "float32"), np.array([3, 1, 0, 5]))
    numbers = quantised(x, q, dtype) if dtype else x
    back = (numbers.astype("float32") - q[1]) * q[0] if dtype else x
    there = [x, given(code, "int32"), *quantum(q)]
    return [
        Agree(f"simulated_quantize {code}", "qnn.simulated_quantize", there, numbers.astype("float32")),
        Agree(
            f"simulated_dequantize {code}",
            "qnn.simulated_dequantize",
            [numbers.astype("float32"), *there[1:]],
            back.astype("float32"),
        ),
    ]


def _run_time_scales() -> Agree:
    x = RNG.integers(-5000, 5000, (4, 6)).astype("int32")
    want = requantised(x, (0.013, 0), (0.7, 5), "int8")
    args = [x, np.float32(0.013), np.int32(0), np.float32(0.7), np.int32(5)]
    return Agree("requantize, scales at run time", "qnn.requantize", args, want, {"out_dtype": "int8"})


WIDE = RNG.integers(-60000, 60000, (3, 5, 4)).astype("int32")
VECTOR = np.array([0.011, 0.07, 0.0042, 1.3, 0.3], "float32")
HALVES = np.arange(-40, 40).astype("int32").reshape(4, 20)
PLUS: list[list[Quantum]] = [
    [(0.1, 3), (0.1, 3), (0.1, 3)],
    [(0.1, 3), (0.07, 120), (0.13, 11)],
    [(0.05, 0), (0.2, 1), (0.2, 1)],
]
SIGMOID = (lambda v: 1 / (1 + np.exp(-v)), (0.05, 128), (1 / 256, 0))
COMPUTES = ("float32", "float64", "int64")
CASES = Together(
    [
        quantize("int8", floats(4, 9) * 20, (0.5, 3), "int8"),
        quantize("uint8, halves", np.arange(-20, 60, dtype="float32") / 2, (1.0, 10), "uint8"),
        quantize("just below a half", np.array([0.49999997, -0.49999997, 2.5, -2.5], "float32"), (1.0, 0), "int8"),
        quantize("per channel", floats(2, 5, 3) * 30, (VECTOR, np.arange(5)), "uint8", axis=1),
        quantize("int32", floats(4, 9) * 2000, (0.003, -9), "int32"),
        quantize("half", (floats(4, 9) * 20).astype("float16"), (0.3, 1), "int8"),
        dequantize("uint8", ints("uint8", 4, 9), (0.13, 120)),
        dequantize("per channel", ints("int8", 2, 5, 3), (VECTOR, np.arange(5)), axis=1),
        dequantize("int32, half", ints("int32", 4, 9), (0.5, 2), out_dtype="float16"),
        *(
            requantize(f"{r} {c}", WIDE, (0.0031, 0), (0.9, 7), "int8", rounding=r, compute_dtype=c)
            for r in ("UPWARD", "TONEAREST")
            for c in COMPUTES
        ),
        *(requantize(f"{to}", WIDE, (0.0031, 0), (0.9, 7), to) for to in ("uint8", "int16", "int32")),
        *(
            requantize(f"halves {r} {c}", HALVES, (0.5, 3), (1.0, 0), "int8", rounding=r, compute_dtype=c)
            for r in ("UPWARD", "TONEAREST")
            for c in COMPUTES
        ),
        *(
            requantize(
                f"per channel {r} {c}", WIDE, (VECTOR, 0), (11.0, -3), "int8", axis=1, rounding=r, compute_dtype=c
            )
            for r in ("UPWARD", "TONEAREST")
            for c in COMPUTES
        ),
        requantize("to a finer scale", ints("int8", 4, 9), (0.7, 4), (0.1, -2), "int32", compute_dtype="int64"),
        requantize("one scale", ints("uint8", 4, 9), (0.1, 4), (0.1, 20), "uint8"),
        requantize("uint8 to int8", ints("uint8", 4, 9), (0.1, 128), (0.1, 0), "int8"),
        requantize("zeros per channel", ints("uint8", 4, 5), (VECTOR, np.arange(5)), (0.2, 3), "uint8"),
        requantize("no attributes", WIDE, (0.0031, 0), (0.9, 7), "int8"),
        _run_time_scales(),
        convolved("u8 s8", ints("uint8", 1, 4, 6, 5), ints("int8", 3, 4, 3, 3), (128, 0), [1, 1, 1, 1]),
        convolved(
            "both zeros", ints("uint8", 2, 4, 6, 5), ints("uint8", 3, 4, 3, 3), (3, 100), [0, 1, 2, 1], strides=[2, 1]
        ),
        convolved(
            "channels last",
            ints("uint8", 1, 4, 6, 5),
            ints("int8", 3, 4, 3, 3),
            (12, 0),
            [1] * 4,
            data_layout="NHWC",
            kernel_layout="HWIO",
        ),
        convolved(
            "TFLite's depthwise",
            ints("uint8", 1, 4, 6, 5),
            ints("uint8", 4, 2, 3, 3),
            (12, 9),
            [1] * 4,
            data_layout="NHWC",
            kernel_layout="HWOI",
            groups=4,
            channels=8,
        ),
        convolved("zeros per channel", ints("int8", 1, 4, 6, 5), ints("int8", 3, 4, 3, 3), (5, [1, -2, 3]), [0] * 4),
        transposed("NCHW"),
        transposed("NHWC"),
        product("qnn.dense", ints("uint8", 3, 8), ints("int8", 5, 8), (128, 0), units=5),
        product("qnn.dense", ints("int8", 3, 8), ints("int8", 5, 8), (4, [1, 2, 3, 4, 5]), units=5),
        product("qnn.batch_matmul", ints("int8", 2, 3, 8), ints("int8", 2, 5, 8), (4, -7)),
        *(
            binary(op, qs, ints("uint8", 2, 3, 4), ints("uint8", 2, 3, 4))
            for op in ("add", "subtract", "mul")
            for qs in PLUS
        ),
        binary("add", PLUS[1], ints("int8", 2, 3, 4), ints("int8", 4)),
        mul_per_channel(),
        concatenate(0),
        concatenate(-1),
        leaky("one quantum", (0.1, 120), (0.1, 120), 0.3),
        leaky("two", (0.1, 120), (0.17, 90), 0.1),
        averaged((0.1, 3), (0.1, 3), "NHWC"),
        averaged((0.1, 3), (0.23, -5), "NCHW"),
        softmax(-1, 0.1),
        softmax(1, 0.03),
        function("tanh", np.tanh, (0.03, 128), (1 / 128, 128)),
        function("exp", np.exp, (0.02, 200), (0.02, 3)),
        function("sqrt", np.sqrt, (0.3, 0), (0.05, 2)),
        function("rsqrt", lambda v: 1 / np.sqrt(v), (0.3, 0), (0.01, 2), np.arange(1, 256).astype("uint8")),
        function("erf", np.vectorize(erf), (0.03, 128), (1 / 128, 128)),
        function("sigmoid", *SIGMOID),
        function("hardswish", lambda v: v * np.clip(v + np.float32(3), 0, 6) / np.float32(6), (0.05, 128), (0.031, 10)),
        function("log", np.log, (0.3, 0), (0.05, 30), np.arange(1, 256).astype("uint8")),
        function("abs", np.abs, (0.05, 128), (0.03, 0)),
        *simulated(0, ""),
        *simulated(1, "int8"),
        *simulated(2, "uint8"),
        *simulated(3, "int32"),
    ]
)


@CASES.parameters()
@pytest.mark.grid
def test_agrees_with_numpy(name: str) -> None:
    CASES.check(name)


def test_float32_and_fixed_point_differ_by_one_at_most() -> None:
    by = [
        requantised(WIDE, (VECTOR, 0), (11.0, -3), "int8", 1, "UPWARD", compute).astype(int)
        for compute in COMPUTES[::2]
    ]
    assert np.abs(by[0] - by[1]).max() <= 1


@pytest.mark.parametrize(
    ("op", "args", "attrs", "reason"),
    [
        ("qnn.quantize", [floats(3, 4), *quantum((VECTOR, 0))], {"out_dtype": "int8"}, "along axis 1"),
        ("qnn.quantize", [floats(3), *quantum((1.0, 0))], {"out_dtype": "int64"}, "to int64"),
        ("qnn.requantize", [WIDE, *quantum((1.0, 0)), *quantum((0.5, 0))], {"rounding": "DOWN"}, "rounding DOWN"),
        ("qnn.requantize", [WIDE, *quantum((1.0, 0)), *quantum((VECTOR, 0))], {}, "5 output scales"),
        ("qnn.simulated_quantize", [floats(3), np.int32(1), *quantum((1.0, 0))], {}, "not known"),
        ("qnn.softmax", [ints("int8", 3), *quantum((3.0, 0)), *quantum((0.1, 0))], {}, "between 0 and 1"),
    ],
)
def test_refuses(op: str, args: Any, attrs: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        evaluate(op, args, attrs)


TESTED = {case.op for case in CASES.cases.values()}
