"""Candidates for a first convolution with its pooling: rows of the result to a band, warpgroups, blocks."""

from __future__ import annotations

from itertools import product
from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.pooled_stem.schedule import rows_of_pixels
from subtune.backends.cuda.families.stem.plan import StemKnobs, front
from subtune.backends.cuda.families.wgmma.tiling import wgmma_obstacle
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.patterns.pooled import Pooled

_ROWS = (1, 2, 3, 4, 5, 6, 7, 8)
_TILE_CYCLES = 250.0  # of 64 pixels beside their products: fragments, rounding, a barrier
_TAP_CYCLES = 6.0  # of a warp, to read and compare 16 bytes a thread
_FILL_S = 3e-6
_MAX_TAPS = 16


def accepts(problem: Problem[CUDAModel]) -> str:
    if why := wgmma_obstacle(problem):
        return why
    if not isinstance(problem.pattern, Pooled):
        return "no pooling of a convolution"
    taps = problem.pattern.kernel[0] * problem.pattern.kernel[1]
    return "" if taps <= _MAX_TAPS else f"a window of {taps}"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Every band that fits shared memory."""
    pattern, device = problem.pattern, problem.device
    read = front(pattern.front, problem)
    if isinstance(read, NotApplicable) or read.columns != read.packing.original[0]:
        return []
    columns, found = read.columns, []
    for rows, groups, blocks in product(_ROWS, (1, 2, 3, 4), (1, 2)):
        if rows > pattern.out_size[0]:
            continue
        knobs = StemKnobs(rows, groups, blocks)
        stem = read.rows(rows_of_pixels(pattern, rows))
        tiles = ceil(stem.rows * stem.out_width / (64 * groups)) * groups
        if not read.fits(knobs, stem, stem.patch_words * 4 + tiles * 64 * (columns + 8) * 2, device):
            continue
        bands = read.images * ceil(pattern.out_size[0] / rows)
        mma = device.mma_flops(read.dtype) / device.sms / device.cycles_per_s
        # fragments of A from registers: at half the rate
        multiply = 2.0 * 64 * columns * stem.steps * 2 * stem.at_once / mma * 2
        product_cycles = tiles * max(multiply, (multiply + _TILE_CYCLES) / (groups * blocks))
        vectors = rows * pattern.out_size[1] * columns // 8
        pool_cycles = vectors / 32 * pattern.kernel[0] * pattern.kernel[1] * _TAP_CYCLES
        cycles = ceil(bands / (device.sms * blocks)) * blocks * (product_cycles + pool_cycles / min(blocks, 2))
        memory = problem.workload.nbytes / device.dram_bytes_per_s
        seconds = max(cycles / device.cycles_per_s, memory) + _FILL_S
        found.append(Candidate.of("cuda.pooled_stem", knobs, seconds))
    return found
