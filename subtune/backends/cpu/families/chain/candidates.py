"""Candidates for two contractions fused over their rows: tiles from the registers, blocks of rows from the cache.

Counts cycles of one thread: both contractions' micro-kernels, what happens between them, packing, copies, and the
right operands' journeys from the cache they stay in, one per block of rows.
Sources: those of `contraction`; Dao et al., "FlashAttention", 2022, for the block of rows that stays in cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import ceil, gcd, prod

from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import bytes_per_cycle, tile_load_cycles
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.family import MODE, REGISTERS, CPUProblem
from subtune.core.candidate import Candidate
from subtune.core.numerics import HALVES
from subtune.patterns.chain import Chain, is_packed_once, padded

_START_CYCLES = 30.0  # of a micro-kernel
_STORE_CYCLES = 3.0  # per vector of a finished tile, f or the epilogue on it
_SOFTMAX_CYCLES = 10.0  # per vector: largest, exp, sum
_MOVED_CYCLES = 2.0  # per vector packed or copied
_GATHERED_CYCLES = 1.0  # per element packed across the direction in which it lies
_WAYS = 8  # of L1's sets, on x86 and Arm servers of the last ten years, or near it
_L3_SHARE = 4
"""Of a thread, as many L2 caches at most: what a virtual machine says of L3 is all of it, and others use it."""
_JOURNEYS = 3  # of what lies between the contractions: written, turned into weights, read
_MAX_ROWS = 14
_MAX_WASTE = 1.125  # rows computed for nothing


def cache_limit_bytes(device: CPUModel) -> int:
    """What one thread may keep between the contractions: its L2, or a quarter of its share of a larger L3."""
    return max(device.l2_bytes, min(_L3_SHARE * device.l2_bytes, device.l3_bytes // (4 * device.threads)))


@dataclass(frozen=True, slots=True)
class Knobs:
    """Rows of a block, register tiles of both contractions, and where their right operands are packed."""

    mb: int
    mr: int = field(metadata=REGISTERS)
    nr: int = field(metadata=REGISTERS)
    mr2: int
    nr2: int
    pack: str
    """"once": before everything else; "batch": by the thread that computes a batch."""
    pack_e: bool
    """False: the second right operand is read where it lies."""
    copy_a: bool
    """The block's rows of the first left operand are copied first."""
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    if not isinstance(problem.pattern, Chain):
        return "no chain of two contractions"
    return "" if problem.pattern.dtypes <= {"float32", *HALVES} else "a chain of other floats"


def obstacle(chain: Chain, knobs: Knobs, device: CPUModel) -> str:
    """Why a tile is illegal; "" where it is legal."""
    lanes = device.lanes()
    if knobs.nr % lanes or knobs.nr2 % lanes:
        return f"nr={knobs.nr} or nr2={knobs.nr2} is no multiple of the {lanes} vector lanes"
    if knobs.mb % knobs.mr or knobs.mb % knobs.mr2:
        return f"tiles of {knobs.mr} and {knobs.mr2} rows do not divide a block of {knobs.mb}"
    if knobs.pack not in ("once", "batch"):
        return f"no packing {knobs.pack!r}"
    if not knobs.pack_e and chain.n2 % knobs.nr2:
        return "columns read where they lie must be whole panels"
    if chain.cached_bytes(knobs.mb, knobs.nr) > cache_limit_bytes(device):
        return f"{knobs.mb} rows between the contractions do not fit the cache, and no online softmax is implemented"
    return ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    """Every legal pair of register tiles with blocks of rows whose intermediate results stay in L2."""
    chain, device = problem.pattern, problem.device
    lanes = device.lanes()
    found = []
    for mr, v1, v2 in product(_row_counts(chain.m), _vector_counts(chain.n1, lanes), _vector_counts(chain.n2, lanes)):
        if mr * max(v1, v2) + max(v1, v2) + 1 > device.vector_registers:
            continue
        nr, nr2 = v1 * lanes, v2 * lanes
        for mb in _blocks(chain, mr, device):
            for pack, pack_e, copy_a in product(_places(chain), _packs_e(chain, nr2, device), _copies(chain, mb)):
                knobs = Knobs(mb, mr, nr, mr, nr2, pack, pack_e, copy_a)
                if not obstacle(chain, knobs, device):
                    found.append(Candidate.of("chain", knobs, _predict(chain, device, knobs)))
    return found


def _vector_counts(n: int, lanes: int) -> list[int]:
    needed = ceil(n / lanes)
    return sorted({min(count, needed) for count in (1, 2, 3, 4)})


def _row_counts(m: int) -> list[int]:
    counts = range(1, min(m, _MAX_ROWS) + 1)
    return [mr for mr in counts if m % mr == 0 or (mr >= 4 and padded(m, mr) / m <= _MAX_WASTE)]


