"""Relay's operators that take, write and order elements, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.relay.expect import Expect, check, floats, ints, refused
from tests.frontends.relay.run import Known

X = floats(3, 4, 5)
FLAT = floats(7, 6)
PERM = np.random.default_rng(3).permutation(40).astype("float32").reshape(2, 4, 5)
COLS = ints(3, 4, 2, low=0, high=5)
WILD = np.int32([[-7, 2], [4, 99]])


def batched_take(x: np.ndarray, index: np.ndarray, axis: int, batch: int) -> np.ndarray:
    if not batch:
        return np.take(x, index, axis)
    return np.stack([batched_take(a, i, axis - 1, batch - 1) for a, i in zip(x, index, strict=True)])


def gathered(x: np.ndarray, index: np.ndarray, batch: int = 0) -> np.ndarray:
    if batch:
        rows = [gathered(a, index[:, i], batch - 1) for i, a in enumerate(x)]
        return np.stack(rows)
    return x[tuple(index)]


def scattered(x: np.ndarray, where: tuple, updates: np.ndarray, mode: str) -> np.ndarray:
    """Writes one update after the other, in row-major order."""
    y = x.copy()
    for place in np.ndindex(updates.shape):
        at = tuple(w[place] for w in where)
        u = updates[place]
        y[at] = {"update": u, "add": y[at] + u, "mul": y[at] * u, "min": min(y[at], u), "max": max(y[at], u)}.get(
            mode, (y[at] + u) / 2
        )
    return y


def along(index: np.ndarray, axis: int) -> tuple:
    grid = list(np.indices(index.shape))
    grid[axis] = index
    return tuple(grid)


def hot(index: np.ndarray, depth: int, axis: int, on: float, off: float, dtype: str) -> np.ndarray:
    values = np.where(index[..., None] == np.arange(depth), on, off)
    return np.moveaxis(values, -1, axis).astype(dtype)


ND = ints(2, 6, low=0, high=3)
UPDATES = floats(6, 5)
ROWS = ints(3, 4, low=0, high=7)
NEW = floats(3, 4)
TOP = np.sort(PERM, -1)[..., ::-1]
ORDER = np.argsort(-PERM, -1)
SEQ = np.sort(floats(3, 9), -1)
KEYS = np.concatenate([floats(3, 4), SEQ[:, 2:4]], -1)


def before(seq: np.ndarray, keys: np.ndarray, side: Any) -> np.ndarray:
    return np.stack([np.searchsorted(s, k, side) for s, k in zip(seq, keys, strict=True)])


CASES = [
    Expect("take", (X, WILD), X.reshape(-1)[np.clip(WILD, 0, 59)]),
    Expect("take", (X, WILD), X.reshape(-1)[WILD % 60], {"mode": "wrap"}),
    Expect("take", (X, WILD), X[np.clip(WILD, 0, 2)], {"axis": 0}),
    Expect("take", (X, WILD), X[:, :, WILD % 5], {"axis": -1, "mode": "wrap"}),
    Expect("take", (X, np.int64(2)), X[:, 2], {"axis": 1}),
    Expect("take", (X, Known(np.int64([1, 0]))), X[:, [1, 0]], {"axis": 1, "mode": "fast"}),
    Expect("take", (X, COLS[:, 0]), batched_take(X, COLS[:, 0], 2, 1), {"axis": 2, "batch_dims": 1}),
    Expect("take", (X, COLS), batched_take(X, COLS, 2, 2), {"axis": -1, "batch_dims": -1}),
    Expect("gather", (X, COLS), np.take_along_axis(X, COLS, 2), {"axis": 2}),
    Expect("gather", (X, COLS[:2, :, :1] % 3), np.take_along_axis(X[:, :, :1], COLS[:2, :, :1] % 3, 0), {"axis": -3}),
    Expect("gather_nd", (np.int32([[0, 1], [2, 3]]), np.int32([[1, 1, 0], [0, 1, 0]])), np.int32([2, 3, 0])),
    Expect(
        "gather_nd",
        (np.arange(8).reshape(2, 2, 2), np.int64([[1, 0]])),
        np.int64([[2, 3], [4, 5]]),
        {"batch_dims": 1, "index_rank": None},
    ),
    Expect("gather_nd", (X, ND), gathered(X, ND)),
    Expect("gather_nd", (X, ND.astype("float32")), gathered(X, ND)),
    Expect("gather_nd", (X, ND[:, :3] + 1), gathered(X, ND[:, :3] + 1, 1), {"batch_dims": 1, "index_rank": 2}),
    *[
        Expect(
            "scatter_elements",
            (FLAT[:, :4], ROWS, NEW),
            scattered(FLAT[:, :4], along(ROWS, 0), NEW, mode),
            {"axis": 0, "reduction": mode},
            rtol=1e-4,
        )
        for mode in ("add", "mul", "min", "max", "mean")
    ],
    Expect(
        "scatter_elements",
        (X, COLS[..., :1] - 5, X[..., :1] * 0),
        scattered(X, along(COLS[..., :1], 2), X[..., :1] * 0, "update"),
        {"axis": -1},
    ),
    Expect(
        "scatter",
        (X, COLS[..., :1], X[..., :1] * 0),
        scattered(X, along(COLS[..., :1], 2), X[..., :1] * 0, "update"),
        {"axis": 2},
    ),
    Expect("scatter_add", (FLAT[:, :4], ROWS, NEW), scattered(FLAT[:, :4], along(ROWS, 0), NEW, "add"), {"axis": 0}),
    *[
        Expect(
            "scatter_nd",
            (X, ND, UPDATES),
            scattered(X, (*(w[:, None] + np.zeros((1, 5), int) for w in ND), np.indices((6, 5))[1]), UPDATES, mode),
            {"mode": mode},
            rtol=1e-4,
        )
        for mode in ("add", "mul", "min", "max")
    ],
    Expect("scatter_nd", (floats(4) * 0, np.int64([[2, 0]]), np.float32([5, 7])), np.float32([7, 0, 5, 0])),
    Expect("adv_index", ((X, np.int64([2, 0]), np.int64([1, -1])),), X[[2, 0], [1, -1]]),
    Expect("adv_index", ((X, np.int32([[2], [0]]), np.int32([1, 3, 2])),), X[[[2], [0]], [1, 3, 2]]),
    Expect("adv_index", ((X, ROWS % 3),), X[ROWS % 3]),
    Expect(
        "one_hot",
        (ROWS, np.float32(1), np.float32(0)),
        hot(ROWS, 5, 2, 1, 0, "float32"),
        {"depth": 5, "axis": -1, "dtype": "float32"},
    ),
    Expect(
        "one_hot",
        (ROWS - 2, Known(np.int32(7)), Known(np.int32(-7))),
        hot(ROWS - 2, 4, 0, 7, -7, "int32"),
        {"depth": 4, "axis": 0},
    ),
    Expect(
        "dyn.one_hot",
        (ROWS, np.float32(1), np.float32(0), Known(np.int32(3))),
        hot(ROWS, 3, 1, 1, 0, "int64"),
        {"axis": 1, "dtype": "int64"},
    ),
    Expect("invert_permutation", (np.int32([3, 4, 0, 2, 1]),), np.int32([2, 4, 3, 0, 1])),
    Expect("unravel_index", (np.int64([22, 41, 37]), Known(np.int64([7, 6]))), np.int64([[3, 6, 6], [4, 5, 1]])),
    Expect(
        "sparse_to_dense",
        (np.int64([[0, 0], [1, 1]]), np.int32([3, 4]), np.int32(7)),
        np.int32([[3, 7], [7, 4]]),
        {"output_shape": [2, 2]},
    ),
    Expect("sparse_to_dense", (np.int32([0, 3]), np.float32(2)), np.float32([2, 0, 0, 2]), {"output_shape": [4]}),
    Expect(
        "dyn.sparse_to_dense",
        (np.int32(1), np.float32([2]), np.float32(5), Known(np.int64([3]))),
        np.float32([5, 2, 5]),
    ),
    Expect("sort", (PERM,), np.sort(PERM, -1)),
    Expect("sort", (PERM,), np.sort(PERM, 1)[:, ::-1], {"axis": 1, "is_ascend": False}),
    Expect("argsort", (PERM,), np.argsort(PERM, -1).astype("int32")),
    Expect("argsort", (PERM,), np.argsort(-PERM, 0), {"axis": 0, "is_ascend": False, "dtype": "int64"}),
    Expect("argsort", (PERM,), np.argsort(PERM, 1).astype("float32"), {"axis": 1, "dtype": "float32"}),
    Expect("topk", (PERM,), [TOP[..., :2], ORDER[..., :2].astype("int32")], {"k": 2}),
    Expect("topk", (PERM,), TOP, {"k": 0, "ret_type": "values"}),
    Expect(
        "topk",
        (PERM,),
        np.argsort(PERM, 1)[:, :3],
        {"k": 3, "axis": 1, "is_ascend": True, "ret_type": "indices", "dtype": "int64"},
    ),
    Expect(
        "dyn.topk", (PERM, Known(np.int64([3]))), [TOP[..., :3], ORDER[..., :3].astype("int32")], {"ret_type": "both"}
    ),
    Expect("searchsorted", (SEQ, KEYS), before(SEQ, KEYS, "left").astype("int32")),
    Expect("searchsorted", (SEQ, KEYS), before(SEQ, KEYS, "right"), {"right": True, "dtype": "int64"}),
    Expect("searchsorted", (SEQ[0], KEYS), np.searchsorted(SEQ[0], KEYS).astype("int32")),
    Expect("argwhere", (Known(np.bool_([[1, 0], [0, 1]])),), np.int32([[0, 0], [1, 1]])),
]
TESTED = {case.op for case in CASES}


def test_indexing() -> None:
    check(CASES)


@pytest.mark.parametrize(
    ("op", "args", "attrs", "reason"),
    [
        ("take", (X, WILD), {"mode": "raise"}, "mode 'raise'"),
        ("take", (X, WILD), {"axis": 3}, "outside rank"),
        ("take", (X, WILD), {"axis": 1, "batch_dims": 1}, "batch_dims 1"),
        ("gather", (X, ROWS), {"axis": 0}, "rank 2 for rank 3"),
        ("gather_nd", (X, ints(4, 2)), {}, "indexes 4 axes"),
        ("scatter_elements", (X, COLS, X[..., :2]), {"axis": 2, "reduction": "xor"}, "'xor'"),
        ("scatter_nd", (X, ND, UPDATES), {"mode": "mean"}, "'mean'"),
        ("adv_index", ((X,),), {}, "0 indices"),
        ("dyn.one_hot", (ROWS, np.float32(1), np.float32(0), np.int32(3)), {}, "at compile time"),
        ("invert_permutation", (X,), {}, "inverts float32"),
        ("topk", (PERM,), {"k": 9}, "takes 9 of 5"),
        ("topk", (PERM,), {"ret_type": "all"}, "ret_type 'all'"),
        ("dyn.topk", (PERM, np.int64([3])), {}, "at compile time"),
        ("searchsorted", (SEQ, KEYS[:2]), {}, "searches"),
        ("argwhere", (X,), {}, "at run time only"),
    ],
)
def test_refused(op: str, args: tuple, attrs: dict, reason: str) -> None:
    refused(op, args, attrs, reason)
