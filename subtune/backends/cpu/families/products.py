"""What the families that multiply by fused multiply-adds have in common: which of the contractions are theirs."""

from __future__ import annotations

from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.math import bf16_ops
from subtune.backends.cpu.math.bf16_ops import DOT_LANES
from subtune.backends.cpu.math.byte_dots import ByteDot, byte_dot
from subtune.backends.cpu.math.words import HALVES, Words, word_axis, words_of
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
    if words is HALVES and bf16_ops.FEATURE not in problem.device.features:
        return "the processor has no AVX512-BF16"
    if words is not HALVES and dot_of(words, problem) is None:
        return f"the processor has no instruction for products of {words.a} and {words.b}"
    if word_axis(anchor) < 0:
        return "the operands have no reduced axis along which both lie in words"
    dot = dot_of(words, problem)
    lanes = DOT_LANES if dot is None else dot.lanes
    if anchor.per_group % lanes or (anchor.per_group and anchor.axes[word_axis(anchor)].extent % words.count):
        return "a group has no whole vectors of columns, or no whole words of channels"
    return ""


def dot_of(words: Words, problem: CPUProblem) -> ByteDot | None:
    """The instruction that multiplies words of bytes; None where there is none, and of other words."""
    return None if words is HALVES else byte_dot(words.a, problem.device.features, problem.device.lanes())
