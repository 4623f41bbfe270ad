"""Candidates for a product with numbers of its rows: those of the product, whose tiles have rows side by side."""

from __future__ import annotations

from dataclasses import replace

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.candidates import of_product
from subtune.backends.cuda.families.wgmma.schedule import WgmmaKnobs
from subtune.backends.cuda.families.wgmma.store_copies import copied_bytes, product_alone
from subtune.backends.cuda.families.wgmma.tiling import Tiling, wgmma_obstacle
from subtune.backends.cuda.families.wgmma_rows.schedule import tiling_obstacle
from subtune.core.candidate import Candidate
from subtune.patterns.contraction import Contraction
from subtune.patterns.recognise import recognise
from subtune.patterns.row_product import RowProduct
from subtune.tir.row_moments import COLUMNS

_NUMBERS_S, _MOMENTS_S = 0.3e-6, 0.3e-6  # of the last tile, behind which nothing is multiplied
_FETCHED = 2  # a bias, and the scale of a norm


def accepts(problem: Problem[CUDAModel]) -> str:
    if why := wgmma_obstacle(problem):
        return why
    pattern = product_alone(problem).pattern
    if not isinstance(pattern, RowProduct):
        return "no product with numbers of its rows"
    return "" if isinstance(recognise(pattern.front), Contraction) else "no product that wgmma knows"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    copied, problem = copied_bytes(problem), product_alone(problem)
    pattern, found = problem.pattern, []
    more = _NUMBERS_S * bool(pattern.numbers) + _MOMENTS_S * pattern.has_moments
    for candidate in of_product(replace(problem, workload=pattern.front), copied):
        knobs = candidate.as_knobs(WgmmaKnobs)
        if not isinstance(knobs, WgmmaKnobs) or (pattern.has_moments and knobs.columns % COLUMNS):
            continue
        while (why := _obstacle(problem, knobs.tiling)) and knobs.stages > 2:
            knobs = replace(knobs, stages=knobs.stages - 1)
        if not why:
            found.append(Candidate.of("cuda.wgmma_rows", knobs, candidate.predicted_s + more))
    return found


def _obstacle(problem: Problem[CUDAModel], tiling: Tiling) -> str:
    fetched = _FETCHED if problem.pattern.numbers else 0
    found = (tiling_obstacle(problem.pattern, tiling, problem.device, stored, fetched) for stored in _STORED)
    return next((why for why in found if why), "")


_STORED = ("float32", "float16")
