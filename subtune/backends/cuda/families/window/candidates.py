"""Candidates for windows on a GPU: depthwise convolution and pooling."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.window.byte_pairs import BYTES_OF_WORD
from subtune.backends.cuda.families.window.schedule import WindowKnobs
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.core.numerics import BYTES
from subtune.core.workload import dtype_bits
from subtune.patterns.window import Window

_MAX_UNROLLED = 160  # beyond, compilers take seconds, and strips (`cuda.strip`) are faster
_MAX_PIXELS = 8
_L1_BYTES_PER_CYCLE = 64  # per SM, as loads of 16 bytes reach
_PAIRS_FROM = 90  # the capability that compares three pairs of 16 bits in one instruction
_COMPARED = 2.0  # of a word and a tap: half an instruction for either pair, at half the rate


def accepts(problem: Problem[CUDAModel]) -> str:
    return "" if isinstance(problem.pattern, Window) else "no windows"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Channels and pixels of a thread: what their windows share is read once."""
    anchor, workload = problem.pattern, problem.workload
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    channels = anchor.of_role("n")[0].extent
    height, width = [1, 1, *(axis.extent for axis in anchor.of_role("m"))][-2:]
    bits = min(dtype_bits(arg.dtype) for arg in workload.args)
    lanes = max(1, 128 // bits)
    while channels % lanes:
        lanes //= 2
    found = []
    for wide in sorted({lanes, max(1, lanes // 2)}):
        for rows in (r for r in (1, 2, 3, 4) if r <= height):
            for cols in (c for c in (1, 2, 3, 4) if c <= width):
                if rows * cols * taps > _MAX_UNROLLED or rows * cols > _MAX_PIXELS:
                    continue
                for pairs in (False, True) if _has_pairs(problem, wide) else (False,):
                    for threads in (128, 256):
                        knobs = WindowKnobs(threads, wide, rows, cols, pairs)
                        found.append(Candidate.of("cuda.window", knobs, _predict(problem, knobs)))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]


def _has_pairs(problem: Problem[CUDAModel], lanes: int) -> bool:
    """Whether bytes are compared two at a time, and the device has instructions for that."""
    is_of_bytes = problem.pattern.acc_dtype in BYTES and not problem.pattern.to_pack
    return is_of_bytes and lanes % BYTES_OF_WORD == 0 and problem.device.capability >= _PAIRS_FROM


def _predict(problem: Problem[CUDAModel], knobs: WindowKnobs) -> float:
    """Seconds: bytes of memory, of the L1 cache, and instructions, whichever takes longest."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    taps, side = prod(axis.extent for axis in anchor.of_role("k")), max(axis.extent for axis in anchor.of_role("k"))
    *images, height, width = [1, 1, *(axis.extent for axis in anchor.of_role("m"))]
    lanes, rows, cols = knobs.lanes, knobs.rows, knobs.cols
    items = prod(images) * ceil(height / rows) * ceil(width / cols) * anchor.of_role("n")[0].extent // lanes
    pixels = rows * cols
    # an upper bound of what windows of neighbouring pixels read together: stride 1 shares most, stride 2 some
    stride = 2 if workload.args[0].nbytes > 2 * workload.args[-1].nbytes else 1
    read = ((rows - 1) * stride + side) * ((cols - 1) * stride + side) if taps >= side * side > 1 else pixels * taps
    element_bytes = dtype_bits(workload.args[0].dtype) // 8
    weights = taps if anchor.to_pack else 0
    l1_s = items * lanes * element_bytes * (read + weights) / (device.sms * _L1_BYTES_PER_CYCLE * device.cycles_per_s)
    if knobs.pairs:
        words = lanes // BYTES_OF_WORD
        registers = 20 + 3 * read * words // 4  # as compiled for a maximum of 3x3
        arithmetic = words * (pixels * taps * _COMPARED + read + pixels)
    else:
        registers = 24 + pixels * lanes + 5 * lanes * rows // 2  # as compiled for depthwise 3x3 in float16
        converted = read + (weights or pixels * taps)
        arithmetic = lanes * (pixels * taps * 1.1 + converted + pixels * 3)
    # rows that blocks below one another both read come from L2
    again = 1.0 + 0.25 * (side - stride) / (rows * stride)
    in_flight = lanes * element_bytes * min(read, 3 * side)
    seconds = streaming_s(device, workload.nbytes * again, ceil(items / knobs.threads), knobs.threads, in_flight,
                          registers, operations=items * (arithmetic + read * 6 + 40))  # fmt: skip
    return max(seconds, device.launch_s + l1_s)
