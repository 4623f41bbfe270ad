"""Candidates for grouped convolutions: how many groups make a product, and that product's tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from subtune.backends.algorithms.grouped import Merged, merged
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
_WHOLE = (32, 64, 128)
"""Channels of a step over k: with a multiple of them, no step reads two taps of a window."""
_CROSSING = 5.0
"""Times what the model says where one does, and a thread finds pixel and tap of every element (measured: 4.8, 5.8)."""


def accepts(problem: Problem[CUDAModel]) -> str:
    return "" if isinstance(problem.pattern, Contraction) and problem.pattern.per_group else "no grouped convolution"


def mma_candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    found = []
    for merge, product in _products(problem):
        own = product.diagonal.channels if product.diagonal is not None else 0
        is_window = product.diagonal is not None and prod(product.diagonal.taps) > 1
        depths = {-(-own // step) * step for step in _WHOLE} - {own} if is_window and own % _WHOLE[0] else ()
        for depth in (0, *sorted(depths)):
            padded = merged(problem.workload, merge, depth)
            if isinstance(padded, NotApplicable):
                continue
            for candidate in of_mma(replace(problem, workload=padded.workload)):
                is_crossing = is_window and (depth or own) % int(dict(candidate.knobs)["bk"])
                found.append(_grouped(candidate, "cuda.grouped_mma", merge, depth, _CROSSING if is_crossing else 1.0))
    return _best(found)


def simt_candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    found = []
    for merge, product in _products(problem):
        for candidate in of_simt(replace(problem, workload=product.workload)):
            found.append(_grouped(candidate, "cuda.grouped_simt", merge))
    return _best(found)


def _products(problem: Problem[CUDAModel]) -> Iterator[tuple[int, Merged]]:
    """Every sensible number of groups, and their product."""
    for merge in _MERGES:
        if merge > 1 and merge * problem.pattern.per_group > _MOST_COLUMNS:
            break
        product = merged(problem.workload, merge)
        if not isinstance(product, NotApplicable):
            yield merge, product


def _grouped(product: Candidate, family: str, merge: int, depth: int = 0, times: float = 1.0) -> Candidate:
    own = {name: value for name, value in (("merge", merge if merge > 1 else 0), ("depth", depth)) if value}
    return Candidate.make(family, product.predicted_s * times, **dict(product.knobs), **own)


def _best(found: list[Candidate]) -> list[Candidate]:
    """The best few of every number of groups and of channels."""
    kept: dict[tuple[Any, Any], int] = {}
    best = []
    for candidate in sorted(found, key=lambda candidate: candidate.predicted_s):
        knobs = dict(candidate.knobs)
        kind = knobs.get("merge"), knobs.get("depth")
        kept[kind] = kept.get(kind, 0) + 1
        if kept[kind] <= _KEPT:
            best.append(candidate)
    return best
