"""Register-blocked contraction: GEMM, batch matmul and direct NHWC convolution from one loop structure (`loop_nest`).

The accumulators of one micro-kernel (`mr` x `nr`) live in registers, the epilogue is computed on them before
the store. A constant B is packed `[n / nr][k...][nr]` at compile time, so that the micro-kernel reads it with unit
stride; with the knob `prefetch` the next panel of it is fetched meanwhile. Another B is packed in the same kernel
(`online_pack`), where it does not lie along n, and with the knob `pack` where it does.
Sources: Goto & van de Geijn 2008; Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016; measured
in the project's recipes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.families.contraction.candidates import Knobs, packing_obstacle
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.loops.by_group import GroupPacking, by_group
from subtune.backends.cpu.loops.flat_rows import flat, reread
from subtune.backends.cpu.loops.last_tile import narrowed
from subtune.backends.cpu.loops.loop_nest import Tiling, mark, micro_kernel, place
from subtune.backends.cpu.loops.online_pack import is_copy, pack_meanwhile, place_online_pack, place_panel, turn_marked
from subtune.backends.cpu.loops.padding import pad_axes
from subtune.backends.cpu.loops.prefetch import MicroKernel, prefetch_panels
from subtune.backends.cpu.loops.skipped_rows import skip_padding
from subtune.core.kernel import ConstantTransform, Kernel, NotApplicable, Packing
from subtune.core.workload import dtype_bits
from subtune.patterns.axes import Operand
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored
from subtune.tir.prepack import PREPROC_ATTR, split_prepack
from subtune.tir.tile import names_equal


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = flat(problem.workload)
    is_flat = not isinstance(found, NotApplicable)
    if isinstance(found, NotApplicable):
        found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    weights = info.b
    if knobs.by_group:
        parted = by_group(sch.mod["main"], sch.get(stages.anchors[0]).name_hint, info)
        if isinstance(parted, NotApplicable):
            return parted
        sch, stages, info = reread(parted)
    lanes = info.lanes(problem.device.lanes(dtype_bits(info.acc_dtype)))
    tiling = Tiling.of(knobs, lanes)
    if info.per_group % tiling.nr:
        return NotApplicable(f"nr={tiling.nr} does not divide the {info.per_group} columns of a group")
    if tiling.nr % lanes:
        return NotApplicable(f"nr={tiling.nr} is no multiple of the {lanes} vector lanes")

    columns, padded = info.n.extent, tiling.padding(info)
    if padded:
        sch, stages, info = reread(pad_axes(sch.mod["main"], sch.get(stages.anchors[0]).name_hint, info, padded))
    try:
        return _schedule(sch, stages, info, weights, columns, tiling, knobs, not (is_flat or padded or knobs.by_group))
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(
    sch: Schedule,
    stages: Stages,
    info: Contraction,
    weights: Operand,
    columns: int,
    tiling: Tiling,
    knobs: Knobs,
    exportable: bool,
) -> Kernel | NotApplicable:
    block, nr = stages.anchors[0], tiling.nr
    producers = list(stages.producers)
    packed = None
    packing: ConstantTransform | None = None
    if knobs.pack or weights.is_constant or info.b.axes[-1] != info.n.index:
        if obstacle := packing_obstacle(info):
            return NotApplicable(obstacle)
        packed = sch.cache_read(block, info.b.read, "global")
        while made_by := sch.get_producers(packed):  # B is computed by a block (its padding): by the packing, then
            producers = [p for p in producers if not names_equal(sch, p, made_by[0])]
            sch.compute_inline(made_by[0])
        batch, k_axes = ([axis.index for axis in info.of_role(role)] for role in ("batch", "k"))
        dims = {axis: dim for dim, axis in enumerate(info.b.axes)}
        layout = [*batch, info.n.index, *k_axes]
        panel = (knobs.panel or nr) if weights.is_constant else nr
        sch.transform_layout(block, ("read", info.b.read), packed_index(dims, layout, info.n.index, panel))
        if weights.is_constant:
            sch.annotate(packed, PREPROC_ATTR, True)
            packing = packing_of(info, layout, panel)
            packing = GroupPacking(info.b.shape[0], packing) if knobs.by_group else packing

    packs_online = packed is not None and not weights.is_constant
    is_along_n = weights.axes[-1] == info.n.index
    nest = place(sch, block, stages.outputs, info, tiling, packs_online)
    # A thread that has a panel to itself packs it while it multiplies.
    has_panels = tiling.order in ("n", "nm") and not nest.batch and len(nest.reduce) == 1
    in_panels = packs_online and is_along_n and has_panels and is_copy(sch.get(packed))
    turns = False
    if in_panels:
        place_panel(sch, packed, nest.fused, tiling.lanes)
    elif packs_online:
        turns = place_online_pack(sch, packed, nest.batch, is_along_n, tiling.lanes, tiling.is_serial)
    mark(sch, nest, tiling, producers, tiling.lanes)

    func = sch.mod["main"]
    if in_panels:
        func = pack_meanwhile(func, sch.get(packed).name_hint, micro_kernel(sch, nest))
    elif turns:
        func = turn_marked(func)
    packings: tuple[tuple[int, ConstantTransform], ...] = ()
    if packing is not None:
        func = split_prepack(func, weights.param)
        packings = ((weights.param, packing),)
        if knobs.prefetch:
            func = _prefetched(func, func.params[weights.param], micro_kernel(sch, nest, knobs.passes), knobs)
    whole = narrowed(func, micro_kernel(sch, nest), info.n.index, columns, nr, tiling.lanes)
    whole = skip_padding(whole, micro_kernel(sch, nest).update)
    is_schedule = whole.same_as(func) and not (knobs.prefetch or turns or in_panels)
    return Kernel(whole, packings, sch.trace if exportable and is_schedule else None)


def _prefetched(func: Any, weights: Any, kernel: MicroKernel, knobs: Knobs) -> Any:
    panels = knobs.nr // (knobs.panel or knobs.nr)
    return prefetch_panels(func, weights, replace(kernel, panels=panels, ahead=panels))


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
