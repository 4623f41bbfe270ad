"""Contractions on Hopper's tensor cores: GEMM, batched GEMM and implicit-GEMM convolution, in `tvm.tirx`.

The workload is recognised, not scheduled: its anchor becomes tensor maps (`gemm_view`, `tma`), its epilogue expressions
(`epilogue`), and the kernel is written round them (`kernel`, `store`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.s_tir import Schedule
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.copies import Copies
from subtune.backends.cuda.families.wgmma.epilogue import epilogue_of
from subtune.backends.cuda.families.wgmma.in_place import InPlace, in_order_of_sums, may_be_in_place
from subtune.backends.cuda.families.wgmma.kernel import wgmma_func
from subtune.backends.cuda.families.wgmma.row_values import RowValues
from subtune.backends.cuda.families.wgmma.source import source_of
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.store_copies import product_alone, with_copies
from subtune.backends.cuda.families.wgmma.store_form import store_of
from subtune.backends.cuda.families.wgmma.tiling import ROW_BYTES, Tiling, are_multiplied, wgmma_obstacle
from subtune.backends.cuda.families.wgmma.tma import TensorMap, tensor_map
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR
from subtune.core.kernel import ConstantTransform, Kernel, NotApplicable, Packing
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.gemm_view import GemmView, gemm_view, packed_order
from subtune.patterns.stages import Stages, anchored


@dataclass(frozen=True, slots=True)
class WgmmaKnobs:
    """Those of `Tiling`; `rows` as text, `2x64`."""

    rows: str
    columns: int
    stages: int
    consumers: int
    alternate: bool
    blocks_per_sm: int
    raster: int
    cluster: int = 1
    split: int = 1
    boxes: int = 1
    promote: bool = False
    row_bytes: int = ROW_BYTES
    swapped: bool = False
    taps: int = 1
    resident: int = 0
    single: bool = False
    few: bool = False
    fitted: bool = False

    tile_shape = property(lambda self: self.tiling.shape)

    @property
    def tiling(self) -> Tiling:
        """Raises ValueError where `rows` are no numbers."""
        others = (getattr(self, name) for name in Tiling.__slots__ if name != "rows")
        return Tiling(tuple(int(rows) for rows in self.rows.split("x")), *others)


def schedule(problem: Problem[CUDAModel], knobs: WgmmaKnobs) -> Kernel | NotApplicable:
    found = product_of(problem, product_alone(problem).workload, knobs.tiling, in_place=True)
    if isinstance(found, NotApplicable):
        return found
    copied = with_copies(problem, found.store, tuple(found.buffers.values()))
    if isinstance(copied, NotApplicable):
        return copied
    copies, params = copied
    return found.kernel(params, replace(found.store, copies=copies))


@dataclass(frozen=True, slots=True)
class Product:
    """All that a kernel is written from, but how its tiles are stored: `store` is one way.

    `buffers` are the kernel's for each parameter; `copies` says which of them are multiplied: those of the product, and
    of one that is added to it. `numbers` are the epilogue's variables for those parameters that have a number for each
    row.
    """

    buffers: dict[Any, Any]
    copies: tuple[Copies, ...]
    store: Store
    packings: tuple[tuple[int, ConstantTransform], ...]
    numbers: tuple[Any, ...] = ()

    @property
    def walk(self) -> Walk:
        return self.copies[0].walk

    @property
    def operands(self) -> tuple[Any, ...]:
        return tuple(operand for copies in self.copies for operand in (copies.a, copies.b))

    def kernel(self, params: tuple[Any, ...], store: Store, rows: RowValues | None = None) -> Kernel:
        func = wgmma_func(params, self.copies, store, rows)
        attrs = {"global_symbol": "main", TIRX_ATTR: 1, "tirx.is_scheduled": 1, "tirx.noalias": True}
        return Kernel(func.with_attrs(attrs), self.packings)


@dataclass(frozen=True, slots=True)
class Read:
    """A contraction as its kernel reads it: inlined, as `view`, A from the parameter that `source_of` says."""

    sch: Schedule
    stages: Stages
    info: Contraction
    view: GemmView
    source: tuple[int, tuple[int, ...], tuple[int, ...]]

    @property
    def params(self) -> list[Any]:
        return list(self.sch.mod["main"].params)

    def copies(self, walk: Walk, buffers: Sequence[Any]) -> Copies | NotApplicable:
        """How its operands are copied; `buffers`: the kernel's for each parameter."""
        a_param, extents, offsets = self.source
        maps = _maps(self.info, self.view, walk.tiling, extents, offsets)
        if isinstance(maps, NotApplicable):
            return maps
        return Copies(buffers[a_param], buffers[self.info.b.param], maps, walk, self.info.b.is_constant)


