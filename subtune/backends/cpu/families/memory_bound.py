"""What the families have in common that memory bounds: columns, elements, and what their tiles cost."""

from __future__ import annotations

from math import prod

from tvm.s_tir import ScheduleError

from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.family import CPUProblem
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.rows import Columns, columns
from subtune.patterns.stages import elements_inlined
from subtune.patterns.window import Window
from subtune.tir.blocks import all_blocks, is_reduction

MIN_COLUMN = 8  # elements: a reduction that long may be one of a whole axis


def columns_obstacle(problem: CPUProblem) -> str:
    """Why a workload is no reduction along columns, and no window that is one."""
    anchor = problem.pattern
    if isinstance(anchor, Columns):
        return ""
    if not isinstance(anchor, Window):
        return "no reductions along columns"
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    if taps < MIN_COLUMN or anchor.to_pack:
        return "its windows are no whole axes"
    try:
        inlined = elements_inlined(problem.workload)
    except ScheduleError as e:
        return str(e).strip().splitlines()[-1]
    if isinstance(inlined, NotApplicable):
        return inlined.reason
    sch, _ = inlined
    found = columns(sch, [block for block in all_blocks(sch) if is_reduction(sch.get(block))])
    return found.reason if isinstance(found, NotApplicable) else ""  # of a product, whose rows all read the columns


def columns_of(anchor: Columns | Window) -> Columns:
    """Whole axes that are reduced, as by a global pooling, are no windows."""
    if isinstance(anchor, Columns):
        return anchor
    outer, kept, taps = (prod(axis.extent for axis in anchor.of_role(role)) for role in ("m", "n", "k"))
    return Columns(outer, kept, taps, 1)


def is_read_once(workload: Workload) -> bool:
    """A sum; a norm reads its input again."""
    written = sum(arg.nbytes for arg in workload.args if arg.is_output)
    return written * MIN_COLUMN <= workload.nbytes


def elements_s(problem: CPUProblem) -> float:
    """Seconds for the bytes of an elementwise workload.

    An element of the output reads one of each input at most: a slice leaves the rest of it where it is.
    """
    extent = problem.pattern.extent
    read = (min(arg.nbytes, extent * dtype_bits(arg.dtype) / 8) for arg in problem.workload.args)
    return stream_s(sum(read), problem.device)
