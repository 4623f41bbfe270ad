"""Products, norms, activations and losses against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from subtune.frontends.onnx.ops.node import Refused
from tests.frontends.relay.agree import Agree, Together, floats, ints
from tests.frontends.relay.run import Known, evaluate


def product(name: str, op: str, a: np.ndarray, b: np.ndarray, turn: tuple[bool, bool], **attrs: Any) -> Agree:
    left = np.swapaxes(a, -1, -2) if turn[0] else a
    right = np.swapaxes(b, -1, -2) if turn[1] else b
    wide = "float64" if a.dtype.kind == "f" else "int64"
    want = np.matmul(left.astype(wide), right.astype(wide)).astype(attrs.get("out_dtype") or a.dtype)
    loose = 1e-4 if want.dtype != np.float16 else 1e-2
    return Agree(name, op, [a, b], want, attrs, loose, loose)


def batched(name: str, a: tuple[int, ...], b: tuple[int, ...], **attrs: Any) -> Agree:
    turn = (bool(attrs.get("transpose_a", False)), bool(attrs.get("transpose_b", False)))
    return product(name, "nn.batch_matmul", floats(*a), floats(*b), turn, **attrs)


X, V4 = floats(2, 4, 3, 5), floats(4)


def biased(name: str, bias: np.ndarray, shape: tuple[int, ...], **attrs: Any) -> Agree:
    return Agree(name, "nn.bias_add", [X, bias], X + bias.reshape(shape), attrs)


def normed(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    x = x.astype("float64")
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def _at(vector: np.ndarray, axis: int, ndim: int = 4) -> np.ndarray:
    return vector.reshape([-1 if a == axis % ndim else 1 for a in range(ndim)])


def batch_norm(name: str, axis: int = 1, epsilon: float = 1e-5, **attrs: Any) -> Agree:
    c = X.shape[axis]
    gamma, beta, mean, var = floats(c), floats(c), floats(c), np.abs(floats(c)) + 0.5
    y = (X - _at(mean, axis)) / np.sqrt(_at(var, axis).astype("float64") + epsilon)
    y = y * _at(gamma, axis) if attrs.get("scale", True) else y
    y = y + _at(beta, axis) if attrs.get("center", True) else y
    attrs |= {} if axis == 1 else {"axis": axis}
    attrs |= {} if epsilon == 1e-5 else {"epsilon": epsilon}
    return Agree(name, "nn.batch_norm", [X, gamma, beta, mean, var], [y.astype("float32"), mean, var], attrs)


def norm(name: str, op: str, along: int, y: np.ndarray, **attrs: Any) -> Agree:
    """y: the normalised data, which scale and shift then touch along one axis."""
    gamma, beta = floats(X.shape[along]), floats(X.shape[along])
    y = y * _at(gamma, along) if attrs.get("scale", True) else y
    y = y + _at(beta, along) if attrs.get("center", True) else y
    return Agree(name, op, [X, gamma, beta], y.astype("float32"), attrs)


def grouped(x: np.ndarray, axis: int, groups: int) -> np.ndarray:
    moved = np.moveaxis(x, axis, 1)
    split = moved.reshape(x.shape[0], groups, -1)
    return np.moveaxis(normed(split, (2,)).reshape(moved.shape), 1, axis)


def local(name: str, size: int, axis: int, bias: float, alpha: float, beta: float) -> Agree:
    moved = np.moveaxis(X.astype("float64"), axis, 0)
    total = np.stack([(moved[max(0, i - size // 2) : i + size // 2 + 1] ** 2).sum(0) for i in range(len(moved))])
    y = np.moveaxis(moved / (bias + alpha * total / size) ** beta, 0, axis)
    attrs = {"size": size, "axis": axis, "bias": bias, "alpha": alpha, "beta": beta}
    return Agree(name, "nn.lrn", [X], y.astype("float32"), attrs)


def l2(name: str, axis: Any, eps: float) -> Agree:
    total = (X**2).sum(tuple(axis) if axis else None, keepdims=True)
    return Agree(name, "nn.l2_normalize", [X], X / np.sqrt(np.maximum(total, eps)), {"eps": eps, "axis": axis})


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def leaky(alpha: Any) -> np.ndarray:
    return np.where(X < 0, X * alpha, X).astype("float32")


def nll(name: str, reduction: str) -> Agree:
    p, w = floats(3, 5, 2), np.abs(floats(5))
    t = np.array([[0, 4], [2, -7], [3, 1]], "int32")
    weight = np.where(t == -7, 0, w[np.maximum(t, 0)])
    loss = -np.take_along_axis(p, np.maximum(t, 0)[:, None], 1)[:, 0] * weight
    total = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / weight.sum()}[reduction]
    attrs = {"reduction": reduction, "ignore_index": -7}
    return Agree(name, "nn.nll_loss", [p, t, w], np.asarray(total, "float32"), attrs)


def sparse(name: str, block: tuple[int, int] | None) -> Agree:
    """A quarter of the blocks of w is there; `block` None: single numbers."""
    tall, wide = block or (1, 1)
    blocks = np.random.default_rng(2).random((6 // tall, 8 // wide)) < 0.4
    blocks[0] = False
    w = floats(6, 8) * np.kron(blocks, np.ones((tall, wide)))
    rows, columns = np.nonzero(blocks)
    split = w.reshape(6 // tall, tall, 8 // wide, wide).transpose(0, 2, 1, 3)
    values = split[rows, columns].astype("float32")
    starts = np.concatenate([[0], np.cumsum(blocks.sum(1))]).astype("int32")
    x = floats(3, 8)
    parts = [values if block else values.reshape(-1), columns.astype("int32"), starts]
    return Agree(name, "nn.sparse_dense", [x, *(Known(p) for p in parts)], (x @ w.T).astype("float32"))


P, T = softmax(floats(3, 7), 1), np.abs(floats(3, 7))
HALF = X.astype("float16")
CASES = Together(
    [
        product("dense", "nn.dense", floats(3, 8), floats(5, 8), (False, True), units=5),
        product(
            "dense, units None", "nn.dense", floats(2, 3, 8), floats(5, 8), (False, True), units=None, out_dtype=""
        ),
        product("dense int8", "nn.dense", ints("int8", 3, 8), ints("int8", 5, 8), (False, True), out_dtype="int32"),
        product(
            "dense half", "nn.dense", floats(3, 8).astype("float16"), floats(5, 8).astype("float16"), (False, True)
        ),
        sparse("sparse", None),
        sparse("sparse blocks", (2, 4)),
        product("matmul", "nn.matmul", floats(3, 8), floats(8, 5), (False, False), units=None),
        product(
            "matmul, turned", "nn.matmul", floats(8, 3), floats(5, 8), (True, True), transpose_a=True, transpose_b=True
        ),
        batched("batches", (4, 3, 6), (4, 6, 5)),
        batched("batches, turned", (4, 6, 3), (4, 5, 6), transpose_a=True, transpose_b=True),
        batched("one left batch", (1, 3, 6), (4, 5, 6), transpose_b=True),
        batched("one right batch", (4, 6, 3), (1, 6, 5), transpose_a=1, transpose_b=0),
        product(
            "batches of int8",
            "nn.batch_matmul",
            ints("int8", 2, 3, 4),
            ints("int8", 2, 4, 5),
            (False, False),
            out_dtype="int32",
        ),
        biased("bias", V4, (1, 4, 1, 1)),
        biased("bias, last", floats(5), (5,), axis=-1),
        biased("bias, axis 3", floats(5), (5,), axis=3),
        biased("bias, axis -2", floats(3), (3, 1), axis=-2),
        biased("bias, axis 0", floats(2), (2, 1, 1, 1), axis=0),
        batch_norm("batch_norm"),
        batch_norm("batch_norm, last axis", axis=3, epsilon=1e-2),
        batch_norm("batch_norm, negative axis", axis=-1),
        batch_norm("batch_norm, no scale", scale=False),
        batch_norm("batch_norm, no centre", center=False, scale=True),
        norm("layer_norm", "nn.layer_norm", -1, normed(X, (3,))),
        norm("layer_norm, axis 1", "nn.layer_norm", 1, normed(X, (1,), 1e-3), axis=1, epsilon=1e-3),
        norm("layer_norm, no scale", "nn.layer_norm", -1, normed(X, (3,)), scale=False),
        norm("layer_norm, no centre", "nn.layer_norm", -1, normed(X, (3,)), center=False),
        norm("instance_norm", "nn.instance_norm", 1, normed(X, (2, 3))),
        norm("instance_norm, last", "nn.instance_norm", 3, normed(X, (1, 2), 1e-3), axis=3, epsilon=1e-3),
        norm("instance_norm, neither", "nn.instance_norm", 1, normed(X, (2, 3)), scale=False, center=False),
        norm("group_norm", "nn.group_norm", 1, grouped(X, 1, 2), num_groups=2),
        norm("group_norm, axis 2", "nn.group_norm", 2, grouped(X, 2, 3), num_groups=3, axis=2),
        norm("group_norm, no scale", "nn.group_norm", 1, grouped(X, 1, 4), num_groups=4, scale=False),
        local("lrn", 5, 1, 2.0, 1e-1, 0.75),
        local("lrn, last, even", 4, 3, 1.0, 0.5, 0.5),
        l2("l2_normalize", [1], 1e-10),
        l2("l2_normalize, two axes", [2, 3], 5.0),
        l2("l2_normalize, all", None, 1e-4),
        Agree("relu", "nn.relu", [X], np.maximum(X, 0)),
        Agree("relu of int32", "nn.relu", [np.array([-3, 4], "int32")], np.array([0, 4], "int32")),
        Agree("leaky_relu", "nn.leaky_relu", [X], leaky(0.25)),
        Agree("leaky_relu, alpha", "nn.leaky_relu", [X], leaky(0.1), {"alpha": 0.1}),
        Agree("prelu", "nn.prelu", [X, V4], leaky(_at(V4, 1))),
        Agree("prelu, last", "nn.prelu", [X, V5 := floats(5)], leaky(V5), {"axis": 3}),
        Agree("prelu, one slope", "nn.prelu", [X, np.array([0.3], "float32")], leaky(np.float32(0.3))),
        Agree("softmax", "nn.softmax", [X], softmax(X, -1)),
        Agree("softmax, axis 1", "nn.softmax", [X], softmax(X, 1), {"axis": 1}),
        Agree("softmax half", "nn.softmax", [HALF], softmax(HALF, -1), {}, 1e-2, 1e-3),
        Agree("fast_softmax", "nn.fast_softmax", [X], softmax(X, 2), {"axis": -2}),
        Agree("log_softmax", "nn.log_softmax", [X], np.log(softmax(X, -1))),
        Agree("log_softmax, axis 0", "nn.log_softmax", [X], np.log(softmax(X, 0)), {"axis": 0}),
        Agree("dropout", "nn.dropout", [X], [X, np.ones_like(X)], {"rate": 0.1}),
        Agree("batch_flatten", "nn.batch_flatten", [X], X.reshape(2, 60)),
        Agree("cross_entropy", "nn.cross_entropy", [P, T], np.float32(-(T * np.log(P)).sum() / 3)),
        Agree("cross_entropy_with_logits", "nn.cross_entropy_with_logits", [P, T], np.float32(-(T * P).sum() / 3)),
        *(nll(f"nll_loss {r}", r) for r in ("mean", "sum", "none")),
    ]
)


@CASES.parameters()
def test_agrees_with_numpy(name: str) -> None:
    CASES.check(name)


@pytest.mark.parametrize(
    ("op", "args", "attrs", "reason"),
    [
        ("nn.dense", [floats(2, 3), floats(4, 5)], {}, "multiplies shapes"),
        ("nn.batch_matmul", [floats(2, 3), floats(3, 5)], {}, "multiplies shapes"),
        ("nn.bias_add", [X, floats(3)], {}, "along axis 1"),
        ("nn.bias_add", [X, floats(3)], {"axis": 7}, "axis 7"),
        ("nn.prelu", [X, floats(3)], {}, "along axis 1"),
        ("nn.softmax", [ints("int8", 2, 3)], {}, "dtype int8"),
        ("nn.group_norm", [X, V4, V4], {"num_groups": 3}, "3 groups"),
        ("nn.layer_norm", [X, V4, V4], {}, "for 5 channels"),
        ("nn.batch_norm", [ints("int8", 2, 4), V4, V4, V4, V4], {}, "dtype int8"),
        ("nn.relu", [], {}, "lacks its argument"),
    ],
)
def test_refuses(op: str, args: Any, attrs: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        evaluate(op, args, attrs)


def test_constant_weights_stay_constants() -> None:
    """No product transposes its weights at run time."""
    assert len(evaluate("nn.dense", [floats(3, 8), Known(floats(5, 8))], {})) == 1


TESTED = {case.op for case in CASES.cases.values()}
