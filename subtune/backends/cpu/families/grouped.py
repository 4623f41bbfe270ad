"""Grouped convolution with fewer output channels to a group than a vector holds (ResNeXt's 4, a depthwise multiplier).

    for n, h tile, channel tile (parallel):
      spread[h][w][k][channel] = input[h][w][channel // per_group * K + k]
      for h, w tile:  acc[mr pixels][cb channels];  for kh, kw, k:  acc += spread * weights

One vector covers several groups: every input channel is first repeated for all outputs of its group, after which the
convolution multiplies vectors by vectors, as a depthwise one does. The copies are short stores that stay in L2, one
for every product that kh * kw taps read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.backends.base import Family
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, bytes_per_cycle
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.products import fma_obstacle
from subtune.backends.cpu.family import MODE, REGISTERS, SERIAL, CPUProblem
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.core.workload import dtype_bits
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import anchored
from subtune.tir.blocks import all_blocks, is_reduction, nest, root_stages, stage_block, with_stages
from subtune.tir.prepack import PREPROC_ATTR, split_prepack
from subtune.tir.tile import extent_of, vector_width, vectorize_tile

_MAX_UNROLLED = 36  # products of one pixel
_MAX_PIXELS = 28


@dataclass(frozen=True, slots=True)
class Knobs:
    """Tiles of `ht` rows, `mr` pixels of which and `cb` channels are in registers."""

    ht: int
    mr: int = field(metadata=REGISTERS)
    cb: int = field(metadata=REGISTERS)
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    if obstacle := fma_obstacle(problem) or _obstacle(problem.pattern):
        return obstacle
    anchor = problem.pattern
    if anchor.per_group >= _lanes(anchor, problem.device):
        return "no vector of outputs covers several groups"
    return "" if len(anchor.of_role("m")) > 1 else "no rows of pixels"


def _lanes(anchor: Contraction, device: CPUModel) -> int:
    """Outputs of a vector: fewer than it could hold, where there are no more, or no multiple of it."""
    return vector_width(anchor.n.extent, device.lanes(dtype_bits(anchor.acc_dtype)))


def _obstacle(anchor: Contraction) -> str:
    return "" if anchor.per_group and anchor.b.is_constant else "not a grouped convolution with constant weights"


def candidates(problem: CPUProblem) -> list[Candidate]:
    anchor, device = problem.pattern, problem.device
    lanes = _lanes(anchor, device)
    *images, height, width = (axis.extent for axis in anchor.of_role("m"))
    found = []
    for cb in (lanes, 2 * lanes):
        if anchor.n.extent % cb:
            continue
        for mr in (m for m in range(1, min(width, _MAX_PIXELS) + 1) if width % m == 0):
            if (mr + 1) * cb // lanes + 1 > device.vector_registers:
                continue
            for ht in (h for h in range(1, height + 1) if height % h == 0 and h <= _MAX_PIXELS):
                knobs = Knobs(ht, mr, cb)
                seconds = _predict(anchor, (prod(images), height, width), knobs, lanes, device)
                found.append(Candidate.of("grouped", knobs, seconds))
    return found


def _predict(anchor: Contraction, grid: tuple[int, int, int], knobs: Knobs, lanes: int, device: CPUModel) -> float:
    """Seconds: for every tile of `grid` (images, rows, pixels) its input repeated, halo included, then its products."""
    (images, height, width), ht, mr, cb = grid, knobs.ht, knobs.mr, knobs.cb
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    depth = anchor.b.shape[anchor.b.axes.index(anchor.of_role("k")[-1].index)]
    strides = [window[1] for window in anchor.a.windows if window is not None] or [1, 1]
    reach = [window[3] * anchor.axes[window[2]].extent for window in anchor.a.windows if window is not None] or [1, 1]
    read_rows = (ht - 1) * strides[0] + reach[0]
    read_columns = (width - 1) * strides[-1] + reach[-1]
    spread_bytes = read_rows * read_columns * depth * cb * 4
    stores = read_rows * read_columns * depth * cb / vector_width(anchor.per_group, lanes)
    vectors = mr * cb / lanes
    loads = (vectors + cb / lanes) / LOADS_PER_CYCLE
    per_tap = max(vectors / device.fma_per_cycle, loads, device.fma_latency)
    per_tap = max(per_tap, vectors * device.vector_bytes / 3 / bytes_per_cycle(spread_bytes, device))
    products = ht * (width / mr) * taps * per_tap
    tiles = images * (height // ht) * (anchor.n.extent // cb)
    uneven = imbalance(tiles, device)
    cycles = products + stores * device.calibration.spread_cycles
    return tiles * cycles * uneven / device.threads / device.cycles_per_s


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if obstacle := _obstacle(info):
        return NotApplicable(obstacle)
    if -1 in info.b.axes:
        return NotApplicable("the weights are indexed by more than their own axes")
    name = sch.get(stages.anchors[0]).name_hint
    outputs = tuple(sch.get(block).name_hint for block in stages.outputs)
    sch = Schedule(_spread(sch.mod["main"], name, info))
    try:
        return _schedule(sch, name, outputs, info, knobs, problem.device)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


_SPREAD = "spread"


def _spread(func: PrimFunc, name: str, info: Contraction) -> PrimFunc:
    """`func` whose anchor reads a copy of its first operand with a place for every output channel and k."""
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == name)
    anchor = stage_block(stages[at])
    source = anchor.reads[info.a.read].source
    column = anchor.iter_vars[info.n.index]
    k = _channel_axis(anchor, info)
    extents = [int(d) for d in source.shape[:-1]]
    per_group, channels, depth = info.per_group, info.n.extent, int(k.dom.extent)
    shape = [tirx.const(extent, "int64") for extent in (*extents, depth, channels)]
    spread = tirx.decl_buffer(shape, str(source.dtype), _SPREAD)

    axes = [tirx.Var(f"s{i}", "int64") for i in range(len(spread.shape))]
    *pixel, k_at, column_at = axes
    value = tirx.BufferLoad(source, [*pixel, tirx.floordiv(column_at, per_group) * depth + k_at])
    iter_vars = [
        tirx.IterVar(ir.Range(tirx.const(0, "int64"), dim), var, 0) for var, dim in zip(axes, spread.shape, strict=True)
    ]
    copy = nest(_SPREAD, iter_vars, {}, tirx.BufferStore(spread, value, list(axes)), None)

    def follow(load: ir.TensorLoad) -> Any:
        if not load.source.same_as(source):
            return load
        return tirx.BufferLoad(spread, [*load.indices[:-1], k.var, column.var])

    body = tvm_ffi.structural_map(anchor.body, (ir.TensorLoad, follow))
    stages[at] = nest(name, anchor.iter_vars, {}, body, anchor.init)
    return with_stages(func, [*stages[:at], copy, *stages[at:]], [*func.body.block.alloc_buffers, spread])


def _channel_axis(anchor: Any, info: Contraction) -> Any:
    """The reduced axis along the weights' input channels."""
    return anchor.iter_vars[next(axis for axis in reversed(info.b.axes) if axis != info.n.index)]


