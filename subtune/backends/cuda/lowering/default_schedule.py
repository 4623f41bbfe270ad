"""How kernels for CUDA are lowered: the pipeline's name, and the schedule of what has none."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Container
from importlib.util import find_spec
from typing import Any

_log = logging.getLogger(__name__)

_SHORT = 64  # elements of a reduction
_PIPELINE_MODULE = "subtune.backends.cuda.lowering.pipeline"


def pipeline() -> str:
    """The TIR pipeline of CUDA kernels: that of the templates, which their kernels need, else TVM's own."""
    if find_spec(_PIPELINE_MODULE) is None:
        return "s_tir"
    return str(importlib.import_module(_PIPELINE_MODULE).register())


def default_schedule(mod: Any, target: Any, keep: Container[str] = ()) -> Any:
    """Dlight's schedule, in the order of TVM's own pipeline for CUDA, of every PrimFunc whose name is not in `keep`.

    Functions of several products, which TVM itself never makes, have one of our own.
    """
    from tvm.s_tir import dlight
    from tvm.tirx import PrimFunc

    from subtune.backends.cuda.lowering.staged import Staged

    todo = {g: f for g, f in mod.functions_items() if isinstance(f, PrimFunc) and g.name_hint not in keep}
    if not todo:
        return mod
    gpu = dlight.gpu
    rules = (Staged(), gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    by_thread = (Staged(), gpu.Matmul(), gpu.Fallback())
    made = mod.clone()
    for gvar, func in todo.items():
        is_short = _reduces_little(func)
        made.update_func(
            gvar, _scheduled(func if is_short else _from_finite(func), by_thread if is_short else rules, target)
        )
    return made


def _reduces_little(func: Any) -> bool:
    """Whether reductions are so short that a thread each does best: windows, above all. As many as a block has threads
    would wait for a few, and begin maxima at a finite number.
    """
    import tvm_ffi
    from tvm import tirx
    from tvm.s_tir import SBlock

    lengths: list[int] = []

    def look(block: Any) -> None:
        extents = [axis.dom.extent for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
        if extents:
            is_static = all(isinstance(extent, tirx.IntImm) for extent in extents)
            lengths.append(math.prod(map(int, extents)) if is_static else _SHORT + 1)

    tvm_ffi.structural_walk(func.body, (SBlock, look))
    return bool(lengths) and max(lengths) <= _SHORT


def _from_finite(func: Any) -> Any:
    """Maxima that begin at minus infinity begin at the least finite number: TVM's reductions across threads know a
    maximum by that. Only a maximum of nothing but minus infinities differs.
    """
    from tvm import tirx

    return beginning(func, lambda value, dtype: tirx.min_value(dtype) if value == -math.inf else None)


def beginning(func: Any, other: Callable[[float, str], Any]) -> Any:
    """`func`, with reductions that begin at another number: `other(number, dtype)`, None where it stays."""
    import tvm_ffi
    from tvm import tirx
    from tvm.s_tir import SBlock

    def begin(store: Any) -> Any:
        if not isinstance(store.value, tirx.FloatImm):
            return store
        found = other(float(store.value.value), str(store.value.ty.dtype))
        return store if found is None else tirx.BufferStore(store.buffer, found, store.indices)

    def of_block(block: Any) -> Any:
        if block.init is None:
            return block
        init = tvm_ffi.structural_map(block.init, (tirx.BufferStore, begin))
        if init.same_as(block.init):
            return block
        parts = block.iter_vars, block.reads, block.writes, block.name_hint, block.body, init
        return SBlock(*parts, block.alloc_buffers, block.match_buffers, block.annotations)

    return func.with_body(tvm_ffi.structural_map(func.body, (SBlock, of_block)))


def _scheduled(func: Any, rules: tuple[Any, ...], target: Any) -> Any:
    """By the first rule that applies. Some fail instead of saying that they do not, or make of several outputs what
    cannot be lowered: the next one is asked.
    """
    import tvm
    from tvm.s_tir import dlight

    from subtune.backends.cuda.lowering.pipeline import check_allocations

    for first in range(len(rules)):
        try:
            with target:
                mod = dlight.ApplyDefaultSchedule(*rules[first:])(tvm.IRModule({"main": func}))
            if first < len(rules) - 1:
                check_allocations(mod)
        except Exception as e:
            if first == len(rules) - 1:
                raise
            _log.debug("dlight's %s: %s: %s", type(rules[first]).__name__, type(e).__name__, e)
            continue
        return mod["main"]
    raise AssertionError("the last rule returns or raises")
