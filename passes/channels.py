"""Constants that hold one number per channel, however the exporter shaped them."""

from __future__ import annotations

import numpy as np

from subtune.passes.exprs import Expr, array_of, shape_of


def channel_vector(constant: Expr, like: Expr, axis: int) -> np.ndarray | None:
    """The float64 vector v with `constant[...] == v[index along axis]` when broadcast to `like`'s shape, or None.

    A scalar counts: it is the same number for every channel.
    """
    array, shape = array_of(constant), shape_of(like)
    if array is None or shape is None or array.ndim > len(shape):
        return None
    padded = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(extent != 1 for i, extent in enumerate(padded.shape) if i != axis):
        return None
    if padded.shape[axis] not in (1, shape[axis]):
        return None
    return np.broadcast_to(padded.reshape(-1).astype(np.float64), (shape[axis],))


def on_axis(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """`vector` shaped to broadcast along `axis` of a tensor of `rank` dims, trailing unit dims included."""
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])
