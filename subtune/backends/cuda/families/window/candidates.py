"""Candidates for windows on a GPU: depthwise convolution and pooling."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.window import Window

_MAX_UNROLLED = 160  # beyond, compilers take seconds, and strips (`cuda.strip`) are faster
_MAX_PIXELS = 8
_L1_BYTES_PER_CYCLE = 64  # per SM, as loads of 16 bytes reach


def accepts(problem: Problem[CUDAModel]) -> str:
    return "" if isinstance(problem.pattern, Window) else "no windows"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Channels and pixels of a thread: what their windows share is read once."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    channels = anchor.of_role("n")[0].extent
    shape = [axis.extent for axis in anchor.of_role("m")]
    found = []
    height, width = [1, 1, *shape][-2:]
    images = prod(shape[:-2]) if len(shape) > 2 else 1
    bits = min(dtype_bits(arg.dtype) for arg in workload.args)
    lanes = max(1, 128 // bits)
    while channels % lanes:
        lanes //= 2
    side = max(axis.extent for axis in anchor.of_role("k"))
    for wide in sorted({lanes, max(1, lanes // 2)}):
        for rows in (r for r in (1, 2, 3, 4) if r <= height):
            for cols in (c for c in (1, 2, 3, 4) if c <= width):
                if rows * cols * taps > _MAX_UNROLLED or rows * cols > _MAX_PIXELS:
                    continue
                for threads in (128, 256):
                    found.append(_candidate(workload, device, (images, height, width, channels), (taps, side), wide,
                                            rows, cols, threads, bool(anchor.to_pack)))  # fmt: skip
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]


def _candidate(
    workload: Workload, device: CUDAModel, shape: tuple[int, int, int, int], window: tuple[int, int], lanes: int,
    rows: int, cols: int, threads: int, has_weights: bool,
) -> Candidate:  # fmt: skip
    images, height, width, channels = shape
    taps, side = window
    items = images * ceil(height / rows) * ceil(width / cols) * channels // lanes
    pixels = rows * cols
    # an upper bound of what windows of neighbouring pixels read together: stride 1 shares most, stride 2 some
    stride = 2 if workload.args[0].nbytes > 2 * workload.args[-1].nbytes else 1
    read = ((rows - 1) * stride + side) * ((cols - 1) * stride + side) if taps >= side * side > 1 else pixels * taps
    element_bytes = dtype_bits(workload.args[0].dtype) // 8
    loads_bytes = items * lanes * element_bytes * (read + (taps if has_weights else 0))
    l1_s = loads_bytes / (device.sms * _L1_BYTES_PER_CYCLE * device.cycles_per_s)
    registers = 24 + pixels * lanes + 5 * lanes * rows // 2  # as compiled for depthwise 3x3 in float16
    converted = read + (taps if has_weights else pixels * taps)
    operations = items * lanes * (pixels * taps * 1.1 + converted + pixels * 3) + items * (read * 6 + 40)
    # rows that blocks below one another both read come from L2
    again = 1.0 + 0.25 * (side - stride) / (rows * stride)
    seconds = streaming_s(device, workload.nbytes * again, ceil(items / threads), threads, lanes * element_bytes *
                          min(read, 3 * side), registers, operations=operations)  # fmt: skip
    seconds = max(seconds, device.launch_s + l1_s)
    return Candidate.make("cuda.window", seconds, threads=threads, lanes=lanes, rows=rows, cols=cols)
