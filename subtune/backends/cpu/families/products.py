"""What the families that multiply by fused multiply-adds have in common: which of the contractions are theirs."""

from __future__ import annotations

from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.math.bf16_ops import FEATURE
from subtune.patterns.contraction import Contraction


def fma_obstacle(problem: CPUProblem) -> str:
    """Why a workload is none of theirs: no contraction, or one that `vdpbf16ps` multiplies at twice the rate."""
    anchor = problem.pattern
    if not isinstance(anchor, Contraction):
        return "no contraction"
    return "" if pairs_obstacle(anchor, problem) else "its bfloat16 operands are multiplied in pairs"


def pairs_obstacle(anchor: Contraction, problem: CPUProblem) -> str:
    """Why a contraction's operands cannot be multiplied in pairs of bfloat16."""
    if FEATURE not in problem.device.features:
        return "the processor has no AVX512-BF16"
    if (anchor.b.dtype, anchor.acc_dtype) != ("bfloat16", "float32"):
        return "needs bfloat16 operands and float32 accumulators"
    pair = anchor.a.axes[-1]
    if pair < 0 or anchor.axes[pair].role != "k" or pair not in anchor.b.axes or -1 in anchor.b.axes:
        return "the operands have no reduced axis along which both can be paired"
    return ""
