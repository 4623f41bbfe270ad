"""Candidates for a network's first convolution on Hopper: rows of pixels to a block, warpgroups, blocks."""

from __future__ import annotations

from itertools import product
from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.stem.plan import StemKnobs, front
from subtune.backends.cuda.families.wgmma.candidates import is_misaligned, multiplied_obstacle
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.patterns.gemm_view import gemm_view

_MAX_ROWS = 16
_LOAD_CYCLES = 12.0  # of a warp per 32 words of the patch: index, bounds, load, store
_FILL_S = 3e-6
_AT_ONCE = 2  # of warpgroups: more do not multiply any faster
_AGAIN = 0.1  # of the time that memory takes: they come from L2


def accepts(problem: Problem[CUDAModel]) -> str:
    return multiplied_obstacle(problem)


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Every split of the output rows over blocks that fits; empty where the convolution has many channels."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    view = gemm_view(anchor)
    if isinstance(view, NotApplicable) or not is_misaligned(view, anchor.a.dtype):
        return []
    read = front(workload, problem)
    if isinstance(read, NotApplicable):
        return []
    one, columns = read.stem, read.columns
    oh, ow, kh, stride = one.out_height, one.out_width, one.kernel[0], one.stride
    memory = workload.nbytes / device.dram_bytes_per_s
    found = []
    for rows, groups, blocks in product(range(1, min(oh, _MAX_ROWS) + 1), (1, 2), (1, 2, 3, 4)):
        if oh % rows or rows * ow % (64 * groups):
            continue
        stem = read.rows(rows)
        is_copied, patch = stem.is_copied, stem.patch_words
        knobs, dtype = StemKnobs(rows, groups, blocks), anchor.a.dtype
        patches, exchange = (2 if is_copied else 1) * patch * 4, groups * 64 * (64 + 8) * 2
        if not read.fits(knobs, stem, patches + exchange, device):
            continue
        count = read.images * oh // rows
        load = 0.0 if is_copied else patch / 32 * _LOAD_CYCLES / 4
        again = (kh + 1 - stride) / (rows * stride)  # rows that the tile before has had as well
        flops = 2.0 * rows * ow * columns * stem.steps * 2 * stem.at_once
        multiply = flops * device.sms * device.cycles_per_s / device.mma_flops(dtype)
        exposed = (load + 2 * multiply) / min(blocks * (groups if is_copied else 1), _AT_ONCE)
        busy = ceil(count / device.sms) * exposed / device.cycles_per_s
        seconds = max(busy, memory * (1 + _AGAIN * again)) + _FILL_S
        found.append(Candidate.of("cuda.stem", knobs, seconds))
    return found
