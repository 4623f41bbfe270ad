"""The default schedule: a plain parallel and vectorised loop nest, always applicable. Gains are reported against it.

Candidates are compared with what it computes. So very long sums are sums of sums: of a million and a half float32, one
added after the other, four digits are right.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.family import LIBM, CPUProblem
from subtune.core.kernel import Kernel
from subtune.tir.blocks import all_blocks, is_costly
from subtune.tir.tile import vector_width

_MIN_VECTOR = 4  # elements
_LONG_SUM = 65536  # elements that are not added one after the other
_ROWS = 8  # of results at most, that share the operand which differs along the columns
_MAX_VECTOR_TAIL = 64  # elements: an innermost loop up to this long that lanes do not divide is one vector


@dataclass(frozen=True, slots=True)
class Knobs:
    """None."""


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel:
    """Inline what can be inlined; then each stage is one loop nest, parallel outside, vectorised inside.

    A sum is of a few rows at a time, each in the order that it has alone: of a product with 128 rows, a weight is read
    from memory 16 times in place of 128. What takes seconds a run leaves a short budget no time for candidates.
    """
    try:
        sch = Schedule(problem.workload.func)
        blocks = all_blocks(sch)
    except (ScheduleError, ValueError):  # not made of schedulable blocks: a sort, a scan
        return Kernel(problem.workload.func)
    outputs = {sch.get(b).name_hint for b in sch.get_output_blocks(sch.get_sblock("root"))}
    for name in [sch.get(b).name_hint for b in blocks]:
        block = sch.get_sblock(name)
        # a function that several stages read is computed once: a chain of n GELUs would call it 2 ** n times
        is_repeated = is_costly(sch.get(block)) and len(sch.get_consumers(block)) > 1 and not _is_pad(sch, block)
        if name not in outputs and not _reduction_axes(sch, block) and not _is_pad(sch, block) and not is_repeated:
            sch = _attempt(sch, lambda s, n: s.compute_inline(s.get_sblock(n)), name)
    for name in [sch.get(b).name_hint for b in all_blocks(sch)]:
        sch = _attempt(sch, _in_parts, name)
    for name in [sch.get(b).name_hint for b in all_blocks(sch)]:
        sch = _attempt(sch, lambda s, n: _nest(s, n, problem.device), name)
    return Kernel(sch.mod["main"], (), sch.trace)


def _attempt(sch: Schedule, step: Any, name: str) -> Schedule:
    """`step` on a copy; the schedule before it when it is refused."""
    trial = sch.copy()
    try:
        step(trial, name)
    except (ScheduleError, ValueError):  # a fused loop of more iterations than int32 counts is a ValueError
        return sch
    return trial


def _in_parts(sch: Schedule, name: str) -> None:
    """Make a long sum one of sums, each over all reduced axes but the outermost one, or over a part of the only one."""
    block = sch.get_sblock(name)
    axes = _reduction_axes(sch, block)
    loops = [sch.get_loops(block)[i] for i in axes]
    extents = [sch.get(loop).extent for loop in loops]
    if not axes or len(sch.get_loops(block)) != len(sch.get(block).iter_vars) or not _is_sum(sch.get(block)):
        return
    if not all(isinstance(extent, tirx.IntImm) for extent in extents) or prod(map(int, extents)) < _LONG_SUM:
        return
    outermost, *others = [loop for loop, extent in zip(loops, extents, strict=True) if int(extent) > 1]
    if not others:
        length = int(sch.get(outermost).extent)
        parts = next((n for n in range(isqrt(length), 1, -1) if length % n == 0), 1)
        outermost, _ = sch.split(outermost, [parts, None])
    part = sch.get(outermost).loop_var.name
    for one in (sch.rfactor(outermost, 0), block):
        _outermost(sch, one, part)


def _outermost(sch: Schedule, block: Any, name: str) -> None:
    """Loops in the order of the axes, of which that of the parts is the first: the columns stay the innermost."""
    loops = sch.get_loops(block)
    sch.reorder(*sorted(loops, key=lambda loop: sch.get(loop).loop_var.name != name))


def _is_sum(block: Any) -> bool:
    value = getattr(block.body, "value", None)
    return isinstance(value, tirx.Add) and str(value.ty.dtype) == "float32"


def _nest(sch: Schedule, name: str, device: CPUModel) -> None:
    block = sch.get_sblock(name)
    loops = sch.get_loops(block)
    reduction = _reduction_axes(sch, block)
    kinds = [int(iv.iter_type) for iv in sch.get(block).iter_vars]
    if len(loops) != len(kinds) or any(kind not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce) for kind in kinds):
        return  # loops that carry something: leave them
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    reduce = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
    if not spatial:
        return
    lanes = device.lanes()
    *outer, last = spatial
    extent = sch.get(last).extent
    vector = None
    if isinstance(extent, tirx.IntImm) and _is_contiguous(sch, block) and _vectorises(sch.get(block)):
        if (width := vector_width(int(extent), lanes)) >= _MIN_VECTOR:
            last, vector = sch.split(last, [None, width])
            outer = [*outer, last]
        elif int(extent) <= _MAX_VECTOR_TAIL and int(extent) > 1 and outer:
            vector = last
    if vector is None:
        outer = spatial
    rows = None
    if vector is not None and reduction and len(outer) > 1:
        outer, rows = _with_rows(sch, outer)
    sch.reorder(*outer, *reduce, *([rows] if rows is not None else []), *([vector] if vector is not None else []))
    fused = sch.fuse(*outer)
    if rows is not None:
        sch.unroll(rows)
    sch.parallel(fused)
    if vector is not None:
        sch.vectorize(vector)
    if reduction:
        sch.decompose_reduction(block, reduce[0])


def _with_rows(sch: Schedule, outer: list[Any]) -> tuple[list[Any], Any]:
    """The loops without a few rows of the last one before the columns, which share what they read; None: no rows."""
    *first, row, last = outer
    extent = sch.get(row).extent
    count = next((n for n in range(_ROWS, 1, -1) if isinstance(extent, tirx.IntImm) and int(extent) % n == 0), 1)
    if count == 1:
        return outer, None
    row, rows = sch.split(row, [None, count])
    return [*first, row, last], rows


def _reduction_axes(sch: Schedule, block: Any) -> list[int]:
    return [i for i, iv in enumerate(sch.get(block).iter_vars) if int(iv.iter_type) == tirx.IterVar.CommReduce]


def _is_contiguous(sch: Schedule, block: Any) -> bool:
    """Whether the innermost spatial axis runs along the innermost dim of what the block writes."""
    node = sch.get(block)
    spatial = [iv.var for iv in node.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
    writes = node.writes
    return len(writes) == 1 and len(writes[0].region) > 0 and bool(writes[0].region[-1].min.same_as(spatial[-1]))


def _vectorises(block: Any) -> bool:
    """This TVM cannot lower vector stores of the types that it stores as integers of another width."""
    dtypes = {str(region.source.dtype) for region in (*block.reads, *block.writes)}
    return not any(dtype.startswith(("float8", "float6", "float4")) for dtype in dtypes)


def _is_pad(sch: Schedule, block: Any) -> bool:
    return "if_then_else" in str(sch.get(block).body) and bool(sch.get_consumers(block))


FAMILY = Family(
    "default", 5, Knobs, lambda problem: "every search begins with it", lambda problem: (), schedule, (LIBM,)
)