def _blocks(chain: Chain, mr: int, device: CPUModel) -> list[int]:
    """Rows of a block: one tile doubled, and all rows; as far as few are wasted."""
    tiles = ceil(chain.m / mr)
    counts = {1 << i for i in range(tiles.bit_length())} | {tiles, ceil(tiles / device.threads)}
    return [mr * count for count in sorted(counts) if padded(chain.m, mr * count) / chain.m <= _MAX_WASTE]


def _places(chain: Chain) -> tuple[str, ...]:
    return ("once", "batch") if chain.batch > 1 and not _is_packed(chain) else ("once",)


def _is_packed(chain: Chain) -> bool:
    return is_packed_once(chain.first.b) and is_packed_once(chain.second.b)


def _packs_e(chain: Chain, nr2: int, device: CPUModel) -> tuple[bool, ...]:
    """Whole panels may be read where they lie, unless their rows lie on too many pages."""
    e = chain.second.b
    stays = chain.e_is_contiguous and chain.n2 % nr2 == 0 and not is_packed_once(e) and e.dtype not in HALVES
    return (True, False) if stays and chain.n1 * e.shape[-1] * 4 <= 2 * device.l2_bytes else (True,)


def _copies(chain: Chain, mb: int) -> tuple[bool, ...]:
    """Rows that must be clamped, computed or widened are copied; others may be, for the sake of their distance."""
    a = chain.first.a
    return (True,) if chain.m % mb or a.param < 0 or a.dtype in HALVES else (False, True)


def _predict(chain: Chain, device: CPUModel, knobs: Knobs) -> float:
    """Seconds of one run on all threads."""
    lanes = device.lanes()
    mb, mr, nr, nr2 = knobs.mb, knobs.mr, knobs.nr, knobs.nr2
    blocks = ceil(chain.m / mb)
    cycles = 0.0  # of one block of rows
    for n, k, width in ((chain.n1, chain.k, nr), (chain.n2, chain.n1, nr2)):
        vectors, panels = width // lanes, ceil(n / width)
        per_k = max(
            mr * vectors / device.fma_per_cycle, tile_load_cycles(mr, vectors, device), float(device.fma_latency)
        )
        micro = max(k * per_k, k * width * 4 / bytes_per_cycle(k * (width + mr) * 4, device))
        cycles += panels * (mb // mr) * (micro + _START_CYCLES + mr * vectors * _STORE_CYCLES)
        # the panels come from where all of them stay, the rows are read once more for every panel
        cycles += panels * width * k * 4 / bytes_per_cycle(panels * width * k * 4 * 2, device) * 0.5
        cycles += panels * mb * k * 4 / bytes_per_cycle(mb * k * 4, device) * 0.25
    if not knobs.pack_e and not is_packed_once(chain.second.b):
        micro_kernels = ceil(chain.n2 / nr2) * (mb // mr)
        cycles += micro_kernels * _evicted_lines(chain, nr2, device) * device.calibration.conflict_cycles
    between = chain.cached_bytes(mb, nr)
    if between > device.l2_bytes / 2:
        cycles += _JOURNEYS * between / bytes_per_cycle(between, device)
    if chain.is_softmax:
        cycles += mb * padded(chain.n1, nr) / lanes * _SOFTMAX_CYCLES
    if knobs.copy_a:
        cycles += mb * chain.k / lanes * _MOVED_CYCLES
    elif chain.k * 4 % 4096 == 0 and mr > 4:
        cycles *= 1.1  # the rows of a tile lie in one set of L1
    packing = 0.0  # of one batch
    for n, k, contiguous, is_packed in (
        (chain.n1, chain.k, chain.b_is_contiguous, is_packed_once(chain.first.b)),
        (chain.n2, chain.n1, chain.e_is_contiguous, is_packed_once(chain.second.b) or not knobs.pack_e),
    ):
        if not is_packed:
            moved = n * k * (_MOVED_CYCLES / lanes if contiguous else _GATHERED_CYCLES)
            packing += max(moved, 2 * n * k * 4 / bytes_per_cycle(2 * n * k * 4, device))
    grains = chain.batch * (1 if knobs.pack == "batch" else blocks)
    uneven = imbalance(grains, device)
    total = (cycles * blocks + packing) * chain.batch * uneven
    return total / device.threads / device.cycles_per_s


def _evicted_lines(chain: Chain, nr2: int, device: CPUModel) -> int:
    """Lines of a panel of the second right operand that L1 has lost when the next tile of rows reads them in place.

    Rows lie apart, in as few sets as their distance reaches: 1500 of them 48 lines apart are in 4 sets of 64.
    """
    e = chain.second.b
    (along,) = (axis.index for axis in chain.second.of_role("k"))
    if along not in e.axes:
        return 0  # of rows that lie along several axes the distance is not known
    pitch = 4 * prod(e.shape[e.axes.index(along) + 1 :])
    lines = chain.n1 * ceil(nr2 * 4 / device.line_bytes)
    sets = device.l1d_bytes // (_WAYS * device.line_bytes)
    reached = sets // gcd(pitch // device.line_bytes, sets) if pitch % device.line_bytes == 0 else sets
    return lines if lines > reached * _WAYS else 0
