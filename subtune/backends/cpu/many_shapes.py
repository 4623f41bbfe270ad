"""Candidates for one instance, as kernels for many shapes are written of them.

A tile for one instance is as high as wastes none of its rows. Kernels for many take tiles of a few heights, of which
one wastes little anywhere: all with the same packed weights, so that each costs its code alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.amx import candidates as amx
from subtune.backends.cpu.families.contraction import candidates as contraction
from subtune.backends.cpu.families.strassen import candidates as strassen
from subtune.backends.cpu.families.winograd import candidates as winograd
from subtune.backends.cpu.family import CPUFamily
from subtune.core.candidate import Candidate
from subtune.patterns.contraction import Contraction

_BLOCK_HEIGHTS = range(4, 15)
"""Of 8 rows and more one of the first four computes a ninth too much at most, of 38 and more a thirteenth. Higher ones
ask for less of the weights at a time."""
_SOME_HEIGHTS = 5
_SOME_MORE, _LOOKS = 1.6, 16
"""Times the rows of an instance, up to where others are that are not measured; and at how many of these is looked."""
_TILE_HEIGHTS = (10, 13, 16)
"""Of tile registers, whose products take 6 cycles and 0.6 a row: one of them is an eleventh too slow at most."""
_OF_L2 = 0.65
"""That A's tiles may take, beside B's panels."""
_FEW_BLOCKS = 3
"""For each thread: in blocks of another height one thread may have half of the work more than another."""
_MANY_TILES = 16
"""In a column of tiles: the last of them counts no more, and so many share what they ask for."""
_PASSES = (_MANY_TILES, 4, 2, 1)
"""Tiles that share prefetches, as far as an instance has them: few of these numbers, as each is a kernel of its own."""


def for_many_shapes(
    problem: Problem[CPUModel], candidate: Candidate, families: Sequence[CPUFamily]
) -> Sequence[Candidate]:
    """See `Backend.for_many_shapes`. Weights are in panels of one vector, of which a tile takes several."""
    kind = next(family.knobs for family in families if family.name == candidate.family)
    if kind is amx.Knobs:
        return _of_all_tiles(problem, candidate)
    found = _paneled(problem, candidate, kind)
    return [_shared_out(problem, one, kind) for one in found]


def _paneled(problem: Problem[CPUModel], candidate: Candidate, kind: type) -> Sequence[Candidate]:
    is_packed = any(arg.is_constant and len(arg.shape) > 1 for arg in problem.workload.args)
    if not is_packed and kind is contraction.Knobs:
        return (_of_single_tiles(candidate),)
    if not is_packed or "panel" not in (knob.name for knob in fields(kind)):
        return (candidate,)
    paneled = candidate.having(panel=problem.device.lanes())
    knobs = paneled.as_knobs(kind)
    if isinstance(knobs, strassen.Knobs):
        return _of_all_heights(problem, paneled, knobs)
    # one row is read once: panels of one vector are as many streams as a tile has, which memory gives more slowly
    return (paneled, candidate) if _has_one_row(problem) else (paneled,)


def _of_single_tiles(candidate: Candidate) -> Candidate:
    """Of a product of two inputs, whose rows are as many as its memory has: several tiles that are computed by one
    thread, one after the other, are the last ones at some shapes, and one is at fewer."""
    return candidate if int(candidate.get("mt") or 1) == 1 else candidate.having(mt=1)


def _shared_out(problem: Problem[CPUModel], candidate: Candidate, kind: type) -> Candidate:
    """The same, its prefetches shared out among as many tiles as this instance has, whatever another has."""
    is_known = any(knob.name == "passes" for knob in fields(kind))
    if not is_known or not candidate.get("prefetch") or candidate.get("passes"):
        return candidate
    axes = [axis.extent for axis in problem.pattern.of_role("m")]
    if kind is winograd.Knobs:
        axes[-2:] = [-(-extent // int(candidate["m"])) for extent in axes[-2:]]
    height = int(candidate.get("mb") or candidate.get("mr") or 1) * 2 ** int(candidate.get("levels") or 0)
    tiles = -(-prod(axes) // height)
    passes = next(of for of in _PASSES if of <= tiles)
    return candidate.having(passes=passes)


def _has_one_row(problem: Problem[CPUModel]) -> bool:
    found = problem.pattern
    return isinstance(found, Contraction) and prod(axis.extent for axis in found.of_role("m")) == 1


def _of_all_tiles(problem: Problem[CPUModel], candidate: Candidate) -> Sequence[Candidate]:
    """In tiles of several heights, where a block is one tile high. The next columns are asked for by as many blocks as
    it takes, or, where there are many, by more: by one of two numbers, as each makes a kernel of its own.
    """
    knobs = candidate.as_knobs(amx.Knobs)
    assert isinstance(knobs, amx.Knobs)
    if knobs.order in ("mn", "nm") and len(problem.pattern.of_role("m")) == 1:
        return ()  # blocks of both share what "m" and "n" do, and none was faster than these
    if knobs.order == "m" and len(problem.pattern.of_role("m")) == 1:
        of_many = Candidate.of(candidate.family, _of_many_rows(problem, knobs), candidate.predicted_s)
        rows, height = problem.pattern.of_role("m")[0].extent, knobs.mt * knobs.mr * knobs.rows
        # pixels of images are multiples of one image's; and few blocks are shared out evenly as they are, or not at all
        is_kept = rows % height == 0 or rows <= _FEW_BLOCKS * problem.device.threads * height
        return list(dict.fromkeys([candidate, of_many])) if is_kept else [of_many]
    if knobs.order != "n":
        return (candidate,)
    rows = problem.pattern.of_role("m")[-1].extent
    enough, found = knobs.least_passes(amx.parts_of(problem.pattern)), []
    heights = _TILE_HEIGHTS if knobs.mr == 1 and rows > _TILE_HEIGHTS[0] else (knobs.rows,)
    for height in sorted(heights, key=lambda one: -(-rows // (knobs.mr * one)) * amx.block_cycles(knobs.mr, 1, one)):
        blocks = -(-rows // (knobs.mr * height))
        passes = max(enough, _MANY_TILES) if blocks >= _MANY_TILES else enough
        found.append(replace(knobs, rows=height, passes=passes))
    return [Candidate.of(candidate.family, one, candidate.predicted_s) for one in found]


def _of_many_rows(problem: Problem[CPUModel], knobs: amx.Knobs) -> amx.Knobs:
    """Of highest tiles, of which as many share a panel as stay in L2: the last may be fewer, whatever the rows are."""
    whole = replace(knobs, rows=amx.ROWS, mt=1)
    held = whole.mr * amx.ROWS * amx.row_bytes(problem.pattern)
    while 2 * whole.mt * held <= _OF_L2 * problem.device.l2_bytes:
        whole = replace(whole, mt=2 * whole.mt)
    return whole


def _of_all_heights(problem: Problem[CPUModel], candidate: Candidate, knobs: strassen.Knobs) -> Sequence[Candidate]:
    """Where few tiles are above each other; what is fastest for this instance first, and then for those of some more
    rows, what is so for most of them first."""
    axes = [axis.extent for axis in problem.pattern.of_role("m")]
    rows = prod(axes)
    if len(axes) > 1:  # else a tile has pixels of two images, and each such kernel takes ten times as long to be made
        return (candidate,) if prod(axes[1:]) % (2**knobs.levels * knobs.mb) == 0 else ()
    if rows > _MANY_TILES * knobs.mr * 2**knobs.levels:
        return (candidate,)
    return _fastest(problem, replace(knobs, mr=0, nr=0, mb=0, order="", passes=0), rows) or (candidate,)


@lru_cache(maxsize=16)
def _fastest(problem: Problem[CPUModel], knobs: strassen.Knobs, rows: int) -> list[Candidate]:
    """The same for all candidates of an instance that share their weights."""
    fastest: Counter[Candidate] = Counter()
    for height in range(rows, ceil(_SOME_MORE * rows) + 1, max(1, rows // _LOOKS)):
        found = [one for mr in _BLOCK_HEIGHTS for one in strassen.of_any_rows(problem, knobs, height, mr)]
        if found:
            fastest[min(found, key=lambda one: one.predicted_s)] += rows if height == rows else 1
    return [one for one, _ in fastest.most_common(_SOME_HEIGHTS)]
