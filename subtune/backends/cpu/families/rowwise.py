"""Rowwise subgraphs: softmax, normalisations, reductions along the innermost axes; a row stays in cache.

for rows (parallel):
  for each stage:  over the row, vectorised; reductions keep `unroll` vectors of partial results
                   and take what is computed for them and others (softmax's exp) while it is in registers

With the knob `ahead`, rows to come are asked for while this one is computed with (`prefetch.prefetch_coming_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.families.products import fma_obstacle
from subtune.backends.cpu.family import MODE, PER_ROW, SERIAL, STREAMED, CPUProblem
from subtune.backends.cpu.loops.arg_extreme import in_two
from subtune.backends.cpu.loops.prefetch import prefetch_coming_rows
from subtune.backends.cpu.math.horizontal import fold_partials
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.contraction import Contraction
from subtune.patterns.rows import Rowwise
from subtune.tir.blocks import all_blocks, is_costly, is_reduction
from subtune.tir.expressions import variables
from subtune.tir.padding import pad_reductions
from subtune.tir.tile import extent_of, vector_width

_ROW_PASSES = 2.0  # that wait for a result of the row: the largest and the sum, or the mean and the variance


@dataclass(frozen=True, slots=True)
class Knobs:
    """Vectors of partial results per reduction."""

    unroll: int
    ahead: bool = field(default=False, metadata=MODE)
    serial: bool = field(default=False, metadata=MODE)
    stream: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    anchor = problem.pattern
    if isinstance(anchor, Contraction):
        return fma_obstacle(problem) or _dot_obstacle(anchor)
    return "" if isinstance(anchor, Rowwise) else "no reductions along rows"


def _dot_obstacle(anchor: Contraction) -> str:
    """ "" for a matrix times a vector where the matrix lies along k: each row a dot product, the matrix read unpacked.

    Also for a convolution to one channel, where every tap is a dot product along the input's channels.
    """
    k = anchor.of_role("k")
    m, n = prod(axis.extent for axis in anchor.of_role("m")), anchor.n.extent
    matrix, other = (anchor.b, anchor.a) if m == 1 else (anchor.a, anchor.b)
    if min(m, n) != 1 or (m == 1 and anchor.b.is_constant) or not k:
        return "no matrix times a vector, or one that is packed"
    if any(operand.axes[-1] != k[-1].index for operand in ((matrix, other) if len(k) > 1 else (matrix,))):
        return "an operand does not lie along the reduced axis"
    return ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    """One to eight vectors of partial results per reduction: more hide the latency of sums, and cost at a row's end."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    lanes, cal = device.lanes(), device.calibration
    run = 0  # elements along the last of several reduced axes, that must be whole steps
    if isinstance(anchor, Contraction):
        k = anchor.of_role("k")
        run = k[-1].extent if len(k) > 1 else 0
        rows = prod(axis.extent for axis in anchor.axes if axis.role != "k")
        anchor = Rowwise(rows, prod(axis.extent for axis in k))
    uneven = imbalance(anchor.rows, device)
    memory_s = stream_s(workload.nbytes, device)
    found = []
    for unroll in (1, 2, 4, 8):
        if unroll * lanes > max(anchor.length // 2, lanes) or run % (unroll * lanes):
            continue
        vectors = ceil(anchor.length / (lanes * unroll)) * unroll  # rows are padded to whole steps
        waits = _ROW_PASSES * vectors * max(0.5, device.fma_latency / unroll)
        per_row = waits + _ROW_PASSES * (cal.row_cycles + 2.0 * unroll) + vectors * cal.row_vector_cycles
        seconds = anchor.rows * per_row / device.cycles_per_s / device.threads
        whole = max(seconds, memory_s) * uneven + 0.1 * seconds
        found.append(Candidate.of("rowwise", Knobs(unroll), whole))
        if workload.nbytes > device.l2_bytes:  # what lies nearer arrives in time by itself
            gain = cal.ahead if workload.nbytes <= device.l3_bytes else cal.ahead_of_memory
            found.append(Candidate.of("rowwise", Knobs(unroll, ahead=True), whole * gain))
    return found


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    lanes = problem.device.lanes()
    two = in_two(problem.workload.func)
    sch = Schedule(problem.workload.func if two is None else two)
    try:
        outputs = [sch.get(b).name_hint for b in sch.get_output_blocks(sch.get_sblock("root"))]
        if len(outputs) != 1:
            return NotApplicable("more than one output")
        inline_cheap(sch, outputs[0])
        padded = pad_reductions(sch.mod["main"], lanes * knobs.unroll)
        if padded is not None:
            sch = Schedule(padded)
        return _schedule(sch, outputs[0], knobs, lanes, padded is None and two is None)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(sch: Schedule, output_name: str, knobs: Knobs, lanes: int, exportable: bool) -> Kernel | NotApplicable:
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
    partials = [name for block in reductions if (name := _split_reduction(sch, block, rows, knobs.unroll, lanes))]
    output = sch.get_sblock(output_name)
    if is_reduction(sch.get(output)):
        output = sch.cache_write(output, 0, "local")
    names = [sch.get(b).name_hint for b in all_blocks(sch)]
    totals = [name for name in names if is_reduction(sch.get(sch.get_sblock(name)))]
    if not _split_groups(sch, output, reductions[0], rows):
        return NotApplicable("the output's rows are not those of the reductions")
    fused = sch.fuse(*sch.get_loops(output)[:rows])
    if not knobs.serial:
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
    if knobs.ahead:
        if not partials:
            return NotApplicable("rows too short to be asked for ahead")
        alone, folded = folded, prefetch_coming_rows(folded, f"{partials[0]}_update", length)
        if folded.same_as(alone):
            return NotApplicable("no row that is read where it lies is there to be asked for ahead")
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
    """Vectors along a row; the last one of a ragged row is masked."""
    loops = sch.get_loops(block)[1:]
    if not loops:
        return
    extent = extent_of(sch, loops[-1])
    width = lanes if extent >= 2 * lanes else vector_width(extent, lanes)
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
    if extent_of(sch, steps) * extent_of(sch, vec) != int(sch.get(maps[0]).iter_vars[-1].dom.extent):
        return ko  # its last vector is no whole one
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


FAMILY = Family("rowwise", 3, Knobs, accepts, candidates, schedule, (SERIAL, STREAMED, PER_ROW))
