"""Candidates for products on tensor cores: every tile that fits, timed by the model, the best of each kind kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as choices

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.fma.candidates import is_fma
from subtune.backends.cuda.families.mma.tiling import (
    MmaTile,
    inner_of,
    splits_operands,
    tensor_core_obstacle,
    tile_obstacle,
)
from subtune.backends.cuda.families.wgmma.candidates import has_tiles
from subtune.backends.cuda.model.diverse import diverse
from subtune.backends.cuda.model.score import BlockShape, seconds
from subtune.backends.cuda.model.split_rate import mma_rate, split_rate
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.numerics import BYTES
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemm import Gemm, gemm

_EXTENTS = (16, 32, 64, 128, 256)
_DEPTH_BYTES = (64, 128, 256)
_WARPS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
_SPLITS = (1, 2, 4, 8, 16)
_KEPT = 24
_SPLIT, _SPLIT_WINDOW = 1.25, 2.0
"""Times what the model says of operands in two parts: measured, the second where a thread finds pixel and tap of every
element (1.1 to 1.8, and 1.4 to 2.8)."""
_BESIDE_FMA = 6  # where the other template does the same, if it applies
_BESIDE_WGMMA, _BESIDE_WGMMA_S = 4, 10e-6
"""Of bytes on Hopper: a product that takes longer is faster by its own template, and of those that are shorter few take
the places that there are to be tried."""
_FRAGMENT_CYCLES = 14.0  # of a warp per 32 bytes of k: `ldmatrix`, which its products wait for
_ELEMENT_CYCLES = 15.0  # of a thread that copies one element at a time: loaded, waited for, stored
_LINE_BYTES = 128
_LINE_CYCLES = 0.5  # of a warp, for every line of memory that its copies touch beyond
_GATHER_CYCLES = 0.5  # of the multiprocessor, for every element


def accepts(problem: Problem[CUDAModel]) -> str:
    return "" if isinstance(problem.pattern, Contraction) else "no contraction"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Best first; empty where tensor cores do not apply (`tensor_core_obstacle` says why)."""
    workload, device = problem.workload, problem.device
    form = gemm(workload)
    if isinstance(form, NotApplicable) or tensor_core_obstacle(form, device, problem.numerics):
        return []
    packs, is_split = _packs(form, workload), splits_operands(form, problem.numerics)
    found = []
    for tile in _tiles(form, device):
        predicted = seconds(_shape(tile, form, device, packs, is_split), form, device)
        if predicted == float("inf"):
            continue
        if is_split:
            predicted *= _SPLIT_WINDOW if form.is_window else _SPLIT
        knobs: dict[str, int | str | bool] = {name: getattr(tile, name) for name in MmaTile.__slots__}
        if packs:
            knobs["pack"] = True
        found.append(Candidate.make("cuda.mma", predicted, **knobs))
    shape, body = ("bm", "bn"), ("bm", "bn", "bk", "wm", "wn", "stages")
    if form.a.dtype in BYTES and has_tiles(problem):
        short = [candidate for candidate in found if candidate.predicted_s < _BESIDE_WGMMA_S]
        return diverse(short, _BESIDE_WGMMA, shape, body, per_tile=1)
    return diverse(found, _BESIDE_FMA if is_split and is_fma(form, device) else _KEPT, shape, body)


def _tiles(form: Gemm, device: CUDAModel) -> Iterator[MmaTile]:
    itemsize = dtype_bits(form.a.dtype) // 8
    rows = [bm for bm in _EXTENTS if bm < 2 * max(16, form.m)]
    columns = [bn for bn in _EXTENTS if bn < 2 * max(16, form.n)]
    for bm, bn, depth, (wm, wn) in choices(rows, columns, _DEPTH_BYTES, _WARPS):
        if not 16 <= bm // wm <= 128 or not 16 <= bn // wn <= 128 or bm // wm * (bn // wn) > 64 * 64:
            continue
        if bm // wm * (bn // wn) < 32 * 32 and wm * wn > 2:
            continue  # fragments of one 16 x 16 product: more is loaded than computed
        for stages, split in choices((1, 2, 3, 4), _SPLITS):
            base = MmaTile(bm, bn, depth // itemsize, wm, wn, stages, 1, split)
            if split > 1 and (base.blocks(form) // split > device.sms or base.steps(form) < 4):
                continue  # enough blocks without it, or nothing left to walk through
            if tile_obstacle(base, form, device):
                continue
            yield base
            if -(-form.m // bm) >= 16 and -(-form.n // bn) >= 16:
                yield MmaTile(bm, bn, depth // itemsize, wm, wn, stages, 8, split)


def _packs(form: Gemm, workload: Workload) -> bool:
    """A constant matrix B that cannot be fetched 16 bytes at a time, or lies the wrong way round for `ldmatrix`."""
    side = form.b
    if not side.is_constant or side.param < 0 or form.batch > 1 or len(workload.args[side.param].shape) != 2:
        return False
    return side.inner != inner_of(form, "b") or side.vector * dtype_bits(side.dtype) < 128


def _shape(tile: MmaTile, form: Gemm, device: CUDAModel, packs: bool, is_split: bool) -> BlockShape:
    itemsize = dtype_bits(form.a.dtype) // 8
    dtype = "tfloat32" if form.a.dtype == "float32" else form.a.dtype
    rate = split_rate(tile.bm // tile.wm, tile.bn // tile.wn, device) if is_split else mma_rate(dtype, device)
    written = (tile.bm + tile.bn) * tile.bk * itemsize
    read = (tile.bm * tile.wn + tile.bn * tile.wm) * tile.bk * itemsize
    slow = 0.0  # copies of less than 4 bytes are no asynchronous ones: every element an instruction or two
    products = (tile.bm // tile.wm // 16) * (tile.bn // tile.wn // 8)
    cycles = 2.0 * 16 * 8 * (32 // itemsize) / (rate / 4)  # of one, on one of four schedulers
    chain = tile.bk * itemsize / 32 * (_FRAGMENT_CYCLES + products * cycles)
    for name, rows in (("a", tile.bm), ("b", tile.bn)):
        side = form.a if name == "a" else form.b
        is_packed = packs and name == "b"
        vector = tile.vector(form, name) if not is_packed else 16 // itemsize
        run = itemsize * (tile.bk if is_packed or side.inner == "k" else rows)
        is_gathered = not is_packed and side.inner != inner_of(form, name)
        lines = rows * tile.bk * (1.0 if is_gathered else itemsize / min(_LINE_BYTES, run))
        chain += _LINE_CYCLES * lines / (tile.threads / 32)
        if is_gathered:
            chain += _GATHER_CYCLES * lines
        if vector * itemsize < 16:
            slow += rows * tile.bk * itemsize * (16 / (vector * itemsize) - 1) / 4
        if vector * itemsize < 4:
            chain += rows * tile.bk / vector / tile.threads * _ELEMENT_CYCLES
    return BlockShape(
        bm=tile.bm, bn=tile.bn, bk=tile.bk, steps=tile.steps(form), blocks=tile.blocks(form), threads=tile.threads,
        shared_bytes=tile.shared_bytes(form), registers=tile.registers(form), stages=tile.stages, raster=tile.raster,
        flops_per_cycle=rate, shared_bytes_per_step=written + read + slow, split=tile.split, chain=chain,
    )  # fmt: skip
