"""Candidates for two products that are added up: those of one product, of the steps of both."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.candidates import is_misaligned, tilings, unread_bytes
from subtune.backends.cuda.families.wgmma.schedule import Read
from subtune.backends.cuda.families.wgmma.tiling import ROW_BYTES, wgmma_obstacle
from subtune.backends.cuda.families.wgmma_summed.schedule import reads_of
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm_view import GemmView, Group
from subtune.patterns.summed import Summed


def accepts(problem: Problem[CUDAModel]) -> str:
    if why := wgmma_obstacle(problem):
        return why
    return "" if isinstance(problem.pattern, Summed) else "no sum of two products"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Every sensible tiling; none where a tensor map cannot walk one of the operands."""
    reads, workload = reads_of(problem), problem.workload
    if isinstance(reads, NotApplicable) or any(is_misaligned(read.view, read.info.a.dtype) for read in reads):
        return []
    unread = sum(unread_bytes(read.view, workload.args[read.source[0]].nbytes) for read in reads)
    dtype = reads[0].info.a.dtype
    found = tilings(_joint(reads, dtype), workload, workload.nbytes - unread, problem.device, dtype)
    return [Candidate.make("cuda.wgmma_summed", seconds, **tiling.knobs()) for tiling, seconds in found]


def _joint(reads: tuple[Read, Read], dtype: str) -> GemmView:
    """A view of as many steps as both products have, without a window, for asking what it takes."""
    view, bk = reads[0].view, ROW_BYTES * 8 // dtype_bits(dtype)
    steps = sum(r.view.extent(*r.view.steps) * ceil(r.view.extent(r.view.inner) / bk) for r in reads)
    groups = list(view.groups)
    inner = groups[view.inner]
    groups[view.inner] = Group(inner.role, inner.axes[:1], (steps * bk,))
    return replace(view, groups=tuple(groups), a=tuple(replace(dim, window=-1) for dim in view.a), steps=())
