"""Candidates for one instance, as kernels for many shapes are written of them.

A tile for one instance is as high as wastes none of its rows. Kernels for many take tiles of a few heights, of which
one wastes little anywhere: all with the same packed weights, so that each costs its code alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from math import prod

from subtune.backends.base import Problem
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.amx import candidates as amx
from subtune.backends.cpu.families.strassen import candidates as strassen
from subtune.backends.cpu.family import CPUFamily
from subtune.core.candidate import Candidate

_HEIGHTS = (4, 5, 6, 7)
"""Of 8 rows and more one of them computes a ninth too much at most, of 38 and more a thirteenth."""
_PASSES = (1, 2, 4, 16)
_MANY_TILES = 16
"""In a column of tiles: the last of them counts no more."""


def for_many_shapes(
    problem: Problem[CPUModel], candidate: Candidate, families: Sequence[CPUFamily]
) -> Sequence[Candidate]:
    """See `Backend.for_many_shapes`. Weights are in panels of one vector, of which a tile takes several."""
    kind = next(family.knobs for family in families if family.name == candidate.family)
    if kind is amx.Knobs:
        return (_asking_in_few_passes(problem, candidate),)
    is_packed = any(arg.is_constant and len(arg.shape) > 1 for arg in problem.workload.args)
    if not is_packed or "panel" not in (knob.name for knob in fields(kind)):
        return (candidate,)
    decided = {**dict(candidate.knobs), "panel": problem.device.lanes()}
    paneled = Candidate.make(candidate.family, candidate.predicted_s, **decided)
    knobs = paneled.as_knobs(kind)
    return _of_all_heights(problem, paneled, knobs) if isinstance(knobs, strassen.Knobs) else (paneled,)


def _asking_in_few_passes(problem: Problem[CPUModel], candidate: Candidate) -> Candidate:
    """As many as the instance has of them, but a number that many kernels share."""
    knobs = candidate.as_knobs(amx.Knobs)
    assert isinstance(knobs, amx.Knobs)
    if knobs.order != "n":  # the blocks that share a panel are counted by another knob
        return candidate
    blocks = -(-problem.pattern.of_role("m")[-1].extent // knobs.tile_rows)
    passes = max(one for one in _PASSES if one <= max(blocks, 1))
    return Candidate.of(candidate.family, replace(knobs, passes=passes), candidate.predicted_s)


def _of_all_heights(problem: Problem[CPUModel], candidate: Candidate, knobs: strassen.Knobs) -> Sequence[Candidate]:
    """Where few tiles are above each other."""
    rows = prod(axis.extent for axis in problem.pattern.of_role("m")) / 2**knobs.levels
    if rows > _MANY_TILES * knobs.mr:
        return (candidate,)
    return [one for mr in _HEIGHTS if (one := strassen.of_height(problem, knobs, mr))] or (candidate,)
