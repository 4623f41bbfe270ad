"""Candidates for float32 products and convolutions, on CUDA cores and in three products on tensor cores."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as choices
from math import prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.fma.tensor import units
from subtune.backends.cuda.model.core_tiles import VECTOR, FmaTile
from subtune.backends.cuda.model.diverse import diverse
from subtune.backends.cuda.model.score import BlockShape, seconds
from subtune.backends.cuda.model.split_rate import split_rate
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemm import Gemm, gemm
from subtune.patterns.gemm_view import gemm_view

_ROWS, _COLUMNS = (32, 64, 128, 256), (32, 64, 128)
_FEW_ROWS = 16  # those of a warp's smallest tile: as many products have no more
_SLICED = ((1, 8), (1, 16), (2, 16), (2, 32), (4, 32))  # slices, depth
_THREADS = {1: (64, 128, 256), 2: (128, 256, 512), 4: (256, 512)}
_THREAD_TILES = ((16, 8), (8, 8), (4, 8), (4, 4))
_TENSOR_COLUMNS = (8, 16, *_COLUMNS)
_TENSOR_SLICED = ((1, 8), (1, 16), (1, 32), (2, 16), (2, 32), (4, 32))
_TENSOR_WARPS = 8  # of a multiprocessor, that keep its tensor cores busy: 62 TFLOP/s with 64 sums of each lane
_TENSOR_TILES = ((8, 8), (4, 16), (4, 8), (8, 4), (4, 4), (2, 8), (8, 2), (4, 2))
_STAGES = (4, 3)
_SPLITS, _LEAST_STEPS = (2, 4, 8, 16, 32, 64, 128), 8
_KEPT = 12
_ISSUE, _LOADED = 0.95, 0.6
"""Multiply-adds of all instructions at best; and instructions that an element loaded from shared memory keeps waiting,
beside its bandwidth. 8 x 8 sums a thread: 50 TFLOP/s of an H200's 67 at 4096^3; 4 x 8 take 1.09 times as long, 4 x 4
1.2 times, measured."""
_CRAMPED, _FREE_REGISTERS = 0.97, 16
"""Of the instructions, those that do not move or reload registers; where fewer than these are free (machine code)."""
_LOAD_BYTES = 256  # of shared memory's bandwidth, what a warp's load of 16 bytes takes, few distinct as they may be
_HOPE = 1.3
_MAX_REGISTERS = 255
_LIMITS = (128, 168, _MAX_REGISTERS)
_MAX_WASTE = 2.0
_MAX_COPIED = 8  # rows whose addresses a thread holds


def accepts(problem: Problem[CUDAModel]) -> str:
    if not isinstance(problem.pattern, Contraction):
        return "no contraction"
    view = gemm_view(problem.pattern)
    if isinstance(view, NotApplicable):
        return view.reason
    return "a window of more than three axes" if len(view.steps) > 3 else ""


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Best first; empty where the workload is no product of float32."""
    workload, device = problem.workload, problem.device
    form = gemm(workload)
    if isinstance(form, NotApplicable) or not is_fma(form, device):
        return []
    body = ("bm", "bn", "bk", "tm", "tn", "slices")
    kept: list[Candidate] = []
    for on_tensor in units(device, problem.numerics):
        found = []
        for whole in tiles(form, device, on_tensor):
            for split in (1, *_splits(whole, form, device)):
                tile = replace(whole, split=split)
                predicted = seconds(shape_of(tile, form, device), form, device)
                if predicted < float("inf"):
                    found.append(candidate_of("cuda.fma", tile, predicted))
        kept += diverse(hopeful(found), _KEPT, ("tm", "tn", "slices", "blocks", "split"), body)
    return kept


def _splits(tile: FmaTile, form: Gemm, device: CUDAModel) -> list[int]:
    """Parts of k that keep a device busy which whole sums do not."""
    blocks, places = _blocks(tile, form), tile.blocks * device.sms
    return [
        split
        for split in _SPLITS
        if not form.is_window
        and blocks * split < 2 * places
        and form.k >= split * tile.bk * _LEAST_STEPS
        and replace(tile, split=split).divides(form.k)
    ]


