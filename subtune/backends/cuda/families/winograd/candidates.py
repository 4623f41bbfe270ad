"""Candidates for Winograd convolution in float32: which F(m), and the tile of its products.

Two transforms, which memory bounds, and (m + 2)^2 products, which `score` knows.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from subtune.backends.algorithms.winograd import winograd_obstacle
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.fma.candidates import candidate_of, hopeful, is_fma, shape_of, tiles
from subtune.backends.cuda.families.fma.tensor import units
from subtune.backends.cuda.model.diverse import diverse
from subtune.backends.cuda.model.score import seconds
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemm import gemm

_KEPT = {4: 5, 2: 3}
_COPIED = 0.9
"""Of the bandwidth, what the transforms reach (measured: 0.82 to 0.97)."""


def accepts(problem: Problem[CUDAModel]) -> str:
    if problem.numerics.exact:
        return "rounds otherwise than the model says"
    return winograd_obstacle(problem.pattern) if isinstance(problem.pattern, Contraction) else "no contraction"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Best first; empty where the products are none of float32."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    form = gemm(workload)
    if isinstance(form, NotApplicable) or not is_fma(form, device):
        return []
    batch, height, width = (axis.extent for axis in anchor.of_role("m"))
    channels = anchor.a.shape[-1]
    if channels % 4 or form.n % 4:
        return []
    found: list[Candidate] = []
    for m, kept in _KEPT.items():
        elements, count = (m + 2) ** 2, batch * ceil(height / m) * ceil(width / m)
        v, products, weights = (4 * elements * x for x in (count * channels, count * form.n, channels * form.n))
        inner = replace(
            form, batch=elements, m=count, k=channels, is_window=False, epilogue_bytes=products,
            a=replace(form.a, nbytes=v), b=replace(form.b, nbytes=weights),
        )  # fmt: skip
        copied = form.a.nbytes + v + products + form.epilogue_bytes
        transforms_s = 2 * device.launch_s + copied / (_COPIED * device.dram_bytes_per_s)
        for on_tensor in units(device, problem.numerics):
            of_m = [
                candidate_of(
                    "cuda.winograd", tile, transforms_s + seconds(shape_of(tile, inner, device), inner, device), m=m
                )
                for tile in tiles(inner, device, on_tensor)
            ]
            found += diverse(of_m, kept, ("tm", "tn"), ("bm", "bn", "bk", "tm", "tn"), per_tile=2)
    return sorted(hopeful(found), key=lambda candidate: candidate.predicted_s)
