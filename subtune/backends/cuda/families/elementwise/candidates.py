"""Candidates for elementwise subgraphs on a GPU: runs of 16 bytes, one to four of a thread."""

from __future__ import annotations

from math import ceil, gcd

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.runs import lanes_of
from subtune.backends.cuda.model.streaming import narrow, streaming_s
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.side_by_side import planes_of

_SCALAR = 6.0  # transposed operands element by element
_NARROW, _FEW = 2.0, 16  # the same, where an axis that is turned is so short: neighbours read in the same few lines
_APART = 1.85  # planes put side by side, but none that are turned: 54 us on an H200, of which memory takes 29
_MIXED = 1.3  # runs over sections, as much slower on an H200 than one element a thread: 22 us of 89 columns in four


def accepts(problem: Problem[CUDAModel]) -> str:
    return "" if isinstance(problem.pattern, Elementwise) else "not elementwise"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Runs of 16 bytes of the narrowest operand or of wider ones, one to four of a thread."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    narrowest = min(dtype_bits(arg.dtype) for arg in workload.args)
    element_bytes = sum(dtype_bits(arg.dtype) for arg in workload.args) // 8
    found = []
    widths = lanes_of(narrowest, anchor.extent)
    # a run over sections, or of rows that begin anywhere, is read element by element, and threads side by side then
    # read apart from one another
    rows = (int(arg.shape[-1]) for arg in workload.args if arg.shape)
    is_mixed = anchor.sections > 1 and gcd(anchor.alike, *rows) % widths[0] != 0
    turned = anchor.transposed or anchor.padded
    is_narrow = turned is not None and min(turned.extents[turned.a], turned.extents[turned.b]) <= _FEW
    of_planes = turned is None and not isinstance(planes_of(workload), NotApplicable)
    for lanes in dict.fromkeys([*widths, 1] if is_mixed or is_narrow else widths):
        for unroll in (1, 2, 4):
            for threads in (128, 256, 512):
                blocks = ceil(anchor.extent / (threads * lanes * unroll))
                in_flight = lanes * unroll * element_bytes
                seconds = streaming_s(device, workload.nbytes, blocks, threads, in_flight, 24 + in_flight // 3,
                                      operations=anchor.extent * (4 + 20 / lanes))  # fmt: skip
                scalar = _SCALAR if turned else _APART if of_planes else _MIXED if is_mixed and lanes > 1 else 1.0
                if is_narrow and lanes == 1:
                    scalar = _NARROW
                seconds *= (1 + 0.002 * unroll) * narrow(lanes, widths[0]) * scalar
                found.append(Candidate.make("cuda.elementwise", seconds, threads=threads, lanes=lanes, unroll=unroll))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]