def _schedule(
    sch: Schedule, name: str, output_names: tuple[str, ...], info: Contraction, knobs: Knobs, device: CPUModel
) -> Kernel | NotApplicable:
    ht, mr, cb = knobs.ht, knobs.mr, knobs.cb
    lanes = _lanes(info, device)
    block, spread = sch.get_sblock(name), sch.get_sblock(_SPREAD)
    for other in all_blocks(sch):  # the padding is computed where its elements are spread
        hint = sch.get(other).name_hint
        if hint not in (name, _SPREAD, *output_names) and not is_reduction(sch.get(other)):
            sch.compute_inline(other)
    if info.n.extent % cb or cb % lanes:
        return NotApplicable(f"a tile of {cb} channels does not divide {info.n.extent} in vectors")
    read = next(i for i, r in enumerate(sch.get(block).reads) if _is_param(sch, r.source, info.b.param))
    packed = sch.cache_read(block, read, "global")
    order = tuple(sorted(range(len(info.b.axes)), key=lambda dim: info.b.axes[dim] == info.n.index))
    sch.transform_layout(block, ("read", read), _permutation(order))
    sch.annotate(packed, PREPROC_ATTR, True)
    packing = Packing(tuple((extent,) for extent in info.b.shape), order)

    loops = sch.get_loops(block)
    *outer, h, w = [loops[axis.index] for axis in info.of_role("m")]
    reduce = [loops[axis.index] for axis in info.of_role("k")]
    if extent_of(sch, h) % ht or extent_of(sch, w) % mr:
        return NotApplicable("the tile does not divide the output")
    co, cv, ci = sch.split(loops[info.n.index], [None, cb // lanes, lanes])
    ho, hi = sch.split(h, [None, ht])
    wo, wi = sch.split(w, [None, mr])
    sch.reorder(*outer, ho, co, hi, wo, *reduce, wi, cv, ci)
    outputs = [sch.get_sblock(hint) for hint in output_names]
    if outputs:
        sch.set_scope(block, 0, "local")
    else:
        outputs = [sch.cache_write(block, 0, "local")]
    for output in outputs:
        sch.reverse_compute_at(output, wo)
    fused = sch.fuse(*outer, ho, co)
    sch.compute_at(spread, fused)
    columns = sch.get_loops(spread)[-1]
    width = vector_width(info.per_group, lanes)
    if width > 1 and extent_of(sch, columns) % width == 0:
        groups, vec = sch.split(columns, [None, width])
        sch.unroll(groups)
        sch.vectorize(vec)
    depth = len(sch.get_loops(block)) - len(reduce) - 3
    sch.vectorize(ci)
    sch.unroll(cv)
    sch.unroll(wi)
    size = 1
    for loop in reversed(reduce):
        size *= extent_of(sch, loop)
        if size <= _MAX_UNROLLED:
            sch.unroll(loop)
    if not knobs.serial:
        sch.parallel(fused)
    sch.decompose_reduction(block, reduce[0])
    for output in outputs:
        vectorize_tile(sch, output, depth, lanes)
    return Kernel(split_prepack(sch.mod["main"], info.b.param), ((info.b.param, packing),))


def _is_param(sch: Schedule, buffer: Any, param: int) -> bool:
    return bool(buffer.same_as(sch.mod["main"].params[param]))


def _permutation(order: tuple[int, ...]) -> Any:
    def index_map(*index: Any) -> list[Any]:
        return [index[dim] for dim in order]

    return tirx.IndexMap.from_func(index_map, ndim=len(order))


FAMILY = Family("grouped", 2, Knobs, accepts, candidates, schedule, (SERIAL,))
