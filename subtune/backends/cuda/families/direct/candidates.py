"""Candidates for any single reduction on a GPU, where no family is made for it."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.runs import element_bits, lanes_of
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemm import gemm
from subtune.patterns.recognise import Unrecognised
from subtune.patterns.rows import Columns, Rowwise
from subtune.patterns.single import Access, Single, single
from subtune.patterns.stages import anchored
from subtune.patterns.window import Window

_FEW = 4  # rows or columns of a product: tiles would be mostly empty
_LARGE = 75  # taps of a window: the windows' own schedule writes them all out; and sums that an element is part of
_OVERLAPPING = 1.5
_MAX_RESULTS = 32  # of a thread
_MAX_TERMS = 1200  # of a thread's sums, all written out
_L1_BYTES_PER_CYCLE = 128
_ADDRESS = 3  # instructions for an access
_ROW_BYTES = 128  # of memory: pieces of rows that are shorter cost what comes with them
_MOST_SPREAD = 3.0
"""Times the bytes: pieces of 32 bytes, 52 KB apart, came at 1.1 to 1.3 TB/s of an H200's 4.2 (2026-11-27)."""


def accepts(problem: Problem[CUDAModel]) -> str:
    """What has tiles, windows, rows or columns of its own is left to those."""
    pattern = problem.pattern
    if isinstance(pattern, Contraction):
        product = gemm(problem.workload)
        if pattern.per_group or isinstance(product, NotApplicable):
            return ""
        return "tiles of products" if min(product.m, product.n) >= _FEW else ""
    if isinstance(pattern, Window):
        taps, shared = prod(axis.extent for axis in pattern.of_role("k")), _shared(problem.workload, pattern)
        return "" if taps > _LARGE and shared > _FEW else "a small window, or one of whole rows or columns"
    if isinstance(pattern, Rowwise) and _is_of_planes(problem.workload, pattern):
        return ""
    if isinstance(pattern, Rowwise | Columns):
        return "" if _shared(problem.workload, pattern) > _LARGE else "rows or columns that are read once"
    return "" if isinstance(pattern, Unrecognised) else "a family of its own"


def _is_of_planes(workload: Workload, pattern: Rowwise) -> bool:
    """Windows that overlap or have two axes, of channels first: neighbouring results read neighbouring elements."""
    if pattern.length > _LARGE:
        return False
    found = anchored(workload, single)
    if isinstance(found, NotApplicable) or not any(access.lanes and access.rows for access in found[2].accesses):
        return False
    is_flat = sum(extent > 1 for extent in found[2].reduced) < 2
    return not is_flat or _shared(workload, pattern) >= _OVERLAPPING


