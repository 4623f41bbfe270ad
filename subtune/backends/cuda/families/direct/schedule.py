"""Any single reduction on a GPU, straight from memory: sums in registers, what neighbours share comes from the cache.

    a thread: `rows` x `lanes` neighbouring results;  for the reduced axes:  their operands, then all their sums

`share` threads have every `share`-th element of the same sums each, and put them together with shuffles: where there
are few results. No shared memory, no layout that must divide: what other families refuse ends here.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.source.combiner import combiner_of
from subtune.backends.cuda.source.emit import Code, const, load, prim_func
from subtune.backends.cuda.source.lanes import (
    Lanes,
    Unsupported,
    decoded,
    not_applicable,
    rounded,
    wide,
)
from subtune.backends.cuda.source.packed import Packed
from subtune.backends.cuda.source.results import Results
from subtune.backends.cuda.source.totals import totals_along
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.single import Single, single
from subtune.patterns.stages import Stages, anchored


@dataclass(frozen=True, slots=True)
class DirectKnobs:
    """`threads` of a block, `lanes` x `rows` results of a thread, `share` threads of a sum, `unroll` of its elements
    at a time.
    """

    threads: int
    lanes: int
    rows: int = 1
    share: int = 1
    unroll: int = 1


def schedule(problem: Problem[CUDAModel], knobs: DirectKnobs) -> Kernel | NotApplicable:
    try:
        found = anchored(problem.workload, single)
        if isinstance(found, NotApplicable):
            return found
        sch, stages, info = found
        for pad in stages.producers:
            sch.compute_inline(pad)
        return _schedule(sch, stages, info, knobs, problem.numerics.exact)
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


def _schedule(sch: Schedule, stages: Stages, info: Single, knobs: DirectKnobs, exact: bool) -> Kernel | NotApplicable:
    columns = info.kept[-1] if info.kept else 1
    if columns % knobs.lanes or knobs.threads % knobs.share or knobs.share & (knobs.share - 1):
        return NotApplicable(f"{knobs} does not divide {info.kept}")
    if knobs.rows > (info.kept[info.rows] if info.rows >= 0 else 1):
        return NotApplicable("more rows than there are")
    packed = Packed.of(sch.mod["main"], info.to_pack, len(info.kept) - 1)
    writer = _DirectWriter(sch.get(stages.anchors[0]), [sch.get(b) for b in stages.outputs], info, knobs, exact)
    return packed.kernel(prim_func(sch.mod["main"], [writer.write(packed)]))


class _DirectWriter:
    def __init__(self, anchor: Any, outputs: list[Any], info: Single, knobs: DirectKnobs, exact: bool) -> None:
        self._anchor, self._info, self._knobs = anchor, info, knobs
        self._code = code = Code(exact)
        self._results = Results(code, anchor, outputs, info.kept)
        self._lane = code.variable("lane", knobs.lanes)
        self._dtype = wide(str(anchor.body.buffer.dtype))
        self._combiner = combiner_of(anchor)
        self._kept = [iv.var for iv in anchor.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
        self._reduced = [iv.var for iv in anchor.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]

    def write(self, packed: Packed) -> Any:
        code, knobs, lanes = self._code, self._knobs, self._knobs.lanes
        places, thread, group = self._places()
        count = len(places) * lanes
        (sums,) = self._combiner.begin(code, count, "sum")
        self._accumulate(packed.moved(self._combiner.elements[0]), places, sums, thread)
        if knobs.share > 1:
            shared_by = thread, group, knobs.threads // knobs.share
            (sums,) = totals_along(code, [sums], count, 1, knobs.share, shared_by, self._combiner)
        reader = Lanes(code, self._lane, lanes, self._results.known)
        with code.when(tirx.EQ(thread, const(0)) if knobs.share > 1 else None):
            for number, place in enumerate(places):
                self._results.store(reader, place, load(sums, const(number * lanes) + self._lane))
        return code.kernel()

    def _places(self) -> tuple[list[list[Any]], Any, Any]:
        """Indices of the thread's results, one list for a row; its number among those that share, and its group's."""
        code, knobs, info = self._code, self._knobs, self._info
        *outer, columns = info.kept or (1,)
        tiles = [-(-extent // knobs.rows) if d == info.rows else extent for d, extent in enumerate(outer)]
        tiles.append(columns // knobs.lanes)
        total, groups = prod(tiles), knobs.threads // knobs.share
        bx, thread = code.thread("blockIdx.x", -(-total // groups)), code.thread("threadIdx.x", knobs.share)
        group = code.thread("threadIdx.y", groups)
        item = bx * groups + group  # past the end the last one again, which is stored twice
        item = code.bind("item", tirx.min(item, const(total - 1)) if total % groups else item, total)
        *firsts, chunk = decoded(item, tiles, code.analyzer)
        firsts = [code.bind("i", first, extent) for first, extent in zip(firsts, tiles, strict=False)]
        column = code.bind("chunk", chunk, columns // knobs.lanes) * knobs.lanes + self._lane
        if not info.kept:
            return [[]], thread, group
        if info.rows < 0:
            return [[*firsts, column]], thread, group
        extent = info.kept[info.rows]
        ids = [firsts[info.rows] * knobs.rows + r for r in range(knobs.rows)]
        if extent % knobs.rows:  # past the end the last one again: right where a tile has more than there are, too
            ids = [tirx.min(row, const(extent - 1)) for row in ids]
        ids = [code.bind("row", row, extent) for row in ids]
        rows = [[*firsts[: info.rows], row, *firsts[info.rows + 1 :], column] for row in ids]
        return rows, thread, group

    def _accumulate(self, element: Any, places: list[list[Any]], sums: Any, thread: Any) -> None:
        """The sums of all elements, along the innermost reduced axis; along all at once where threads share them."""
        code, knobs, lanes = self._code, self._knobs, self._knobs.lanes
        axes, run = self._runs()
        step = knobs.share * knobs.unroll
        with ExitStack() as loops:
            outside = [loops.enter_context(code.serial(extent)) for extent in axes]
            k = loops.enter_context(code.serial(-(-prod(run) // step)))
            values = []
            for u in range(knobs.unroll):
                at, guard = (k * knobs.unroll + u) * knobs.share + thread, None
                if prod(run) % step:
                    at = code.bind("at", at, prod(run))  # true where the guard is
                    guard = tirx.LT(at, const(prod(run)))
                reader = Lanes(code, self._lane, lanes)
                indices = dict(zip(self._reduced, [*outside, *decoded(at, run, code.analyzer)], strict=True))
                with code.when(guard):
                    for number, place in enumerate(places):
                        value = reader.compute(element, indices | dict(zip(self._kept, place, strict=True)))
                        values.append((guard, reader, number, value))
            for guard, reader, number, value in values:
                with code.when(guard), code.unrolled(lanes) as v:
                    at = const(number * lanes) + v
                    x = rounded(reader.at(value, v), self._dtype)
                    self._combiner.add(code, [sums], at, [x])

    def _runs(self) -> tuple[list[int], list[int]]:
        """Extents of the reduced axes with a loop of their own, and of the rest, which is one run."""
        extents = list(self._info.reduced)
        if self._knobs.share > 1 or self._knobs.unroll == prod(extents):
            return [], extents
        inner = max((d for d, extent in enumerate(extents) if extent > 1), default=0)
        return extents[:inner], extents[inner:]
