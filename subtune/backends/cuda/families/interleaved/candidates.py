"""Candidates for planes that become pixels."""

from __future__ import annotations

from math import ceil, gcd, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.interleaved.schedule import STATIC_SHARED_BYTES, InterleavedKnobs
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.side_by_side import SideBySide, has_few_channels, planes_of

_ACCESS_BITS = 128
_OPERATIONS = 18.0  # of an element: quantising, rounding, an index, a store
_OF_THREAD = 60.0  # once
_MAX_TURNS = 8


def accepts(problem: Problem[CUDAModel]) -> str:
    if not isinstance(problem.pattern, Elementwise):
        return "not elementwise"
    return "" if has_few_channels(problem.workload) else "not a few channels side by side"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Rows that begin at multiples of 16 bytes, and some times as many; empty where no planes are read."""
    found = planes_of(problem.workload)
    if isinstance(found, NotApplicable):
        return []
    planes = found[2]
    lanes = _ACCESS_BITS // max(dtype_bits(str(one.source.dtype)) for one in planes.of_planes)
    row_bytes = planes.width * planes.channels * dtype_bits(problem.workload.args[-1].dtype) // 8
    aligned = 16 // gcd(16, row_bytes)
    made = []
    for rows in (aligned * times for times in (1, 2, 4, 8)):
        for pixels in (lanes, 2 * lanes):
            runs = rows * ((planes.end - planes.begin) // pixels)
            if not runs or rows * row_bytes > STATIC_SHARED_BYTES:
                continue
            for threads in sorted({128, 256, 512, min(512, ceil(runs / 32) * 32)}):
                if runs <= threads * _MAX_TURNS and (threads < 2 * runs or threads == 32):
                    knobs = InterleavedKnobs(rows, threads, pixels)
                    made.append(Candidate.of("cuda.interleaved", knobs, _predict(problem, planes, knobs, runs)))
    return [candidate for candidate in made if candidate.predicted_s < float("inf")]


def _predict(problem: Problem[CUDAModel], planes: SideBySide, knobs: InterleavedKnobs, runs: int) -> float:
    """Seconds: bytes of memory and instructions."""
    workload = problem.workload
    *others, output = workload.args
    blocks = ceil(prod(planes.extents[:-2]) / knobs.rows)
    tile_bytes = knobs.rows * planes.width * planes.channels * dtype_bits(output.dtype) // 8
    widest = max(dtype_bits(arg.dtype) for arg in others) // 8
    turns = ceil(runs / knobs.threads)
    in_flight = turns * knobs.pixels * planes.channels * widest
    registers = 32 + in_flight // 4 + turns * 4
    # threads that have nothing to do in the last turn wait for the others
    waits = turns * knobs.threads / runs
    operations = prod(planes.extents) * _OPERATIONS * waits + blocks * knobs.threads * _OF_THREAD
    return streaming_s(problem.device, workload.nbytes, blocks, knobs.threads, in_flight, registers, tile_bytes,
                       operations=operations)  # fmt: skip
