"""Register-blocked contraction: GEMM, batch matmul and direct NHWC convolution from one loop structure.

    order "m":  for batch, m outer (parallel):  for n tile:  for m tile:  micro-kernel
    order "n":  for batch, n tile (parallel):  for m outer, m tile:  micro-kernel
    micro-kernel:  for k:  for mr rows (unrolled), nr columns (vectors):  acc += a * b

The accumulators of one micro-kernel (`mr` x `nr`) live in registers, the epilogue is computed on them before
the store. A constant B is packed `[n / nr][k...][nr]` at compile time, so that the micro-kernel reads it with unit
stride; with the knob `prefetch` the next panel of it is fetched meanwhile.
Sources: Goto & van de Geijn 2008; Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016; measured
in the project's recipes.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.anchor import Contraction, Operand, contraction
from subtune.candidate import Candidate
from subtune.device import CPUModel
from subtune.kernel import Kernel, NotApplicable, Packing
from subtune.stages import Stages, anchored, classify
from subtune.templates.online_pack import place_online_pack, turn_marked
from subtune.templates.padding import pad_axes
from subtune.templates.prefetch import MicroKernel, prefetch_panels
from subtune.templates.prepack import PREPROC_ATTR, split_prepack
from subtune.templates.tile import names_equal, place_pad, vectorize_tile
from subtune.workload import Workload, dtype_bits


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    mr, nr, mt = (int(candidate[name]) for name in ("mr", "nr", "mt"))
    order = str(candidate["order"])
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    lanes = info.lanes(device.lanes(dtype_bits(info.acc_dtype)))
    if info.per_group % nr:
        return NotApplicable(f"nr={nr} does not divide the {info.per_group} columns of a group")
    if nr % lanes:
        return NotApplicable(f"nr={nr} is no multiple of the {lanes} vector lanes")

    weights = info.b
    padded = _padding(info, mr, nr)
    if padded:
        sch = Schedule(pad_axes(sch.mod["main"], sch.get(stages.anchors[0]).name_hint, info, padded))
        wider = classify(sch)
        assert isinstance(wider, Stages), wider.reason
        wider_info = contraction(sch, wider.anchors[0])
        assert isinstance(wider_info, Contraction), wider_info.reason
        stages, info = wider, wider_info
    knobs = (mr, nr, mt, order, bool(candidate.get("prefetch")))
    try:
        return _schedule(sch, stages, info, weights, knobs, lanes, candidate.is_serial, not padded)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _padding(info: Contraction, mr: int, nr: int) -> dict[int, int]:
    """New extents of the axes that the tile does not divide: the last m axis and the n axis."""
    rows = info.of_role("m")
    tiles = [(info.n, nr)] + ([(rows[-1], mr)] if rows else [])
    return {axis.index: -(-axis.extent // tile) * tile for axis, tile in tiles if axis.extent % tile}


def _schedule(
    sch: Schedule,
    stages: Stages,
    info: Contraction,
    weights: Operand,
    knobs: tuple[int, int, int, str, bool],
    lanes: int,
    is_serial: bool,
    exportable: bool,
) -> Kernel | NotApplicable:
    mr, nr, mt, order, prefetches = knobs
    block = stages.anchors[0]
    outputs, producers = list(stages.outputs), list(stages.producers)
    packed = None
    packing = None
    k_axes = [axis.index for axis in info.of_role("k")]
    if weights.is_constant or info.b.axes[-1] != info.n.index:
        if -1 in info.b.axes:
            return NotApplicable("B is indexed by more than its own axes: it cannot be packed")
        packed = sch.cache_read(block, info.b.read, "global")
        if info.b.param < 0:  # B is computed by a block (its padding): by the packing, then
            made_by = sch.get_producers(packed)
            producers = [p for p in producers if not names_equal(sch, p, made_by[0])]
            sch.compute_inline(made_by[0])
        leading = [axis.index for axis in info.of_role("batch")]
        dims = {axis: dim for dim, axis in enumerate(info.b.axes)}
        layout = [*leading, info.n.index, *k_axes]
        sch.transform_layout(block, ("read", info.b.read), packed_index(dims, layout, info.n.index, nr))
        if weights.is_constant:
            sch.annotate(packed, PREPROC_ATTR, True)
            packing = packing_of(info, layout, nr)

    loops = sch.get_loops(block)
    batch = [loops[axis.index] for axis in info.of_role("batch")]
    rows = [loops[axis.index] for axis in info.of_role("m")]
    reduce = [loops[axis] for axis in k_axes]
    no, nv, ni = sch.split(loops[info.n.index], [None, nr // lanes, lanes])
    if not rows:
        rows = [sch.add_unit_loop(no)]
    *outer_rows, last_row = rows
    if outer_rows:  # convolution: a tile is mt output rows of mr pixels each
        ho, hi = sch.split(outer_rows[-1], [None, mt])
        wo, wi = sch.split(last_row, [None, mr])
        outer, middle, inner = [*outer_rows[:-1], ho], [hi, wo], wi
    else:
        mo, mm, wi = sch.split(last_row, [None, mt, mr])
        outer, middle, inner = [mo], [mm], wi
    if order == "m":
        nest = [*batch, *outer, no, *middle]
        parallel = [*batch, *outer]
    elif order == "n":
        nest = [*batch, no, *outer, *middle]
        parallel = [*batch, no]
    else:
        nest = [*batch, *outer, no, *middle]
        parallel = [*batch, *outer, no]
    packs_online = packed is not None and not weights.is_constant
    if packs_online and batch:
        parallel = batch  # each batch's B is packed once, by the thread that uses it
    sch.reorder(*nest, *reduce, inner, nv, ni)

    if outputs:
        sch.set_scope(block, 0, "local")
    else:
        outputs = [sch.cache_write(block, 0, "local")]
    for output in outputs:
        sch.reverse_compute_at(output, nest[-1])
    depth = len(sch.get_loops(block)) - len(reduce) - 3
    fused = sch.fuse(*parallel)
    depth -= len(parallel) - 1
    turns = packs_online and place_online_pack(
        sch, packed, fused if batch else None, weights.axes[-1] == info.n.index, lanes, is_serial
    )
    for pad in producers:
        place_pad(sch, pad, fused if order == "m" else None, lanes, is_serial)
    sch.vectorize(ni)
    sch.unroll(nv)
    sch.unroll(inner)
    if not is_serial:
        sch.parallel(fused)
    sch.decompose_reduction(block, reduce[0])
    for output in outputs:
        vectorize_tile(sch, output, depth, lanes)

    func = turn_marked(sch.mod["main"]) if turns else sch.mod["main"]
    packings: tuple[tuple[int, Packing], ...] = ()
    if packing is not None:
        func = split_prepack(func, weights.param)
        packings = ((weights.param, packing),)
        if prefetches:
            depth, passes = 1 + len(nest) - len(parallel), len(nest) - nest.index(no) - 1
            kernel = MicroKernel(sch.get(block).name_hint, depth, passes, len(reduce))
            func = prefetch_panels(func, func.params[weights.param], kernel)
    return Kernel(func, packings, sch.trace if exportable and not prefetches and not turns else None)


def packed_index(dims: dict[int, int], layout: list[int], n_axis: int, nr: int) -> Any:
    """Index map of B's dims to `[batch..., n / nr, k..., nr]`."""

    def index_map(*index: Any) -> list[Any]:
        n = index[dims[n_axis]]
        return [tirx.floordiv(n, nr) if axis == n_axis else index[dims[axis]] for axis in layout] + [
            tirx.floormod(n, nr)
        ]

    return tirx.IndexMap.from_func(index_map, ndim=len(dims))


def packing_of(info: Contraction, layout: list[int], nr: int) -> Packing:
    split: list[tuple[int, ...]] = []
    position: dict[tuple[int, int], int] = {}
    count = 0
    for dim, axis in enumerate(info.b.axes):
        extent = info.b.shape[dim]
        parts = (extent // nr, nr) if axis == info.n.index else (extent,)
        split.append(parts)
        for part in range(len(parts)):
            position[axis, part] = count
            count += 1
    order = [position[axis, 0] for axis in layout] + [position[info.n.index, 1]]
    return Packing(tuple(split), tuple(order))
