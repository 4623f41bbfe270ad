"""Candidates for a product whose rows are normalised: rows of a tile, which has all columns."""

from __future__ import annotations

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.candidates import fitted, is_misaligned, predict
from subtune.backends.cuda.families.wgmma.tiling import Tiling, wgmma_obstacle
from subtune.backends.cuda.families.wgmma_normed.schedule import NormedKnobs
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.numerics import HALVES
from subtune.patterns.contraction import contraction
from subtune.patterns.gemm_view import gemm_view
from subtune.patterns.normed import Normed
from subtune.patterns.stages import anchored

_ELEMENT_CYCLES = 12.0  # of 32 elements of a warp, for each term and for the result


def accepts(problem: Problem[CUDAModel]) -> str:
    if why := wgmma_obstacle(problem):
        return why
    pattern = problem.pattern
    if not isinstance(pattern, Normed):
        return "no norm of a product's rows"
    return "" if pattern.front.args[0].dtype in HALVES else "no product of halves"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Tiles of 64, 128 and 192 rows."""
    pattern, device = problem.pattern, problem.device
    read = anchored(pattern.front, contraction)
    if isinstance(read, NotApplicable):
        return []
    info = read[2]
    view = gemm_view(info)
    if isinstance(view, NotApplicable) or is_misaligned(view, info.a.dtype) or len(view.rows) > 1 or view.batch:
        return []
    found = []
    for consumers in (1, 2, 3):
        tiling = fitted(Tiling((64 * consumers,), pattern.columns, 2, consumers), device)
        if tiling is None:
            continue
        # warp instructions of each of a multiprocessor's quarters
        elements = tiling.m * tiling.columns / 32 / 4
        normed = (len(pattern.terms) + 1) * elements * _ELEMENT_CYCLES / device.cycles_per_s
        seconds = predict(view, tiling, pattern.front, device, info.a.dtype) + normed
        found.append(Candidate.of("cuda.wgmma_normed", NormedKnobs(tiling.m, tiling.stages, consumers), seconds))
    return found
