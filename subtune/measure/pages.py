"""Memory that is used again: on a virtual machine a new page costs as much as writing to it a dozen times."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from subtune.runtime.memory import private_pages

_MOST_TIMES = 8
"""A block that so many times as much fits into is kept for what needs it."""


class Pages:
    """Blocks that nobody has any more, the smallest first, `limit` bytes of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free: list[tuple[int, int, np.ndarray]] = []
        """Blocks with their sizes and addresses."""

    def array(self, nbytes: int) -> np.ndarray:
        """So many bytes, whatever they hold; they are given back when the last view of them is gone."""
        return np.asarray(_Owner(self, self._block(nbytes), nbytes))

    def give(self, block: np.ndarray) -> None:
        """Keep a block, if there is room."""
        if block.nbytes + sum(size for size, _, _ in self._free) <= self._limit:
            bisect.insort(self._free, (block.nbytes, block.ctypes.data, block), key=lambda one: one[:2])

    def _block(self, nbytes: int) -> np.ndarray:
        at = bisect.bisect_left(self._free, nbytes, key=lambda one: one[0])
        if at < len(self._free) and self._free[at][0] <= _MOST_TIMES * nbytes:
            return self._free.pop(at)[2]
        return private_pages(nbytes)


class Holder:
    """Who holds memory: when another one takes it, the one before lets go."""

    def __init__(self) -> None:
        self._held_by: Callable[[], Any] = lambda: None

    def take(self, owner: Any) -> None:
        before = self._held_by()
        if before is not None and before is not owner:
            before.let_go()
        self._held_by = weakref.ref(owner)


class _Owner:
    """What the views of a block keep alive."""

    def __init__(self, pages: Pages, block: np.ndarray, nbytes: int) -> None:
        self._pages, self._block = pages, block
        place = (block.ctypes.data, False)
        self.__array_interface__ = {"data": place, "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._pages.give(self._block)
