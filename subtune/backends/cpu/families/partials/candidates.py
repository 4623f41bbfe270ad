"""How many rows or vectors at a time, in how many pieces, in which tiles of what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from tvm.s_tir import ScheduleError

from subtune.backends.base import OUTER
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.memory_bound import MIN_COLUMN, is_read_once
from subtune.backends.cpu.family import ALGORITHM, MODE, REGISTERS, CPUProblem
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.moments import large_reductions
from subtune.patterns.recognise import Unrecognised
from subtune.patterns.rows import Columns, Rowwise
from subtune.patterns.stages import elements_inlined
from subtune.patterns.strided import Strided, strided
from subtune.patterns.window import Window

_LONG = 128
"""Elements of a reduced run that is worth partial results of its own in registers."""
_FEW_GRAINS = 8
"""For a thread: with fewer, one that has one more than the others is waited for."""
_NORM_READS = 3.0
"""For the mean, for the variance, and for the result."""
_FOLD_CYCLES = 20.0
"""To make one number of a few vectors."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Vectors or rows at a time; pieces of what is reduced; a tile of the table, if there is one; stages row by row."""

    unroll: int = field(metadata=REGISTERS)
    pieces: int = field(default=1, metadata=OUTER)
    tile: int = field(default=0, metadata=OUTER)
    whole: bool = field(default=False, metadata=ALGORITHM)
    serial: bool = field(default=False, metadata=MODE)
    stream: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    if not isinstance(problem.pattern, Rowwise | Columns | Window | Unrecognised):
        return "no reduction that memory bounds"
    found = first_reduction(problem.workload)
    if isinstance(found, NotApplicable):
        return found.reason
    return "too little is reduced" if found.size(is_reduced=True) < MIN_COLUMN else ""


@lru_cache(maxsize=64)
def first_reduction(workload: Workload) -> Strided | NotApplicable:
    """The first of the reductions that take the time, as one that can be written."""
    try:
        inlined = elements_inlined(workload)
        if isinstance(inlined, NotApplicable):
            return inlined
        sch, _ = inlined
        names = large_reductions(sch)
        if not names:
            return NotApplicable("no reduction takes the time")
        found = strided(sch.get(sch.get_sblock(names[0])))
    except (ScheduleError, ValueError) as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    return found if isinstance(found, NotApplicable) else obstacle_of(found) or found


def obstacle_of(found: Strided) -> NotApplicable | None:
    if is_in_rows(found):
        return None
    if len(found.runs) < 2:
        return NotApplicable("one run is not reduced")
    *_, before, last = found.runs
    if last.is_reduced and (len(found.runs) < 3 or before.is_reduced or not found.is_joined[-1]):
        return NotApplicable("a short reduced run that belongs to no columns")
    inside = found.runs[-3] if last.is_reduced else before
    return None if inside.is_reduced else NotApplicable("the axes of columns are read in different ways")


def is_in_rows(found: Strided) -> bool:
    """Whether partial results are vectors along the innermost run; a table's are along what is kept."""
    last = found.runs[-1]
    is_only = sum(run.is_reduced for run in found.runs) == 1
    return last.is_reduced and (is_only or last.extent >= _LONG)


def candidates(problem: CPUProblem) -> list[Candidate]:
    workload, device = problem.workload, problem.device
    found = first_reduction(workload)
    assert not isinstance(found, NotApplicable), "accepts() has read it"
    proposed = []
    for knobs in _rows(found, workload, device) if is_in_rows(found) else _tables(found, device):
        seconds = _seconds(found, workload, device, knobs)
        proposed.append(Candidate.of("partials", knobs, seconds))
    return proposed


def _rows(found: Strided, workload: Workload, device: CPUModel) -> Iterator[Knobs]:
    rows, lanes = found.size(is_reduced=False), device.lanes()
    is_norm = not is_read_once(workload) and not found.runs[0].is_reduced
    for unroll in (1, 2, 4, 8):
        if unroll > 1 and unroll * lanes > found.runs[-1].extent:
            continue
        if rows >= device.threads:
            yield Knobs(unroll)
            if is_norm and found.size(is_reduced=True) * 4 <= device.l2_bytes:
                yield Knobs(unroll, whole=True)
        if rows < _FEW_GRAINS * device.threads:
            yield Knobs(unroll, device.threads)


def _tables(found: Strided, device: CPUModel) -> Iterator[Knobs]:
    lead, extent, each = table_of(found)
    lanes = device.lanes()
    most = max(1, device.l2_bytes // 2 // (4 * each))
    shares = {extent, -(-extent // device.threads), -(-extent // (2 * device.threads)), 64 * lanes, 16 * lanes}
    for unroll in (1, 4, 8):
        if unroll > next(run.extent for run in reversed(found.runs[:-1]) if run.is_reduced):
            continue
        for tile in sorted(size for size in shares if 0 < size <= min(extent, most)):
            grains = lead * -(-extent // tile)
            if grains >= device.threads:
                yield Knobs(unroll, 1, tile)
        if lead < _FEW_GRAINS * device.threads and found.size(is_reduced=False) * each <= most:
            yield Knobs(unroll, device.threads, extent)


def table_of(found: Strided) -> tuple[int, int, int]:
    """Rows outside of all that is reduced; extent of the run that is tiled; a table's elements for one of it."""
    first = next(i for i, run in enumerate(found.runs) if run.is_reduced)
    lead = prod(run.extent for run in found.runs[:first])
    kept = [run.extent for run in found.runs[first:] if not run.is_reduced]
    each = prod(kept[1:]) * (found.runs[-1].extent if found.runs[-1].is_reduced else 1)
    return lead, kept[0], each


def _seconds(found: Strided, workload: Workload, device: CPUModel, knobs: Knobs) -> float:
    elements = found.size(is_reduced=True) * found.size(is_reduced=False)
    vectors = elements / device.lanes()
    if knobs.tile:
        lead, extent, each = table_of(found)
        grains = lead * -(-extent // knobs.tile) * knobs.pieces
        cycles = vectors * (0.5 + 1.0 / knobs.unroll)
        run = knobs.tile * each * 4  # bytes that are read one after the other
        cycles *= 1.0 + 256.0 / run
        cycles += knobs.pieces * lead * extent * each / device.lanes()
    else:
        grains = found.size(is_reduced=False) * knobs.pieces
        cycles = vectors * max(0.5, device.fma_latency / knobs.unroll) + grains * (_FOLD_CYCLES + 4.0 * knobs.unroll)
    uneven = imbalance(grains, device)
    reads = 1.0 if is_read_once(workload) else _NORM_READS
    memory_s = stream_s(workload.nbytes, device) * (1.0 if knobs.whole else reads)
    busy_s = reads * cycles / device.cycles_per_s / device.threads
    starts_s = device.calibration.grain_s * grains + (device.calibration.parallel_start_s if knobs.pieces > 1 else 0.0)
    return max(memory_s, busy_s) * uneven + 0.1 * busy_s + starts_s
