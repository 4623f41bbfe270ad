"""Candidates for a product whose rows are normalised: rows of a tile, and how many blocks share the columns."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.candidates import fitted, is_misaligned, predict
from subtune.backends.cuda.families.wgmma.tiling import Tiling, wgmma_obstacle
from subtune.backends.cuda.families.wgmma_normed.schedule import NormedKnobs
from subtune.backends.cuda.families.wgmma_normed.store import Meetings
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.numerics import HALVES
from subtune.patterns.contraction import contraction
from subtune.patterns.gemm_view import gemm_view
from subtune.patterns.normed import Normed
from subtune.patterns.stages import anchored

_ACROSS = range(1, 9)
_MOST_COLUMNS = 256
_TOTAL_S = 0.5e-6  # of a total: the way to the other blocks and back
_ELEMENT_CYCLES = 12.0  # of 32 elements of a warp, for each term and for the result
_SWAPPED = ((2, 128), (3, 192), (2, 256))  # consumers, and columns of a tile of swapped operands
_MOST_SUMS = {2: 112, 3: 72}  # registers of a thread; more leave none for what else it holds
_FEWER = 6  # clusters than there are multiprocessors for


def accepts(problem: Problem[CUDAModel]) -> str:
    if why := wgmma_obstacle(problem):
        return why
    pattern = problem.pattern
    if not isinstance(pattern, Normed):
        return "no norm of a product's rows"
    return "" if pattern.front.args[0].dtype in HALVES else "no product of halves"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Tiles of 64 and 128 rows, with all columns in as many blocks as can be."""
    pattern, device = problem.pattern, problem.device
    read = anchored(pattern.front, contraction)
    if isinstance(read, NotApplicable):
        return []
    info = read[2]
    view = gemm_view(info)
    if isinstance(view, NotApplicable) or is_misaligned(view, info.a.dtype) or len(view.rows) > 1 or view.batch:
        return []
    rows = view.extent(*view.rows)
    found = []
    for plain in _tilings(rows, pattern.columns, device):
        for shares in (False, True) if plain.across > 1 else (False,):
            tiling = _fitted(replace(plain, shares=shares), device)
            if tiling is None:
                continue
            # warp instructions of each of a multiprocessor's quarters
            elements = tiling.m * tiling.columns / 32 / 4
            normed = (len(pattern.terms) + 1) * elements * _ELEMENT_CYCLES / device.cycles_per_s
            seconds = predict(view, tiling, pattern.front, device, info.a.dtype) + normed
            seconds += len(pattern.terms) * _TOTAL_S
            knobs = NormedKnobs(tiling.m, tiling.across, tiling.stages, tiling.consumers, shares, tiling.swapped)
            found.append(Candidate.of("cuda.wgmma_normed", knobs, seconds))
    return found


def _tilings(rows: int, columns: int, device: CUDAModel) -> list[Tiling]:
    """All columns in the blocks of a cluster; of swapped operands as many rows as fill the multiprocessors best."""
    found = []
    for across, consumers in product(_ACROSS, (1, 2)):
        width, rest = divmod(columns, across)
        if not rest and width % 16 == 0 and width <= _MOST_COLUMNS:
            found.append(Tiling((64 * consumers,), width, 2, consumers, across=across))
    for consumers, width in _SWAPPED:
        across, rest = divmod(columns, width)
        if rest or across > max(_ACROSS):
            continue
        clusters = max(1, device.sms // across)
        most = _MOST_SUMS[consumers] * consumers * 128 // width // 16 * 16
        waves = ceil(rows / (clusters * most))
        for fewer in range(min(_FEWER, clusters)):  # the last ones may have no place
            height = ceil(ceil(rows / (waves * (clusters - fewer))) / 16) * 16
            if height <= most:
                found.append(Tiling((height,), width, 2, consumers, swapped=True, across=across))
    return list(dict.fromkeys(found))


def _fitted(tiling: Tiling, device: CUDAModel) -> Tiling | None:
    """`tiling` with as many stages as fit beside what the blocks send one another."""
    room = device.shared_per_block_bytes - Meetings(tiling).nbytes
    return fitted(tiling, replace(device, shared_per_block_bytes=room))
