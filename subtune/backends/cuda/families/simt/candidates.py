"""Candidates for products on CUDA cores: register tiles, double-buffered through registers or asynchronous copies."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as choices

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.fma.candidates import is_fma
from subtune.backends.cuda.families.mma.tiling import tensor_core_obstacle
from subtune.backends.cuda.model.core_tiles import SimtTile, simt_tile_obstacle
from subtune.backends.cuda.model.diverse import diverse
from subtune.backends.cuda.model.score import BlockShape, resident_blocks, seconds
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.numerics import FLOAT8
from subtune.core.workload import dtype_bits
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemm import Gemm, gemm

_EXTENTS = (16, 32, 64, 128, 256)
_DEPTHS = (8, 16, 32)
_THREAD_TILES = ((8, 8), (16, 8), (8, 4), (4, 8), (4, 4))
_COPIES = (("registers", 2), ("async", 2), ("async", 3))
_ISSUE, _ISSUE_OF_FEW, _ISSUE_OF_SMALL = 1.0, 0.775, 0.82
"""Multiply-adds of the peak, but for loads: more than 64 sums a thread leave registers for eight warps, which do not
hide one another's waiting; up to 16 are addresses for the most part. 0.75 at 8 x 8, 0.68 at 16 x 8, measured (50 and 45
TFLOP/s of an H200's 67)."""
_LOADED = 3.0  # instructions that a load of 16 bytes from shared memory keeps waiting
_ONE_BY_ONE = 0.65  # asynchronous copies are of one element each
_GATHERING = 0.5  # of its time a block gathers a window's elements one by one; when all do, nobody multiplies
_SMALL_SUMS, _FEW_SUMS = 16, 64
_KEPT = 16
_BESIDE_FMA = 4  # where the other template does the same faster, if it applies


def accepts(problem: Problem[CUDAModel]) -> str:
    return "" if isinstance(problem.pattern, Contraction) else "no contraction"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Best first; empty where the workload is no product, or tensor cores alone are asked for and can do it."""
    workload, device, numerics = problem.workload, problem.device, problem.numerics
    form = gemm(workload)
    if isinstance(form, NotApplicable) or form.batch * form.m * form.n == 1 or form.a.dtype == FLOAT8:
        return []  # vectors of floats of 8 bits cannot be taken apart in CUDA
    if numerics.tensor_core == "only" and not tensor_core_obstacle(form, device, numerics):
        return []
    found = []
    rows = [bm for bm in _EXTENTS if bm < 2 * max(16, form.m)]
    columns = [bn for bn in _EXTENTS[1:] if bn < 2 * max(32, form.n)]
    for bm, bn, bk, (tm, tn), (copy, stages) in choices(rows, columns, _DEPTHS, _THREAD_TILES, _COPIES):
        for raster in (1, 8) if -(-form.m // bm) >= 16 and -(-form.n // bn) >= 16 else (1,):
            tile = SimtTile(bm, bn, bk, tm, tn, stages, copy, raster)
            if simt_tile_obstacle(tile, form, device) or not 32 <= tile.threads <= 512:
                continue
            predicted = seconds(_shape(tile, form, device), form, device)
            if predicted < float("inf"):
                knobs: dict[str, int | str | bool] = {name: getattr(tile, name) for name in SimtTile.__slots__}
                found.append(Candidate.make("cuda.simt", predicted, **knobs))
    kept = _KEPT if not is_fma(form, device) else _BESIDE_FMA
    return diverse(found, kept, ("bm", "bn"), ("bm", "bn", "bk", "tm", "tn", "copy", "stages"))


def _shape(tile: SimtTile, form: Gemm, device: CUDAModel) -> BlockShape:
    itemsize = max(dtype_bits(form.a.dtype), dtype_bits(form.b.dtype)) // 8
    rows, columns = tile.warps
    fragments = 4 * (tile.tm * 4 + tile.tn * 8) * rows * columns * tile.bk  # as float32: broadcasts are free
    written = float((tile.bm + tile.bn) * tile.bk * itemsize)
    for name, extent in (("a", tile.bm), ("b", tile.bn)):
        written += extent * tile.bk * itemsize * (4 / tile.vector(form, name) - 1)
    computed = tile.tm * tile.tn
    loaded = (tile.tm + tile.tn) / 4
    issue = _ISSUE_OF_FEW if computed > _FEW_SUMS else _ISSUE if computed > _SMALL_SUMS else _ISSUE_OF_SMALL
    if tile.copy == "async":
        issue *= _ONE_BY_ONE
    shape = BlockShape(
        bm=tile.bm, bn=tile.bn, bk=tile.bk, steps=tile.steps(form), blocks=tile.blocks(form), threads=tile.threads,
        shared_bytes=tile.shared_bytes(form), registers=tile.registers(form), stages=tile.stages, raster=tile.raster,
        flops_per_cycle=2.0 * device.fma_per_cycle * issue * computed / (computed + _LOADED * loaded),
        shared_bytes_per_step=fragments + written,
    )  # fmt: skip
    if form.is_window and tile.vector(form, "a") == 1:
        idle = _GATHERING ** resident_blocks(shape, device)
        shape = replace(shape, flops_per_cycle=shape.flops_per_cycle * (1.0 - idle))
    return shape
