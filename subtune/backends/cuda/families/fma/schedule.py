"""Matrix products and convolutions of float32 on CUDA cores, implicit GEMM over NHWC, A along k.

The anchor is recognised (`gemm_view`), not scheduled: rows of the product are pixels, k runs over the taps of a window
and the channels. B is `[*taps, channels, columns]`, a constant is packed like that; or `[columns, *taps, channels]`,
as it lies in memory. The epilogue is computed on the sums in registers, or by a second
kernel where blocks have parts of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.fma.kernel import Walk, multiply
from subtune.backends.cuda.families.fma.tensor import tensor_obstacle
from subtune.backends.cuda.families.wgmma.source import source_of
from subtune.backends.cuda.model.core_tiles import FmaTile
from subtune.backends.cuda.source.calls import address
from subtune.backends.cuda.source.emit import Code, const, load, prim_func, ramp
from subtune.backends.cuda.source.lanes import Lanes, Unsupported, decoded, not_applicable
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.gemm_view import Dim, GemmView, gemm_view
from subtune.patterns.stages import Stages, anchored

_LANES = 4
_THREADS, _PARTS_AT_ONCE = 128, 8  # of a block that adds up parts, and of one of its threads
_MAX_TAPS, _MAX_DEEP_TAPS = 16, 10
_FEW = 8  # channels, fewer than which are walked together with the pixels of a window's row
_MAX_ELEMENTS = 1 << 31


def schedule(problem: Problem[CUDAModel], tile: FmaTile) -> Kernel | NotApplicable:
    if tile.tensor and (reason := tensor_obstacle(problem.device, problem.numerics)):
        return NotApplicable(reason)
    try:
        found = anchored(problem.workload, contraction)
        if isinstance(found, NotApplicable):
            return found
        return _schedule(*found, tile, problem)
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


def _schedule(
    sch: Any, stages: Stages, info: Contraction, tile: FmaTile, problem: Problem[CUDAModel]
) -> Kernel | NotApplicable:
    device = problem.device
    if (info.a.dtype, info.b.dtype, info.acc_dtype) != ("float32",) * 3:
        return NotApplicable("no product of float32")
    view, source = gemm_view(info), source_of(sch, stages, info)
    if isinstance(view, NotApplicable):
        return view
    if isinstance(source, NotApplicable):
        return source
    param, extents, offsets = source
    reading = _reading(view, extents, offsets)
    if isinstance(reading, NotApplicable):
        return reading
    n, elements = view.extent(view.n), max(prod(extents), prod(info.b.shape))
    if elements >= _MAX_ELEMENTS:
        return NotApplicable(f"{elements} elements")
    packing = _packing(info, view, (*reading.k, view.n), info.b.is_constant)
    if isinstance(packing, NotApplicable):
        return packing
    func = sch.mod["main"]
    params: list[Any] = list(func.params)
    packings: tuple[tuple[int, Packing], ...] = ()
    if info.b.is_constant:
        params[info.b.param] = tirx.decl_buffer(list(packing.shape), "float32", "packed")
        packings = ((info.b.param, packing),)
    elif not _leaves(packing):
        if not _leaves(_packing(info, view, (view.n, *reading.k))):
            return NotApplicable("B holds neither its columns nor k side by side")
        reading = replace(reading, walk=replace(reading.walk, pitch_b=reading.walk.k))
    elif n % _LANES:
        return NotApplicable(f"{n} columns, of which copies take {_LANES}")
    walk = reading.walk
    if tile.split > 1 and (walk.taps != (1, 1, 1) or walk.edge):
        return NotApplicable("a window's sum in parts")
    if reason := tile.obstacle(walk.vector, device, walk.pitch_b > 0, walk.channels):
        return NotApplicable(reason)
    channels = tile.channels_of_part(walk.channels)
    whole = walk.channels if channels * tile.split != walk.channels else 0
    reading = replace(reading, walk=replace(walk, channels=channels, whole=whole))
    outputs = [sch.get(b) for b in stages.outputs]
    writer = _Writer(sch.get(stages.anchors[0]), outputs, view, tile, problem.numerics.exact)
    written = prim_func(func, *writer.write(func.params[param], params[info.b.param], reading))
    return Kernel(tirx.PrimFunc(params, written.body, func.ret_type, func.attrs), packings)


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dim of A outside of the channels: rows of the product begin at `scale * group - offset`, taps follow."""

    group: int  # of rows; -1: none
    scale: int
    offset: int
    stride: int  # elements
    tap: int = -1  # group
    taps: int = 1
    apart: int = 0  # pixels from tap to tap
    size: int = 0  # pixels that exist, where some windows leave them; else 0


