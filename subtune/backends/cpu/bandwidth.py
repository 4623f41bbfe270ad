"""Where a working set stays, and how fast it is read from there, by one thread and by all."""

from __future__ import annotations

from subtune.backends.cpu.device import CPUModel

LOADS_PER_CYCLE = 2.0
"""Vector loads; every x86 and Arm server core of the last ten years does two."""

_CROSSING_BYTES_PER_CYCLE = 1.0
"""From the cache of the core that has written it. On a Zen 4 whose cores are lent it was 4, and 0.6 for seconds at a
time, for everything that ran then: a kernel of two stages took 0.61 or 0.76 ms, one without a second stage 0.58."""

_ELEMENT_CYCLES = 0.75


def tile_load_cycles(rows: int, vectors: int, device: CPUModel) -> float:
    """Cycles to load what one step of a register tile multiplies: an element of every row, and `vectors` of B.

    A processor of sixteen registers loads each element into one of them (AVX2): LLVM then moves sums from one to
    another. Measured on a Zen 3: tiles of 7 to 14 rows by one vector take 1.5 to 2 times as long as 4 rows by 3.
    """
    of_element = _ELEMENT_CYCLES if device.vector_registers <= 16 else 1 / LOADS_PER_CYCLE
    return rows * of_element + vectors / LOADS_PER_CYCLE


def bytes_per_cycle(working_set_bytes: float, device: CPUModel) -> float:
    """Of one thread, from the smallest cache that holds the working set; half of each cache is counted."""
    if working_set_bytes <= device.l1d_bytes / 2:
        return LOADS_PER_CYCLE * device.vector_bytes
    if working_set_bytes <= device.l2_bytes / 2:
        return device.calibration.l2_bytes_per_cycle
    if working_set_bytes <= device.l3_bytes / 2:
        return device.calibration.l3_bytes_per_cycle
    return device.dram_bytes_per_s / device.cycles_per_s / device.threads


def stream_s(nbytes: float, device: CPUModel) -> float:
    """Seconds in which all threads together read or write `nbytes` of arguments, once.

    From L3 at best: what a subgraph reads was written by others, on any core, and its own L2 was used since.
    Measured on Zen 5 over a zoo's elementwise subgraphs: 140 to 190 GB/s of 0.4 to 16 MB by two threads; this says 168.
    """
    per_cycle = bytes_per_cycle(max(nbytes, device.l2_bytes), device)
    return nbytes / per_cycle / device.threads / device.cycles_per_s


def crossing_cycles(nbytes: float, device: CPUModel) -> float:
    """Cycles of all threads together that it costs when each reads `nbytes` which all of them have just written."""
    return nbytes * (device.threads - 1) / _CROSSING_BYTES_PER_CYCLE
