"""What this machine's GPU does at best, measured in seconds: DRAM, L2, shared memory, launches, matrix instructions."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from subtune.backends.cuda import api as cuda_api
from subtune.backends.cuda.device import CUDAModel, calibration_path
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """`mma_sync`: (dtype, operations per second of the device) of `mma.sync`, which on Hopper is not its fastest."""

    dram_bytes_per_s: float
    l2_bytes_per_s: float
    shared_bytes_per_cycle: int
    launch_s: float
    cycles_per_s: float
    fma_flops: float
    mma_sync: tuple[tuple[str, float], ...]

    def fields(self) -> dict[str, Any]:
        """Those that a `CUDAModel` has as well."""
        names = ("dram_bytes_per_s", "l2_bytes_per_s", "shared_bytes_per_cycle", "launch_s", "cycles_per_s")
        return {name: getattr(self, name) for name in names}


def calibrate(device: CUDAModel) -> Calibration:
    """Measure this machine's GPU; nothing else may use it meanwhile."""
    cuda_api.activate()
    probe = _Probe(device)
    spins = probe.fma()
    return Calibration(
        dram_bytes_per_s=probe.dram(),
        l2_bytes_per_s=probe.l2(),
        shared_bytes_per_cycle=probe.shared(),
        launch_s=probe.launch(),
        cycles_per_s=spins / (2.0 * device.fma_per_cycle * device.sms),
        fma_flops=spins,
        mma_sync=tuple((dtype, probe.mma(dtype)) for dtype in _MMA_FLOPS) if device.capability >= 80 else (),
    )


def store(device: CUDAModel, found: Calibration) -> None:
    """Keep what was measured for `CUDA("auto")`."""
    path = calibration_path(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps({"fields": found.fields(), "measured": asdict(found)}, indent=2))
    part.replace(path)


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
