"""Relay modules with `?`, their parameters, and what they compute, in numpy."""

from __future__ import annotations

import numpy as np

from tests.frontends.relay.np_windows import conv, pool
from tests.frontends.relay.test_json import Document

RNG = np.random.default_rng(5)


def _floats(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _normed(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift


DENSE = {"w1": _floats(32, 16), "b1": _floats(32), "w2": _floats(10, 32)}


def dense_document() -> str:
    """Two layers and a softmax, in JSON."""
    d = Document(True)
    x = d.var("x", d.type((None, 16), "float32"))
    w1, b1, w2 = (d.var(name, d.type(array.shape, "float32")) for name, array in DENSE.items())
    layer = d.call("nn.bias_add", [d.call("nn.dense", [x, w1]), b1])
    body = d.call("nn.softmax", [d.call("nn.dense", [d.call("nn.relu", [layer]), w2])])
    return d.dump(d.module({"main": d.function([x, w1, b1, w2], body)}))


def dense(x: np.ndarray) -> np.ndarray:
    return _softmax(np.maximum(x @ DENSE["w1"].T + DENSE["b1"], 0) @ DENSE["w2"].T)


IMAGES = """#[version = "0.0.5"]
def @main(%data: Tensor[(?, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32], %gamma: Tensor[(4), float32],
          %beta: Tensor[(4), float32], %mean: Tensor[(4), float32], %var: Tensor[(4), float32],
          %fc: Tensor[(5, 64), float32]) -> Tensor[(?, 5), float32] {
  %0 = nn.conv2d(%data, %w, padding=[1, 1, 1, 1], kernel_size=[3, 3]) /* ty=Tensor[(?, 4, 8, 8), float32] */;
  %1 = nn.batch_norm(%0, %gamma, %beta, %mean, %var);
  %2 = %1.0;
  %3 = nn.relu(%2) /* ty=Tensor[(?, 4, 8, 8), float32] */;
  %4 = nn.max_pool2d(%3, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]) /* ty=Tensor[(?, 4, 4, 4), float32] */;
  %5 = nn.batch_flatten(%4) /* ty=Tensor[(?, 64), float32] */;
  nn.dense(%5, %fc, units=5) /* ty=Tensor[(?, 5), float32] */
}
"""
IMAGE_WEIGHTS = {
    "w": _floats(4, 3, 3, 3), "gamma": _floats(4), "beta": _floats(4), "mean": _floats(4), "var": _floats(4) ** 2,
    "fc": _floats(5, 64),
}  # fmt: skip


def images(data: np.ndarray) -> np.ndarray:
    p = IMAGE_WEIGHTS
    made = conv(data, p["w"], (1, 1), (1, 1, 1, 1), (1, 1))
    scale = p["gamma"] / np.sqrt(p["var"] + np.float32(1e-5))
    made = made * scale[:, None, None] + (p["beta"] - p["mean"] * scale)[:, None, None]
    made = pool(np.maximum(made, 0), "max", (2, 2), (2, 2), (0, 0, 0, 0), (1, 1))
    return made.reshape(len(data), -1) @ p["fc"].T


BLOCK = """#[version = "0.0.5"]
def @main(%x: Tensor[(?, ?, 32), float32], %rest: Tensor[(?, ?, 32), float32], %wq: Tensor[(32, 32), float32],
          %wk: Tensor[(32, 32), float32], %gamma: Tensor[(32), float32], %beta: Tensor[(32), float32]) {
  let %heads = fn (%a: Tensor[(?, ?, 32), float32]) -> Tensor[(?, ?, 8), float32] {
    %0 = reshape(%a, newshape=[0, 0, 4, 8]);
    %1 = transpose(%0, axes=[0, 2, 1, 3]);
    reshape(%1, newshape=[-3, -2]) /* ty=Tensor[(?, ?, 8), float32] */
  };
  %2 = reshape(%x, newshape=[-1, 32]);
  %3 = shape_of(%x, dtype="int64");
  %4 = dyn.reshape(nn.dense(%2, %wq, units=32), %3, newshape=[]);
  %5 = reshape_like(nn.dense(%2, %wk, units=32), %x);
  %6 = nn.batch_matmul(%heads(multiply(%4, 0.35355339f)), %heads(%5), transpose_b=True);
  %7 = nn.softmax(%6, axis=-1) /* ty=Tensor[(?, ?, ?), float32] */;
  %8 = nn.batch_matmul(%7, %heads(%x), transpose_b=False) /* ty=Tensor[(?, ?, 8), float32] */;
  %9 = reshape(%8, newshape=[-4, -1, 4, -2]);
  %10 = transpose(%9, axes=[0, 2, 1, 3]);
  %11 = reshape(%10, newshape=[0, 0, -1]);
  nn.layer_norm(add(%11, %rest), %gamma, %beta, axis=-1, epsilon=1e-05f) /* ty=Tensor[(?, ?, 32), float32] */
}
"""
BLOCK_WEIGHTS = {"wq": _floats(32, 32), "wk": _floats(32, 32), "gamma": _floats(32), "beta": _floats(32)}


def block(x: np.ndarray, rest: np.ndarray) -> np.ndarray:
    p = BLOCK_WEIGHTS
    batch, seq, _ = x.shape
    q, k, v = (made.reshape(batch, seq, 4, 8).swapaxes(1, 2) for made in (x @ p["wq"].T, x @ p["wk"].T, x))
    mixed = _softmax(q * np.float32(0.35355339) @ k.swapaxes(2, 3)) @ v
    return _normed(mixed.swapaxes(1, 2).reshape(batch, seq, 32) + rest, p["gamma"], p["beta"])


SIZES = """#[version = "0.0.5"]
def @main(%x: Tensor[(?, 6), float32], %row: Tensor[(1, 6), float32]) {
  %0 = shape_of(%x, dtype="int64");
  %1 = take(%0, 0i64, axis=0);
  %2 = dyn.broadcast_to(%row, %0);
  %3 = dyn.full(0.5f, %0, dtype="float32");
  %4 = stack((%1, 1i64));
  %5 = dyn.tile(%row, %4);
  %6 = subtract(%0, 1i64);
  %7 = cast(arange(0i64, %1, 1i64, dtype="int64"), dtype="float32");
  (add(add(%x, %2), %3), multiply(%5, %x), dyn.strided_slice(%x, zeros_like(%0), %6, ones_like(%0)),
   add(%x, expand_dims(%7, axis=1)),
   one_hot(cast(%x, dtype="int32"), 2f, -1f, depth=3, axis=-1, dtype="float32"))
}
"""


def sizes(x: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, ...]:
    positions = np.arange(len(x), dtype=np.float32)[:, None]
    marked = np.where(np.trunc(x)[..., None] == np.arange(3), np.float32(2), np.float32(-1))
    return x + row + np.float32(0.5), row * x, x[:-1, :-1], x + positions, marked
