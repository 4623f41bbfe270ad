"""Rowwise subgraphs: softmax, normalisations, reductions along the innermost axes; a row stays in cache.

for rows (parallel):
  for each stage:  over the row, vectorised; reductions keep `unroll` vectors of partial results
                   and take what is computed for them and others (softmax's exp) while it is in registers

With the knob `ahead`, rows to come are asked for while this one is computed with (`prefetch.prefetch_coming_rows`).
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.loops.prefetch import prefetch_coming_rows
from subtune.backends.cpu.math.horizontal import fold_partials
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.tir.blocks import all_blocks, is_costly, is_reduction
from subtune.tir.expressions import variables
from subtune.tir.padding import pad_reductions
from subtune.tir.tile import extent_of, vector_width


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    unroll, lanes = int(candidate["unroll"]), device.lanes()
    sch = Schedule(workload.func)
    try:
        outputs = [sch.get(b).name_hint for b in sch.get_output_blocks(sch.get_sblock("root"))]
        if len(outputs) != 1:
            return NotApplicable("more than one output")
        inline_cheap(sch, outputs[0])
        padded = pad_reductions(sch.mod["main"], lanes * unroll)
        if padded is not None:
            sch = Schedule(padded)
        ahead = bool(candidate.get("ahead"))
        return _schedule(sch, outputs[0], unroll, lanes, candidate.is_serial, padded is None, ahead)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(
    sch: Schedule, output_name: str, unroll: int, lanes: int, is_serial: bool, exportable: bool, ahead: bool
) -> Kernel | NotApplicable:
    reductions = [b for b in all_blocks(sch) if is_reduction(sch.get(b))]
    if not reductions:
        return NotApplicable("no reduction")
    rows = min(_count(sch, block, tirx.IterVar.DataPar) for block in reductions)
    if rows == 0 or any(_count(sch, block, tirx.IterVar.DataPar) != rows for block in reductions):
        return NotApplicable("the reductions do not share their rows")

    kinds = sch.get(reductions[0]).iter_vars
    length = prod(int(iv.dom.extent) for iv in kinds if int(iv.iter_type) == tirx.IterVar.CommReduce)
    output = sch.get_sblock(output_name)
    if not is_reduction(sch.get(output)) and any(axis >= rows for axis in kept_axes(sch, output, reductions)):
        return NotApplicable("the output's rows are not its outermost axes")
    partials = [name for block in reductions if (name := _split_reduction(sch, block, rows, unroll, lanes))]
    output = sch.get_sblock(output_name)
    if is_reduction(sch.get(output)):
        output = sch.cache_write(output, 0, "local")
    names = [sch.get(b).name_hint for b in all_blocks(sch)]
    totals = [name for name in names if is_reduction(sch.get(sch.get_sblock(name)))]
    if not _split_groups(sch, output, reductions[0], rows):
        return NotApplicable("the output's rows are not those of the reductions")
    fused = sch.fuse(*sch.get_loops(output)[:rows])
    if not is_serial:
        sch.parallel(fused)
    for name in reversed(names):
        if name != sch.get(output).name_hint:
            sch.compute_at(sch.get_sblock(name), fused)
    for name in names:
        block = sch.get_sblock(name)
        if name in partials:
            _accumulate(sch, block, lanes)
        elif not is_reduction(sch.get(block)):
            _map(sch, block, lanes)
            if name != sch.get(output).name_hint:
                sch.set_scope(block, 0, "local")  # on the stack, if it fits: memory from the pool costs a call a row
    folded = fold_partials(sch.mod["main"], [name for name in totals if name not in partials], lanes)
    if ahead:
        if not partials:
            return NotApplicable("rows too short to be asked for ahead")
        folded = prefetch_coming_rows(folded, f"{partials[0]}_update", length)
    return Kernel(folded, (), sch.trace if exportable and not partials else None)


def inline_cheap(sch: Schedule, output_name: str) -> None:
    """Inline elementwise stages; one with a function call (exp) that several stages read is computed once."""
    for name in [sch.get(b).name_hint for b in all_blocks(sch)]:
        block = sch.get_sblock(name)
        node = sch.get(block)
        if name == output_name or is_reduction(node):
            continue
        if is_costly(node) and len(sch.get_consumers(block)) > 1:
            continue
        sch.compute_inline(block)


def kept_axes(sch: Schedule, output: Any, reductions: list[Any]) -> list[int]:
    """The output's axes that index what a reduction computed: those that are not reduced."""
    reduced = [region.source for b in reductions for region in sch.get(b).writes]
    made: list[Any] = list(reduced)
    for block in all_blocks(sch):  # what is computed from reductions alone (a group's mean for each channel) as well
        node = sch.get(block)
        if node.reads and all(any(r.source.same_as(b) for b in made) for r in node.reads):
            made += [region.source for region in node.writes]
    node = sch.get(output)
    if any(node.writes[0].source.same_as(b) for b in made):
        return list(range(len(node.iter_vars)))
    axes = {iv.var: i for i, iv in enumerate(node.iter_vars)}
    found: set[int] = set()
    for region in node.reads:
        if any(region.source.same_as(b) for b in made):
            used = variables([dim.min for dim in region.region])
            found |= {axes[var] for var in used if var in axes}
    return sorted(found)


