"""A few rows times a matrix of 4 or 8-bit weights, which are packed for the kernel at compile time.

The anchor is recognised (`packed_product`), not scheduled. The epilogue is computed on the sums in registers.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import ScheduleError
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.fma.schedule import store_epilogue
from subtune.backends.cuda.families.weight_only.form import Form, few_rows, form_of
from subtune.backends.cuda.families.weight_only.source import WEIGHT_ONLY
from subtune.backends.cuda.families.weight_only.tiling import WeightOnlyTile
from subtune.backends.cuda.source.calls import address, called, end
from subtune.backends.cuda.source.emit import Code, const, load, prim_func
from subtune.backends.cuda.source.lanes import Unsupported, decoded, not_applicable
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.stages import anchored

_WAITS = 90
"""Capability from which a kernel starts while the one before it ends (`lowering/dependent_launch.py`)."""
_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}


def schedule(problem: Problem[CUDAModel], tile: WeightOnlyTile) -> Kernel | NotApplicable:
    try:
        found = anchored(problem.workload, few_rows)
        if isinstance(found, NotApplicable):
            return found
        sch, stages, product = found
        form = form_of(product, problem.workload)
        if isinstance(form, NotApplicable):
            return form
        if reason := tile.obstacle(form, problem.device, problem.numerics):
            return NotApplicable(reason)
        func = sch.mod["main"]
        params, packings = list(func.params), form.packings(tile.rows, tile.all_groups(form))
        for position, packing in packings:
            given = params[position]
            params[position] = tirx.decl_buffer(list(packing.shape), str(given.dtype), given.name)
        outputs = [sch.get(block) for block in stages.outputs]
        writer = _Writer(params, form, tile, Code(problem.numerics.exact))
        kernel = writer.write(sch.get(stages.anchors[0]), outputs, problem.device.capability >= _WAITS)
        written = prim_func(func, [kernel])
        return Kernel(tirx.PrimFunc(params, written.body, func.ret_type, func.attrs), packings)
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


class _Writer:
    def __init__(self, params: list[Any], form: Form, tile: WeightOnlyTile, code: Code) -> None:
        self._params, self._form, self._tile, self._code = params, form, tile, code
        of_x = "float" if form.is_wide else "unsigned short"
        numbers = (
            form.bits, int(form.dtype == "bfloat16"), of_x, form.rows, form.length, form.vectors, form.zero, form.group,
            _TYPES[form.scale_dtype], tile.across, tile.split, tile.tile, tile.unroll, tile.cluster, tile.staged,
        )  # fmt: skip
        self._name = f"subtune::WeightOnly<{', '.join(map(str, numbers))}>"

    def write(self, anchor: Any, outputs: list[Any], waits: bool) -> Any:
        """The kernel; `waits`: the first weights are asked for before the kernel in front of it has ended."""
        code, tile, form = self._code, self._tile, self._form
        block = code.thread("blockIdx.x", tile.blocks(form))
        if tile.cluster > 1:
            code.thread("clusterCtaIdx.x", tile.cluster)
        thread = code.thread("threadIdx.x", tile.threads)
        registers = [
            code.local("uint32", tile.tile * tile.unroll * form.bits, "words"),
            code.local("uint32", tile.tile * tile.scale_words(form), "scales"),
            code.local("uint32", tile.tile * tile.zero_words(form), "zeros"),
        ]
        sums = code.local("float32", -(-tile.sums(form) // tile.threads), "sum")
        shared = code.dynamic("float32", tile.shared_bytes(form) // 4)
        zero = const(0)
        held = [address(buffer, zero) for buffer in registers]
        x, *weights = (address(self._params[max(i, 0)], zero) for i in (form.x, form.packed, form.scale, form.zeros))
        ends = [end(buffer) for buffer in registers]
        code.emit(called(f"{self._name}::begin", (*held, *weights, block, thread, *ends), WEIGHT_ONLY))
        if waits:
            code.emit(tirx.Evaluate(T.ptx.griddepcontrol.wait()))
        places = address(shared, zero), block, thread
        ends += [end(sums), end(shared)]
        code.emit(called(f"{self._name}::run", (address(sums, zero), *held, x, *weights, *places, *ends), WEIGHT_ONLY))
        self._store(sums, anchor, outputs, block, thread)
        return code.kernel()

    def _store(self, sums: Any, anchor: Any, outputs: list[Any], block: Any, thread: Any) -> None:
        """The epilogue of a thread's sums: of number i of the cluster's, [vectors, rows]."""
        code, tile, form = self._code, self._tile, self._form
        count, store = tile.sums(form), anchor.body
        extents = {iv.var: int(iv.dom.extent) for iv in anchor.iter_vars}
        rank, first = tirx.floormod(block, const(tile.cluster)), tirx.floordiv(block, const(tile.cluster)) * tile.rows
        for i in range(int(sums.shape[0])):
            number = thread + i * tile.threads
            with code.when(tirx.LT(number, const(count)) if count % tile.threads else None):
                number = code.bind("number", rank * count + number, count * tile.cluster)
                row = first + tirx.floormod(number, const(tile.rows))
                with code.when(tirx.LT(row, const(form.rows)) if form.rows % tile.rows else None):
                    row = code.bind("row", row, form.rows)
                    vector = tirx.floordiv(number, const(tile.rows))
                    outer = decoded(vector, [extents[axis] for axis in store.indices[:-1]], code.analyzer)
                    total = load(sums, const(i))
                    if not form.group:
                        total = total * load(self._params[form.scale], row).astype("float32")
                    lane = code.variable("lane", 1)
                    store_epilogue(code, store.buffer, outputs, [*outer, row], lane, 1, total)
