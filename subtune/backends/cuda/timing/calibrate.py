"""What this machine's GPU does at best, measured in seconds: DRAM, L2, shared memory, launches, matrix instructions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from statistics import median

from subtune.backends.calibration import Calibration, found_today
from subtune.backends.cuda import api as cuda_api
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.timing.source import binary

_U64 = ctypes.c_uint64
_REPEATS = 7
_COPIED = 1 << 30
_MMA_FLOPS = {
    "float16": 2 * 16 * 8 * 16,
    "bfloat16": 2 * 16 * 8 * 16,
    "tfloat32": 2 * 16 * 8 * 8,
    "int8": 2 * 16 * 8 * 32,
}


def calibrate(device: CUDAModel) -> Calibration:
    """Measure this machine's GPU; nothing else may use it meanwhile.

    `mma_sync` of a dtype: operations per second of `mma.sync`, which on Hopper is not its fastest.
    """
    cuda_api.activate()
    probe = _Probe(device)
    fma_flops = probe.fma()
    clock = fma_flops / (2.0 * device.fma_per_cycle * device.sms)
    found: dict[str, tuple[float, str]] = {
        "dram_bytes_per_s": (probe.dram(), "read and written by a copy of 1 GB"),
        "l2_bytes_per_s": (probe.l2(), "read by all multiprocessors from a quarter of L2, 8 MB at most"),
        "shared_bytes_per_cycle": (probe.shared(), "read by 1024 threads of one multiprocessor"),
        "launch_s": (probe.launch(), "a kernel that does nothing, of 200 in a graph"),
        "cycles_per_s": (clock, "multiply-adds per second over those of a cycle"),
        "fma_flops": (fma_flops, "eight chains of float32 multiply-adds per thread"),
    }
    if device.capability >= 80:
        found |= {f"mma_sync {dtype}": (probe.mma(dtype), "eight chains of mma.sync per warp") for dtype in _MMA_FLOPS}
    return found_today(f"{device.description}, {device.sms} multiprocessors", found)


class _Probe:
    def __init__(self, device: CUDAModel) -> None:
        self._device, self._binary = device, binary(device.arch)
        self._stream = cuda_api.Stream()
        self._out = cuda_api.Memory(64)
        self._events = cuda_api.Event(), cuda_api.Event()

    def dram(self) -> float:
        """Bytes read and written per second by a copy too large for L2."""
        source, target = cuda_api.Memory(_COPIED), cuda_api.Memory(_COPIED)
        source.fill(1)
        kernel = self._binary.kernel("copy")
        blocks = _COPIED // 16 // 512
        args = (_U64(source.address), _U64(target.address), _U64(_COPIED // 16))
        return 2 * _COPIED / self._seconds(lambda: kernel(self._stream, blocks, 512, *args))

    def l2(self) -> float:
        nbytes = 1 << (min(self._device.l2_bytes // 4, 8 << 20).bit_length() - 1)
        memory = cuda_api.Memory(nbytes)
        memory.fill(1)
        kernel, blocks, rounds = self._binary.kernel("read_l2"), 2 * self._device.sms, 2
        args = (_U64(memory.address), ctypes.c_uint32(nbytes // 16), ctypes.c_int(rounds), _U64(self._out.address))
        seconds = self._seconds(lambda: kernel(self._stream, blocks, 1024, *args))
        return blocks * rounds * nbytes / seconds

    def shared(self) -> int:
        """Bytes per cycle that the threads of one SM read."""
        rounds = 2048
        self._out.fill(0)
        kernel = self._binary.kernel("read_shared")
        out, cycles = _U64(self._out.address), _U64(self._out.address + 8)
        kernel(self._stream, 1, 1024, ctypes.c_int(rounds), out, cycles)
        self._stream.synchronize()
        measured = int(self._out.read(16).view("uint64")[1])
        return round(rounds * 1024 * 16 / max(measured, 1))

    def launch(self) -> float:
        """Seconds per kernel in a graph of kernels that do nothing."""
        count = 200
        kernel = self._binary.kernel("nothing")

        def kernels() -> None:
            for _ in range(count):
                kernel(self._stream, 1, 32)

        graph = self._stream.capture(kernels)
        return self._seconds(lambda: graph.launch(self._stream)) / count

    def fma(self) -> float:
        """float32 operations per second."""
        rounds, block, blocks = 20000, 512, 4 * self._device.sms
        kernel = self._binary.kernel("spin")
        args = (_U64(self._out.address), ctypes.c_int(rounds))
        seconds = self._seconds(lambda: kernel(self._stream, blocks, block, *args))
        return 2.0 * 8 * rounds * block * blocks / seconds

    def mma(self, dtype: str) -> float:
        rounds, block, blocks = 4000, 256, 4 * self._device.sms
        kernel = self._binary.kernel(f"mma_{dtype}")
        args = (ctypes.c_int(rounds), _U64(self._out.address))
        seconds = self._seconds(lambda: kernel(self._stream, blocks, block, *args))
        return _MMA_FLOPS[dtype] * 8.0 * rounds * blocks * (block // 32) / seconds

    def _seconds(self, work: Callable[[], object]) -> float:
        begin, end = self._events
        samples = []
        for _ in range(_REPEATS + 1):
            begin.record(self._stream)
            work()
            end.record(self._stream)
            samples.append(end.seconds_since(begin))
        return median(samples[1:])
