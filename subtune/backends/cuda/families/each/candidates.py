"""Candidates for reductions of several values at once on a GPU."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.patterns.rows import Columns
from subtune.patterns.stages import reduces_several

_COST = 12  # instructions for an element: it is compared with what was found, and with where


def accepts(problem: Problem[CUDAModel]) -> str:
    """ArgMax and its like over columns. Along rows the default schedule's threads share a row, which is better."""
    if not isinstance(problem.pattern, Columns):
        return "no reductions along columns"
    return "" if reduces_several(problem.workload) else "one value is reduced"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Threads of a block, elements at a time."""
    pattern, workload, device = problem.pattern, problem.workload, problem.device
    results = pattern.outer * pattern.columns
    read = sum(arg.nbytes for arg in workload.args if not arg.is_output)
    each = max(1, read // max(1, sum(prod(int(d) for d in a.shape) for a in workload.args if not a.is_output)))
    found = []
    for threads in (64, 128, 256):
        for unroll in (1, 3, 4, 5, 7, 8):
            if pattern.length % unroll:
                continue
            seconds = streaming_s(device, workload.nbytes, ceil(results / threads), threads, each * unroll,
                                  operations=results * pattern.length * _COST)  # fmt: skip
            knobs = {"unroll": unroll} if unroll > 1 else {}
            found.append(Candidate.make("cuda.each", seconds, threads=threads, **knobs))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]
