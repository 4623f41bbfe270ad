"""What the families that multiply by fused multiply-adds have in common: which of the contractions are theirs."""

from __future__ import annotations

from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.math.words import words_of
from subtune.patterns.contraction import Contraction


def fma_obstacle(problem: CPUProblem) -> str:
    """Why a workload is none of theirs: no contraction, or one whose operands are multiplied in words."""
    anchor = problem.pattern
    if not isinstance(anchor, Contraction):
        return "no contraction"
    return "" if words_obstacle(anchor, problem) else "its narrow operands are multiplied in words of 32 bits"


def words_obstacle(anchor: Contraction, problem: CPUProblem) -> str:
    """Why a contraction's operands cannot be multiplied in words of 32 bits."""
    words = words_of(anchor)
    if words is None:
        return "needs operands of bfloat16, or bytes of which the second is signed"
    if words.feature not in problem.device.features:
        return f"the processor has no {words.extension}"
    last = anchor.a.axes[-1]
    if last < 0 or anchor.axes[last].role != "k" or last not in anchor.b.axes or -1 in anchor.b.axes:
        return "the operands have no reduced axis along which both lie in words"
    return ""
