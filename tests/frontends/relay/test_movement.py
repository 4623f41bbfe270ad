"""Relay's operators of shape and position against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontends.relay.expect import Expect, check, floats, ints, refused
from tests.frontends.relay.run import Known

X = floats(2, 3, 4)
Y = floats(2, 3, 4, 5)
ONE = floats(1, 3, 1, 4, 1)
N = ints(6, 4)


def shaped(x: np.ndarray, *dims: int) -> np.ndarray:
    return x.reshape(dims)


RESHAPES = [
    (X, [4, 0, 2], (4, 3, 2)),
    (X, [2, 0, 0], (2, 3, 4)),
    (X, [6, 1, -1], (6, 1, 4)),
    (X, [3, -1, 8], (3, 1, 8)),
    (X, [-1], (24,)),
    (X, -1, (24,)),
    (X, [-2], (2, 3, 4)),
    (X, [2, -2], (2, 3, 4)),
    (X, [-2, 1, 1], (2, 3, 4, 1, 1)),
    (X, [-3, 4], (6, 4)),
    (Y, [-3, -3], (6, 20)),
    (X, [0, -3], (2, 12)),
    (X, [-3, -2], (6, 4)),
    (X, [-4, 1, 2, -2], (1, 2, 3, 4)),
    (X, [2, -4, -1, 3, -2], (2, 1, 3, 4)),
    (Y, [0, -1, 5], (2, 12, 5)),
    (Y, [-1, 0, 4, 5], (2, 3, 4, 5)),
    (Y, [-4, 2, -1, -3, -1], (2, 1, 12, 5)),
    (Y, [0, 0, -1], (2, 3, 20)),
]
SET = floats(2, 2)


def written(x: np.ndarray, v: np.ndarray, *index: slice) -> np.ndarray:
    y = x.copy()
    y[index] = v
    return y


CASES = [
    *[Expect("reshape", (x,), x.reshape(dims), {"newshape": code}) for x, code, dims in RESHAPES],
    *[Expect("dyn.reshape", (x, Known(np.int64(code))), x.reshape(dims)) for x, code, dims in RESHAPES[:4]],
    Expect("reshape", (N,), N.reshape(4, 6), {"newshape": [4, 6], "allowzero": True}),
    Expect("contrib_reverse_reshape", (floats(10, 5, 4) * 0 + 1,), np.ones((50, 4), "float32"), {"newshape": [-1, 0]}),
    Expect("_contrib_reverse_reshape", (X,), X.reshape(2, 12), {"newshape": [2, -3]}),
    Expect("contrib_reverse_reshape", (X,), X.reshape(2, 12), {"newshape": [2, -3]}),
    Expect("reshape_like", (X, floats(4, 6)), X.reshape(4, 6)),
    Expect(
        "reshape_like",
        (X.reshape(1, 2, 3, 4), floats(6, 2, 2, 3)),
        X.reshape(1, 6, 2, 2),
        {"lhs_begin": 1, "lhs_end": None, "rhs_begin": 0, "rhs_end": 3},
    ),
    Expect("reshape_like", (X, floats(9, 6, 9)), X.reshape(6, 4), {"lhs_end": 2, "rhs_begin": -2, "rhs_end": -1}),
    Expect("transpose", (X,), X.transpose()),
    Expect("transpose", (X,), X.transpose(), {"axes": None}),
    Expect("transpose", (X,), X.transpose(1, 2, 0), {"axes": [1, -1, 0]}),
    Expect("transpose", (Y,), Y, {"axes": [0, 1, 2, 3]}),
    Expect("squeeze", (ONE,), ONE.squeeze()),
    Expect("squeeze", (ONE,), ONE.squeeze(), {"axis": None}),
    Expect("squeeze", (ONE,), ONE[0, :, :, :, 0], {"axis": [0, -1]}),
    Expect("squeeze", (ONE,), ONE[:, :, 0], {"axis": 2}),
    Expect("dyn.squeeze", (ONE, Known(np.int32([0, 2]))), ONE[0, :, 0]),
    Expect("expand_dims", (X,), X[:, None], {"axis": 1}),
    Expect("expand_dims", (X,), X[..., None, None], {"axis": 3, "num_newaxis": 2}),
    Expect("expand_dims", (X,), X.reshape(2, 3, 1, 1, 4), {"axis": -2, "num_newaxis": 2}),
    Expect("expand_dims", (np.float32(3),), np.float32([3]), {"axis": 0}),
    Expect("dyn.expand_dims", (X, Known(np.int64(-1))), X[..., None], {"num_newaxis": 1}),
    Expect("concatenate", ((X, X + 1),), np.concatenate([X, X + 1])),
    Expect("concatenate", ((X, X[:, :1], X),), np.concatenate([X, X[:, :1], X], 1), {"axis": -2}),
    Expect("concatenate", ((N,),), N, {"axis": 1}),
    Expect("concatenate", ((N, N.astype("int64")),), np.concatenate([N, N]).astype("int64")),
    Expect("reshape", (X, Known(np.int64([4, -1]))), X.reshape(4, 6)),
    Expect("stack", ((X, X + 1),), np.stack([X, X + 1])),
    Expect("stack", ((X, X + 1, X),), np.stack([X, X + 1, X], -1), {"axis": -1}),
    Expect("stack", ((X, X + 1, X),), np.stack([X, X + 1, X], 1), {"axis": 1}),
    Expect("stack", ((np.float32(1), np.float32(2)),), np.float32([1, 2])),
    Expect("broadcast_to", (N[:1],), np.broadcast_to(N[:1], (3, 6, 4)), {"shape": [3, 6, 4]}),
    Expect("dyn.broadcast_to", (N[:1], Known(np.int64([3, 6, 4]))), np.broadcast_to(N[:1], (3, 6, 4))),
    Expect("broadcast_to_like", (X[:, :1], X), np.broadcast_to(X[:, :1], X.shape)),
    Expect("collapse_sum_like", (X, X[0, :1]), X.sum((0, 1))[None], rtol=1e-4),
    Expect("collapse_sum_to", (X, Known(np.int32([3, 1]))), X.sum((0, 2))[:, None], rtol=1e-4),
    Expect("collapse_sum_to", (X,), X, {"shape": [2, 3, 4]}),
    Expect("strided_slice", (X,), X[:, 1:3], {"begin": [0, 1], "end": [2, 3]}),
    Expect("strided_slice", (X,), X[1:, :-1, 1::2], {"begin": [1, 0, 1], "end": [9, -1, 4], "strides": [1, 1, 2]}),
    Expect("strided_slice", (X,), X[0:2:2], {"begin": [0], "end": [2147483647], "strides": [2]}),
    Expect("strided_slice", (X,), X[:, ::-1], {"begin": [0, 2], "end": [2, -4], "strides": [1, -1]}),
    Expect("strided_slice", (X,), X[:, :, 3:0:-2], {"begin": [3], "end": [0], "strides": [-2], "axes": [2]}),
    Expect("strided_slice", (X,), X[..., 1:2], {"begin": [1], "end": [2], "strides": [1], "axes": [-1]}),
    Expect(
        "strided_slice",
        (X,),
        X[1:, 0:2, 1:],
        {"begin": [1, 0, -3], "end": [-1, 2, 3], "strides": [1], "slice_mode": "size"},
    ),
    Expect("strided_slice", (X,), X, {"begin": [0, 0, 0], "end": [2, 3, 4], "strides": [1, 1, 1], "axes": None}),
    Expect(
        "dyn.strided_slice", (X, Known(np.int64([0, 1])), Known(np.int64([1, 3])), Known(np.int64([1, 1]))), X[:1, 1:]
    ),
    Expect("slice_like", (X, floats(1, 2, 3)), X[:1, :2, :3]),
    Expect("slice_like", (Y, floats(9, 2, 3, 4)), Y[:, :2, :, :4], {"axes": [1, -1]}),
    Expect("slice_like", (X, floats(1, 2)), X[:1, :2]),
    Expect("split", (N,), np.split(N, 3), {"indices_or_sections": 3}),
    Expect("split", (X,), np.split(X, 2, 2), {"indices_or_sections": 2, "axis": -1}),
    Expect("split", (N,), np.split(N, [1, 4]), {"indices_or_sections": [1, 4], "axis": 0}),
    Expect("split", (N,), [N], {"indices_or_sections": 1, "axis": 1}),
    Expect(
        "strided_set",
        (N.astype("float32"), SET, Known(np.int32([1, 0])), Known(np.int32([5, 4])), Known(np.int32([2, 2]))),
        written(N.astype("float32"), SET, slice(1, 5, 2), slice(0, 4, 2)),
    ),
    Expect(
        "strided_set",
        (X, X[:, ::-1] * 2, Known(np.int32([0, 2])), Known(np.int32([2, -4])), Known(np.int32([1, -1]))),
        X * 2,
    ),
]
TESTED = {case.op for case in CASES}


def test_movement() -> None:
    check(CASES)


@pytest.mark.parametrize(
    ("op", "args", "attrs", "reason"),
    [
        ("reshape", (X,), {"newshape": [5, -1]}, "cannot make"),
        ("reshape", (X,), {"newshape": [-1, -1]}, "infers two"),
        ("reshape", (X,), {"newshape": [1, 2, 3, 0]}, "does not have"),
        ("reshape", (X,), {"newshape": [-4, -1, -1]}, "splits"),
        ("reshape", (X,), {"newshape": [-7]}, "has -7"),
        ("reshape", (X,), {"newshape": [2.5]}, "no integer"),
        ("reshape", (X,), {}, "lacks its attribute newshape"),
        ("dyn.reshape", (X, np.int64([24])), {}, "at compile time"),
        ("transpose", (X,), {"axes": [0, 1]}, "has axes"),
        ("transpose", (X,), {"axes": [0, 1, 7]}, "outside rank"),
        ("squeeze", (X,), {"axis": [0]}, "not 1"),
        ("concatenate", ((X, N),), {}, "mixes float32 and int32"),
        ("concatenate", ((X, Y),), {}, "ranks"),
        ("concatenate", ((X, X[:1]),), {"axis": 1}, "joins shapes"),
        ("concatenate", (X,), {}, "tuple argument"),
        ("stack", ((X, X[:1]),), {}, "stacks shapes"),
        ("broadcast_to", (X,), {"shape": [5, 3, 4]}, "cannot broadcast"),
        ("collapse_sum_to", (X,), {"shape": [5, 4]}, "cannot sum"),
        ("split", (N,), {"indices_or_sections": 4}, "into 4 sections"),
        ("split", (N,), {"indices_or_sections": [3, 1]}, "splits 6 at"),
        ("strided_slice", (X,), {"begin": [0], "end": [1], "strides": [0]}, "stride 0"),
        ("strided_slice", (X,), {"begin": [0] * 4, "end": [1] * 4}, "slices 4 axes"),
        ("slice_like", (X, floats(5)), {}, "cannot cut"),
    ],
)
def test_refused(op: str, args: tuple, attrs: dict, reason: str) -> None:
    refused(op, args, attrs, reason)
