"""Candidates for Strassen's algorithm on CUDA cores: how many levels, and the tile of its products.

The transforms, which memory bounds, and 7^levels products of an eighth of the work each, which `score` knows.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from subtune.backends.algorithms.strassen import PRODUCTS, block_products, dense_obstacle
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.simt.candidates import candidates as simt_candidates
from subtune.backends.cuda.model.core_tiles import VECTOR
from subtune.core.candidate import Candidate
from subtune.patterns.contraction import Contraction

_KEPT = 3
_LEVELS = (1, 2)
_LEAST = 1024
"""Rows, columns and k of one product: below, the transforms cost more than they save."""
_COPIED = 0.85  # of the bandwidth, what the transforms reach


def accepts(problem: Problem[CUDAModel]) -> str:
    if problem.numerics.exact:
        return "rounds otherwise than the model says"
    if not isinstance(problem.pattern, Contraction):
        return "no contraction"
    return "" if sum(arg.is_output for arg in problem.workload.args) == 1 else "several outputs"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Best first; empty where the algorithm does not apply or saves nothing."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    found: list[Candidate] = []
    for levels in _LEVELS:
        if dense_obstacle(anchor, levels, VECTOR):
            continue
        s, count = 2**levels, PRODUCTS**levels
        rows, n, k = (prod(axis.extent for axis in anchor.of_role(role)) for role in "mnk")
        if min(rows, n, k) < s * _LEAST:
            continue
        product = block_products(levels, rows, n, k, anchor.b.axes[-1] == anchor.n.index)
        copied = workload.nbytes + 4 * count * (rows * k + n * k + rows * n) // s**2
        transforms_s = 3 * device.launch_s + copied / (_COPIED * device.dram_bytes_per_s)
        for candidate in simt_candidates(replace(problem, workload=product))[:_KEPT]:
            seconds = transforms_s + candidate.predicted_s
            found.append(Candidate.make("cuda.strassen", seconds, levels=levels, **dict(candidate.knobs)))
    return sorted(found, key=lambda candidate: candidate.predicted_s)
