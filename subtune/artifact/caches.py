"""Caches of a decoder in memory with room for more rows: those of a run stay where they are for the next one.

An array that a run gave, given to the next run, gets the new rows behind its own in the same memory. Nobody can see
that: the memory behind an array's rows is nobody's. Where rows are there already, as another run was given the same
array before, what is given is copied to new memory; so is any array that no run gave.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from subtune import runtime
from subtune.artifact.slots import check_dtype, imported
from subtune.core.cache import Cache
from subtune.core.tensor_spec import TensorSpec

_LATER = np.empty(0, np.uint8)


@dataclass(slots=True)
class _Kept:
    """Memory that is somebody's: where its array starts in it, that array's shape, and how many rows are used."""

    owner: Any
    """A weak reference."""
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    rows: int

    def array(self, dtype: np.dtype) -> np.ndarray | None:
        owner = self.owner()
        return None if owner is None else np.ndarray(self.shape, dtype, owner, self.start)


@final
class CacheInput:
    """The input of a cache: as `VaryingInput`, for an array of any strides, which no kernel reads."""

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._dtype = runtime.numpy_dtype(spec.dtype)

    def array(self, value: Any) -> np.ndarray:
        array = imported(value, self._spec)
        check_dtype(array, self._spec, self._dtype)
        return array


@final
class CacheOutput:
    """The output of a cache, as `VaryingOutput`, whose memory depends on what the input is."""

    slack = 0

    def __init__(self, spec: TensorSpec, cache: Cache) -> None:
        self.spec, self.cache = spec, cache
        self.dtype = runtime.numpy_dtype(spec.dtype)
        self._known: dict[int, _Kept] = {}
        """By the address of the first element."""
        self._memory, self._whole, self._alone = _LATER, _LATER, -1
        """What was made last, and how often it is referred to where nobody else has it."""

    def new(self, shape: tuple[int, ...], nbytes: int) -> np.ndarray:
        """What stands for the output until `continued` makes it."""
        return _LATER

    def continued(self, given: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The array that kernels write to, which holds the rows of `given` already, and that of `shape` in it."""
        axis = self.cache.axis
        own = self._known.get(runtime.address(given)) if given.size else None
        whole = None
        if own and own.rows == given.shape[axis] and own.strides == given.strides and _fits(own.shape, shape, axis):
            whole = own.array(self.dtype)
        if own is None or whole is None:
            own, whole = self._made((*shape[:axis], self.cache.capacity, *shape[axis + 1 :]))
            whole[_first(axis, given.shape[axis])] = given
        own.rows = shape[axis]
        return whole, whole[_first(axis, shape[axis])]

    def _made(self, shape: tuple[int, ...]) -> tuple[_Kept, np.ndarray]:
        """Memory that nobody has, for an array of this shape: that of before, or new."""
        if self._whole.shape != shape or sys.getrefcount(self._memory) > self._alone:
            self._whole = _LATER
            count = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
            self._memory = np.empty(count + runtime.ALIGNMENT, np.uint8)
            start = -runtime.address(self._memory) % runtime.ALIGNMENT
            self._whole = np.ndarray(shape, self.dtype, self._memory, start)
            at, known = runtime.address(self._whole), self._known
            owner = weakref.ref(self._memory, lambda _: known.pop(at, None))
            known[at] = _Kept(owner, start, shape, self._whole.strides, 0)
            self._alone = sys.getrefcount(self._memory)
        return self._known[runtime.address(self._whole)], self._whole


def _first(axis: int, rows: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(rows))


def _fits(whole: tuple[int, ...], shape: tuple[int, ...], axis: int) -> bool:
    """Whether an array is a part of another one, cut along `axis`."""
    return (*whole[:axis], *whole[axis + 1 :]) == (*shape[:axis], *shape[axis + 1 :])
