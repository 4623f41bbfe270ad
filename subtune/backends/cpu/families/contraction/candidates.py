"""Candidates for contractions on a CPU, from the register file, the FMA pipeline and the caches.

The model counts cycles of one thread: a micro-kernel is bound by its FMAs, by the load ports, or by the latency of
its accumulators; operands that do not stay in L1 are paid at the bandwidth of the level they stay in; padding and
an uneven split over the threads are paid in full.
Sources: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (TOMS 2016); Roller (OSDI'22).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, prod

from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import bytes_per_cycle, stream_s, tile_load_cycles
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.products import fma_obstacle
from subtune.backends.cpu.family import ALGORITHM, CPUProblem
from subtune.backends.cpu.loops.flat_rows import flat
from subtune.backends.cpu.loops.loop_nest import TileKnobs
from subtune.backends.cpu.loops.skipped_rows import kept
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.axes import Axis, Role
from subtune.patterns.contraction import Contraction

_MICRO_KERNEL_START_CYCLES = 30.0
_EPILOGUE_CYCLES_PER_VECTOR = 2.0  # per operand: bias, residual, store
_HIDDEN = 0.03
_HIDDEN_FETCH = 0.1  # of what is read from a farther cache than L1 behind multiplications
_PAGE_BYTES = 4096
_EVEN = 1.1  # of the work when it is shared out, over the work
_REUSED = 4  # micro-kernels that read a panel: for fewer, it is not worth the packing
_MAX_ROWS = 30
_MAX_TILE_ROWS = 64
_NARROWEST = 4  # lanes of a vector that divides a group's columns: narrower ones lose to a padded vector


@dataclass(frozen=True, slots=True)
class Knobs(TileKnobs):
    pack: bool = field(default=False, metadata=ALGORITHM)
    """B, which is no constant and lies along n, is packed all the same."""
    by_group: bool = field(default=False, metadata=ALGORITHM)
    """The columns of each group are padded to whole vectors."""
    panel: int = 0
    """Columns of constant weights that are packed side by side; 0: those of a tile, which are a multiple of it. Tiles
    of several widths take the same weights so."""


def accepts(problem: CPUProblem) -> str:
    anchor = problem.pattern
    return fma_obstacle(problem) or ("" if is_read_as_it_lies(anchor) else packing_obstacle(anchor))


def is_read_as_it_lies(anchor: Contraction) -> bool:
    return not anchor.b.is_constant and anchor.b.axes[-1] == anchor.n.index


def packing_obstacle(anchor: Contraction) -> str:
    return "B is indexed by more than its own axes: it cannot be packed" if -1 in anchor.b.axes else ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    flattened = flat(problem.workload)
    anchor = problem.pattern if isinstance(flattened, NotApplicable) else flattened[2]
    lanes = problem.device.lanes(dtype_bits(anchor.acc_dtype))
    found: list[tuple[Knobs, float]] = []
    is_padded = bool(anchor.per_group % lanes) and anchor.b.is_constant
    if not is_padded or anchor.lanes(lanes) >= _NARROWEST:
        found += tilings(anchor, problem.workload, problem.device, is_read_as_it_lies(anchor))
    if is_padded:
        batched = tilings(of_groups(anchor), problem.workload, problem.device, reads_as_it_lies=False)
        found += ((replace(knobs, by_group=True), seconds) for knobs, seconds in batched)
    rows = anchor.of_role("m")
    share = kept(problem.workload.func, rows[-1].index) if rows else 1.0
    return [Candidate.of("contraction", knobs, share * seconds) for knobs, seconds in found]


def of_groups(anchor: Contraction) -> Contraction:
    """A grouped convolution as a batch of groups: both operands are as large as those of one."""
    groups = anchor.groups
    columns = replace(anchor.n, extent=anchor.per_group)
    axes = [columns if axis == anchor.n else axis for axis in anchor.axes]
    *image, channels = anchor.a.shape
    weights = [
        anchor.per_group if axis == columns.index else extent
        for extent, axis in zip(anchor.b.shape, anchor.b.axes, strict=True)
    ]
    return Contraction(
        (*axes, Axis(len(axes), groups, Role.BATCH)),
        replace(anchor.a, shape=(*image, channels // groups)),
        replace(anchor.b, shape=tuple(weights)),
        anchor.acc_dtype,
    )


def tilings(
    anchor: Contraction, workload: Workload, device: CPUModel, reads_as_it_lies: bool, cost: float = 1.0
) -> Iterator[tuple[Knobs, float]]:
    """Every legal register tile with every sensible outer tile, each with its predicted seconds.

    Args:
        reads_as_it_lies: B is, where a tile does not want it packed.
        cost: of what is multiplied in place of float32, in fused multiply-adds of those.
    """
    lanes = anchor.lanes(device.lanes(dtype_bits(anchor.acc_dtype)))
    rows = anchor.of_role("m")
    tiles_of_rows = rows[-1].extent if rows else 1
    outer = rows[-2].extent if len(rows) > 1 else None
    is_one_row = all(axis.extent == 1 for axis in rows)
    packs_batches = not (anchor.b.is_constant or reads_as_it_lies) and bool(anchor.of_role("batch"))
    for mr, vectors in _register_tiles(anchor, device, lanes, is_one_row):
        tiles = ceil(tiles_of_rows / mr)
        for mt in _divisors(outer if outer is not None else tiles):
            if mt * mr > _MAX_TILE_ROWS * 8 and mt > 1:
                continue
            for order in _orders(anchor, vectors * lanes, mt, outer or tiles, packs_batches, device):
                knobs = Knobs(mr, vectors * lanes, mt, order)
                seconds = _predict(anchor, workload, device, knobs, cost)
                if not reads_as_it_lies:
                    yield from _with_prefetch(anchor, device, knobs, seconds, is_one_row)
                    continue
                where = _unpacked_s(anchor, device, knobs)
                if anchor.n.extent % knobs.nr:
                    where += _packing_s(anchor, device)  # its padding is a copy, too
                yield knobs, seconds + where
                if where and len(rows) == 1 and not anchor.of_role("batch") and tiles >= _REUSED:
                    if order in ("n", "nm") and len(anchor.of_role("k")) == 1:
                        packing = _packing_meanwhile_s(anchor, device, tiles // mt if order == "nm" else 1)
                    else:
                        packing = _packing_s(anchor, device)
                    yield replace(knobs, pack=True), seconds + packing


def _register_tiles(anchor: Contraction, device: CPUModel, lanes: int, is_one_row: bool) -> Iterator[tuple[int, int]]:
    """Rows and vectors of columns whose accumulators fit the registers."""
    rows = anchor.of_role("m")

    def fits(mr: int, vectors: int) -> bool:
        # vectors of B that only one row multiplies are read by the multiplication itself
        return mr * vectors + (1 if is_one_row else vectors) + 1 <= device.vector_registers

    counts = _vector_counts(anchor.per_group or anchor.n.extent, lanes, is_one_row)
    for vectors in counts:
        if anchor.per_group % (vectors * lanes):
            continue
        for mr in _row_counts(rows[-1].extent if rows else 1):
            wider = [count for count in counts if count > vectors and fits(mr, count)]
            if fits(mr, vectors) and not _waits(anchor, device, mr, vectors, lanes, wider):
                yield mr, vectors


def _with_prefetch(
    anchor: Contraction, device: CPUModel, knobs: Knobs, seconds: float, is_one_row: bool
) -> Iterator[tuple[Knobs, float]]:
    """Weights that come from memory are asked for; also without, where they are read once."""
    weights = prod(anchor.b.shape) * dtype_bits(anchor.b.dtype) // 8
    passes = _passes(anchor, knobs.mr, knobs.mt, knobs.order)
    streams = anchor.b.is_constant and device.comes_from_memory(weights)
    if not streams or knobs.order == "nm" or passes > knobs.nr:
        yield knobs, seconds
        return
    if passes == 1:  # the hardware foresees a stream, too: measuring decides
        yield knobs, seconds
    if not is_one_row:  # asking takes load slots that one row's products have not to spare
        yield replace(knobs, prefetch=True), seconds


def _waits(anchor: Contraction, device: CPUModel, mr: int, vectors: int, lanes: int, wider: list[int]) -> bool:
    """Whether too few sums are under way to hide an FMA's latency, and a wider tile has more to no disadvantage.

    From memory both are as fast, and measuring there cannot tell which of them is for weights that stay in L3.
    """
    if mr * vectors >= device.fma_per_cycle * device.fma_latency or anchor.per_group:
        return False
    panels = (ceil(anchor.n.extent / (count * lanes)) for count in wider)
    return any(ceil(count / device.threads) * device.threads <= _EVEN * count for count in panels)


def _orders(
    anchor: Contraction, nr: int, mt: int, tiles: int, packs_batches: bool, device: CPUModel
) -> tuple[str, ...]:
    """Those that make loops of their own: "n" runs over all rows whatever `mt` is.

    "nm" shares panels that the threads cannot share evenly, so that they still read little of B each.

    Args:
        tiles: of which `mt` have a panel of B in common.
        packs_batches: the threads share the batches, each of which has its own B, and nothing else.
    """
    orders = ("m", "n") if mt == 1 else ("m",)
    if packs_batches or (mt == tiles and prod(axis.extent for axis in anchor.of_role("m")[:-2]) == 1):
        return orders
    return (*orders, "mn", "nm") if ceil(anchor.n.extent / nr) % device.threads else (*orders, "mn")


def _unpacked_s(anchor: Contraction, device: CPUModel, knobs: Knobs) -> float:
    """Seconds that the distance between B's rows costs where it is read as it lies.

    Each piece of `nr` columns begins a line that no prefetcher foresees when rows are as long as a page. Rows a
    multiple of a page apart also lie in the same few sets of L1: every micro-kernel fetches them anew.
    """
    mr, nr, mt, order = knobs.mr, knobs.nr, knobs.mt, knobs.order
    pitch = anchor.b.shape[-1] * dtype_bits(anchor.b.dtype) // 8
    k, batch = (prod(axis.extent for axis in anchor.of_role(role)) for role in ("k", "batch"))
    if pitch * k <= device.l1d_bytes:
        return 0.0
    rows = prod(axis.extent for axis in anchor.of_role("m"))
    columns, micro_kernels = ceil(anchor.n.extent / nr), ceil(rows / mr)
    fetches = 1.0 if order == "n" else micro_kernels / mt
    cycles = k * columns * fetches * device.calibration.far_cycles if pitch >= _PAGE_BYTES else 0.0
    if pitch % _PAGE_BYTES == 0:
        lines = k * columns * micro_kernels * nr * 4 / device.line_bytes
        cycles = max(cycles, lines * device.calibration.conflict_cycles)
    return batch * cycles / device.threads / device.cycles_per_s


def _packing_s(anchor: Contraction, device: CPUModel) -> float:
    """Seconds to copy B in panels: read where it lies, written, and read again by who multiplies."""
    return 2 * stream_s(prod(anchor.b.shape) * dtype_bits(anchor.b.dtype) / 8, device)


def _packing_meanwhile_s(anchor: Contraction, device: CPUModel, times: int) -> float:
    """Seconds to pack panels while their first rows are multiplied: a vector asked for, loaded and stored."""
    vectors = prod(anchor.b.shape) / device.lanes(dtype_bits(anchor.b.dtype))
    return times * vectors * device.calibration.packed_vector_cycles / device.threads / device.cycles_per_s


def _passes(anchor: Contraction, mr: int, mt: int, order: str) -> int:
    """How often one panel of B is read in a row: of more than its width, a step's share would be no element."""
    rows = anchor.of_role("m")
    if not rows:
        return 1
    tiles = ceil(rows[-1].extent / mr)
    if order == "n":
        return tiles * prod(axis.extent for axis in rows[:-1])
    return mt * tiles if len(rows) > 1 else mt


