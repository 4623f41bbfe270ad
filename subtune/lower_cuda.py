"""How kernels for CUDA are lowered: the pipeline's name, and the schedule of what has none."""

from __future__ import annotations

import importlib
from collections.abc import Container
from importlib.util import find_spec
from typing import Any

_PIPELINE_MODULE = "subtune.templates.cuda.pipeline"


def pipeline() -> str:
    """The TIR pipeline of CUDA kernels: that of the templates, which their kernels need, else TVM's own."""
    if find_spec(_PIPELINE_MODULE) is None:
        return "s_tir"
    return str(importlib.import_module(_PIPELINE_MODULE).PIPELINE)


def default_schedule(mod: Any, target: Any, keep: Container[str] = ()) -> Any:
    """Dlight's schedule, in the order of TVM's own pipeline for CUDA, of every PrimFunc whose name is not in `keep`."""
    import tvm
    from tvm.s_tir import dlight
    from tvm.tirx import PrimFunc

    todo = {g: f for g, f in mod.functions_items() if isinstance(f, PrimFunc) and g.name_hint not in keep}
    if not todo:
        return mod
    rules = (
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    with target:
        scheduled = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule(todo))
    made = mod.clone()
    for gvar in todo:
        made.update_func(gvar, scheduled[gvar.name_hint])
    return made
