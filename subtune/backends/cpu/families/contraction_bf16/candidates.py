"""Candidates for contractions of bfloat16 operands: those of a float32 contraction over pairs.

`vdpbf16ps` multiplies two bfloat16 pairs and adds both products per 32-bit lane, at the rate of a float32 fused
multiply-add (measured on Zen 5: two 512-bit instructions a cycle), so that a contraction of K bfloat16 costs what one
of K / 2 float32 costs, in arithmetic, in loads and in bytes of both operands. Its result takes longer (six cycles on
Zen 5 where a float32 takes four), so that more accumulators are needed to keep the pipelines busy.
"""

from __future__ import annotations

from dataclasses import replace

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.contraction.candidates import contraction_candidates
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.patterns.axes import Operand
from subtune.patterns.contraction import Contraction

_FEATURE = "avx512bf16"
_LATENCY = 6  # cycles


def contraction_bf16_candidates(anchor: Contraction, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Empty for other operands, and on processors without AVX512-BF16."""
    pair = anchor.a.axes[-1]
    if (anchor.b.dtype, anchor.acc_dtype) != ("bfloat16", "float32") or _FEATURE not in device.features:
        return []
    if pair < 0 or anchor.axes[pair].role != "k" or pair not in anchor.b.axes:
        return []
    halved = Contraction(
        tuple(replace(axis, extent=-(-axis.extent // 2)) if axis.index == pair else axis for axis in anchor.axes),
        _in_pairs(anchor.a, pair),
        _in_pairs(anchor.b, pair),
        anchor.acc_dtype,
    )
    slower = replace(device, fma_latency=max(device.fma_latency, _LATENCY))
    found = contraction_candidates(halved, workload, slower, always_packs=True)
    return [replace(candidate, family="contraction_bf16") for candidate in found]


def _in_pairs(operand: Operand, pair: int) -> Operand:
    """The operand as elements of 32 bits, two along the axis `pair`."""
    shape = tuple(
        -(-extent // 2) if axis == pair else extent for extent, axis in zip(operand.shape, operand.axes, strict=True)
    )
    return replace(operand, shape=shape, dtype="int32")