def read_of(problem: Problem[CUDAModel], workload: Workload, keeps_rows: bool = False) -> Read | NotApplicable:
    """`workload`, the problem's or a part of it, as a contraction that Hopper multiplies.

    Args:
        keeps_rows: as of `gemm_view`.
    """
    if why := wgmma_obstacle(problem):
        return NotApplicable(why)
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if not are_multiplied(info.a.dtype, info.b.dtype, problem.numerics):
        return NotApplicable(f"wgmma does not multiply {info.a.dtype} by {info.b.dtype} here")
    view = gemm_view(info, keeps_rows)
    if isinstance(view, NotApplicable):
        return view
    source = source_of(sch, stages, info, view)
    return source if isinstance(source, NotApplicable) else Read(sch, stages, info, view, source)


def product_of(
    problem: Problem[CUDAModel],
    workload: Workload,
    tiling: Tiling,
    numbers: tuple[int, ...] = (),
    in_place: bool = False,
) -> Product | NotApplicable:
    """`workload`, a contraction and its epilogue, in tiles; it is the problem's, or a part of it.

    Args:
        numbers: parameters that have one for each row, and are no memory of the kernel.
        in_place: a thread stores its own sums, where they are bytes and B can be packed so.
    """
    read = read_of(problem, workload)
    return read if isinstance(read, NotApplicable) else product_in_tiles(problem, (read,), tiling, numbers, in_place)


def product_in_tiles(
    problem: Problem[CUDAModel],
    reads: tuple[Read, ...],
    tiling: Tiling,
    numbers: tuple[int, ...] = (),
    in_place: bool = False,
) -> Product | NotApplicable:
    """The first of `reads` with its epilogue; another one, of the same parameters, rows and columns, is added to it."""
    device, (read, *added) = problem.device, reads
    info, params = read.info, read.params
    epilogue = epilogue_of(read.sch, read.stages, info)
    if isinstance(epilogue, NotApplicable):
        return epilogue
    named = epilogue.with_numbers([params[i] for i in numbers], info)
    if isinstance(named, NotApplicable):
        return named
    epilogue, variables = named
    more = [Walk(other.view, tiling, info.a.dtype, device.sms) for other in added]
    walk = Walk(read.view, tiling, info.a.dtype, device.sms, sum(one.steps for one in more))
    buffers, packings = _buffers(reads)
    may_be = in_place and may_be_in_place(tiling, read.view, info.b, epilogue.dtype)
    store = store_of(epilogue, walk, buffers, bool(numbers), may_be)
    if isinstance(store, NotApplicable):
        return store
    if isinstance(store.exchange, InPlace):
        packings = in_order_of_sums(info.b, read.view, packings)
    exchanged = epilogue.dtype if isinstance(store.exchange, InPlace) else store.dtype
    limits = exchanged, device.shared_per_block_bytes, device.shared_per_sm_bytes
    if why := tiling.obstacle(*limits):
        return NotApplicable(why)
    if tiling.obstacle(*limits, len(store.fetched)):
        store = replace(store, fetched=(), late=0)  # no room: they are loaded where they are used
    if why := _narrow_obstacle(tiling, info.a.dtype, exchanged):
        return NotApplicable(why)
    if why := walk.obstacle():
        return NotApplicable(why)
    copies = []
    for one, its_walk in zip(reads, (walk, *more), strict=True):
        found = one.copies(its_walk, list(buffers.values()))
        if isinstance(found, NotApplicable):
            return found
        copies.append(found)
    if len({tuple(map_.is_along_k for map_ in one.maps) for one in copies}) > 1:
        return NotApplicable("operands that lie along k, and others across it")
    return Product(buffers, tuple(copies), store, packings, variables)


