"""Candidates for attention in bfloat16 on AMX: a block of tiles for both products, rows of a thread from its cache.

Cycles of one thread, as for the contractions of `amx`, and what `chain` counts between two of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.families.amx.candidates import START_CYCLES, block_cycles
from subtune.backends.cpu.families.amx.tiles import COPIED_CYCLES
from subtune.backends.cpu.families.chain.candidates import cache_limit_bytes
from subtune.backends.cpu.family import MODE, REGISTERS, CPUProblem
from subtune.backends.cpu.math.amx_tiles import COLUMNS, DEPTH, ROWS, fits
from subtune.core.candidate import Candidate
from subtune.patterns.chain import Chain, padded

_SOFTMAX_CYCLES = 14.0  # per vector: f, largest, exp, sum, rounded to bfloat16
_FINISHED_CYCLES = 4.0  # per vector of the result
_PAIR_CYCLES = 1.5  # per two elements of an operand that are packed by themselves
_BLOCKS = ((2, 2), (1, 2), (1, 3), (2, 1), (1, 1))


@dataclass(frozen=True, slots=True)
class Knobs:
    """Blocks of `mr` x `nr` tiles of `rows` rows; `mb` rows of blocks are a thread's at a time."""

    mr: int = field(metadata=REGISTERS)
    nr: int = field(metadata=REGISTERS)
    rows: int = field(metadata=REGISTERS)
    mb: int
    pack: str
    """"once": before everything else; "batch": by the thread that computes a batch."""
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    chain = problem.pattern
    if not isinstance(chain, Chain):
        return "no chain of two contractions"
    if not problem.device.has_tiles:
        return "the processor, or its operating system, has no AMX for bfloat16"
    operands = (chain.first.a, chain.first.b, chain.second.b)
    if any(operand.dtype != "bfloat16" or operand.param < 0 for operand in operands):
        return "needs bfloat16 operands that are read as they are"
    if chain.first.b.is_constant or chain.second.b.is_constant:
        return "constant operands are packed for contractions by themselves"
    return "" if chain.m >= COLUMNS // 4 else "too few rows for tiles"


def obstacle(chain: Chain, knobs: Knobs, limit_bytes: int) -> str:
    """Why knobs are illegal; "" where they are legal."""
    if not fits(knobs.mr, knobs.nr) or not 1 <= knobs.rows <= ROWS:
        return f"{knobs.mr} x {knobs.nr} tiles of {knobs.rows} rows do not fit the registers"
    if knobs.pack not in ("once", "batch"):
        return f"no packing {knobs.pack!r}"
    if 3 * chain.cached_bytes(knobs.mb * knobs.mr * knobs.rows, columns_of(knobs)) > 2 * limit_bytes:
        return "the rows between the contractions do not fit the cache"
    return ""


def columns_of(knobs: Knobs) -> int:
    """What the columns between the contractions are padded to: whole blocks of the one, whole steps of the other."""
    width = knobs.nr * COLUMNS
    return width if width % DEPTH == 0 else 2 * width


def candidates(problem: CPUProblem) -> list[Candidate]:
    chain, device = problem.pattern, problem.device
    found = []
    for mr, nr in _BLOCKS:
        blocks = ceil(chain.m / (mr * ROWS))
        for rows in sorted({ROWS, ceil(chain.m / (mr * blocks))}):
            count = ceil(chain.m / (mr * rows))
            for mb in sorted({1, 2, 4, ceil(count / device.threads), count}):
                for pack in ("once", "batch") if chain.batch > 1 else ("once",):
                    knobs = Knobs(mr, nr, rows, mb, pack)
                    if mb <= count and not obstacle(chain, knobs, cache_limit_bytes(device)):
                        found.append(Candidate.of("amx_chain", knobs, _predict(problem, knobs)))
    return found


def _predict(problem: CPUProblem, knobs: Knobs) -> float:
    """Seconds of one run on all threads."""
    chain, device = problem.pattern, problem.device
    height, width = knobs.mr * knobs.rows, knobs.nr * COLUMNS
    blocks = ceil(chain.m / (knobs.mb * height))
    columns, results = padded(chain.n1, columns_of(knobs)), padded(chain.n2, width)
    steps, steps2 = ceil(chain.k / DEPTH), columns // DEPTH
    per_rows = columns // width * (steps * block_cycles(knobs.mr, knobs.nr, knobs.rows) + START_CYCLES)
    per_rows += results // width * (steps2 * block_cycles(knobs.mr, knobs.nr, knobs.rows) + START_CYCLES)
    per_rows += height * (columns * _SOFTMAX_CYCLES + results * _FINISHED_CYCLES) / COLUMNS
    per_rows += height * steps * COPIED_CYCLES
    packing = _PAIR_CYCLES * chain.n1 * (chain.k + chain.n2) / 2
    grains = chain.batch * (1 if knobs.pack == "batch" else blocks)
    cycles = (per_rows * knobs.mb * blocks + packing) * chain.batch * imbalance(grains, device)
    return cycles / device.threads / device.cycles_per_s
