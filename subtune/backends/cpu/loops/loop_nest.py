"""The loops of a register-blocked contraction, whatever its micro-kernel multiplies: placed, then marked.

order "m":   for batch, m outer (parallel):          for n tile:  for m tile:  micro-kernel
order "n":   for batch, n tile (parallel):           for m outer, m tile:  micro-kernel
order "mn":  for batch, m outer, n tile (parallel):  for m tile:  micro-kernel
order "nm":  for batch, n tile, m outer (parallel):  for m tile:  micro-kernel
micro-kernel:  for k:  for mr rows (unrolled), nr columns (vectors):  acc += a * b
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm.s_tir import Schedule

from subtune.backends.base import OUTER
from subtune.backends.cpu.family import MODE, REGISTERS
from subtune.backends.cpu.loops.prefetch import MicroKernel
from subtune.patterns.contraction import Contraction
from subtune.tir.tile import place_pad, vectorize_tile


@dataclass(frozen=True, slots=True)
class TileKnobs:
    """A tile is `mr` rows by `nr` columns, `mt` of them share a panel of B."""

    mr: int = field(metadata=REGISTERS)
    nr: int = field(metadata=REGISTERS)
    mt: int = field(metadata=OUTER)
    order: str = field(metadata=OUTER)
    prefetch: bool = False
    """The next panel of constant weights is fetched meanwhile."""
    passes: int = 0
    """In how many of the tiles that share a panel, at most; 0: in all. A kernel for any number of rows has to say."""
    serial: bool = field(default=False, metadata=MODE)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Where the tile lies in the loops, in vectors of `lanes`."""

    mr: int
    nr: int
    mt: int
    order: str
    lanes: int
    is_serial: bool

    @classmethod
    def of(cls, knobs: TileKnobs, lanes: int) -> Tiling:
        return cls(knobs.mr, knobs.nr, knobs.mt, knobs.order, lanes, knobs.serial)

    def padding(self, info: Contraction) -> dict[int, int]:
        """New extents of the axes that the tile does not divide: the last m axis and the n axis."""
        rows = info.of_role("m")
        tiles = [(info.n, self.nr)] + ([(rows[-1], self.mr)] if rows else [])
        return {axis.index: -(-axis.extent // tile) * tile for axis, tile in tiles if axis.extent % tile}


@dataclass(frozen=True, slots=True)
class LoopNest:
    """The placed loops of the anchor `block`, and the blocks that store its tiles.

    Attributes:
        fused: the loop that the threads share.
        batch: the same where it runs over batches alone, each of which packs its own B; else None.
        micro_kernel: the loops of k, then rows, vectors of columns, and lanes.
        depth: loops round the micro-kernel.
        passes: how many of them, the innermost, run over rows for which one panel of B is read again.
    """

    block: Any
    outputs: tuple[Any, ...]
    fused: Any
    batch: Any | None
    reduce: tuple[Any, ...]
    micro_kernel: tuple[Any, Any, Any]
    depth: int
    passes: int


def place(
    sch: Schedule, block: Any, outputs: Sequence[Any], info: Contraction, tiling: Tiling, packs_online: bool
) -> LoopNest:
    """Split and order the anchor's loops, its accumulators in registers, `outputs` (or a copy) computed on them."""
    loops = sch.get_loops(block)
    batch, rows, reduce = ([loops[axis.index] for axis in info.of_role(role)] for role in ("batch", "m", "k"))
    no, nv, ni = sch.split(loops[info.n.index], [None, tiling.nr // tiling.lanes, tiling.lanes])
    if not rows:
        rows = [sch.add_unit_loop(no)]
    *outer_rows, last_row = rows
    if outer_rows:  # convolution: a tile is mt output rows of mr pixels each
        ho, hi = sch.split(outer_rows[-1], [None, tiling.mt])
        wo, wi = sch.split(last_row, [None, tiling.mr])
        outer, middle = [*outer_rows[:-1], ho], [hi, wo]
    else:
        mo, mm, wi = sch.split(last_row, [None, tiling.mt, tiling.mr])
        outer, middle = [mo], [mm]
    if tiling.order == "n":
        nest, parallel = [*batch, no, *outer, *middle], [*batch, no]
        passes = len(outer) + len(middle)
    elif tiling.order == "nm":
        nest, parallel = [*batch, no, *outer, *middle], [*batch, no, *outer]
        passes = len(middle)
    else:
        nest, passes = [*batch, *outer, no, *middle], len(middle)
        parallel = [*batch, *outer] if tiling.order == "m" else [*batch, *outer, no]
    if packs_online and batch:
        parallel = batch  # each batch's B is packed once, by the thread that uses it
    sch.reorder(*nest, *reduce, wi, nv, ni)
    if outputs:
        sch.set_scope(block, 0, "local")
    else:
        outputs = [sch.cache_write(block, 0, "local")]
    for output in outputs:
        sch.reverse_compute_at(output, nest[-1])
    fused = sch.fuse(*parallel)
    own_batch = fused if packs_online and batch else None
    depth = 1 + len(nest) - len(parallel)
    return LoopNest(block, tuple(outputs), fused, own_batch, tuple(reduce), (wi, nv, ni), depth, passes)


def mark(sch: Schedule, nest: LoopNest, tiling: Tiling, pads: Iterable[Any], pad_lanes: int) -> None:
    """Place the paddings of A, then vectorise, unroll and share the loops among threads."""
    for pad in pads:
        place_pad(sch, pad, nest.fused if tiling.order == "m" else None, pad_lanes, tiling.is_serial)
    rows, vectors, lanes = nest.micro_kernel
    sch.vectorize(lanes)
    sch.unroll(vectors)
    sch.unroll(rows)
    if not tiling.is_serial:
        sch.parallel(nest.fused)
    sch.decompose_reduction(nest.block, nest.reduce[0])
    for output in nest.outputs:
        vectorize_tile(sch, output, nest.depth, tiling.lanes)


def micro_kernel(sch: Schedule, nest: LoopNest, passes: int = 0) -> MicroKernel:
    """Where the marked loops of `nest` have their micro-kernel. `passes`: see there."""
    return MicroKernel(sch.get(nest.block).name_hint, nest.depth, nest.passes, len(nest.reduce), passes)
