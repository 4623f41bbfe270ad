"""What this machine's processor does at best, measured in seconds: clock, multiply-adds, caches, memory, threads.

The other figures of the cost models are fitted to kernels and to whole networks; they stay as they are shipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from subtune import runtime
from subtune.backends.calibration import Calibration, found_today
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.timing.probes import Call, increments, multiply_adds, reads
from subtune.measure.clock import time_calls

_SECONDS = 0.5
_DEPTH, _ROUNDS = 256, 1000
_CACHE_ROUNDS_BYTES = 16 << 20
"""Read of a cache at each call: the start of the threads is then below a hundredth."""
_MOST_BYTES = 2 << 30
_TILE_BYTES, _TILES = 256, 17
"""Of a row that is no multiple of a page: 4352 bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What each probe does on one thread; bytes of one thread."""

    steps: int
    """Multiply-adds of each chain, one after the other."""
    chains: int
    l2_bytes: int
    l3_bytes: int
    """0: there is no third level."""
    memory_bytes: int
    rows: int
    """Of a matrix in L3, each on another page."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds of one call of each probe, the least; 0.0 where it was not made."""

    chain: float
    chains: float
    l2: float
    l3: float
    memory: float
    along_rows: float
    down_columns: float
    shared_out: float
    alone: float


def calibrate(device: CPUModel) -> Calibration:
    """Measure this machine's processor on all of the model's threads; about ten seconds, nothing else may run."""
    runtime.use_threads(device.threads)
    plan = plan_for(device)
    return found_today(device.description, fit(plan, _sample(device, plan), device))


def plan_for(device: CPUModel) -> Plan:
    shared = device.l3_bytes // device.threads
    return Plan(
        steps=_DEPTH * _ROUNDS,
        chains=2 * device.fma_latency,
        l2_bytes=device.l2_bytes // 4,
        l3_bytes=shared // 4 if shared // 4 >= 2 * device.l2_bytes else 0,
        memory_bytes=min(max(4 * device.l3_bytes, 64 << 20), _MOST_BYTES) // device.threads,
        rows=max(256, shared // 2 // (_TILES * _TILE_BYTES)),
    )


def fit(plan: Plan, samples: Samples, device: CPUModel) -> dict[str, tuple[float, str]]:
    """(value, how) of every figure that the samples tell."""
    clock = plan.steps * device.fma_latency / samples.chain
    fma = plan.chains * plan.steps / samples.chains / clock
    memory = plan.memory_bytes * device.threads / samples.memory
    found: dict[str, tuple[float, str]] = {
        "cycles_per_s": (clock, f"a chain of multiply-adds, {device.fma_latency} cycles each, on every thread"),
        "fma_per_cycle": (max(1, round(fma)), f"{plan.chains} such chains side by side: {fma:.2f}"),
        "dram_bytes_per_s": (memory, f"{plan.memory_bytes >> 20} MB on every thread, read in order"),
        "l2_bytes_per_cycle": (
            _whole(plan.l2_bytes) / samples.l2 / clock,
            f"{plan.l2_bytes >> 10} KB on every thread, read again and again",
        ),
        "parallel_start_s": (
            max(0.0, samples.shared_out - samples.alone),
            "one vector for every thread: shared out, less by the calling thread alone",
        ),
    }
    if plan.l3_bytes:
        found["l3_bytes_per_cycle"] = (
            _whole(plan.l3_bytes) / samples.l3 / clock,
            f"{plan.l3_bytes >> 10} KB on every thread, read again and again",
        )
        longer = max(0.0, samples.down_columns - samples.along_rows)
        found["far_cycles"] = (
            longer * clock / (plan.rows * _TILES),
            f"{plan.rows} rows of {_TILES * _TILE_BYTES} bytes on every thread, down columns of {_TILE_BYTES}, less "
            "along the rows",
        )
    return found


def _whole(nbytes: int) -> int:
    """Bytes read by a call that goes through `nbytes` again and again."""
    return max(1, _CACHE_ROUNDS_BYTES // nbytes) * (nbytes // _TILE_BYTES) * _TILE_BYTES


def _sample(device: CPUModel, plan: Plan) -> Samples:
    vectors = _TILE_BYTES // device.vector_bytes

    def cache_s(nbytes: int) -> float:
        rounds = max(1, _CACHE_ROUNDS_BYTES // nbytes)
        return _seconds(reads(device, rounds, nbytes // _TILE_BYTES, 1, vectors)) if nbytes else 0.0

    def matrix_s(rows_first: bool) -> float:
        return _seconds(reads(device, 1, plan.rows, _TILES, vectors, rows_first=rows_first)) if plan.l3_bytes else 0.0

    return Samples(
        chain=_seconds(multiply_adds(device, 1, _ROUNDS, _DEPTH)),
        chains=_seconds(multiply_adds(device, plan.chains, _ROUNDS, _DEPTH)),
        l2=cache_s(plan.l2_bytes),
        l3=cache_s(plan.l3_bytes),
        memory=_seconds(reads(device, 1, plan.memory_bytes // _TILE_BYTES, 1, vectors)),
        along_rows=matrix_s(rows_first=True),
        down_columns=matrix_s(rows_first=False),
        shared_out=_seconds(increments(device, is_parallel=True)),
        alone=_seconds(increments(device, is_parallel=False)),
    )


def _seconds(call: Call) -> float:
    return time_calls(call, _SECONDS).min_s
