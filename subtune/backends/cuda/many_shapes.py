"""Candidates for one instance, as kernels for many shapes are written of them.

A kernel is made of what it has in common at several instances, all of many tiles. What a policy would do where tiles
are few has to be said: blocks of one tile each, as many as there are tiles, begin and end sooner than those that look
for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.attention.tiling import Knobs as AttentionKnobs
from subtune.backends.cuda.families.attention.walk import SECTION_BYTES
from subtune.backends.cuda.families.attention_mma.tiling import Knobs as AttentionMmaKnobs
from subtune.backends.cuda.families.wgmma.schedule import WgmmaKnobs
from subtune.core.candidate import Candidate
from subtune.patterns.contraction import Contraction


def for_many_shapes(problem: Problem[CUDAModel], candidate: Candidate) -> Sequence[Candidate]:
    """See `Backend.for_many_shapes`."""
    is_small = problem.workload.nbytes <= SECTION_BYTES
    if candidate.family == "cuda.attention_mma":
        knobs_mma = candidate.as_knobs(AttentionMmaKnobs)
        assert isinstance(knobs_mma, AttentionMmaKnobs)
        return (Candidate.of(candidate.family, replace(knobs_mma, across=is_small), candidate.predicted_s),)
    if candidate.family == "cuda.attention":
        attention = candidate.as_knobs(AttentionKnobs)
        assert isinstance(attention, AttentionKnobs)
        across = replace(attention, across=is_small)
        apart = replace(across, persistent=False)
        both = [apart, across] if attention.persistent else [apart]
        return [Candidate.of(candidate.family, one, candidate.predicted_s) for one in both]
    if candidate.family == "cuda.wgmma":
        knobs = candidate.as_knobs(WgmmaKnobs)
        assert isinstance(knobs, WgmmaKnobs)
        knobs = replace(knobs, few=_may_lack_rows(problem, knobs), fitted=knobs.split == 1)
        ways = [knobs]
        if knobs.split == 1 and _tiles(problem, knobs) <= problem.device.sms * knobs.blocks_per_sm:
            ways.insert(0, replace(knobs, single=True, fitted=False))
        return [Candidate.of(candidate.family, one, candidate.predicted_s) for one in ways]
    return (candidate,)


def _may_lack_rows(problem: Problem[CUDAModel], knobs: WgmmaKnobs) -> bool:
    """Whether an instance has fewer rows than a tile, and plain ones: zeros in their place are slow to copy."""
    found, tiling = problem.pattern, knobs.tiling
    if not isinstance(found, Contraction) or knobs.swapped or knobs.boxes > 1 or knobs.taps > 1 or knobs.resident:
        return False
    rows = found.of_role("m")
    return len(rows) == 1 and not any(found.a.windows) and rows[0].extent < tiling.m


def _tiles(problem: Problem[CUDAModel], knobs: WgmmaKnobs) -> float:
    """About how many tiles an instance has."""
    found = problem.pattern
    if not isinstance(found, Contraction):
        return float("inf")
    rows, others = (prod(axis.extent for axis in found.of_role(role)) for role in ("m", "batch"))
    return others * ceil(rows / knobs.tiling.m) * ceil(found.n.extent / knobs.columns)
