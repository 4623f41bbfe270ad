"""Candidates for transposes: tiles in place; beyond L2 whole blocks staged; from memory, while others are turned."""

from __future__ import annotations

from dataclasses import dataclass, field

from subtune.backends.cpu.families.memory_bound import elements_s
from subtune.backends.cpu.family import MODE, CPUProblem
from subtune.core.candidate import Candidate
from subtune.patterns.elementwise import Elementwise

_BLOCK_ROWS = (64, 128)  # 32 to 128 are alike; more do not stay in L2
_TILES = {"a": 1.2, "b": 1.3}  # of the bytes' time, in place; by the axis that the inner loop follows
_WHOLE_BLOCKS = ((128, 64), (64, 128))  # rows and columns: 36 to 40 KB, staged, stay in L2
_FEW_SETS_BYTES = 1024  # between rows: their lines are in 4 sets of 64


@dataclass(frozen=True, slots=True)
class Knobs:
    """Either the axis that the `inner` loop over tiles follows, or the blocks that are staged."""

    inner: str | None = None
    rows: int | None = None
    columns: int | None = None
    serial: bool = field(default=False, metadata=MODE)
    stream: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    anchor = problem.pattern
    return "" if isinstance(anchor, Elementwise) and anchor.transposed else "no operand is read transposed"


def candidates(problem: CPUProblem) -> list[Candidate]:
    turned, device, nbytes = problem.pattern.transposed, problem.device, problem.workload.nbytes
    base, cal = elements_s(problem), device.calibration
    found = [Candidate.of("transpose", Knobs(inner), base * cost) for inner, cost in _TILES.items()]
    if nbytes > device.l3_bytes:
        found += [Candidate.of("transpose", Knobs(rows=rows), base * cal.in_blocks) for rows in _BLOCK_ROWS]
    if nbytes > device.l2_bytes:
        extents = turned.extents[turned.a], turned.extents[turned.b]  # a row of the output's, and of the operand's
        collide = any(extent * 4 % _FEW_SETS_BYTES == 0 for extent in extents)
        seconds = base * _TILES["a"] * (cal.blocks_alike if collide else cal.blocks_apart)
        found += [
            Candidate.of("transpose", Knobs(rows=rows, columns=columns), seconds)
            for rows, columns in _WHOLE_BLOCKS
            if rows <= extents[0] and columns <= extents[1]
        ]
    return found