def _vector_counts(n: int, lanes: int, is_one_row: bool) -> list[int]:
    """Vectors per micro-kernel row: no more than needed to cover `n`. One row alone reads B in long pieces, too."""
    needed = ceil(n / lanes)
    return sorted({min(count, needed) for count in ((1, 2, 3, 4, 6, 8, 16) if is_one_row else (1, 2, 3, 4, 6, 8))})


def _row_counts(extent: int) -> list[int]:
    """Rows per micro-kernel: divisors, and those that waste at most an eighth as padding."""
    counts = []
    for mr in range(1, min(extent, _MAX_ROWS) + 1):
        padded = ceil(extent / mr) * mr
        if extent % mr == 0 or (mr >= 4 and padded / extent <= 1.125):
            counts.append(mr)
    return counts


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _predict(anchor: Contraction, workload: Workload, device: CPUModel, knobs: Knobs, cost: float) -> float:
    """Seconds of one run on all threads."""
    mr, nr, mt, order = knobs.mr, knobs.nr, knobs.mt, knobs.order
    lanes = anchor.lanes(device.lanes(dtype_bits(anchor.acc_dtype)))
    vectors = nr // lanes
    rows = anchor.of_role("m")
    batch = prod(axis.extent for axis in anchor.of_role("batch"))
    k = prod(axis.extent for axis in anchor.of_role("k"))
    last = rows[-1].extent if rows else 1
    before = prod(axis.extent for axis in rows[:-1])
    n_tiles = ceil(anchor.n.extent / nr)
    m_micro = before * ceil(last / mr)  # micro-kernel rows of one batch
    m_outer = m_micro // mt if len(rows) <= 1 else (before // mt)
    micro_per_tile = m_micro / m_outer  # micro-kernels per outer tile and n tile

    bytes_in = dtype_bits(anchor.a.dtype) // 8
    panel_bytes = k * nr * bytes_in
    b_bytes = k * n_tiles * nr * bytes_in
    a_bytes = min(prod(anchor.a.shape), m_micro * mr * k) * bytes_in
    a_tile_bytes = a_bytes / m_outer

    epilogue_operands = sum(1 for arg in workload.args if not arg.is_constant) - 1
    # B's panel: re-read by every micro-kernel of the tile; A's tile: re-read for every n tile
    b_level = panel_bytes if (order in ("n", "nm") or micro_per_tile > 1) else b_bytes

    def micro(vectors: int) -> float:
        """Cycles of a micro-kernel."""
        fma = cost * mr * vectors / device.fma_per_cycle
        loads = tile_load_cycles(mr, vectors, device)
        # What does not bound the kernel still costs a little: of two tiles that the FMA units bound, take the one
        # that loads less.
        inner = k * (max(fma, loads, float(device.fma_latency)) + _HIDDEN * (fma + loads))
        epilogue = mr * vectors * _EPILOGUE_CYCLES_PER_VECTOR * epilogue_operands
        fetched = k * vectors * lanes * bytes_in / bytes_per_cycle(b_level + mr * k * bytes_in, device)
        return max(inner + epilogue + _MICRO_KERNEL_START_CYCLES + _HIDDEN_FETCH * fetched, fetched)

    whole, left = divmod(anchor.n.extent, nr)
    columns = whole * micro(vectors) + (micro(ceil(left / lanes)) if left else 0.0)  # of one row of micro-kernels
    total = columns * m_micro * batch
    if order in ("n", "nm"):
        total += n_tiles * batch * a_bytes / bytes_per_cycle(a_bytes, device) * 0.25
        total += b_bytes * batch / bytes_per_cycle(b_bytes, device)
        grains = batch * n_tiles * (m_outer if order == "nm" else 1)
    else:
        streams = m_outer * batch * b_bytes
        total += streams / bytes_per_cycle(b_bytes, device) * (0.25 if b_bytes <= device.l2_bytes // 2 else 1.0)
        total += n_tiles * m_outer * batch * a_tile_bytes / bytes_per_cycle(a_tile_bytes, device) * 0.25
        grains = batch * m_outer * (n_tiles if order == "mn" else 1)
    uneven = imbalance(grains, device)
    return total * uneven / device.threads / device.cycles_per_s