def _count(sch: Schedule, block: Any, kind: int) -> int:
    return sum(int(iv.iter_type) == kind for iv in sch.get(block).iter_vars)


def _map(sch: Schedule, block: Any, lanes: int) -> None:
    loops = sch.get_loops(block)[1:]
    if not loops:
        return
    width = vector_width(extent_of(sch, loops[-1]), lanes)
    if width > 1:
        _, vec = sch.split(loops[-1], [None, width])
        sch.vectorize(vec)


def _split_groups(sch: Schedule, output: Any, reduction: Any, rows: int) -> bool:
    """Make the output's outermost loops the reductions' rows, where those are groups of its rows (group norm)."""
    kinds = sch.get(reduction).iter_vars
    extents = [int(iv.dom.extent) for iv in kinds if int(iv.iter_type) == tirx.IterVar.DataPar]
    loops = sch.get_loops(output)[:rows]
    for i, (loop, extent) in enumerate(zip(loops, extents, strict=True)):
        if extent_of(sch, loop) == extent:
            continue
        if i != rows - 1 or extent_of(sch, loop) % extent:
            return False
        sch.split(loop, [extent, None])
    return True


def _split_reduction(sch: Schedule, block: Any, rows: int, unroll: int, lanes: int) -> str | None:
    """Give the reduction `unroll` vectors of partial results; the name of the block that computes them."""
    reduce = sch.get_loops(block)[rows:]
    fused = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
    extent = extent_of(sch, fused)
    width = vector_width(extent, lanes * unroll)
    while width * 2 > extent:  # a loop over the row must remain
        width //= 2
    if width < lanes // 2:
        return None
    _, inner = sch.split(fused, [None, width])
    return str(sch.get(sch.rfactor(inner, rows)).name_hint)


def _accumulate(sch: Schedule, partial: Any, lanes: int) -> None:
    """Partial results live in registers: the loop over the row outside, the vectors inside."""
    ko, ki = _last_two(sch, partial)
    ko = _at_producer(sch, partial, ko, ki)
    ki = sch.get_loops(partial)[-1]
    if extent_of(sch, ki) > lanes:
        kv, vec = sch.split(ki, [None, lanes])
        sch.unroll(kv)
    else:
        vec = ki
    sch.vectorize(vec)
    sch.set_scope(partial, 0, "local")
    sch.decompose_reduction(partial, ko)


def _at_producer(sch: Schedule, partial: Any, ko: Any, ki: Any) -> Any:
    """What is computed to be summed, softmax's exp, is summed as it is computed; the loop over the row that is left."""
    maps = [p for p in sch.get_producers(partial) if not is_reduction(sch.get(p)) and len(sch.get_loops(p)) == 3]
    if len(maps) != 1:
        return ko
    _, steps, vec = sch.get_loops(maps[0])
    inner, left = divmod(extent_of(sch, ki), extent_of(sch, vec))
    if left or extent_of(sch, steps) != extent_of(sch, ko) * inner:
        return ko
    at, inner_loop = sch.split(steps, [None, inner])
    sch.unroll(inner_loop)
    sch.reverse_compute_at(partial, at)
    return at


def _last_two(sch: Schedule, partial: Any) -> tuple[Any, Any]:
    """The loop over the row and the loop over the partial results, the latter moved inside."""
    node = sch.get(partial)
    loops = sch.get_loops(partial)[-2:]
    last_is_spatial = int(node.iter_vars[-1].iter_type) == tirx.IterVar.DataPar
    ko, ki = (loops[0], loops[1]) if last_is_spatial else (loops[1], loops[0])
    sch.reorder(ko, ki)
    return ko, ki