@dataclass(frozen=True, slots=True)
class _Reading:
    """Where A's elements lie: the walk over k, and of every row (and batch) the window it begins at.

    `walked`: positions in `dims` of the three axes of the window, or fewer. `k`: the groups of k in B's packed order.
    """

    walk: Walk
    dims: tuple[_Dim, ...]
    walked: tuple[int, ...]
    k: tuple[int, ...]

    def window(self, at: dict[int, Any]) -> tuple[Any, Any, Any, Any]:
        """The first element, and the first pixel along the three axes of the window."""
        begins = [(at[d.group] * d.scale if d.group >= 0 else const(0)) - d.offset for d in self.dims]
        base: Any = const(0)
        for dim, begin in zip(self.dims, begins, strict=True):
            base = base + begin * dim.stride
        deep, high, wide = (const(0) if d < 0 else begins[d] for d in _by_axis(self.walked, bool(self.walk.edge)))
        return base, deep, high, begins[-1] * self.dims[-1].stride if self.walk.edge else wide


def _reading(view: GemmView, extents: tuple[int, ...], offsets: tuple[int, ...]) -> _Reading | NotApplicable:
    *outer, inner = view.a
    if inner.group != view.inner or offsets[-1]:
        return NotApplicable("A is not contiguous along k")
    dims = tuple(_dim(view, dim, d, extents, offsets) for d, dim in enumerate(outer))
    channels, edge = view.extent(view.inner), 0
    k: tuple[int, ...] = (view.inner,)
    last = dims[-1] if dims else None
    if channels < _FEW and last is not None and last.apart == 1 and last.stride == channels == extents[-1]:
        k, channels = (last.tap, view.inner), last.taps * channels
        edge = last.size * last.stride
        dims = (*dims[:-1], replace(last, tap=-1, taps=1, apart=0, size=0))
    walked = tuple(d for d, dim in enumerate(dims) if dim.tap >= 0 or dim.size)
    if len(walked) > 3 - bool(edge):
        return NotApplicable("windows of more than three axes")
    axes = _by_axis(walked, bool(edge))
    most = _MAX_TAPS if axes[0] < 0 else _MAX_DEEP_TAPS
    if any(dims[d].taps > most for d in walked):
        return NotApplicable(f"windows of more than {most} pixels")
    k = (*(dims[d].tap for d in walked if dims[d].tap >= 0), *k)
    if sorted(k) != sorted((*view.steps, view.inner)):
        return NotApplicable("a reduced axis that A is not walked along")
    aligned = [channels, *(dim.stride * x for dim in dims for x in (dim.scale, dim.offset, dim.apart))]
    vector = next(v for v in (4, 2, 1) if all(number % v == 0 for number in aligned))
    deep, high, wide = (dims[d] if d >= 0 else _Dim(-1, 0, 0, 0) for d in axes)
    walk = Walk(
        channels, (deep.taps, high.taps, wide.taps),
        (deep.stride * deep.apart, high.stride * high.apart, wide.stride * wide.apart),
        (deep.apart, high.apart, wide.apart), (deep.size, high.size, wide.size), vector, edge,
    )  # fmt: skip
    return _Reading(walk, dims, walked, k)


def _by_axis(walked: tuple[int, ...], has_edge: bool) -> tuple[int, int, int]:
    """Which of `walked` is the window's depth, height and width; -1: none. An edge takes the place of the width."""
    places = 2 - has_edge
    deep, flat = (walked[0], walked[1:]) if len(walked) > places else (-1, walked)
    high, wide = (*flat, -1, -1)[:2]
    return deep, high, wide


def _dim(view: GemmView, dim: Dim, d: int, extents: tuple[int, ...], offsets: tuple[int, ...]) -> _Dim:
    is_step = dim.group in view.steps
    group = -1 if is_step else dim.group
    tap = dim.window if dim.window >= 0 else dim.group if is_step else -1
    apart = dim.dilation if dim.window >= 0 else dim.scale if is_step else 0
    taps = view.extent(tap) if tap >= 0 else 1
    last = (view.extent(group) - 1) * dim.scale if group >= 0 else 0
    leaves = offsets[d] > 0 or last + (taps - 1) * apart - offsets[d] >= extents[d]
    size = extents[d] if leaves else 0
    return _Dim(group, dim.scale, offsets[d], prod(extents[d + 1 :]), tap, taps, apart, size)


