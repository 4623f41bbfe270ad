"""Window reductions that keep the innermost axis: depthwise convolution, pooling, global pooling.

    for n, h tile (parallel) [or with the channel tile, when there are few rows]:
      for channel tile, h, w tile:  acc[mr pixels][cb channels] in registers;  for kh, kw: acc = reduce(acc, x)

With the knob `inline` the padding is not stored: every load asks whether it is inside the image, a branch that is
predicted, instead of a copy of the whole input. It pays wherever memory bounds the kernel.
With `ahead`, pixels to come are asked for (`prefetch.prefetch_windows`).
Source: XNNPACK's depthwise micro-kernels; measured in the project's recipes.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.loops.prefetch import prefetch_windows
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.stages import Stages, anchored
from subtune.patterns.window import Window, window
from subtune.tir.prepack import PREPROC_ATTR, split_prepack
from subtune.tir.tile import extent_of, place_pad, vector_width, vectorize_tile

_MAX_UNROLLED_WINDOW = 49  # elements: a 7x7 window; larger ones stay loops


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    found = anchored(workload, window)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    try:
        return _schedule(sch, stages, info, candidate, device)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(
    sch: Schedule, stages: Stages, info: Window, candidate: Candidate, device: CPUModel
) -> Kernel | NotApplicable:
    block = stages.anchors[0]
    ht, mr, cb = (int(candidate[name]) for name in ("ht", "mr", "cb"))
    lanes = vector_width(info.of_role("n")[0].extent, device.lanes(dtype_bits(info.acc_dtype)))
    if cb % lanes:
        return NotApplicable(f"cb={cb} is no multiple of the {lanes} lanes that divide the channels")
    packings = []
    for operand in info.to_pack:
        packed = sch.cache_read(block, operand.read, "global")
        order = tuple(sorted(range(len(operand.axes)), key=lambda dim: operand.axes[dim] == info.of_role("n")[0].index))
        sch.transform_layout(block, ("read", operand.read), _permutation(order))
        sch.annotate(packed, PREPROC_ATTR, True)
        packings.append((operand.param, Packing(tuple((extent,) for extent in operand.shape), order)))
    loops = sch.get_loops(block)
    rows = [loops[axis.index] for axis in info.of_role("m")]
    reduce = [loops[axis.index] for axis in info.of_role("k")]
    co, cv, ci = sch.split(loops[info.of_role("n")[0].index], [None, cb // lanes, lanes])
    while len(rows) < 2:
        rows.insert(0, sch.add_unit_loop(rows[0] if rows else co))
    *outer, h, w = rows
    if ht > extent_of(sch, h) or mr > extent_of(sch, w):
        return NotApplicable("the tile is larger than the output")
    ho, hi = sch.split(h, [None, ht])
    wo, wi = sch.split(w, [None, mr])
    sch.reorder(*outer, ho, co, hi, wo, *reduce, wi, cv, ci)
    pads = list(stages.producers)
    if candidate.get("inline"):
        for pad in pads:
            sch.compute_inline(pad)
        pads = []
    outputs = list(stages.outputs)
    if outputs:
        sch.set_scope(block, 0, "local")
    else:
        outputs = [sch.cache_write(block, 0, "local")]
    for output in outputs:
        sch.reverse_compute_at(output, wo)
    by_channels = candidate["order"] == "c"
    parallel = [*outer, ho, co] if by_channels else [*outer, ho]
    fused = sch.fuse(*parallel)
    for pad in pads:
        place_pad(sch, pad, None if by_channels else fused, device.lanes(), candidate.is_serial)
    depth = len(sch.get_loops(block)) - len(reduce) - 3
    sch.vectorize(ci)
    sch.unroll(cv)
    sch.unroll(wi)
    size = 1
    for loop in reduce:
        size *= extent_of(sch, loop)
    if size <= _MAX_UNROLLED_WINDOW:
        for loop in reduce:
            sch.unroll(loop)
    if not candidate.is_serial:
        sch.parallel(fused)
    sch.decompose_reduction(block, reduce[0])
    for output in outputs:
        vectorize_tile(sch, output, depth, lanes)
    func = sch.mod["main"]
    if candidate.get("ahead"):
        func = prefetch_windows(func, str(sch.get(block).name_hint), sch.get(hi), sch.get(wo), cb)
    for param, _ in packings:
        func = split_prepack(func, param)
    return Kernel(func, tuple(packings), None if candidate.get("ahead") else sch.trace)


def _permutation(order: tuple[int, ...]) -> Any:
    def index_map(*index: Any) -> list[Any]:
        return [index[dim] for dim in order]

    return tirx.IndexMap.from_func(index_map, ndim=len(order))
