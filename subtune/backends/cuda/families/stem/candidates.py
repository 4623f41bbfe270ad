"""Candidates for a network's first convolution on Hopper: rows of pixels to a block, warpgroups, blocks."""

from __future__ import annotations

from itertools import product
from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.candidates import is_misaligned, multiplied_obstacle
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.patterns.gemm_view import gemm_view

_MAX_CHANNELS = 8
_MAX_ROWS = 16
_LOAD_CYCLES = 12.0  # of a warp per 32 words of the patch: index, bounds, load, store
_FILL_S = 3e-6
_MAX_COPIED = 256  # elements of 8 bytes in a row that is copied at once
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
    if anchor.a.dtype not in ("float16", "bfloat16") or not anchor.b.is_constant or view.packs:
        return []
    if len(view.a) not in (3, 4) or len(view.steps) != 2 or view.a[-1].extent > _MAX_CHANNELS:
        return []
    *images, oh, ow = (view.groups[g].extent for g in view.rows)
    kh, kw = (view.groups[g].extent for g in view.steps)
    columns, channels, stride = view.extent(view.n), view.a[-1].extent, view.a[-2].scale
    if columns % 16 or columns > 256 or stride * channels % 2:
        return []
    row = ceil((1 + kw * channels) / 8) * 8
    pitch = ceil((6 + (ow - 1) * stride * channels + row) / 8) * 4
    weights = columns * ceil(kh * row / 64) * 128
    memory = workload.nbytes / device.dram_bytes_per_s
    is_copied = view.a[-2].extent * channels % 8 == 0 and pitch // 2 <= _MAX_COPIED
    found = []
    for rows, groups, blocks in product(range(1, min(oh, _MAX_ROWS) + 1), (1, 2), (1, 2, 3, 4)):
        if oh % rows or rows * ow % (64 * groups):
            continue
        patch = ((rows - 1) * stride + kh + 1) * pitch
        shared = weights + (2 if is_copied else 1) * patch * 4 + groups * 64 * (64 + 8) * 2 + 2048
        if shared > device.shared_per_block_bytes or blocks * (shared + 1024) > device.shared_per_sm_bytes:
            continue
        if columns // 2 + ceil(kh * row / 16) * 4 + 48 > min(255, 65536 // (128 * groups * blocks)):
            continue
        count = (images[0] if images else 1) * oh // rows
        load = 0.0 if is_copied else patch / 32 * _LOAD_CYCLES / 4
        again = (kh + 1 - stride) / (rows * stride)  # rows that the tile before has had as well
        multiply = 2.0 * rows * ow * columns * kh * row * device.sms * device.cycles_per_s / device.mma_flops("float16")
        exposed = (load + 2 * multiply) / min(blocks * (groups if is_copied else 1), _AT_ONCE)
        busy = ceil(count / device.sms) * exposed / device.cycles_per_s
        seconds = max(busy, memory * (1 + _AGAIN * again)) + _FILL_S
        found.append(Candidate.make("cuda.stem", seconds, rows=rows, groups=groups, blocks_per_sm=blocks))
    return found
