"""Convolutions and pools as NumPy statements of what Relay documents: channels first, any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np


def relaid(x: np.ndarray, source: str, target: str) -> np.ndarray:
    """x of layout `source` in layout `target`."""
    return np.transpose(x, [source.index(axis) for axis in target])


def windows(
    x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int], out: Sequence[int]
) -> np.ndarray:
    """(N, C, out..., kernel...) of a padded x."""
    n = len(kernel)
    made = np.zeros((*x.shape[:2], *out, *kernel), x.dtype)
    for tap in product(*(range(k) for k in kernel)):
        where = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, dilation, out, strides, strict=True)
        )
        made[(slice(None),) * (2 + n) + tap] = x[(slice(None), slice(None), *where)]
    return made


def conv(
    x: np.ndarray,
    w: np.ndarray,
    strides: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    dtype: str = "float64",
) -> np.ndarray:
    """x (N, C, ...) with w (O, C/groups, ...), summed in `dtype`."""
    n = x.ndim - 2
    padded = np.pad(x.astype(dtype), [(0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)])
    kernel = w.shape[2:]
    out = [
        (e - (k - 1) * d - 1) // s + 1 for e, k, d, s in zip(padded.shape[2:], kernel, dilation, strides, strict=True)
    ]
    seen = windows(padded, kernel, strides, dilation, out)
    each_in, each_out = x.shape[1] // groups, w.shape[0] // groups
    taps = list(range(2 + n, 2 + 2 * n))
    parts = [
        np.tensordot(
            seen[:, g * each_in : (g + 1) * each_in],
            w[g * each_out : (g + 1) * each_out].astype(dtype),
            axes=([1, *taps], [1, *range(2, 2 + n)]),
        )
        for g in range(groups)
    ]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def conv_transposed(
    x: np.ndarray,
    w: np.ndarray,
    strides: Sequence[int],
    pads: Sequence[int],
    extra: Sequence[int],
    groups: int = 1,
    dilation: Sequence[int] | None = None,
) -> np.ndarray:
    """Every input pixel adds w (I, O/groups, ...) times itself to the output, `strides` apart; pads are cut off."""
    n = x.ndim - 2
    dilation = dilation or [1] * n
    kernel = w.shape[2:]
    full = [
        (e - 1) * s + (k - 1) * d + 1 + a
        for e, s, k, d, a in zip(x.shape[2:], strides, kernel, dilation, extra, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[1] * groups, *full))
    each = x.shape[1] // groups
    for g in range(groups):
        channels = slice(g * each, (g + 1) * each)
        for tap in product(*(range(k) for k in kernel)):
            where = tuple(
                slice(t * d, t * d + (e - 1) * s + 1, s)
                for t, d, e, s in zip(tap, dilation, x.shape[2:], strides, strict=True)
            )
            added = np.moveaxis(
                np.tensordot(x[:, channels].astype("float64"), w[(channels, slice(None), *tap)], axes=([1], [0])), -1, 1
            )
            y[(slice(None), slice(g * w.shape[1], (g + 1) * w.shape[1]), *where)] += added
    cut = tuple(slice(p, f - q) for p, q, f in zip(pads[:n], pads[n:], full, strict=True))
    return y[(slice(None), slice(None), *cut)]


def pool(
    x: np.ndarray,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
    include: bool = False,
) -> np.ndarray:
    """Relay's: the last window of ceil mode may begin in the end padding; what lies beyond that never counts."""
    n = len(kernel)
    rooms = [e + pads[i] + pads[n + i] - (kernel[i] - 1) * dilation[i] - 1 for i, e in enumerate(x.shape[2:])]
    out = [(-(-r // s) if ceil_mode else r // s) + 1 for r, s in zip(rooms, strides, strict=True)]
    beyond = [max(0, (o - 1) * s - r) for o, s, r in zip(out, strides, rooms, strict=True)]

    def padded(value: Any, of: np.ndarray, ends: Any) -> np.ndarray:
        inner = np.pad(of, [(0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)], constant_values=value)
        return np.pad(inner, [(0, 0), (0, 0), *((0, b) for b in beyond)], constant_values=ends)

    axes = tuple(range(2 + n, 2 + 2 * n))
    if kind == "max":
        lowest = np.finfo(x.dtype).min if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        return windows(padded(lowest, x, lowest), kernel, strides, dilation, out).max(axes)
    total = windows(padded(0, x.astype("float64"), 0), kernel, strides, dilation, out).sum(axes)
    ones = padded(1.0 if include else 0.0, np.ones_like(x, "float64"), 0.0)
    return total / np.maximum(windows(ones, kernel, strides, dilation, out).sum(axes), 1)
