"""One schedule family per file: PrimFunc and candidate in, schedule or the reason why not out."""

from __future__ import annotations

import importlib
from dataclasses import replace

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.streaming import streamed
from subtune.backends.cpu.math.bf16_ops import FEATURE
from subtune.backends.cpu.math.bf16_storage import explicit_bfloat16
from subtune.backends.cpu.math.vector_math import multiply_by_reciprocals, vectorize_math
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload

VERSION = 16
"""Part of the database's keys: raise it whenever a template or `vector_math` makes other kernels of old candidates."""

_TEMPLATES = (
    "default",
    "contraction",
    "window",
    "rowwise",
    "elementwise",
    "trace",
    "winograd",
    "split_k",
    "columns",
    "pieces",
    "moments",
    "grouped",
    "transpose",
    "chain",
    "bottleneck",
    "contraction_bf16",
    "strassen",
)
_EXACT_MATH = ("default", "trace")  # the reference calls libm; a foreign trace means what it says

_PER_ROW = ("rowwise", "columns", "pieces", "moments")


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    """Schedule `workload` as `candidate` says, with the template it names.

    >>> from subtune import models
    >>> from subtune.core.candidate import DEFAULT
    >>> from subtune.pipeline import prepare
    >>> from subtune.backends.cpu.device import CPUModel
    >>> first, *_ = prepare(models.reduced("mlp")).subgraphs
    >>> type(schedule(first.workload, DEFAULT, CPU("auto"))).__name__
    'Kernel'
    >>> schedule(first.workload, Candidate("magic"), CPU("auto"))
    NotApplicable(reason="unknown template 'magic'")
    """
    if candidate.family not in _TEMPLATES:
        return NotApplicable(f"unknown template {candidate.family!r}")
    module = importlib.import_module(f"subtune.backends.cpu.families.{candidate.family}.schedule")
    result: Kernel | NotApplicable = module.schedule(workload, candidate, device)
    if isinstance(result, NotApplicable):
        return result
    func = result.func
    if candidate.family not in _EXACT_MATH and not device.exact_math:
        if candidate.family in _PER_ROW:
            func = multiply_by_reciprocals(func)
        func = vectorize_math(func, device.features)
    # the instruction flushes denormals
    stored = explicit_bfloat16(func, has_instruction=FEATURE in device.features and not device.exact_math)
    if candidate.get("stream"):
        stored = streamed(stored)
    # TVM's replay of a trace knows nothing of what is done to bfloat16 or to stores here
    return replace(result, func=stored, trace=result.trace if stored.same_as(func) else None)