def _buffers(reads: tuple[Read, ...]) -> tuple[dict[Any, Any], tuple[tuple[int, ConstantTransform], ...]]:
    """The kernel's buffer for each of the first one's parameters, and how B is packed, if it is."""
    params = reads[0].params
    shapes = [tuple(int(d) for d in param.shape) for param in params]
    packings: list[tuple[int, ConstantTransform]] = []
    for read in reads:
        if read.view.packs:
            b = read.info.b
            packing = Packing(tuple((d,) for d in b.shape), packed_order(read.info, read.view))
            packings.append((b.param, packing))
            shapes[b.param] = packing.shape
    buffers = {
        param: T.buffer(shape, str(param.dtype), align=16, buffer_name=param.name)
        for param, shape in zip(params, shapes, strict=True)
    }
    return buffers, tuple(packings)


def _narrow_obstacle(tiling: Tiling, multiplied: str, exchanged: str) -> str:
    """Why tiles are not multiplied or exchanged in 8 bits; "" where they are, or have more."""
    if tiling.swapped and 8 in (dtype_bits(multiplied), dtype_bits(exchanged)):
        return "swapped operands of 8 bits, or results that are exchanged in 8 bits"
    if tiling.columns == 256 and multiplied in ("int8", "uint8"):
        return "integer multiplications have at most 224 columns: there TVM's table ends"
    return ""


def _maps(
    info: Contraction, view: GemmView, tiling: Tiling, extents: tuple[int, ...], offsets: tuple[int, ...]
) -> tuple[TensorMap, TensorMap] | NotApplicable:
    if len(tiling.rows) != len(view.rows):
        return NotApplicable(f"a tile of {len(tiling.rows)} groups of rows, the contraction has {len(view.rows)}")
    bk = tiling.row_bytes * 8 // dtype_bits(info.a.dtype)
    a_tile = dict(zip(view.rows, tiling.rows, strict=True)) | {view.inner: bk}
    if tiling.taps > 1:
        a_tile[view.rows[-2]] += tiling.taps - 1
    is_plain = len(view.rows) == 1 and view.a[-1].group == view.inner
    if is_plain:
        # rows that are never stored need not be filled, with zeros that is slow
        a_tile[view.rows[0]] = min(tiling.rows[0], view.extent(view.rows[0]))
    b_tile = {view.n: tiling.columns // tiling.cluster, view.inner: bk}
    a = tensor_map(view.a, extents, offsets, info.a.dtype, a_tile, view.inner, tiling.row_bytes)
    if isinstance(a, NotApplicable):
        return a
    if tiling.few and is_plain:
        a = a.of_rows(view.rows[0], tiling.rows[0], view.extent(view.rows[0]))
    b_shape = tuple(d.extent for d in view.b)
    b = tensor_map(view.b, b_shape, (0,) * len(b_shape), info.b.dtype, b_tile, view.inner, tiling.row_bytes)
    if isinstance(b, NotApplicable):
        return b
    for map_, width in ((a, tiling.m_consumer), (b, tiling.columns // tiling.cluster)):
        if not map_.is_along_k and (bk != 64 or width % 64):
            return NotApplicable("an operand across k needs elements of 16 bits and tiles of 64")
    if (tiling.boxes > 1 or tiling.taps > 1) and not a.is_along_k:
        return NotApplicable("several boxes of rows, or taps, are copied along k only")
    return a, b