def _shared(workload: Workload, pattern: Window | Rowwise | Columns) -> float:
    """Of how many sums every element that is read is a part: many of a convolution, also one that is read as none."""
    if isinstance(pattern, Window):
        elements = prod(axis.extent for axis in pattern.axes)
    else:
        sums = pattern.rows if isinstance(pattern, Rowwise) else pattern.outer * pattern.columns
        elements = sums * pattern.length
    return elements / sum(prod(int(d) for d in arg.shape) for arg in workload.args if not arg.is_output)


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Results of a thread, and how many threads share them."""
    found = anchored(problem.workload, single)
    if isinstance(found, NotApplicable):
        return []
    info, made = found[2], []
    columns, rows = info.kept[-1] if info.kept else 1, info.kept[info.rows] if info.rows >= 0 else 1
    bits = element_bits(prod(info.kept), problem.workload)
    is_of_planes = isinstance(problem.pattern, Rowwise) and _is_of_planes(problem.workload, problem.pattern)
    for lanes in sorted({*lanes_of(bits, columns), 1}):
        for tall in (r for r in (1, 2, 4, 8) if r <= rows and r * lanes <= _MAX_RESULTS):
            for share in (s for s in (1, 4, 8, 32, 128) if s == 1 or 2 * s <= info.length):
                for threads in (128, 256):
                    made.append(_candidate(problem, info, lanes, tall, share, threads))
            if is_of_planes and info.length > 1 and info.length * lanes * tall <= _MAX_TERMS:
                made += [_of_planes(problem, info, lanes, tall, threads) for threads in (128, 256)]
    return [candidate for candidate in made if candidate.predicted_s < float("inf")]


def _candidate(problem: Problem[CUDAModel], info: Single, lanes: int, rows: int, share: int, threads: int) -> Candidate:
    device, nbytes = problem.device, problem.workload.nbytes
    if nbytes > device.l2_bytes:
        nbytes = int(nbytes * max(_spread(access, lanes, share) for access in info.accesses))
    run = info.length if share > 1 else next((e for e in reversed(info.reduced) if e > 1), 1)
    unroll = next((u for u in (4, 3, 2) if run % (u * share) == 0), 4 if run >= 8 * share else 1)
    items = ceil(prod(info.kept) / (lanes * rows))
    steps = ceil(info.length / share)
    taken = sum(_instructions(access, lanes, rows) for access in info.accesses)
    cycles = sum(_cycles(access, lanes, rows, share) for access in info.accesses)
    operations = items * share * (steps * (rows * lanes + taken) + 40 + rows * lanes * 2 * share.bit_length())
    registers = 32 + rows * lanes + unroll * sum(lanes * rows if a.rows else lanes for a in info.accesses) // 2
    blocks = ceil(items * share / threads)
    in_flight = unroll * sum(access.element_bytes * lanes for access in info.accesses)
    seconds = streaming_s(device, nbytes, blocks, threads, in_flight, registers, operations=operations)
    filled = min(1.0, blocks / device.sms)
    l1_s = items * share * steps / device.warp_size * cycles / (device.sms * filled * device.cycles_per_s)
    knobs = {"rows": rows} if rows > 1 else {}
    knobs |= {"share": share} if share > 1 else {}
    knobs |= {"unroll": unroll} if unroll > 1 else {}
    return Candidate.make("cuda.direct", max(seconds, device.launch_s + l1_s), threads=threads, lanes=lanes, **knobs)


def _of_planes(problem: Problem[CUDAModel], info: Single, lanes: int, rows: int, threads: int) -> Candidate:
    """All taps of a thread's windows written out: the compiler loads once what several of them read."""
    device, pattern, nbytes = problem.device, problem.pattern, problem.workload.nbytes
    assert isinstance(pattern, Rowwise)
    high, wide = ([*info.reduced, 1, 1] if len(info.reduced) < 2 else info.reduced)[-2:]
    apart = (info.length / _shared(problem.workload, pattern)) ** 0.5  # of neighbouring windows
    read = min(((rows - 1) * apart + high) * ((lanes - 1) * apart + wide), float(rows * lanes * info.length))
    data = next(access for access in info.accesses if access.lanes and access.rows)
    others = info.length * (len(info.accesses) - 1)
    items = ceil(prod(info.kept) / (lanes * rows))
    converted = 1 if data.element_bytes < 4 else 0
    operations = items * (read * (2 + converted) + others + rows * lanes * (info.length + 6) + 60)
    registers = 30 + int(read + rows * lanes)
    in_flight = max(1, int(read * data.element_bytes / 2))
    blocks = ceil(items / threads)
    seconds = streaming_s(device, nbytes, blocks, threads, in_flight, registers, operations=operations)
    touched = max(1.0, device.warp_size * lanes * apart * data.element_bytes / _L1_BYTES_PER_CYCLE)
    filled = min(1.0, blocks / device.sms)
    l1_s = items / device.warp_size * (read * touched + others) / (device.sms * filled * device.cycles_per_s)
    knobs = {"rows": rows} if rows > 1 else {}
    seconds = max(seconds, device.launch_s + l1_s)
    return Candidate.make("cuda.direct", seconds, threads=threads, lanes=lanes, unroll=info.length, **knobs)


def _spread(access: Access, lanes: int, share: int) -> float:
    """Times its bytes, what memory moves for an access whose neighbours along the sum lie apart."""
    if share == 1 or access.lanes != 1 or access.steps != 2:
        return 1.0
    return min(_MOST_SPREAD, max(1.0, _ROW_BYTES / (lanes * access.element_bytes * max(1, 32 // share))))


def _instructions(access: Access, lanes: int, rows: int) -> float:
    """Of a thread for what one element of its sums needs of an operand."""
    loaded = {0: 1, 1: ceil(lanes * access.element_bytes / 16), 2: lanes}[access.lanes]
    converted = (lanes if access.lanes else 1) if access.element_bytes < 4 else 0
    return (_ADDRESS * loaded + converted) * (rows if access.rows else 1)


def _cycles(access: Access, lanes: int, rows: int, share: int) -> float:
    """Of the first-level cache for a warp: by the lines that its threads touch."""
    times = rows if access.rows else 1
    width = lanes * access.element_bytes
    if share == 1:
        touched = {0: 1.0, 1: max(1.0, 32 * width / _L1_BYTES_PER_CYCLE), 2: 32.0 * lanes}[access.lanes]
        return touched * times
    apart = min(32, share) if access.steps == 2 else 1
    groups = max(1, 32 // share)
    each = {0: 1, 1: max(1.0, width * groups / _L1_BYTES_PER_CYCLE), 2: lanes * groups}[access.lanes]
    return max(1.0, apart * each) * times
