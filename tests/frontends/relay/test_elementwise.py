"""Relay's elementwise operators against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.frontends.relay.expect import Expect, check, floats, ints, refused

A, B, ROW = floats(2, 3, 4), floats(2, 3, 4), floats(4)
N, J, K = ints(3, 5), ints(3, 5, low=1, high=7), ints(5, low=-6, high=0)
P = np.abs(floats(3, 5)) + np.float32(0.1)
BOOL, OTHER = N > 0, J > 3
F16, F64, I8, U8, I64 = (
    floats(2, 5, dtype="float16"),
    floats(2, 5, dtype="float64"),
    ints(2, 5, dtype="int8"),
    ints(2, 5, low=0, high=200, dtype="uint8"),
    ints(2, 5, dtype="int64"),
)


def trunc_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def fixed_point(x: np.ndarray, multiplier: int, shift: int) -> np.ndarray:
    exact = [math.floor(int(v) * multiplier * 2.0 ** (shift - 31) + 0.5) for v in x.reshape(-1)]
    return np.asarray(exact, dtype=np.int32).reshape(x.shape)


SAME = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "floor_divide": np.floor_divide,
    "floor_mod": np.mod,
    "mod": np.fmod,
    "trunc_mod": np.fmod,
}
INTEGER = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "divide": trunc_divide,
    "trunc_divide": trunc_divide,
}
LOGICAL = {"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor}

CASES = [
    *[Expect(op, (A, B), f(A, B), rtol=1e-4) for op, f in SAME.items()],
    *[Expect(op, (A, ROW), f(A, ROW), rtol=1e-4) for op, f in SAME.items()],
    *[Expect(op, (N, K), f(N, K)) for op, f in SAME.items()],
    *[Expect(op, (I64, np.int64(3)), f(I64, np.int64(3))) for op, f in SAME.items()],
    *[Expect(op, (N, J), f(N, J)) for op, f in INTEGER.items()],
    *[Expect(op, (BOOL, OTHER), f(BOOL, OTHER)) for op, f in LOGICAL.items()],
    Expect("add", (N, N.astype("int64")), N.astype("int64") * 2),
    Expect("add", (F16, F16), F16 + F16, rtol=1e-3),
    Expect("equal", (BOOL, OTHER), BOOL == OTHER),
    Expect("not_equal", (BOOL, OTHER), BOOL != OTHER),
    Expect("bitwise_xor", (BOOL, OTHER), BOOL ^ OTHER),
    Expect("divide", (A, B), A / B),
    Expect("divide", (ROW, A), ROW / A),
    Expect("trunc_divide", (A, B), np.trunc(A / B)),
    Expect("power", (P, np.float32(2.5)), P ** np.float32(2.5), rtol=1e-4),
    Expect("power", (np.float32(3.0), P), np.float32(3.0) ** P, rtol=1e-4),
    Expect("power", (P, np.full((1, 3, 1), 2, "float32")), (P**2)[None]),
    Expect("where", (BOOL, P, floats(5) * 0 + 7), np.where(BOOL, P, np.float32(7))),
    Expect("where", (ints(3, 1, low=0, high=2) * 0 + 1, P, -P), P),
    Expect("where", (np.float32([[0.5], [0], [-1]]), N, J), np.where([[True], [False], [True]], N, J)),
    Expect("cast", (A * 9,), (A * 9).astype("int32"), {"dtype": "int32"}),
    Expect("cast", (A,), A.astype("bool"), {"dtype": "bool"}),
    Expect("cast", (BOOL,), BOOL.astype("float32"), {"dtype": "float32"}),
    Expect("cast", (N,), N.astype("int64"), {"dtype": "int64"}),
    Expect("cast", (U8,), U8.astype("float16"), {"dtype": "float16"}),
    Expect("cast_like", (N, P), N.astype("float32")),
    Expect("reinterpret", (A,), A.view("int32"), {"dtype": "int32"}),
    Expect("clip", (A,), np.clip(A, -0.5, 0.25), {"a_min": -0.5, "a_max": 0.25}),
    Expect("clip", (A * 9,), np.clip(A * 9, 0, 6), {"a_min": 0, "a_max": 6}),
    Expect("clip", (A,), np.maximum(A, 0), {"a_min": 0, "a_max": float("inf")}),
    Expect("clip", (F16,), np.clip(F16, -0.5, 0.5), {"a_min": -0.5, "a_max": 0.5}),
    Expect("clip", (F16,), np.maximum(F16, 0), {"a_min": 0, "a_max": 3.4e38}),
    Expect("clip", (N,), np.clip(N, -3, 4), {"a_min": -3.0, "a_max": 4.0}),
    Expect("clip", (U8,), np.clip(U8, 0, 99), {"a_min": -128.0, "a_max": 99.0}),
    Expect("clip", (I8,), I8, {"a_min": -128.0, "a_max": 127.0}),
    *[
        Expect("fixed_point_multiply", (N * 9999,), fixed_point(N * 9999, m, s), {"multiplier": m, "shift": s})
        for m, s in ((1073741824, 0), (1431655765, 2), (2012345678, -3))
    ],
    Expect(
        "fixed_point_multiply_per_axis",
        (N * 999, np.int32([2**30, 2**29, 2**30 + 7]), np.int32([1, 0, 2]), np.int32([0, 3, 1])),
        np.stack(
            [
                fixed_point(N[0] * 999, 2**30, 1),
                fixed_point(N[1] * 999, 2**29, -3),
                fixed_point(N[2] * 999 * 4, 2**30 + 7, -1),
            ]
        ),
        {"is_lshift_required": True, "is_rshift_required": True, "axes": [0]},
    ),
    Expect("bitwise_not", (N,), ~N),
    Expect("logical_not", (BOOL,), ~BOOL),
]

UNIT = np.tanh(A)
UNARY = {
    "negative": (A, np.negative),
    "abs": (A, np.abs),
    "sign": (A, np.sign),
    "ceil": (A * 3, np.ceil),
    "floor": (A * 3, np.floor),
    "trunc": (A * 3, np.trunc),
    "round": (np.arange(-7, 8, dtype="float32") / 2, np.round),
    "exp": (A, np.exp),
    "log": (P, np.log),
    "log2": (P, np.log2),
    "log10": (P, np.log10),
    "sqrt": (P, np.sqrt),
    "rsqrt": (P, lambda x: 1 / np.sqrt(x)),
    "sin": (A, np.sin),
    "cos": (A, np.cos),
    "tan": (UNIT, np.tan),
    "asin": (UNIT, np.arcsin),
    "acos": (UNIT, np.arccos),
    "atan": (A, np.arctan),
    "sinh": (A, np.sinh),
    "cosh": (A, np.cosh),
    "tanh": (A, np.tanh),
    "asinh": (A, np.arcsinh),
    "acosh": (P + 1, np.arccosh),
    "atanh": (UNIT, np.arctanh),
    "sigmoid": (A, lambda x: 1 / (1 + np.exp(-x))),
    "erf": (A, lambda x: np.vectorize(math.erf)(x).astype(x.dtype)),
}
for fast in ("exp", "tanh", "erf"):
    UNARY[f"fast_{fast}"] = UNARY[fast]
ODD = np.float32([1, np.nan, np.inf, -np.inf, 0])
CASES += [
    *[Expect(op, (x,), f(x), rtol=1e-4, atol=1e-5) for op, (x, f) in UNARY.items()],
    *[
        Expect(op, (x.astype("float16"),), f(x.astype("float16")), rtol=5e-3, atol=5e-3)
        for op, (x, f) in UNARY.items()
        if op not in ("atanh", "acos", "asin", "fast_erf")
    ],
    *[
        Expect(op, (N,), UNARY[op][1](N).astype(N.dtype))
        for op in ("negative", "abs", "sign", "ceil", "round", "trunc")
    ],
    Expect("negative", (F64,), -F64),
    Expect("sqrt", (np.abs(F64),), np.sqrt(np.abs(F64)), rtol=1e-12),
    Expect("isnan", (ODD,), np.isnan(ODD)),
    Expect("isinf", (ODD,), np.isinf(ODD)),
    Expect("isfinite", (ODD,), np.isfinite(ODD)),
    Expect("isfinite", (N,), N == N),
    Expect("isnan", (N,), N != N),
]
TESTED = {case.op for case in CASES}


def test_elementwise() -> None:
    check([case for case in CASES if case.op not in UNARY])


def test_unary() -> None:
    check([case for case in CASES if case.op in UNARY])


def test_division_by_zero_does_not_trap() -> None:
    """Undefined in Relay; the process must survive."""
    from tests.frontends.relay.run import evaluate_many

    zero = N * 0
    found = evaluate_many([(op, (N, zero)) for op in ("divide", "mod", "floor_divide", "floor_mod")])
    assert all(result[0].shape == N.shape for result in found)


@pytest.mark.parametrize(
    ("op", "args", "attrs", "reason"),
    [
        ("add", (A, N), {}, "mixes float32 and int32"),
        ("multiply", (A, P), {}, "cannot broadcast"),
        ("logical_and", (N, J), {}, "dtype int32"),
        ("bitwise_or", (A, B), {}, "dtype float32"),
        ("where", (BOOL, P, N), {}, "mixes"),
        ("cast", (A,), {"dtype": "custom[posites2]32"}, "not supported"),
        ("reinterpret", (A,), {"dtype": "int64"}, "reinterprets"),
        ("exp", (N,), {}, "dtype int32"),
        ("log2", (N,), {}, "dtype int32"),
        ("fixed_point_multiply", (A,), {"multiplier": 1, "shift": 0}, "int32 belongs"),
        ("fixed_point_multiply", (N,), {"shift": 0}, "lacks its attribute multiplier"),
    ],
)
def test_refused(op: str, args: tuple, attrs: dict, reason: str) -> None:
    refused(op, args, attrs, reason)
