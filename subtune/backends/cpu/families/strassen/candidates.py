"""Candidates for Strassen's algorithm: how many levels, which GEMM tile, which loop is parallel.

Counts cycles of one thread: the products at the micro-kernel's rate, the sums of blocks of A, the sums of products
with the epilogue, and the journeys of the packed sums of B, of which there are (7/4)^levels as many bytes as of B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, prod

from subtune.backends.algorithms.strassen import PRODUCTS, strassen_obstacle, terms
from subtune.backends.algorithms.winograd import winograd_obstacle
from subtune.backends.base import OUTER
from subtune.backends.cpu.balance import imbalance, shares_out
from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, bytes_per_cycle, crossing_cycles, tile_load_cycles
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.family import ALGORITHM, REGISTERS, CPUProblem
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.patterns.contraction import Contraction

_START_CYCLES = 30.0  # of a micro-kernel
_SUM_CYCLES = 1.0  # per vector of a sum of blocks of A: loads, addition, store, from L2 or beyond
_EPILOGUE_CYCLES = 2.0  # per vector and operand of the output
_HIDDEN = 0.03
_EXPOSED = 0.25  # of the time of what is read again while something is multiplied
_VECTORS = (1, 2, 3, 4, 6)  # of a tile's width
_PASSES = 4  # of any number of rows
_MAX_ROWS = 16
_LEAST_ROWS = 8
_PADDED = 1.03
"""Rows that are computed for nothing, at most: of 750 in four blocks, 192 to a block instead of 188."""
_LEAST_DEPTH = 32  # of one product: below, the sums cost more than an eighth of the work


@dataclass(frozen=True, slots=True)
class Knobs:
    """7^levels products in tiles of `mr` x `nr`; `mb` rows of a block in parallel, or with order "n" panels.

    With order "tm" every thread takes its share of the rows, in tiles, and with "tn" of the panels: there it sums the
    blocks of A for itself, waits for no other, and reads nothing that another core has just written. Blocks have as
    many rows as make whole `mb`: a tile with orders "n" and "tn", one of every thread with "tm".
    """

    levels: int = field(metadata=ALGORITHM)
    mr: int = field(metadata=REGISTERS)
    nr: int = field(metadata=REGISTERS)
    mb: int
    order: str = field(metadata=OUTER)
    prefetch: bool = False
    """The next panel of weights is fetched meanwhile."""
    passes: int = 0
    """In how many of the tiles that share a panel, at most; 0: in all."""
    rows: int = 0
    """That count; those behind may hold anything, and nobody reads what becomes of them. 0: all do."""
    panel: int = 0
    """As of `contraction.candidates.Knobs`."""


def accepts(problem: CPUProblem) -> str:
    anchor = problem.pattern
    if not isinstance(anchor, Contraction):
        return "no contraction"
    if reason := obstacle(anchor, problem, levels=1):
        return reason
    return "" if winograd_obstacle(anchor) else "Winograd's algorithm saves more"


def obstacle(anchor: Contraction, problem: CPUProblem, levels: int) -> str:
    """Why the algorithm does not apply so many times; "" where it does."""
    if problem.numerics.exact:
        return "rounds otherwise than the model says"
    if problem.workload.num_outputs != 1:
        return "several outputs"
    return strassen_obstacle(anchor, 2**levels * problem.device.lanes())


def padded_rows(height: int, levels: int, mb: int) -> int:
    """Rows of a block of A, which has `height`, in whole groups of `mb`.

    >>> padded_rows(750, 2, 8)
    192
    """
    return ceil(ceil(height / 2**levels) / mb) * mb


def candidates(problem: CPUProblem) -> list[Candidate]:
    anchor, device = problem.pattern, problem.device
    lanes = device.lanes()
    height = prod(axis.extent for axis in anchor.of_role("m"))
    found: list[Candidate] = []
    for levels in (1, 2):
        s = 2**levels
        rows, k, n = ceil(height / s), prod(axis.extent for axis in anchor.of_role("k")) // s, anchor.n.extent // s
        if obstacle(anchor, problem, levels) or anchor.n.extent % (s * lanes):
            continue
        if k < _LEAST_DEPTH or rows < _LEAST_ROWS:
            continue
        for nr in _widths(n, lanes):
            for mr in (r for r in range(4, _MAX_ROWS + 1) if _wastes_little(rows, r)):
                if _fits(mr, nr // lanes, device):
                    found += _around(problem, levels, (rows, k, n), mr, nr)
    return found


def of_any_rows(problem: CPUProblem, knobs: Knobs, height: int, mr: int) -> list[Candidate]:
    """In tiles of `mr` rows, for any number of these: one for each order, as wide as is fastest for `height` rows.

    Of panels, threads take even shares, or one after the other where there are none; of rows, shares of whole tiles.
    """
    device, side = problem.device, 2**knobs.levels
    k, n = (prod(axis.extent for axis in problem.pattern.of_role(role)) for role in "kn")
    widths = [nr for nr in _widths(n // side, device.lanes()) if _fits(mr, nr // device.lanes(), device)]
    even = [nr for nr in widths if shares_out(n // side // nr, device)]
    uneven = [nr for nr in widths if nr not in even]
    found = []
    for order, of_order in (("tn", even), ("n", uneven), ("tm", widths if device.threads > 1 else [])):
        mb = mr * device.threads if order == "tm" else mr
        block = (padded_rows(height, knobs.levels, mb), k // side, n // side)
        some = replace(knobs, mr=mr, mb=mb, order=order, passes=_PASSES if knobs.prefetch else 0)
        made = [
            Candidate.of("strassen", one, _predict(block, one, problem.workload, device))
            for one in (replace(some, nr=nr) for nr in of_order)
        ]
        found += [min(made, key=lambda one: one.predicted_s)] if made else []
    return found


def _widths(columns: int, lanes: int) -> list[int]:
    return [vectors * lanes for vectors in _VECTORS if columns % (vectors * lanes) == 0]


def _fits(mr: int, vectors: int, device: CPUModel) -> bool:
    return mr * vectors + vectors + 1 <= device.vector_registers


def _around(problem: CPUProblem, levels: int, extents: tuple[int, int, int], mr: int, nr: int) -> Iterator[Candidate]:
    """The loops round a tile; `extents`: rows, k and n of a block; its rows become whole tiles."""
    device = problem.device
    height, k, n = extents
    products = PRODUCTS**levels
    streams = device.comes_from_memory(products * k * n * 4)
    stays = int(device.l2_bytes / 2 / (products * nr * 4))  # rows whose products of a panel stay in L2
    shares = [("tn", mr)] if shares_out(n // nr, device) else []
    for order, mb in [("n", mr), *shares, *(("m", b) for b in _blocks(height, mr, stays, device))]:
        rows = ceil(height / mb) * mb
        of_panel = mb if order == "m" else rows
        sums_bytes = products * k * 4 * of_panel * (1 if order == "n" else device.threads)
        if sums_bytes > device.l3_bytes / 4:
            continue  # the sums of A would go through memory: those of B, A and C want their places, too
        knobs = Knobs(levels, mr, nr, mb, order, prefetch=streams and of_panel // mr <= nr)
        yield Candidate.of("strassen", knobs, _predict((rows, k, n), knobs, problem.workload, device))


def _blocks(rows: int, mr: int, stays: int, device: CPUModel) -> list[int]:
    """Rows a thread takes at a time: whole tiles, a block for every thread at least.

    The largest, which read the weights least often, and the largest two of at most `stays` rows.
    """
    largest = ceil(rows / device.threads / mr) * mr
    blocks = [mb for mb in range(mr, largest + 1, mr) if _wastes_little(rows, mb)]
    return sorted({*blocks[-3:], *[mb for mb in blocks if mb <= stays][-2:]})


def _wastes_little(rows: int, tile: int) -> bool:
    return ceil(rows / tile) * tile <= _PADDED * rows


def _predict(extents: tuple[int, int, int], knobs: Knobs, workload: Workload, device: CPUModel) -> float:
    """Seconds of one run on all threads; `extents`: rows, k and n of a block."""
    (rows, k, n), mr, width, levels = extents, knobs.mr, knobs.nr, knobs.levels
    mb = {"m": knobs.mb, "tm": rows // device.threads}.get(knobs.order, rows)  # that share a panel
    lanes, s, products = device.lanes(), 2**levels, PRODUCTS**levels
    vectors = width // lanes
    panels = n // width
    fma, loads = mr * vectors / device.fma_per_cycle, tile_load_cycles(mr, vectors, device)
    per_k = max(fma, loads, float(device.fma_latency)) + _HIDDEN * (fma + loads)
    micro = k * per_k + _START_CYCLES + mr * vectors
    cycles = products * (rows / mr) * panels * micro
    times = device.threads if knobs.order == "tn" else 1  # that the sums of A are made
    cycles += times * products * rows * k / lanes * _SUM_CYCLES
    # the sums are written, and read for every panel, mostly while something is multiplied
    sums_bytes = products * mb * k * 4
    moved = (2 * times + _EXPOSED * (panels - 1)) * products * rows * k * 4
    cycles += moved / bytes_per_cycle(sums_bytes, device)
    if knobs.order == "n":
        cycles += crossing_cycles(sums_bytes, device)

    additions = terms(levels).additions[1]
    operands = sum(1 for arg in workload.args if not arg.is_constant) - 1
    per_vector = (products + additions) / LOADS_PER_CYCLE + s * s * operands * _EPILOGUE_CYCLES
    cycles += rows * n / lanes * per_vector
    # the products of a panel, written and read again where they stay: what is written beyond L2 is fetched first;
    # the panels of B once for every block of rows
    scratch = products * mb * width * 4
    journeys = 2 if scratch <= device.l2_bytes / 2 else 3
    cycles += journeys * products * rows * n * 4 / bytes_per_cycle(scratch, device)
    blocks = rows // mb
    b_bytes = products * k * n * 4
    cycles += blocks * b_bytes / bytes_per_cycle(2 * b_bytes, device) * _EXPOSED
    grains = {"n": panels, "m": blocks}.get(knobs.order, device.threads)
    uneven = imbalance(grains, device)
    return cycles * uneven / device.threads / device.cycles_per_s
