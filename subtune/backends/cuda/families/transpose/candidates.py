"""Candidates for transposes on a GPU: square tiles turned in shared memory."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.runs import ACCESS_BITS
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.core.workload import dtype_bits
from subtune.patterns.elementwise import Elementwise


def accepts(problem: Problem[CUDAModel]) -> str:
    pattern = problem.pattern
    is_turned = isinstance(pattern, Elementwise) and (pattern.transposed or pattern.padded)
    return "" if is_turned else "no operand is contiguous along another axis than the output"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Sides of the tile, threads of a block."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    found = []
    widest = max(dtype_bits(arg.dtype) for arg in workload.args)
    turned = anchor.transposed or anchor.padded
    sides = (turned.extents[turned.a], turned.extents[turned.b])
    for side in (32, 64, 128):
        shared = side * (side + 1) * widest // 8
        for threads in (128, 256, 512):
            if side * side * widest // ACCESS_BITS < threads or shared > 48 * 1024:
                continue
            blocks = anchor.extent // prod(sides) * prod(ceil(extent / side) for extent in sides)
            in_flight = side * side * widest // 8 // threads
            seconds = streaming_s(device, workload.nbytes, blocks, threads, in_flight, 40, shared,
                                  blocks * side**2 * 10)  # fmt: skip
            found.append(Candidate.make("cuda.transpose", seconds, side=side, threads=threads))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]
