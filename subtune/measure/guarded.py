"""Arrays between guard zones, handed to a kernel without a copy: writes out of bounds leave a trace."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np

from subtune.core.kernel import ConstantTransform
from subtune.measure.pages import Pages
from subtune.runtime.memory import HUGE_PAGE

GUARD_BYTES = 4096
"""On either side. One vector beyond the end is 64; a whole page also catches a tile row that runs over."""
_ALIGN = 64
_FENCE_BYTES = 1 << 26
_NO_ACCESS = 0
"""`PROT_NONE`."""
_PAGES = Pages(1 << 29)
CANARY = np.frombuffer(bytes((i * 37 + 11) % 251 + 2 for i in range(GUARD_BYTES)), np.uint8)


class Guarded:
    """One kernel argument: `nbytes` bytes at a 64-byte boundary, guard zones before and right behind them.

    The zone behind begins after `slack` bytes, which a kernel may use; of floats they are NaN. `is_fenced`: behind that
    zone is memory that nobody may touch, and a kernel that reads there ends its process.
    """

    def __init__(
        self, nbytes: int, shape: tuple[int, ...], dtype: str, slack: int = 0, is_fenced: bool = False
    ) -> None:
        import tvm

        size = nbytes + slack + 2 * GUARD_BYTES + _ALIGN
        try:
            raw = _fenced(size) if is_fenced else _pages(size)
        except OSError as e:  # of a mapping
            raise MemoryError(f"no {size} bytes between guard zones: {e}") from None
        self.held = size
        """Bytes of memory that it takes."""
        self.mapped = size + (_FENCE_BYTES if is_fenced else 0)
        """Bytes of addresses that it takes, of which a worker has so many."""
        first = GUARD_BYTES + (-(raw.ctypes.data + GUARD_BYTES)) % _ALIGN
        self.whole = raw[first - GUARD_BYTES : first + nbytes + slack + GUARD_BYTES]
        """With both zones: the array begins behind `GUARD_BYTES`."""
        self._before = raw[first - GUARD_BYTES : first]
        self.bytes = raw[first : first + nbytes]
        self.slack = raw[first + nbytes : first + nbytes + slack]
        self.slack[:] = 0xFF
        self._after = raw[first + nbytes + slack : first + nbytes + slack + GUARD_BYTES]
        self._before[:] = CANARY
        self._after[:] = CANARY
        # numpy cannot export bfloat16 and its like: the view gets its type from TVM, over the same bytes.
        self.origin: tuple[np.ndarray, ConstantTransform | None] | None = None
        """What it holds, repeated or in a layout: another machine may have that already."""
        self.filled: int | None = None
        """The byte that it holds everywhere."""
        self.right: tuple[np.ndarray, float] | None = None
        """Of an output of float32: what it is to hold, and how far from that each number may be. Another machine looks
        itself, and brings what is wrong."""
        self.is_near = False
        """It held that, and its zones were whole; what it held was not brought."""
        self.tensor: Any = tvm.runtime.from_dlpack(self.bytes)._create_view(shape, dtype)

    @classmethod
    def like(cls, array: np.ndarray, dtype: str, slack: int = 0, is_fenced: bool = False) -> Guarded:
        guarded = cls(array.nbytes, array.shape, dtype, slack, is_fenced)
        guarded.bytes[:] = as_bytes(array)
        return guarded

    def repeat(self) -> None:
        """Fill the slack with the array again: in a model others' numbers lie there. What was never written may be
        denormal, which takes some processors a hundred times as long."""
        self.slack[:] = np.resize(self.bytes, self.slack.size)

    def fill(self, value: int) -> None:
        self.bytes[:] = value
        self.filled, self.right, self.is_near = value, None, False

    def overwritten(self) -> str:
        """Which guard zone was written to, and how far from the array; empty when both are whole."""
        if not np.array_equal(self._before, CANARY):
            distance = GUARD_BYTES - int(np.flatnonzero(self._before != CANARY)[0])
            return f"{distance} bytes before its start"
        if not np.array_equal(self._after, CANARY):
            return f"{int(np.flatnonzero(self._after != CANARY)[0])} bytes behind its end"
        return ""


def _pages(nbytes: int) -> np.ndarray:
    """Bytes as an artifact has them: many in huge pages. The system's allocator may give what others left behind."""
    return _PAGES.array(nbytes) if nbytes >= HUGE_PAGE else np.empty(nbytes, np.uint8)


def _fenced(nbytes: int) -> np.ndarray:
    """Bytes with untouchable pages right behind them, where the system has those."""
    if sys.platform != "linux":
        return np.empty(nbytes, np.uint8)
    usable = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, usable + _FENCE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(pages, np.uint8)
    end = ctypes.c_void_p(whole.ctypes.data + usable)
    if ctypes.CDLL(None).mprotect(end, ctypes.c_size_t(_FENCE_BYTES), _NO_ACCESS):
        raise MemoryError("the system gives no memory without access")
    return whole[usable - nbytes : usable]


def are_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays of bytes are equal: eight at a time, as of megabytes that is what checks take."""
    if one.size != other.size:
        return False
    whole = one.size // 8 * 8
    pairs = ((array[:whole].view(np.uint64), array[whole:]) for array in (one, other))
    return all(np.array_equal(*parts) for parts in zip(*pairs, strict=True))


def as_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy type of a TVM dtype; bfloat16 and float8 come from ml_dtypes."""
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype))


def elements(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    """The shape as numbers; a symbolic dim cannot be measured."""
    assert all(isinstance(dim, int) for dim in shape), f"shape {shape} has a symbolic dim"
    return tuple(int(dim) for dim in shape)
