"""Candidates for what memory bounds on a GPU: elementwise, transposes, rows and columns; every one legal there."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.streaming import barrier_s, narrow, resident_blocks, streaming_s
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.rows import Columns, Rowwise

_ACCESS_BITS = 128
_MAX_TILED_TOTAL = 32  # elements of each of two rows in one thread's registers, where only their totals are wanted
_MAX_KEPT = 64  # elements of a row in one thread's registers
_SCALAR = 6.0  # transposed operands element by element
_MAX_LANES = 32
_PART_S, _PARTS_AT_ONCE = 0.05e-6, 16  # to add up partial results
_COST = 8  # instructions for an element of a row: conversions, an exponential, sums
_COST_OF_TOTAL, _COST_OF_PRODUCT, _COST_OF_VECTOR = 2.2, 2.5, 2.0


def memory_bound_candidates(
    anchor: Elementwise | Rowwise | Columns, workload: Workload, device: CUDAModel
) -> list[Candidate]:
    """Of the anchor's kind; unordered."""
    if isinstance(anchor, Elementwise):
        return elementwise_candidates(anchor, workload, device)
    if isinstance(anchor, Rowwise):
        return rowwise_candidates(anchor, workload, device)
    return columns_candidates(anchor, workload, device)


def elementwise_candidates(anchor: Elementwise, workload: Workload, device: CUDAModel) -> list[Candidate]:
    """Runs of 16 bytes of the narrowest operand or of wider ones, one to four of a thread."""
    narrowest = min(dtype_bits(arg.dtype) for arg in workload.args)
    element_bytes = sum(dtype_bits(arg.dtype) for arg in workload.args) // 8
    found = []
    widths = _lanes(narrowest, anchor.extent)
    for lanes in widths:
        for unroll in (1, 2, 4):
            for threads in (128, 256, 512):
                blocks = ceil(anchor.extent / (threads * lanes * unroll))
                in_flight = lanes * unroll * element_bytes
                seconds = streaming_s(device, workload.nbytes, blocks, threads, in_flight, 24 + in_flight // 3,
                                      operations=anchor.extent * (4 + 20 / lanes))  # fmt: skip
                seconds *= (1 + 0.002 * unroll) * narrow(lanes, widths[0]) * (_SCALAR if anchor.transposed else 1.0)
                found.append(Candidate.make("cuda.elementwise", seconds, threads=threads, lanes=lanes, unroll=unroll))
    if anchor.transposed:
        widest = max(dtype_bits(arg.dtype) for arg in workload.args)
        for side in (32, 64, 128):
            shared = side * (side + 1) * widest // 8
            for threads in (128, 256, 512):
                if side * side * widest // _ACCESS_BITS < threads or shared > 48 * 1024:
                    continue
                blocks = ceil(anchor.extent / side**2)
                in_flight = side * side * widest // 8 // threads
                seconds = streaming_s(device, workload.nbytes, blocks, threads, in_flight, 40, shared,
                                      anchor.extent * 10)  # fmt: skip
                found.append(Candidate.make("cuda.transpose", seconds, side=side, threads=threads))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]


def rowwise_candidates(anchor: Rowwise, workload: Workload, device: CUDAModel) -> list[Candidate]:
    """Who shares a row: part of a warp, a warp, a block, or several blocks; in registers where it fits."""
    bits = _element_bits(anchor.rows * anchor.length, workload)
    outputs = sum(prod(int(d) for d in arg.shape) for arg in workload.args if arg.is_output)
    found = []
    widths = _lanes(bits, anchor.length, 2)
    for lanes in widths:
        for threads in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
            runs = ceil(anchor.length / (threads * lanes))
            if threads > device.max_threads_per_block or (threads > 1 and threads * lanes >= 2 * anchor.length):
                continue
            for keep in (True, False):
                if keep == (runs * lanes > _MAX_KEPT):
                    continue
                for block in (128, 256) if threads <= 128 else (threads,):
                    for unroll in (1,) if keep else (1, 2, 4):
                        made = _row_candidates(anchor, workload, device, lanes, threads, runs, keep, block, unroll,
                                               outputs == anchor.rows, bits)  # fmt: skip
                        found += _slowed(made, narrow(lanes, widths[0]))
    return found


