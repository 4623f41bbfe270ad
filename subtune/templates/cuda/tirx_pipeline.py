"""Two kinds of kernels in one module: schedules of TIR, and kernels written in `tvm.tirx`, each lowered by its own passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm

TIRX_ATTR = "subtune.tirx"
"""On kernels that go through TVM's tirx pipeline instead of that of schedulable TIR."""


def lower_by_kind(mod: Any, lower_scheduled: Callable[[Any], Any]) -> Any:
    """Functions with `TIRX_ATTR` through TVM's tirx pipeline, the others through `lower_scheduled`; one module again."""
    from tvm.tirx.compilation_pipeline import tirx_pipeline

    written = {name: func for name, func in mod.functions.items() if func.attrs and TIRX_ATTR in func.attrs}
    scheduled = {name: func for name, func in mod.functions.items() if name not in written}
    lowered = tvm.IRModule({}, attrs=mod.attrs)
    if scheduled or not written:
        lowered.update(lower_scheduled(tvm.IRModule(scheduled, attrs=mod.attrs)))
    if written:
        lowered.update(tirx_pipeline()[0](tvm.IRModule(written, attrs=mod.attrs)))
    return lowered
