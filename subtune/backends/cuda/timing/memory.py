"""Kernel arguments in the GPU's memory between guard zones, filled without megabytes of random numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from subtune.backends.cuda import api as cuda_api
from subtune.backends.cuda.timing.source import binary, grid_for, is_float_kind
from subtune.measure.guarded import CANARY, GUARD_BYTES, as_bytes, numpy_dtype
from subtune.measure.verdict import MASKED, ROW

_U64 = ctypes.c_uint64
_SPARE_BYTES = 1 << 18
"""Behind a guard zone, that nobody else has: where a kernel of whole blocks is tried on less, it ruins nothing."""


class GpuBuffer:
    """One argument: `nbytes` bytes at a boundary of 256 bytes, guard zones before and right behind them."""

    def __init__(self, nbytes: int, shape: tuple[int, ...], dtype: str) -> None:
        self.nbytes, self.dtype, self.shape = nbytes, dtype, shape
        self._memory = cuda_api.Memory(nbytes + 2 * GUARD_BYTES + _SPARE_BYTES)
        self.guard()
        self.address = self._memory.address + GUARD_BYTES
        self.tensor: Any = cuda_api.tensor_at(self.address, shape, dtype, nbytes)

    def write(self, block: np.ndarray) -> None:
        """Fill the buffer with the array's bytes, again and again where it is smaller."""
        data = as_bytes(block)[: self.nbytes]
        self._memory.write(data, GUARD_BYTES)
        done = data.nbytes
        while 0 < done < self.nbytes:
            count = min(done, self.nbytes - done)
            cuda_api.copy_on_device(self.address + done, self.address, count)
            done += count

    def guard(self) -> None:
        """Make the guard zones whole: nobody else is blamed for what one kernel wrote there."""
        self._memory.write(CANARY)
        self._memory.write(CANARY, GUARD_BYTES + self.nbytes)

    def copy(self) -> GpuBuffer:
        """Another buffer with the same bytes."""
        other = GpuBuffer(self.nbytes, self.shape, self.dtype)
        cuda_api.copy_on_device(other.address, self.address, self.nbytes)
        return other

    def fill(self, value: int) -> None:
        self._memory.fill(value, self.nbytes, GUARD_BYTES)

    def array(self) -> np.ndarray:
        dtype = numpy_dtype(self.dtype)
        return self._memory.read(self.nbytes, GUARD_BYTES).view(dtype).reshape(self.shape)

    def overwritten(self) -> str:
        """Which guard zone was written to, and how far from the array; empty when both are whole."""
        before, after = self._memory.read(GUARD_BYTES), self._memory.read(GUARD_BYTES, GUARD_BYTES + self.nbytes)
        if not np.array_equal(before, CANARY):
            return f"{GUARD_BYTES - int(np.flatnonzero(before != CANARY)[0])} bytes before its start"
        if not np.array_equal(after, CANARY):
            return f"{int(np.flatnonzero(after != CANARY)[0])} bytes behind its end"
        return ""


class Judge:
    """Outputs compared where they are, by `verdict.disagreement`'s rule."""

    def __init__(self, arch: str, sms: int, stream: cuda_api.Stream) -> None:
        self._binary, self._sms, self._stream = binary(arch), sms, stream
        self._found = cuda_api.Memory(32)

    def checksum(self, buffer: GpuBuffer) -> int:
        words = buffer.nbytes // 4
        return int(self._launch("checksum", words, _U64(buffer.address), _U64(words))[0])

    def scale(self, reference: GpuBuffer, dtype: str, is_adversarial: bool) -> float:
        """What an error counts against beside the element itself: the finite reference's RMS, or its maximum.

        What is masked does not count, as long as something else does.
        """
        kind = is_float_kind(reference.dtype)
        if kind is None:
            return 0.0
        count = _elements(reference)
        arguments = (_U64(reference.address), _U64(count), ctypes.c_int(kind))
        bounds = ctypes.c_double(1.0), ctypes.c_double(_limit(dtype))
        finite, bits, _ = self._launch("summarise", count, *arguments, *bounds)
        largest = float(np.array(bits, np.uint64).view(np.float64))
        if is_adversarial or not finite or largest == 0.0:
            return largest
        unit = min(largest, MASKED)
        for most in (min(_limit(dtype), MASKED), _limit(dtype)):
            bounds = ctypes.c_double(unit), ctypes.c_double(most)
            seen, _, sum_bits = self._launch("summarise", count, *arguments, *bounds)
            if total := float(np.array(sum_bits, np.uint64).view(np.float64)):
                return unit * float(np.sqrt(total / int(seen)))
        return largest

    def disagreement(
        self,
        out: GpuBuffer,
        reference: GpuBuffer,
        tolerance: float,
        scale: float,
        is_adversarial: bool,
        nan_spreads: bool = False,
    ) -> str:
        """What is wrong with `out`, in words; empty when it agrees with `reference`."""
        count = _elements(out)
        kind, want = is_float_kind(out.dtype), is_float_kind(reference.dtype)
        if kind is None or want is None:
            if out.dtype.startswith("float"):  # float8: few, and rare
                from subtune.measure.verdict import disagreement

                return disagreement(out.array(), reference.array(), is_adversarial)
            size = ctypes.c_int(out.nbytes // max(count, 1))
            found = self._launch("judge_bytes", count, _U64(out.address), _U64(reference.address), _U64(count), size)
        else:
            found = self._launch(
                "judge", count, _U64(out.address), ctypes.c_int(kind), _U64(reference.address), ctypes.c_int(want),
                _U64(count), _U64(out.shape[-1] if out.shape else 1), _U64(ROW),
                *map(ctypes.c_double, (tolerance, scale, _limit(out.dtype), MASKED)),
                ctypes.c_int(is_adversarial), ctypes.c_int(nan_spreads),
            )  # fmt: skip
        if not int(found[0]):
            return ""
        where = tuple(int(i) for i in np.unravel_index(int(found[1]), out.shape or (1,)))
        got, expected = (buffer.array().reshape(-1)[int(found[1])] for buffer in (out, reference))
        return f"{found[0]} of {count} elements are wrong, the first at {list(where)}: {got} where {expected} is right"

    def _launch(self, name: str, elements: int, *args: Any) -> np.ndarray:
        """Run a kernel and give the first three words of what it found."""
        self._found.write(np.array([0, 2**64 - 1 if name.startswith("judge") else 0, 0, 0], np.uint64))
        kernel = self._binary.kernel(name)
        kernel(self._stream, grid_for(elements, self._sms), 256, *args, _U64(self._found.address))
        self._stream.synchronize()
        return self._found.read(24).view(np.uint64)


def _elements(buffer: GpuBuffer) -> int:
    return int(np.prod(buffer.shape, dtype=np.int64))


def _limit(dtype: str) -> float:
    """Magnitudes above it round to infinity."""
    return {"float16": 65519.99, "bfloat16": 3.39e38, "float32": 3.4028235e38}.get(dtype, float("inf"))