def _row_candidates(
    anchor: Rowwise, workload: Workload, device: CUDAModel, lanes: int, threads: int, runs: int, keep: bool,
    block: int, unroll: int, is_total: bool, bits: int,
) -> list[Candidate]:  # fmt: skip
    rows = max(1, block // threads)
    is_product = is_total and len(workload.args) > 2  # something is read beside the rows
    in_flight = lanes * (runs if keep else unroll) * workload.nbytes // max(1, anchor.rows * anchor.length)
    registers = 28 + (runs * lanes * 3 // 2 if keep else unroll * lanes)
    nbytes = workload.nbytes if keep or is_total else workload.nbytes * 1.5
    cost = _COST_OF_TOTAL if is_total else _COST
    if is_product:
        cost = _COST_OF_PRODUCT * (2 if bits < 8 else 1)
    work = anchor.rows * (anchor.length * (cost + (_COST_OF_VECTOR if is_product else 0)) + threads * 12)
    common: dict[str, int | str | bool] = {"threads": threads, "rows": rows, "lanes": lanes}
    common |= {"keep": True} if keep else {"unroll": unroll}
    blocks = ceil(anchor.rows / rows)
    seconds = streaming_s(device, nbytes, blocks, block, max(1, in_flight), registers, 0, work)
    if threads > 32:
        seconds += barrier_s(blocks, resident_blocks(device, block, registers), device)
    found = [Candidate.make("cuda.rowwise", seconds, **common)]
    most = _MAX_TILED_TOTAL if is_total and anchor.rows >= 2 * rows * device.sms else 0 if is_total else 8
    if keep and runs * lanes <= most:
        tiled = streaming_s(device, nbytes, ceil(blocks / 2), block, 2 * max(1, in_flight), registers + 16, 0, work)
        found.append(Candidate.make("cuda.rowwise", tiled, tile=2, **common))
    if is_product and not keep:
        for tile in (2, 4):
            if anchor.rows % tile or lanes * unroll * tile > 128:
                continue
            work = anchor.rows * (anchor.length * (cost + _COST_OF_VECTOR / tile) + threads * 12)
            held = registers + (tile - 1) * unroll * lanes * bits // 32 + lanes * unroll // 2
            tiled = streaming_s(device, nbytes, ceil(blocks / tile), block, max(1, in_flight) * tile, held, 0, work)
            found.append(Candidate.make("cuda.rowwise", tiled, tile=tile, **common))
    if is_total and not keep and anchor.rows < 4 * device.sms:
        for split in (4, 16, 64, 256):
            part = anchor.length // split
            if anchor.length % split or part % lanes or part < threads * lanes or anchor.rows * split > 16 * device.sms:
                continue
            parts = streaming_s(device, nbytes, ceil(anchor.rows * split / rows), block, max(1, in_flight), registers,
                                operations=work)  # fmt: skip
            found.append(Candidate.make("cuda.rowwise", parts + 2 * device.launch_s, split=split, **common))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]


def columns_candidates(anchor: Columns, workload: Workload, device: CUDAModel) -> list[Candidate]:
    """Runs of columns of a thread, threads of a column, and parts of its length for other blocks."""
    total = anchor.outer * anchor.columns * anchor.length
    outputs = sum(prod(int(d) for d in arg.shape) for arg in workload.args if arg.is_output)
    is_total = outputs * anchor.length <= total
    found = []
    widths = _lanes(_element_bits(total, workload), anchor.columns, 4)
    for lanes in widths if anchor.group == 1 else ():  # a group's columns are different threads'
        for chunks in (8, 16, 32, 64):
            if chunks // 2 * lanes >= anchor.columns and chunks > 8:
                continue
            for threads in (1, 2, 4, 8, 16, 32):
                if not 64 <= threads * chunks <= 512 or threads >= 2 * anchor.length:
                    continue
                made = _column_candidates(anchor, workload, device, lanes, chunks, threads, is_total)
                found += _slowed(made, narrow(lanes, widths[0]))
    if not is_total:
        found += _moments_candidates(anchor, workload, device, widths)
    return found


def _moments_candidates(anchor: Columns, workload: Workload, device: CUDAModel, widths: list[int]) -> list[Candidate]:
    """Three kernels of many blocks, where the columns are too few for one."""
    element_bytes = workload.nbytes / (anchor.outer * anchor.columns * anchor.length)
    found = []
    for lanes in widths:
        runs_of_columns = anchor.columns // lanes
        chunks = next(c for c in (32, 16, 8, 4, 2, 1) if runs_of_columns % c == 0)
        for block in (128, 256, 512):
            threads, rest = divmod(block, chunks)
            for runs in (1, 2, 4, 8):
                rows = threads * runs
                if rest or anchor.length % rows or anchor.length <= rows or runs * lanes > _MAX_KEPT:
                    continue
                parts = anchor.length // rows
                blocks = parts * anchor.outer * (runs_of_columns // chunks)
                in_flight, registers = max(1, int(lanes * runs * element_bytes)), 32 + 2 * lanes * runs
                # the input for the moments; then, from L2 where that holds it, and the output
                read_s, written_s = (
                    streaming_s(device, share * workload.nbytes, blocks, block, in_flight, registers,
                                operations=anchor.outer * anchor.columns * anchor.length * 4.0)
                    for share in (0.5, 1.0)
                )  # fmt: skip
                summed = 8.0 * parts * anchor.outer * anchor.columns
                waits = _PART_S * ceil(parts / _PARTS_AT_ONCE) + summed / device.l2_bytes_per_s
                seconds = read_s + written_s + 4 * device.launch_s + waits  # each kernel waits for the one before
                knobs = {"lanes": lanes, "chunks": chunks, "threads": threads, "runs": runs}
                found += _slowed([Candidate.make("cuda.moments", seconds, **knobs)], narrow(lanes, widths[0]))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]


def _column_candidates(
    anchor: Columns, workload: Workload, device: CUDAModel, lanes: int, chunks: int, threads: int, is_total: bool
) -> list[Candidate]:
    total = anchor.outer * anchor.columns * anchor.length
    element_bytes = workload.nbytes / total
    runs = ceil(anchor.length / threads)
    keep = not is_total and runs * lanes <= _MAX_KEPT
    unroll = min(runs, 4)
    shared = threads * chunks * lanes * 4 if threads > 1 else 0
    blocks = ceil(anchor.columns / (chunks * lanes)) * anchor.outer
    in_flight = max(1, int(lanes * (runs if keep else unroll) * element_bytes))
    registers = 32 + lanes * (runs * 2 if keep else unroll + 1)
    nbytes = workload.nbytes if keep or is_total else workload.nbytes * 1.6
    operations = total * 4.0
    common: dict[str, int | str | bool] = {"threads": threads, "chunks": chunks, "lanes": lanes}
    common |= {"keep": True} if keep else {"unroll": unroll}
    seconds = streaming_s(device, nbytes, blocks, threads * chunks, in_flight, registers, shared, operations)
    if threads > 1:
        seconds += barrier_s(blocks, resident_blocks(device, threads * chunks, registers, shared), device)
    found = [Candidate.make("cuda.columns", seconds, **common)]
    if is_total and blocks < 4 * device.sms:
        for split in (4, 8, 16, 32, 64, 128):
            if anchor.length % split or anchor.length // split < threads or blocks * split > 16 * device.sms:
                continue
            parts = streaming_s(device, nbytes, blocks * split, threads * chunks, in_flight, registers, shared,
                                operations)  # fmt: skip
            found.append(Candidate.make("cuda.columns", parts + 2 * device.launch_s, split=split, **common))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]


def _slowed(found: list[Candidate], factor: float) -> list[Candidate]:
    return [replace(candidate, predicted_s=candidate.predicted_s * factor) for candidate in found]


def _element_bits(elements: int, workload: Workload) -> int:
    """Bits of one element of the narrowest operand that has (about) one for every element that is reduced."""
    sizes = [arg.nbytes * 8 / elements for arg in workload.args]
    return max(4, round(min([size for size in sizes if size >= 3.0], default=32.0)))


def _lanes(bits: int, extent: int, count: int = 3) -> list[int]:
    """Powers of two that divide `extent`: 16 bytes of elements of `bits`, and up to `count - 1` smaller ones."""
    lanes = min(_MAX_LANES, max(1, _ACCESS_BITS // max(bits, 1)))
    while extent % lanes:
        lanes //= 2
    found: list[int] = []
    while lanes and len(found) < count:
        found.append(lanes)
        lanes //= 2
    return found