def _packing(
    info: Contraction, view: GemmView, groups: tuple[int, ...], is_padded: bool = False
) -> Packing | NotApplicable:
    """That of B by batches, then `groups`; with columns of zeros, so that there are whole vectors, if `is_padded`."""
    wanted = [axis for g in (*view.batch, *groups) for axis in view.groups[g].axes]
    if any(axis not in info.b.axes for axis in wanted):
        return NotApplicable("B is indexed by more than its own axes")
    unit = [dim for dim, axis in enumerate(info.b.axes) if axis not in wanted]
    if any(info.b.shape[dim] > 1 for dim in unit):
        return NotApplicable("B has a dim that no axis runs along")
    split = [(d,) for d in info.b.shape]
    columns = view.groups[view.n].axes
    if is_padded and view.extent(view.n) % _LANES:
        if len(columns) > 1:
            return NotApplicable("columns that are no whole vectors, along several axes")
        split[info.b.axes.index(columns[0])] = (_whole(view.extent(view.n)),)
    return Packing(tuple(split), (*unit, *(info.b.axes.index(axis) for axis in wanted)))


def _whole(columns: int) -> int:
    return -(-columns // _LANES) * _LANES


def _leaves(packing: Packing | NotApplicable) -> bool:
    """Whether every element stays where it is."""
    if isinstance(packing, NotApplicable):
        return False
    order = [dim for dim in packing.order if packing.split[dim] != (1,)]
    return order == sorted(order)


class _Writer:
    def __init__(self, anchor: Any, outputs: list[Any], view: GemmView, tile: FmaTile, exact: bool) -> None:
        self._anchor, self._outputs, self._view, self._tile = anchor, outputs, view, tile
        self._code = Code(exact)

    def write(self, a: Any, b: Any, reading: _Reading) -> tuple[list[Any], list[Any]]:
        """The kernels and what lies between them."""
        code, tile, view, walk = self._code, self._tile, self._view, reading.walk
        m, n = view.extent(*view.rows), view.extent(view.n)
        across, columns = -(-n // tile.bn), n if walk.pitch_b else _whole(n)
        block = code.thread("blockIdx.x", -(-m // tile.bm) * across)
        count, split = view.extent(*view.batch), tile.split
        which = code.thread("blockIdx.z", count * split) if view.batch or split > 1 else const(0)
        batch, part = decoded(which, (count, split), code.analyzer)
        parts = tirx.decl_buffer([split, count, m, _whole(n)], "float32", "parts")
        thread = code.thread("threadIdx.x", tile.threads)
        first = tirx.floordiv(block, const(across)) * tile.bm, tirx.floormod(block, const(across)) * tile.bn, part
        batches = self._unraveled(batch, view.batch)

        def window(row: Any) -> tuple[Any, Any, Any, Any]:
            return reading.window(batches | self._unraveled(row, view.rows))

        of_part = part * (walk.k if walk.pitch_b else walk.k * columns)
        of_batch = batch * ((walk.whole or walk.k * split) * columns)
        operands = address(a, const(0) + part * walk.k), address(b, of_batch + of_part)
        sums = multiply(code, tile, walk, (m, columns), first, operands, window, thread)
        width = sums.vector
        lane = code.variable("lane", width)
        for j in range(tile.tn // width):
            with code.unrolled(sums.rows) as i:
                row, column = sums.row(i), sums.column(j)
                inside = [tirx.LT(row, const(m))] if m % tile.bm else []
                inside += [tirx.LT(column, const(n))] if n % tile.bn else []
                with code.when(tirx.all(*inside) if inside else None):
                    row, at = code.bind("row", row, m), i * tile.tn + j * width
                    if split > 1:
                        total = load(sums.registers, at + lane)
                        Lanes(code, lane, width).write(parts, [part, batch, row, column + lane], total)
                    else:
                        place = batches | self._unraveled(row, view.rows)
                        self._store_run(code, sums.registers, at, place, column, width)
        kernel = code.kernel(tile.blocks)
        return ([kernel, self._total(parts)], [parts]) if split > 1 else ([kernel], [])

    def _total(self, parts: Any) -> Any:
        """Another kernel: the parts of four sums at a time, added up."""
        code, view = Code(self._code.exact), self._view
        split, count, m, n = (int(d) for d in parts.shape)
        threads = count * m * n // _LANES  # n: as many columns as make whole vectors
        block = code.thread("blockIdx.x", -(-threads // _THREADS))
        first = (block * _THREADS + code.thread("threadIdx.x", _THREADS)) * _LANES
        at_once = min(split, _PARTS_AT_ONCE)
        sums, read = (code.local("float32", count * _LANES, name) for count, name in ((1, "sum"), (at_once, "part")))
        with code.when(tirx.LT(first, const(count * m * n)) if threads % _THREADS else None):
            with code.unrolled(_LANES) as v:
                code.store(sums, v, tirx.FloatImm("float32", 0.0))
            with code.serial(split // at_once) as group:
                with code.unrolled(at_once) as part:
                    there = (group * at_once + part) * (count * m * n) + first
                    code.store(read, ramp(part * _LANES, _LANES), load(parts, ramp(there, _LANES)))
                with code.unrolled(at_once) as part, code.unrolled(_LANES) as v:
                    code.store(sums, v, load(sums, v) + load(read, part * _LANES + v))
            batch, row, column = decoded(first, (count, m, n), code.analyzer)
            place = self._unraveled(batch, view.batch) | self._unraveled(row, view.rows)
            self._store_run(code, sums, const(0), place, column, _LANES)
        return code.kernel()

    def _store_run(self, code: Code, sums: Any, at: Any, place: dict[int, Any], column: Any, count: int) -> None:
        """`count` sums from `sums[at]` on, side by side from `column`; one by one where rows are no whole vectors."""
        n = self._view.extent(self._view.n)
        width = 1 if n % count else count
        lane = code.variable("lane", width)
        for first in range(0, count, width):
            with code.when(tirx.LT(column + first, const(n)) if first else None):
                total = load(sums, at + first + lane)
                self._store(code, total, place | {self._view.n: column + first + lane}, lane, width)

    def _unraveled(self, index: Any, groups: tuple[int, ...]) -> dict[int, Any]:
        shape = [self._view.extent(g) for g in groups]
        return dict(zip(groups, decoded(index, shape, self._code.analyzer), strict=True))

    def _store(self, code: Code, total: Any, at: dict[int, Any], lane: Any, width: int) -> None:
        """The epilogue of `width` sums of a row, `total` for each lane."""
        store = self._anchor.body
        axes = [iv.var for iv in self._anchor.iter_vars]
        values = dict.fromkeys(axes, const(0))
        for g, index in at.items():
            group = self._view.groups[g]
            values |= zip((axes[a] for a in group.axes), decoded(index, group.extents, code.analyzer), strict=True)
        place = [values.get(index, index) for index in store.indices]
        store_epilogue(code, store.buffer, self._outputs, place, lane, width, total)


def store_epilogue(
    code: Code, buffer: Any, outputs: list[Any], place: list[Any], lane: Any, width: int, total: Any
) -> None:
    """Store what `outputs` (sblocks) compute of `total`, the anchor's result at `place` in `buffer`, for all lanes."""
    shape = tuple(int(d) for d in buffer.shape)
    expected: Any = const(0)
    for index, extent in zip(place, shape, strict=True):
        expected = expected * extent + index

    def known(source: Any, indices: list[Any]) -> Any:
        if not source.same_as(buffer):
            return None
        number: Any = const(0)
        for index, extent in zip(indices, shape, strict=True):
            number = number * extent + index
        if not reader.is_zero(number - expected):
            raise Unsupported("the epilogue reads other sums than it stores")
        return total

    reader = Lanes(code, lane, width, known)
    if not outputs:
        reader.write(buffer, place, total)
    for block in outputs:
        extents = tuple(int(iv.dom.extent) for iv in block.iter_vars)
        if prod(extents) != prod(shape):
            raise Unsupported("an output has another shape than the sums")
        indices = place if extents == shape else decoded(expected, extents, code.analyzer)
        axes = {iv.var: index for iv, index in zip(block.iter_vars, indices, strict=True)}
        value = reader.compute(block.body.value, axes)
        reader.write(block.body.buffer, [axes.get(index, index) for index in block.body.indices], value)
