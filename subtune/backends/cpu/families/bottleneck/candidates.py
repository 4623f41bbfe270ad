"""Candidates for 1x1, depthwise and 1x1 convolution in one kernel, row of pixels by row.

Counts cycles of one thread: three micro-kernels, the rows that neighbouring blocks both compute, and the way of the
depthwise convolution's rows through L2 where a panel of them does not stay in L1.
Sources: those of `contraction`; line buffers as in Halide's sliding windows (Ragan-Kelley et al. 2013).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import ceil

from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, bytes_per_cycle
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.family import MODE, REGISTERS, CPUProblem
from subtune.core.candidate import Candidate
from subtune.patterns.bottleneck import Bottleneck

_START_CYCLES = 20.0  # of a micro-kernel
_STORE_CYCLES = 3.0  # per vector of a finished tile, with the operations on it
_MAX_CANDIDATES = 4  # they differ little, and each costs a build
_MAX_TWICE = 1 / 3  # rows computed twice, of what could be won: not all of that is won
_MAX_PIXELS = 16  # of a tile: more gain nothing, and the code grows
_MAX_WINDOWS = 8  # beside one another: what several of them read stays in registers, too


@dataclass(frozen=True, slots=True)
class Knobs:
    """Blocks of rows; rows of a step; pixels x panel of both 1x1 convolutions; rows x pixels of a window."""

    blocks: int
    step: int
    mr: int = field(metadata=REGISTERS)
    nr: int = field(metadata=REGISTERS)
    dr: int
    dw: int
    mr2: int
    nr2: int
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    block, lanes = problem.pattern, problem.device.lanes()
    if not isinstance(block, Bottleneck):
        return "no 1x1 convolutions round a depthwise one"
    if block.channels % lanes:
        return f"{block.channels} channels are no multiple of the {lanes} vector lanes"
    return "" if _is_worthwhile(block, problem.device) else "rows computed twice cost all there is to win"


def obstacle(block: Bottleneck, knobs: Knobs, lanes: int) -> str:
    """Why a tile is illegal; "" where it is legal."""
    if knobs.nr % lanes or knobs.nr2 % lanes:
        return f"nr={knobs.nr} or nr2={knobs.nr2} is no multiple of the {lanes} vector lanes"
    if block.channels % knobs.nr:
        return f"nr={knobs.nr} does not divide the {block.channels} channels"
    rows = -(-block.out_height // knobs.blocks)
    last = block.out_height - (knobs.blocks - 1) * rows
    if last < 1 or rows % knobs.step or last % knobs.step or knobs.step % knobs.dr:
        return f"steps of {knobs.step} rows do not divide blocks of {rows} and {last}"
    return ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    """The best tiles for several panels, steps and blocks."""
    block, device = problem.pattern, problem.device
    lanes = device.lanes()
    found = []
    for nr, (step, dr), blocks in product(_panels(block, lanes), _STEPS, _blocks(block, device)):
        mr = _best_rows(block.width, nr // lanes, device)
        nr2 = lanes * _vectors(block.outputs, lanes)
        mr2 = _best_rows(step * block.out_width, nr2 // lanes, device)
        dw = _best_pixels(block.out_width, dr, device)
        knobs = Knobs(blocks, step, mr, nr, dr, dw, mr2, nr2)
        if not obstacle(block, knobs, lanes) and block.cached_bytes(step) <= device.l2_bytes:
            found.append(Candidate.of("bottleneck", knobs, _predict(block, device, knobs)))
    return sorted(found, key=lambda c: (c.predicted_s, c.knobs))[:_MAX_CANDIDATES]


def _is_worthwhile(block: Bottleneck, device: CPUModel) -> bool:
    """For as few blocks as there are threads: at most the way of the tensors in between to the next cache is won."""
    between = block.images * block.channels * 4 * block.out_height * block.out_width
    if block.inputs:
        between += block.images * block.channels * 4 * block.height * block.width
    won = 2 * between / bytes_per_cycle(2 * between, device)
    twice = _twice(block, max(1, ceil(device.threads / block.images))) * block.width * block.images
    return twice * block.inputs * block.channels / device.lanes() / device.fma_per_cycle < _MAX_TWICE * won


def _twice(block: Bottleneck, blocks: int) -> int:
    """Rows of an image that two blocks compute."""
    return (blocks - 1) * (block.rows.span - block.rows.stride)


def _panels(block: Bottleneck, lanes: int) -> list[int]:
    return [lanes * v for v in (1, 2, 3, 4) if block.channels % (lanes * v) == 0]


_STEPS = ((1, 1), (2, 2))
"""Rows of a step, and of a window: two read every row of the ring once for both, one keeps the ring smaller."""


def _blocks(block: Bottleneck, device: CPUModel) -> list[int]:
    """One for each thread, or twice as many where that is more even."""
    least = ceil(device.threads / block.images)
    return [least, 2 * least] if block.out_height % least else [least]


def _vectors(n: int, lanes: int) -> int:
    """Vectors of a panel: as many panels as three vectors need, evenly wide."""
    needed = ceil(n / lanes)
    return ceil(needed / ceil(needed / 3))


def _best_rows(extent: int, vectors: int, device: CPUModel) -> int:
    """Pixels of a tile: of those that fit the registers, the ones that cost least for the whole row."""
    most = max(1, min(extent, _MAX_PIXELS, (device.vector_registers - 1 - vectors) // vectors))
    rows = [mr for mr in range(most // 2 + 1, most + 1) if extent % mr == 0] or range(1, most + 1)
    return min(rows, key=lambda mr: (_micro_cycles(extent, mr, vectors, device), -mr))


def _micro_cycles(extent: int, mr: int, vectors: int, device: CPUModel) -> float:
    """Per step of k, of all tiles of an axis."""
    whole, rest = divmod(extent, mr)
    return sum(
        count * max(rows * vectors / device.fma_per_cycle, (rows + vectors) / LOADS_PER_CYCLE, device.fma_latency)
        for count, rows in ((whole, mr), (1, rest))
        if count and rows
    )


def _best_pixels(extent: int, dr: int, device: CPUModel) -> int:
    most = max(1, min(extent, _MAX_WINDOWS, device.vector_registers // 2 // dr))
    pixels = [dw for dw in range(most // 2 + 1, most + 1) if extent % dw == 0] or range(1, most + 1)
    return min(pixels, key=lambda dw: (_micro_cycles(extent, dw, dr, device), -dw))


def _predict(block: Bottleneck, device: CPUModel, knobs: Knobs) -> float:
    """Seconds of one run on all threads."""
    lanes = device.lanes()
    images, blocks, step, dr = block.images, knobs.blocks, knobs.step, knobs.dr
    rows_in = block.out_height * block.rows.stride + _twice(block, blocks)
    pixels_out = block.out_height * block.out_width
    vectors = block.channels // lanes
    cycles = 0.0
    if block.inputs:
        per_k = _micro_cycles(block.width, knobs.mr, knobs.nr // lanes, device) * lanes / knobs.nr
        start = ceil(block.width / knobs.mr) * lanes / knobs.nr * _START_CYCLES
        cycles += rows_in * vectors * (block.inputs * per_k + start + block.width * _STORE_CYCLES)
    else:
        cycles += rows_in * vectors * block.width * _STORE_CYCLES
    taps = block.rows.taps * block.columns.taps
    per_tap = _micro_cycles(block.out_width, knobs.dw, dr, device) / dr
    start = ceil(block.out_width / knobs.dw) / dr * _START_CYCLES
    cycles += block.out_height * vectors * (taps * per_tap + start + block.out_width * _STORE_CYCLES)
    panel = block.ring_rows(step) * block.ring_width * knobs.nr * 4
    old = block.ring_rows(step) if panel > device.l1d_bytes else block.ring_rows(step) - step * block.rows.stride
    kept = block.out_height / step * old * block.ring_width * block.channels * 4
    cycles += kept / bytes_per_cycle(block.cached_bytes(step), device)
    wide = knobs.nr2 // lanes
    panels = ceil(block.outputs / knobs.nr2)
    per_k = _micro_cycles(step * block.out_width, knobs.mr2, wide, device) / step
    start = ceil(step * block.out_width / knobs.mr2) / step * _START_CYCLES
    cycles += block.out_height * panels * (block.channels * per_k + start)
    cycles += pixels_out * panels * wide * _STORE_CYCLES
    grains = images * blocks
    rows = ceil(block.out_height / blocks) * blocks / block.out_height
    uneven = imbalance(grains, device) * rows
    return cycles * images * uneven / device.threads / device.cycles_per_s