def _blocks(tile: FmaTile, form: Gemm) -> int:
    return -(-form.m // tile.bm) * -(-form.n // tile.bn) * form.batch


def hopeful(found: list[Candidate]) -> list[Candidate]:
    """Those that an error of the model may have kept from being the fastest: they are of one template."""
    limit_s = _HOPE * min((candidate.predicted_s for candidate in found), default=0.0)
    return [candidate for candidate in found if candidate.predicted_s <= limit_s]


def is_fma(form: Gemm, device: CUDAModel) -> bool:
    """Whether the template computes a product of this form, as far as can be told without its TIR."""
    dtypes = {form.a.dtype, form.b.dtype, form.acc_dtype}
    is_read = form.a.is_copy and form.a.inner == "k" and form.b.param >= 0
    has_vectors = form.n % VECTOR == 0 or form.b.is_constant or form.b.inner == "k"
    return dtypes == {"float32"} and is_read and has_vectors and min(form.m, form.n) > 1 and device.capability >= 80


def tiles(form: Gemm, device: CUDAModel, on_tensor: bool = False) -> list[FmaTile]:
    """Every tile that fits the device and does not waste most of its work on `form`."""
    found = []
    vector, along_k = min(form.a.vector, VECTOR), b_along_k(form)
    rows = (_FEW_ROWS, *_ROWS) if form.m <= _FEW_ROWS else _ROWS
    columns, sliced, of_threads = (
        (_TENSOR_COLUMNS, _TENSOR_SLICED, _TENSOR_TILES) if on_tensor else (_COLUMNS, _SLICED, _THREAD_TILES)
    )
    for bm, bn, (slices, bk), (tm, tn) in choices(rows, columns, sliced, of_threads):
        sides = ((form.m, bm, rows[0]), (form.n, bn, columns[0]))  # of the least tiles nothing can be spared
        wasted = prod(-(-extent // side) * side / extent for extent, side, least in sides if side != least)
        tile = FmaTile(bm, bn, bk, tm, tn, _STAGES[0], 1, slices, tensor=on_tensor)
        if wasted > _MAX_WASTE:
            continue
        if tile.threads not in _THREADS[slices] or tile.rows_copied(vector) not in range(1, _MAX_COPIED + 1):
            continue
        least, room = -(-tile.registers // 8) * 8, device.registers_per_sm // tile.threads
        for blocks in {room // limit for limit in _LIMITS if limit >= least} - {0}:
            fitted = [
                replace(tile, stages=stages, blocks=blocks)
                for stages in _STAGES
                if blocks * (replace(tile, stages=stages).shared_bytes(along_k) + 1024) <= device.shared_per_sm_bytes
            ]
            found += [x for x in fitted[:1] if not x.obstacle(vector, device, along_k)]
    return found


def b_along_k(form: Gemm) -> bool:
    """Whether B is read along k: a constant is packed along n."""
    return form.b.inner == "k" and not form.b.is_constant


def shape_of(tile: FmaTile, form: Gemm, device: CUDAModel) -> BlockShape:
    warps = tile.threads // tile.slices // 32
    registers = min(_MAX_REGISTERS, device.registers_per_sm // tile.threads // tile.blocks)
    more: dict[str, int] = {}
    if tile.tensor:
        rows, columns = tile.tm * tile.lanes[0], tile.tn * tile.lanes[1]
        fragments, rate = 4.0 * (rows + columns) * warps * tile.bk, split_rate(rows, columns, device)
        more = {"saturating_warps": _TENSOR_WARPS}
    else:
        computed, loaded = tile.tm * tile.tn, tile.tm + tile.tn
        issue = _ISSUE * (_CRAMPED if registers - tile.registers < _FREE_REGISTERS else 1.0)
        fragments = _LOAD_BYTES * loaded * warps * tile.bk / VECTOR
        rate = 2.0 * device.fma_per_cycle * issue * computed / (computed + _LOADED * loaded)
    return BlockShape(
        bm=tile.bm, bn=tile.bn, bk=tile.bk, steps=-(-form.k // (tile.bk * tile.split)),
        blocks=_blocks(tile, form) * tile.split, threads=tile.threads, split=tile.split,
        shared_bytes=tile.shared_bytes(b_along_k(form)), registers=registers,
        stages=tile.stages, raster=1, slices=tile.slices,
        flops_per_cycle=rate,
        shared_bytes_per_step=fragments + (tile.bm + tile.bn) * tile.bk * 4, **more,
    )  # fmt: skip


def candidate_of(template: str, tile: FmaTile, predicted_s: float, **more: int) -> Candidate:
    knobs = {name: getattr(tile, name) for name in FmaTile.__slots__ if name != "tensor" or tile.tensor}
    return Candidate.make(template, predicted_s, **more, **knobs)
