"""Copies of weights between guard zones, kept from one workload to the next.

The instances of a dynamic workload have the same weights, and packing and copying them takes longer than the runs that
they are for: megabytes for each layout, and several copies of each, as weights come from memory.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from subtune.core.kernel import ConstantTransform
from subtune.measure.guarded import Guarded

_ADDRESSES, _SHARE = 1 << 34, 4
"""Bytes of addresses at most, and the part of a process's own that is left over for copies."""
_Key = tuple[int, ConstantTransform | None, int]
"""A constant's address as an object, its layout, and which copy of it."""


class Copies:
    """Of arrays that nobody changes: those used last are kept, `limit` bytes of them, and in spare addresses."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._packed: OrderedDict[tuple[int, ConstantTransform], tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._guarded: OrderedDict[_Key, tuple[np.ndarray, Guarded]] = OrderedDict()

    def packed(self, array: np.ndarray, form: ConstantTransform) -> np.ndarray:
        """`array` in the layout `form`."""
        key = (id(array), form)
        if key not in self._packed:
            self._packed[key] = (array, form(array))
            forget(self._packed, lambda kept: kept[1].nbytes, self._limit)
        self._packed.move_to_end(key)
        return self._packed[key][1]

    def guarded(
        self, array: np.ndarray, form: ConstantTransform | None, copy: int, make: Callable[[], Guarded]
    ) -> Guarded:
        """Copy number `copy` of `array` in the layout `form`, which `make` makes where there is none."""
        key = (id(array), form, copy)
        if key not in self._guarded:
            self._guarded[key] = (array, make())
            forget(self._guarded, lambda kept: kept[1].held, self._limit)
            forget(self._guarded, lambda kept: kept[1].mapped, _spare_addresses())
        self._guarded.move_to_end(key)
        return self._guarded[key][1]

    def drop(self, array: np.ndarray, form: ConstantTransform | None, copy: int) -> None:
        """What somebody has written to is no copy any more."""
        self._guarded.pop((id(array), form, copy), None)


def _spare_addresses() -> int:
    """Of this process, as its limit says: a fence takes many, and no memory."""
    if sys.platform != "linux":
        return _ADDRESSES
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return _ADDRESSES if soft == resource.RLIM_INFINITY else min(_ADDRESSES, soft // _SHARE)


def forget(kept: OrderedDict, nbytes: Callable, limit: int) -> None:  # type: ignore[type-arg]
    """What was used last stays, `limit` bytes of it, and one at least."""
    held = sum(nbytes(one) for one in kept.values())
    while held > limit and len(kept) > 1:
        held -= nbytes(kept.popitem(last=False)[1])
