"""Relay's operators that make, copy, mask and lay out tensors, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from subtune.frontends.relay.ops.identity import CONVERTERS as IDENTITIES
from tests.frontends.relay.expect import Expect, check, floats, ints, refused
from tests.frontends.relay.run import Known

X = floats(2, 3, 4)
N = ints(3, 4)
IMAGE = floats(2, 8, 4, 6)
A, B, C = floats(3), floats(4), floats(2)


def reversed_rows(x: np.ndarray, lengths: list[int]) -> np.ndarray:
    y = x.copy()
    for row, n in enumerate(lengths):
        n = min(max(n, 1), x.shape[1])
        y[row, :n] = x[row, :n][::-1]
    return y


def masked(x: np.ndarray, lengths: list[int], axis: int, value: float) -> np.ndarray:
    y = x.copy()
    for entry, n in enumerate(lengths):
        y[(entry, slice(n, None)) if axis else (slice(n, None), entry)] = value
    return y


def blocked(x: np.ndarray, block: int) -> np.ndarray:
    """NCHW -> NCHW{block}c."""
    n, c, h, w = x.shape
    return x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)


def band(x: np.ndarray, diagonal: np.ndarray, k1: int, k2: int, above_right: bool, below_right: bool) -> np.ndarray:
    y = x.copy()
    rows, columns = x.shape
    for k in range(k1, k2 + 1):
        length = min(rows + min(k, 0), columns - max(k, 0))
        row = diagonal if k1 == k2 else diagonal[k2 - k]
        values = row[-length:] if (above_right if k >= 0 else below_right) and k1 != k2 else row[:length]
        for i in range(length):
            y[i - min(k, 0), i + max(k, 0)] = values[i]
    return y


def windows(x: np.ndarray, rows: int, columns: int, down: int, across: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (rows, columns), (1, 2))[:, ::down, ::across]


DIAGONALS = floats(3, 3)
CASES = [
    Expect("zeros", (), np.zeros((2, 3), "float32"), {"shape": [2, 3], "dtype": "float32"}),
    Expect("ones", (), np.ones((2,), "int64"), {"shape": 2, "dtype": "int64"}),
    Expect("dyn.zeros", (Known(np.int64([3, 1])),), np.zeros((3, 1), "int8"), {"dtype": "int8"}),
    Expect("dyn.ones", (Known(np.int64([3])),), np.ones(3, "float32"), {"dtype": "float32"}),
    Expect("zeros_like", (N,), np.zeros_like(N)),
    Expect("ones_like", (X,), np.ones_like(X)),
    Expect("full", (Known(np.float32(2.5)),), np.full((2, 3), 2.5, "float32"), {"shape": [2, 3], "dtype": ""}),
    Expect("full", (np.float32(2.5),), np.full((2, 3), 2, "int32"), {"shape": [2, 3], "dtype": "int32"}),
    Expect("full", (Known(np.int64(4)),), np.int64(4), {"shape": []}),
    Expect("dyn.full", (np.float32(7), Known(np.int64([4]))), np.full(4, 7, "float32"), {"dtype": "float32"}),
    Expect("full_like", (N, np.int32(3)), np.full_like(N, 3)),
    Expect("arange", tuple(Known(np.int32(v)) for v in (2, 11, 4)), np.int32([2, 6, 10]), {"dtype": "int32"}),
    Expect("arange", tuple(Known(np.float32(v)) for v in (1, 5, 1.5)), np.float32([1, 2.5, 4]), {"dtype": "float32"}),
    Expect("arange", tuple(Known(np.int64(v)) for v in (5, 0, -2)), np.int64([5, 3, 1]), {"dtype": "int64"}),
    Expect("shape_of", (X,), np.int32([2, 3, 4]), {"dtype": "int32"}),
    Expect("vm.shape_of", (X,), np.int64([2, 3, 4]), {"dtype": "int64"}),
    Expect("ndarray_size", (X,), np.int32(24), {"dtype": "int32"}),
    Expect("meshgrid", ((A, B, C),), np.meshgrid(A, B, C, indexing="ij")),
    Expect("meshgrid", ((A, B, C),), np.meshgrid(A, B, C), {"indexing": "xy"}),
    Expect("meshgrid", ((A, np.float32(3)),), [A[:, None], np.full((3, 1), 3, "float32")]),
    Expect("tile", (X,), np.tile(X, (2, 1, 3)), {"reps": [2, 1, 3]}),
    Expect("tile", (N,), np.tile(N, (2, 1, 3)), {"reps": [2, 1, 3]}),
    Expect("tile", (N,), np.tile(N, 2), {"reps": 2}),
    Expect("dyn.tile", (N, Known(np.int64([2, 2]))), np.tile(N, (2, 2))),
    Expect("repeat", (N,), np.repeat(N, 2), {"repeats": 2, "axis": None}),
    Expect("repeat", (N,), np.repeat(N, 3, 1), {"repeats": 3, "axis": -1}),
    Expect("reverse", (X,), X[:, ::-1], {"axis": 1}),
    Expect("reverse", (X,), X[..., ::-1], {"axis": -1}),
    Expect("reverse_sequence", (N.T.copy(), np.int32([1, 2, 3, 9])), reversed_rows(N.T, [1, 2, 3, 9])),
    Expect(
        "reverse_sequence",
        (N, np.int64([0, 2, 3, 1])),
        reversed_rows(N.T, [0, 2, 3, 1]).T,
        {"seq_axis": 0, "batch_axis": -1},
    ),
    Expect("sequence_mask", (X, np.int32([1, 2, 0])), masked(X, [1, 2, 0], 0, 0)),
    Expect("sequence_mask", (X, np.float32([1, 3])), masked(X, [1, 3], 1, 0.5), {"axis": 1, "mask_value": 0.5}),
    Expect(
        "sliding_window",
        (floats(2, 5, 7) * 0 + np.arange(35, dtype="float32").reshape(5, 7),),
        windows(np.zeros((2, 5, 7), "float32") + np.arange(35, dtype="float32").reshape(5, 7), 3, 2, 1, 2),
        {"axis": 1, "window_shape": [3, 2], "strides": [1, 2]},
    ),
    Expect("matrix_set_diag", (N, np.int32([7, 8, 9])), band(N, np.int32([7, 8, 9]), 0, 0, True, False)),
    Expect(
        "matrix_set_diag", (N, np.int32([7, 8])), band(N, np.int32([7, 8]), -1, -1, True, False), {"k1": -1, "k2": -1}
    ),
    *[
        Expect(
            "matrix_set_diag",
            (N.astype("float32"), DIAGONALS),
            band(N.astype("float32"), DIAGONALS, -1, 1, above, below),
            {"k1": -1, "k2": 1, "super_diag_right_align": above, "sub_diag_right_align": below},
        )
        for above in (True, False)
        for below in (True, False)
    ],
    Expect("trilu", (X, Known(np.int32(1))), np.triu(X, 1)),
    Expect("trilu", (X, Known(np.int32(-1))), np.tril(X, -1), {"upper": False}),
    Expect("trilu", (X, np.int64(1)), np.triu(X, 1), {"upper": True}),
    Expect("trilu", (X, np.int32([0])), np.tril(X), {"upper": False}),
    Expect(
        "einsum",
        ((X, floats(2, 4, 5) * 0 + 1),),
        (X.sum(-1)[..., None] * np.ones(5)).astype("float32"),
        {"equation": "bij,bjk->bik"},
        rtol=1e-4,
        atol=1e-5,
    ),
    Expect("einsum", ((X,),), np.einsum("ijk->kji", X), {"equation": "ijk->kji"}),
    Expect("layout_transform", (IMAGE,), IMAGE.transpose(0, 2, 3, 1), {"src_layout": "NCHW", "dst_layout": "NHWC"}),
    Expect("layout_transform", (IMAGE,), IMAGE, {"src_layout": "NCHW", "dst_layout": "NCHW"}),
    Expect("layout_transform", (IMAGE,), blocked(IMAGE, 4), {"src_layout": "NCHW", "dst_layout": "NCHW4c"}),
    Expect("layout_transform", (blocked(IMAGE, 4),), IMAGE, {"src_layout": "NCHW4c", "dst_layout": "NCHW"}),
    Expect(
        "layout_transform", (blocked(IMAGE, 4),), blocked(IMAGE, 2), {"src_layout": "NCHW4c", "dst_layout": "NCHW2c"}
    ),
    Expect(
        "layout_transform",
        (blocked(IMAGE, 2),),
        IMAGE.transpose(0, 2, 3, 1),
        {"src_layout": "NCHW2c", "dst_layout": "NHWC"},
    ),
    Expect(
        "layout_transform",
        (IMAGE,),
        IMAGE.reshape(1, 2, 2, 4, 4, 6).transpose(0, 2, 4, 5, 3, 1),
        {"src_layout": "OIHW", "dst_layout": "OIHW4i2o"},
    ),
    *[Expect(op, (X,), X) for op in IDENTITIES],
    Expect("annotation.stop_fusion", ((X, N),), [X, N]),
]
TESTED = {case.op for case in CASES}


def test_create() -> None:
    check(CASES)


@pytest.mark.parametrize(
    ("op", "args", "attrs", "reason"),
    [
        ("dyn.zeros", (np.int64([2]),), {}, "at compile time"),
        ("full", (X,), {"shape": [2]}, "fills with shape"),
        ("full", (np.float32(1),), {}, "lacks its attribute shape"),
        ("arange", (np.int32(1), Known(np.int32(4)), Known(np.int32(1))), {}, "at compile time"),
        ("arange", tuple(Known(np.int32(v)) for v in (1, 4, 0)), {}, "step 0"),
        ("meshgrid", ((X, A),), {}, "no vectors"),
        ("tile", (X,), {"reps": [0]}, "reps"),
        ("dyn.tile", (X, np.int64([2])), {}, "at compile time"),
        ("repeat", (X,), {"repeats": 0}, "repeats 0"),
        ("reverse", (X,), {}, "lacks its attribute axis"),
        ("sequence_mask", (X, np.int32([1])), {}, "masks shape"),
        ("sliding_window", (X,), {"axis": 1, "window_shape": [9, 9], "strides": [1, 1]}, "slides"),
        ("layout_transform", (IMAGE,), {"src_layout": "NCHW", "dst_layout": "NCHW3c"}, "cannot divide"),
        ("layout_transform", (IMAGE,), {"src_layout": "NCHW", "dst_layout": "NCDW"}, "cannot make"),
        ("layout_transform", (IMAGE,), {"src_layout": "NCHW", "dst_layout": "__undef__"}, "has layout"),
        ("layout_transform", (IMAGE,), {"src_layout": "NCH4c", "dst_layout": "NCH"}, "has shape"),
        ("device_copy", (), {}, "no argument"),
    ],
)
def test_refused(op: str, args: tuple, attrs: dict, reason: str) -> None:
    refused(op, args, attrs, reason)
