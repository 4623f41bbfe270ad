"""Relay's reductions against numpy."""

from __future__ import annotations

import numpy as np

from tests.frontends.relay.expect import Expect, check, floats, ints, refused

X = floats(2, 3, 4)
N = ints(3, 4)
F16 = floats(3, 4, dtype="float16")
B = ints(2, 3, 4, low=0, high=3) > 0
TIES = np.float32([[3, 1, 3, 1], [0, 2, 0, 2]])
REDUCE = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min}
# attributes -> numpy's axes
AXES: list[tuple[dict, tuple[int, ...], bool]] = [
    ({}, (0, 1, 2), False),
    ({"axis": None, "keepdims": True}, (0, 1, 2), True),
    ({"axis": 1}, (1,), False),
    ({"axis": [1], "keepdims": True}, (1,), True),
    ({"axis": [-1, 0]}, (0, 2), False),
    ({"axis": [1], "exclude": True}, (0, 2), False),
    ({"axis": [0, 2], "exclude": True, "keepdims": True}, (1,), True),
]


def joined(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """x with the reduced axes as one, the last."""
    kept = [a for a in range(x.ndim) if a not in axes]
    return x.transpose([*kept, *axes]).reshape([x.shape[a] for a in kept] + [-1])


def arg(f: object, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    found = f(joined(X, axes), -1).astype("int32")  # type: ignore[operator]
    return found.reshape([1 if a in axes else d for a, d in enumerate(X.shape) if keep or a not in axes])


def deviation(axes: tuple[int, ...], keep: bool, unbiased: bool) -> np.ndarray:
    return X.var(axes, keepdims=keep, ddof=int(unbiased))


CASES = [
    *[
        Expect(op, (X,), np.asarray(f(X, axis=axes, keepdims=keep)), attrs, rtol=1e-4)
        for op, f in REDUCE.items()
        for attrs, axes, keep in AXES
    ],
    *[
        Expect(op, (B,), np.asarray(f(B, axis=axes, keepdims=keep)), attrs)
        for op, f in (("all", np.all), ("any", np.any))
        for attrs, axes, keep in AXES[1:5]
    ],
    *[
        Expect(op, (X,), arg(f, axes, keep), attrs)
        for op, f in (("argmax", np.argmax), ("argmin", np.argmin))
        for attrs, axes, keep in AXES
    ],
    *[
        Expect(
            "variance",
            (X, X.mean(axes, keepdims=True)),
            np.asarray(deviation(axes, keep, unbiased)),
            {**attrs, "unbiased": unbiased},
            rtol=1e-4,
        )
        for unbiased in (False, True)
        for attrs, axes, keep in AXES[1:6]
    ],
    Expect("sum", (N,), N.sum(1, dtype="int32"), {"axis": [1]}),
    Expect("mean", (N * 3,), np.trunc((N * 3).mean(1)).astype("int32"), {"axis": [1]}),
    Expect("mean", (F16,), F16.mean(1), {"axis": [1]}, rtol=2e-3, atol=1e-3),
    Expect("max", (N,), N.max(0), {"axis": 0}),
    Expect("sum", (X,), X, {"axis": [0, 1, 2], "exclude": True}),
    Expect("max", (np.full((2, 2), -np.inf, "float32"),), np.full(2, -np.inf, "float32"), {"axis": 1}),
    Expect("argmax", (TIES,), np.int32([0, 1]), {"axis": [1]}),
    Expect("argmax", (TIES,), np.int32([2, 3]), {"axis": [1], "select_last_index": True}),
    Expect("argmin", (TIES,), np.int32([[1], [0]]), {"axis": 1, "keepdims": True}),
    Expect("argmin", (TIES,), np.int32(6), {"select_last_index": True}),
    Expect("cumsum", (X,), X.cumsum(), rtol=1e-4),
    Expect("cumsum", (X,), X.cumsum(1), {"axis": 1}, rtol=1e-4),
    Expect("cumsum", (X,), X.cumsum(-1) - X, {"axis": -1, "exclusive": True}, rtol=1e-4, atol=1e-5),
    Expect("cumsum", (B,), B.cumsum(0, dtype="int32"), {"axis": 0, "dtype": "int32"}),
    Expect("cumprod", (X,), X.cumprod(2), {"axis": 2, "dtype": ""}, rtol=1e-4),
    Expect("cumprod", (N,), np.int32([[1] * 4, N[0], N[0] * N[1]]), {"axis": 0, "exclusive": True}),
]
TESTED = {case.op for case in CASES}


def test_reduce() -> None:
    check(CASES)


def test_refused() -> None:
    refused("sum", (X,), {"axis": [3]}, "outside rank")
    refused("sum", (X,), {"exclude": True}, "excludes no axes")
    refused("all", (X,), {}, "dtype float32")
    refused("variance", (N, N[:1]), {}, "dtype int32")
