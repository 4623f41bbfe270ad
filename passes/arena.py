"""Offsets in one arena for tensors whose lifetimes are known: those that live at the same time do not overlap.

Several greedy orders are tried, as in "Efficient Memory Management for Deep Neural Net Inference" (Pisarchyk and Lee):
largest first is the best of them on most models. Where none meets the lower bound, the tensors in the way move forward
in the order, a few times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64
"""Bytes; TVM's kernels assume that every tensor starts on such a boundary."""

_EFFORT = 4000
"""Tensors placed in all the attempts that begin with one order, so that thousands of tensors take seconds."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor of `nbytes` that holds data from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """`offsets` in bytes, in the order of the tensors; `bound` is what no placement can go below."""

    offsets: tuple[int, ...]
    nbytes: int
    bound: int


def place(tensors: Sequence[Lifetime]) -> Arena:
    """The best placement found for `tensors`."""
    if not tensors:
        return Arena((), 0, 0)
    sizes = np.array([-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in tensors], dtype=np.int64)
    firsts = np.array([t.first for t in tensors], dtype=np.int64)
    lasts = np.array([t.last for t in tensors], dtype=np.int64)
    bound = int(live_bytes(sizes, firsts, lasts).max())
    best: np.ndarray | None = None
    smallest = 0
    for order in _orders(sizes, firsts, lasts):
        for _ in range(max(2, _EFFORT // len(tensors))):
            offsets = _greedy(order, sizes, firsts, lasts)
            nbytes = int((offsets + sizes).max())
            if best is None or nbytes < smallest:
                best, smallest = offsets, nbytes
            if smallest == bound:
                return Arena(tuple(map(int, best)), smallest, bound)
            # whoever stands out above all others chooses first next time
            top = int(np.argmax(offsets + sizes))
            order = np.concatenate(([top], order[order != top]))
    assert best is not None
    return Arena(tuple(map(int, best)), smallest, bound)


def live_bytes(sizes: np.ndarray, firsts: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    """Bytes alive at each step."""
    change = np.zeros(int(lasts.max()) + 2, dtype=np.int64)
    np.add.at(change, firsts, sizes)
    np.add.at(change, lasts + 1, -sizes)
    return np.cumsum(change)[:-1]


def _orders(sizes: np.ndarray, firsts: np.ndarray, lasts: np.ndarray) -> Iterator[np.ndarray]:
    """Largest first; most byte-steps first; those alive at the fullest step first; as they are born."""
    yield np.lexsort((firsts, -sizes))
    yield np.lexsort((firsts, -sizes * (lasts - firsts + 1)))
    live = live_bytes(sizes, firsts, lasts)
    fullest = np.array([live[a : b + 1].max() for a, b in zip(firsts, lasts, strict=True)])
    yield np.lexsort((firsts, -sizes, -fullest))
    yield np.lexsort((firsts, firsts - lasts, -fullest))
    yield np.lexsort((-sizes, firsts))


def _greedy(order: np.ndarray, sizes: np.ndarray, firsts: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    """Each tensor in the smallest gap that holds it between those placed before it, else after them."""
    offsets = np.full(len(sizes), -1, dtype=np.int64)
    for i in order:
        rivals = np.flatnonzero((offsets >= 0) & (firsts <= lasts[i]) & (lasts >= firsts[i]))
        rivals = rivals[np.argsort(offsets[rivals], kind="stable")]
        offsets[i] = _gap(offsets[rivals], offsets[rivals] + sizes[rivals], int(sizes[i]))
    return offsets


def _gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """Where the smallest gap of at least `size` bytes begins, the space after the last one being the last resort."""
    if not len(starts):
        return 0
    begins = np.concatenate(([0], np.maximum.accumulate(ends)))
    gaps = starts - begins[:-1]
    fitting = np.flatnonzero(gaps >= size)
    if not len(fitting):
        return int(begins[-1])
    return int(begins[fitting[np.argmin(gaps[fitting])]])
