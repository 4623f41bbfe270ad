"""Candidates for windows by strips."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.strip.schedule import StripKnobs
from subtune.backends.cuda.model.streaming import resident_blocks, streaming_s
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.contraction import Contraction
from subtune.patterns.stages import anchored
from subtune.patterns.window import Window, shared_window

_SMALL = 9
"""Taps of windows that `cuda.window` unrolls and shares as well."""
_L1_BYTES_PER_CYCLE = 64  # per SM, as loads reach
_HELD = 160
_KEPT = 12
_BUSY_WARPS = 12  # of an SM, whose multiply-adds hide one another's latency: a guess


def accepts(problem: Problem[CUDAModel]) -> str:
    info = _window(problem)
    if info is None or info.is_tabled:
        return "no windows"
    taps = prod(axis.extent for axis in info.of_role("k"))
    is_small = taps <= _SMALL and not info.to_pack
    return "so small a window is unrolled as a whole" if is_small else ""


def _window(problem: Problem[CUDAModel]) -> Window | None:
    """A grouped convolution of one channel a group is one, too."""
    pattern = problem.pattern
    if isinstance(pattern, Contraction) and pattern.per_group:
        found = anchored(problem.workload, shared_window)
        return None if isinstance(found, NotApplicable) or found[2].repeats == 1 else found[2]
    return pattern if isinstance(pattern, Window) else None


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Channels and pixels of a thread; the best few, few pixels of many threads among them."""
    info = _window(problem)
    assert info is not None
    shape = [axis.extent for axis in info.axes if axis.role != "k"]
    if len(shape) < 2:
        return []
    *_, height, width, channels = (1, *shape)
    found = []
    for lanes in (lanes for lanes in (1, 2, 4, 8) if channels % lanes == 0 and (lanes > 1 or channels % 2)):
        for rows in (rows for rows in (1, 2, 4) if rows <= height):
            for cols in sorted({min(cols, width) for cols in (1, 2, 4, 7, 8, 14)}):
                for threads in (64, 128, 256):
                    knobs = StripKnobs(threads, lanes, rows, cols)
                    found.append(Candidate.of("cuda.strip", knobs, _predict(problem, info, knobs)))
    ranked = sorted((c for c in found if c.predicted_s < float("inf")), key=lambda c: c.predicted_s)
    return ranked[:_KEPT]


def _predict(problem: Problem[CUDAModel], info: Window, knobs: StripKnobs) -> float:
    """Seconds: bytes of memory, of the L1 cache, and instructions, whichever takes longest."""
    workload, device = problem.workload, problem.device
    shape = [axis.extent for axis in info.axes if axis.role != "k"]
    taps = [axis.extent for axis in info.of_role("k") if axis.extent > 1]
    tap_w = taps[-1] if taps else 1
    tap_h = taps[-2] if len(taps) > 1 else 1
    others = prod(taps[:-2])
    *images, height, width, channels = (1, *shape)
    items = prod(images) * ceil(height / knobs.rows) * ceil(width / knobs.cols) * channels // knobs.lanes
    stride = max(1, round((info.repeats * workload.args[0].nbytes / workload.args[-1].nbytes) ** 0.5))
    piece = min(tap_w, 11)
    line = (knobs.cols - 1) * stride + piece
    has_weights = bool(info.to_pack) or len(workload.args) > 2
    held = (knobs.rows * knobs.cols + line + (piece if has_weights else 0)) * knobs.lanes
    if held > _HELD:
        return float("inf")
    rows = others * (tap_h + (knobs.rows - 1) * stride) * ceil(tap_w / piece)
    weights = knobs.rows * piece * others * tap_h * ceil(tap_w / piece) if has_weights else 0
    read = rows * line + weights
    products = knobs.rows * knobs.cols * others * tap_h * tap_w
    if not has_weights:
        products = rows * knobs.cols * tap_w + knobs.rows * knobs.cols * tap_h
    nbytes = dtype_bits(workload.args[0].dtype) // 8
    widened = read * knobs.lanes if nbytes == 2 else 0
    operations = items * (products * knobs.lanes + widened + read * 3 + knobs.rows * knobs.cols * knobs.lanes * 3 + 40)
    registers = 40 + held
    blocks = ceil(items / knobs.threads)
    resident = resident_blocks(device, knobs.threads, registers)
    if not resident:
        return float("inf")
    warps = min(resident, ceil(blocks / device.sms)) * knobs.threads / device.warp_size
    operations /= min(1.0, 0.4 + 0.6 * warps / _BUSY_WARPS)
    seconds = streaming_s(device, workload.nbytes * 1.1, blocks, knobs.threads, knobs.lanes * nbytes * line, registers,
                          operations=operations)  # fmt: skip
    l1_s = items * max(4, knobs.lanes * nbytes) * read / (device.sms * _L1_BYTES_PER_CYCLE * device.cycles_per_s)
    return max(seconds, device.launch_s + l1_s)
