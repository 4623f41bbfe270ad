"""Candidates for vectors times a matrix of 4-bit weights on tensor cores (`templates.cuda.gemv_packed`)."""

from __future__ import annotations

from itertools import product as choices
from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.gemv_packed.tiling import CHUNK, PackedTile
from subtune.backends.cuda.model.diverse import diverse
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.gemv_packed import PackedGemv, packed_gemv
from subtune.patterns.rows import Rowwise
from subtune.patterns.stages import anchored

_THREADS, _SPLITS, _TILES, _UNROLLS = (128, 256, 512), (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4)
_KEPT = 12
_UNPACKED, _SCALED, _VECTOR = 10.0, 4.0, 20.0
"""Instructions of a lane: for 8 weights, their multiplication included; where they are scaled, more; and for 32
elements of a vector."""
_LOADED_BYTES = 32 // 2
"""Of a lane's two rows: of what is on its way for a warp, about half is there already, and is being computed with."""


def accepts(problem: Problem[CUDAModel]) -> str:
    if not any("int" in arg.dtype for arg in problem.workload.args):  # cheaper than a look at the TIR
        return "no integers"
    return "" if isinstance(problem.pattern, Rowwise) else "no sums along rows"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Best first; empty where the workload is no such product."""
    workload, device = problem.workload, problem.device
    found = anchored(workload, packed_gemv)
    if isinstance(found, NotApplicable):
        return []
    form = found[2]
    tiles = [PackedTile(*knobs) for knobs in choices(_THREADS, _SPLITS, _TILES, _UNROLLS)]
    busy = [tile for tile in tiles if (tile.split - 1) * tile.unroll * CHUNK < form.length]
    fitting = [tile for tile in busy if not tile.obstacle(form, device, problem.numerics)]
    timed = [
        Candidate.make("cuda.gemv_packed", seconds, **{name: getattr(tile, name) for name in PackedTile.__slots__})
        for tile in fitting
        if (seconds := _seconds(tile, form, workload, device)) < float("inf")
    ]
    return diverse(timed, _KEPT, ("threads", "tile"), ("split", "tile"))


def _seconds(tile: PackedTile, form: PackedGemv, workload: Workload, device: CUDAModel) -> float:
    blocks = ceil(form.rows / tile.rows)
    at_a_time = tile.split * tile.unroll
    chunks = ceil(form.length / (CHUNK * at_a_time)) * at_a_time
    weights = 8 * tile.tile * (_UNPACKED + (_SCALED if form.group else 0.0))
    work = 32 * blocks * tile.across * chunks * (weights + _VECTOR)
    totals = 20.0 * blocks * tile.rows * form.vectors * tile.split
    return streaming_s(
        device, workload.nbytes, blocks, tile.threads, tile.unroll * tile.tile * _LOADED_BYTES, tile.registers(form),
        tile.shared_bytes(form), work + totals,
    )  # fmt: skip
