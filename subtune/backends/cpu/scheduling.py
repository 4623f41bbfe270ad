"""What is done to the scheduled kernels of all families: mathematical functions, bfloat16, stores past the caches."""

from __future__ import annotations

from dataclasses import replace

from subtune.backends.cpu.family import LIBM, PER_ROW, CPUFamily, CPUProblem
from subtune.backends.cpu.lowering.streaming import streamed
from subtune.backends.cpu.math.bf16_ops import FEATURE
from subtune.backends.cpu.math.bf16_storage import explicit_bfloat16
from subtune.backends.cpu.math.vector_math import multiply_by_reciprocals, vectorize_math
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel


def finish(kernel: Kernel, family: CPUFamily, candidate: Candidate, problem: CPUProblem) -> Kernel:
    func, features, exact = kernel.func, problem.device.features, problem.numerics.exact
    if LIBM not in family.traits and not exact:
        if PER_ROW in family.traits:
            func = multiply_by_reciprocals(func)
        func = vectorize_math(func, features)
    # the instruction flushes denormals
    stored = explicit_bfloat16(func, has_instruction=FEATURE in features and not exact)
    if candidate.get("stream"):
        stored = streamed(stored)
    # TVM's replay of a trace knows nothing of what is done to bfloat16 or to stores here
    return replace(kernel, func=stored, trace=kernel.trace if stored.same_as(func) else None)
