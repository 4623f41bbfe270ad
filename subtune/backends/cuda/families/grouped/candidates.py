"""Candidates for grouped convolutions: how many groups make a product, and that product's tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from subtune.backends.algorithms.grouped import merged
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.mma.candidates import candidates as of_mma
from subtune.backends.cuda.families.simt.candidates import candidates as of_simt
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.patterns.contraction import Contraction

_MERGES = (1, 2, 4, 8, 16, 32)
_MOST_COLUMNS = 64
"""Of a product of several groups: beyond, most of what is multiplied is zeros."""
_KEPT = 8


def accepts(problem: Problem[CUDAModel]) -> str:
    return "" if isinstance(problem.pattern, Contraction) and problem.pattern.per_group else "no grouped convolution"


def mma_candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    return _candidates(problem, "cuda.grouped_mma", of_mma)


def simt_candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    return _candidates(problem, "cuda.grouped_simt", of_simt)


def _candidates(
    problem: Problem[CUDAModel], family: str, of_product: Callable[[Problem[CUDAModel]], list[Candidate]]
) -> list[Candidate]:
    """The best few of every number of groups."""
    per_group = problem.pattern.per_group
    found = []
    for merge in _MERGES:
        if merge > 1 and merge * per_group > _MOST_COLUMNS:
            break
        product = merged(problem.workload, merge)
        if isinstance(product, NotApplicable):
            continue
        for candidate in of_product(replace(problem, workload=product.workload))[:_KEPT]:
            knobs = dict(candidate.knobs) | ({"merge": merge} if merge > 1 else {})
            found.append(Candidate.make(family, candidate.predicted_s, **knobs))
    return sorted(found, key=lambda candidate: candidate.predicted_s)
