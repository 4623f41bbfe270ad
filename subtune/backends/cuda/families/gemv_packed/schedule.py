"""A matrix of 4-bit weights, two in a byte, times one to eight vectors: unpacked in pairs, summed by tensor cores.

The anchor is recognised (`packed_gemv`), not scheduled. The epilogue is computed on the sums in registers.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.fma.schedule import store_epilogue
from subtune.backends.cuda.families.gemv_packed.source import GEMV_PACKED
from subtune.backends.cuda.families.gemv_packed.tiling import PackedTile
from subtune.backends.cuda.source.calls import address, called
from subtune.backends.cuda.source.emit import Code, const, load, prim_func
from subtune.backends.cuda.source.lanes import Unsupported, decoded, not_applicable
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.gemv_packed import PackedGemv, packed_gemv
from subtune.patterns.stages import anchored


def schedule(problem: Problem[CUDAModel], tile: PackedTile) -> Kernel | NotApplicable:
    try:
        found = anchored(problem.workload, packed_gemv)
        if isinstance(found, NotApplicable):
            return found
        sch, stages, form = found
        if reason := tile.obstacle(form, problem.device, problem.numerics):
            return NotApplicable(reason)
        func = sch.mod["main"]
        outputs = [sch.get(block) for block in stages.outputs]
        kernel = _kernel(func.params, sch.get(stages.anchors[0]), outputs, form, tile, problem.numerics.exact)
        return Kernel(prim_func(func, [kernel]))
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


def _kernel(params: Any, anchor: Any, outputs: list[Any], form: PackedGemv, tile: PackedTile, exact: bool) -> Any:
    code = Code(exact)
    block = code.thread("blockIdx.x", -(-form.rows // tile.rows))
    thread = code.thread("threadIdx.x", tile.threads)
    count = form.vectors * tile.rows
    sums = code.local("float32", -(-count // tile.threads), "sum")
    numbers = (
        form.rows, form.length, form.vectors, form.zero, form.group, tile.across, tile.split, tile.tile, tile.unroll,
    )  # fmt: skip
    a, weights, scale = (address(params[max(i, 0)], const(0)) for i in (form.a, form.weights, form.scale))
    name = f"subtune::GemvPacked<{', '.join(map(str, numbers))}>::run"
    code.emit(called(name, (address(sums, const(0)), a, weights, scale, block, thread), GEMV_PACKED))
    for i in range(int(sums.shape[0])):
        number = thread + i * tile.threads
        with code.when(tirx.LT(number, const(count)) if count % tile.threads else None):
            number = code.bind("number", number, count)
            row = block * tile.rows + tirx.floormod(number, const(tile.rows))
            with code.when(tirx.LT(row, const(form.rows)) if form.rows % tile.rows else None):
                row = code.bind("row", row, form.rows)
                store = anchor.body
                extents = {iv.var: int(iv.dom.extent) for iv in anchor.iter_vars}
                vector = tirx.floordiv(number, const(tile.rows))
                outer = decoded(vector, [extents[axis] for axis in store.indices[:-1]], code.analyzer)
                lane = code.variable("lane", 1)
                store_epilogue(code, store.buffer, outputs, [*outer, row], lane, 1, load(sums, const(i)))
    return code.kernel()
