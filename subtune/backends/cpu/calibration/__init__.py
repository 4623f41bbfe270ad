"""Figures of the CPU's cost models that were measured and are no part of the hardware model: data, not code.

One JSON file for each processor that was measured, named as LLVM names it; `default.json` holds for all others, and for
what was not measured of one. Every figure has its day and, where that was recorded, how it was fitted. What is a
property of a formula stands beside the formula.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from subtune.backends.calibration import read_calibration


@dataclass(frozen=True, slots=True)
class CostFigures:
    """Cycles are those of one thread. Shares of a time are those that a way to read saves or costs."""

    l2_bytes_per_cycle: float
    """Of one thread, from L2."""
    l3_bytes_per_cycle: float
    """Of one thread, from L3."""
    between_kernels_s: float
    """What a kernel takes in a network and not alone, where several threads share it."""
    parallel_start_s: float
    """From the call of a kernel to its first iteration on a warm pool of threads."""
    serial_below_s: float
    """Kernels of all threads that short are tried on one, too; half of it is what a second one saves."""
    grain_s: float
    """Taking one piece of parallel work."""
    ahead: float
    """Of the time from L3, where rows to come are asked for."""
    ahead_of_memory: float
    """The same from memory."""
    ahead_elements: float
    """The same of elementwise kernels."""
    ahead_window: float
    """The same of windows, one pixel at a time."""
    ahead_pixel: float
    """More of the time for every further pixel."""
    far_cycles: float
    """To begin another row of B on another page."""
    conflict_cycles: float
    """A line of L2 instead of L1."""
    packed_vector_cycles: float
    """Of a thread that packs while it multiplies."""
    bf16_latency_cycles: int
    """Until the result of `vdpbf16ps` can be used."""
    unforeseen: float
    """Times the bytes of weights from memory in an order that no prefetcher foresees."""
    spread_cycles: float
    """To load an input channel, repeat it and store it for its group."""
    spill: float
    """Of a window's work, for each accumulator more than fit."""
    branch_cycles: float
    """Asking whether a pixel lies inside the image; LLVM asks once for what is unrolled."""
    row_cycles: float
    """Folding vectors of partial results into one number."""
    row_vector_cycles: float
    """Of all else that is done to a row's vector: loads, exp or scale, store."""
    gathered_cycles: float
    """An element that is loaded by itself."""
    in_blocks: float
    """Of the bytes' time, transposed in staged blocks from memory."""
    blocks_alike: float
    """Of the time in place, where lines of neighbouring rows share few sets of L1."""
    blocks_apart: float
    """Of the time in place, where they do not."""


@cache
def figures_of(processor: str) -> CostFigures:
    """What is shipped for the processor that LLVM names so.

    >>> figures_of("znver4").l3_bytes_per_cycle
    24.0
    """
    found = _shipped("default") | _shipped(processor)
    wrong = set(found) ^ {field.name for field in fields(CostFigures)}
    assert not wrong, f"figures of {processor or 'any processor'}: {sorted(wrong)}"
    return CostFigures(**found)  # type: ignore[arg-type]


def _shipped(name: str) -> dict[str, float]:
    path = Path(__file__).with_name(f"{name}.json")
    return read_calibration(path).values if name and path.is_file() else {}
