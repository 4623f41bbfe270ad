"""Candidates for a few rows times a matrix of 4 or 8-bit weights on tensor cores."""

from __future__ import annotations

from itertools import product as choices
from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.weight_only.form import Form, few_rows, form_of
from subtune.backends.cuda.families.weight_only.packing import CHUNK
from subtune.backends.cuda.families.weight_only.tiling import WeightOnlyTile
from subtune.backends.cuda.model.diverse import diverse
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.stages import anchored

_THREADS, _SPLITS, _TILES, _UNROLLS = (128, 256, 512), (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4, 8)
_CLUSTERS, _STAGED = (1, 2, 4, 8), (1, 0)
_KEPT = 16
_UNPACKED, _MULTIPLIED, _SCALED = 9.0, 2.0, 5.0
"""Instructions of a warp for a fragment of 16 rows and 16 k: to unpack it, to multiply it with eight rows, and those of
every group."""
_CLUSTER_S = 1.0e-6  # blocks that wait for one another twice, and read one another's memory
_COPY_S, _BARRIER_S = 0.4e-6, 0.2e-6  # rows of x into shared memory before the first product; the others at their use
_REACHED_L2 = 0.7
"""Of its published bandwidth, when all blocks read the same."""


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Best first; empty where the workload is no such product."""
    workload, device = problem.workload, problem.device
    found = anchored(workload, few_rows)
    if isinstance(found, NotApplicable):
        return []
    form = form_of(found[2], workload)
    if isinstance(form, NotApplicable):
        return []
    knobs = choices(_THREADS, _SPLITS, _TILES, _UNROLLS, _CLUSTERS, _STAGED)
    tiles = [tile for tile in (WeightOnlyTile(*some) for some in knobs) if _is_sensible(tile, form)]
    timed = [
        Candidate.make("cuda.weight_only", seconds, **{name: getattr(tile, name) for name in WeightOnlyTile.__slots__})
        for tile in tiles
        if not tile.obstacle(form, device, problem.numerics)
        and (seconds := predicted_s(tile, form, workload, device)) < float("inf")
    ]
    return diverse(timed, _KEPT, ("threads", "cluster"), ("split", "tile", "cluster"), per_tile=2)


def _is_sensible(tile: WeightOnlyTile, form: Form) -> bool:
    """No more rows in a block than there are, none of whose chunks are mostly padding."""
    return tile.threads % (32 * tile.split) == 0 and tile.across > 0 and tile.rows < form.rows + 16 * tile.tile


def predicted_s(tile: WeightOnlyTile, form: Form, workload: Workload, device: CUDAModel) -> float:
    """Launch included: weights from DRAM, rows of x from L2 to every block, what is left when all have been read."""
    blocks, products = tile.blocks(form), ceil(form.vectors / 8)
    fragments = blocks * tile.across * tile.split * tile.own(form) * tile.tile * CHUNK // 16
    of_group = _SCALED * 16 / min(form.group or form.length, tile.unroll * CHUNK)
    work = 32.0 * fragments * (_UNPACKED + products * (_MULTIPLIED + of_group))
    in_flight = tile.tile * tile.unroll * form.bits * 4
    seconds = streaming_s(
        device, workload.nbytes, blocks, tile.threads, in_flight, tile.registers(form), tile.shared_bytes(form), work
    )
    if seconds == float("inf"):
        return seconds
    of_x = 2.0 * form.vectors * form.length * blocks / tile.cluster
    reading = of_x * (1 if tile.staged else tile.across) / (device.l2_bytes_per_s * _REACHED_L2)
    whole = ceil(form.chunks / (tile.cluster * tile.split)) / tile.own(form)
    waiting = _COPY_S if tile.staged else _BARRIER_S * min(4, tile.own(form))
    return seconds / max(whole, 0.5) + reading + waiting + (_CLUSTER_S if tile.cluster > 1 else _BARRIER_S)
