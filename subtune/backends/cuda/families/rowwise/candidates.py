"""Candidates for row-wise reductions on a GPU: part of a warp, a warp, a block, or several blocks share a row."""

from __future__ import annotations

from itertools import product
from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.rowwise.schedule import CLUSTERS_SINCE
from subtune.backends.cuda.model.runs import MAX_KEPT, element_bits, lanes_of, part_length, slowed
from subtune.backends.cuda.model.streaming import barrier_s, narrow, resident_blocks, streaming_s
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.patterns.rows import Rowwise
from subtune.patterns.stages import reduces_several
from subtune.patterns.window import Window

_MAX_TILED_TOTAL = 32  # elements of each of two rows in one thread's registers, where only their totals are wanted
_COST = 8  # instructions for an element of a row: conversions, an exponential, sums
_COST_OF_TOTAL, _COST_OF_PRODUCT, _COST_OF_VECTOR = 2.2, 2.5, 2.0
_CLUSTER_S = 2e-6  # blocks that wait for one another
_LONGEST_KEPT = 1024 * MAX_KEPT // 2  # of a block's registers
_COST_OF_SEVERAL = 10  # an element is compared with what was found, and with where


def rows_of(problem: Problem[CUDAModel]) -> Rowwise | None:
    """The pattern as rows: also a window over whole rows, whose innermost kept axis has one element."""
    pattern = problem.pattern
    if isinstance(pattern, Rowwise):
        return pattern
    if not isinstance(pattern, Window) or pattern.to_pack or pattern.is_padded or pattern.of_role("n")[0].extent > 1:
        return None
    return Rowwise(
        prod(axis.extent for axis in pattern.of_role("m")), prod(axis.extent for axis in pattern.of_role("k"))
    )


def accepts(problem: Problem[CUDAModel]) -> str:
    return "no reductions along rows" if rows_of(problem) is None else ""


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Who shares a row: part of a warp, a warp, a block, or several blocks; in registers where it fits."""
    anchor, workload, device = rows_of(problem), problem.workload, problem.device
    assert anchor is not None
    bits = element_bits(anchor.rows * anchor.length, workload)
    outputs = sum(prod(int(d) for d in arg.shape) for arg in workload.args if arg.is_output)
    found = []
    widths = lanes_of(bits, anchor.length, 2)
    for lanes in widths:
        for threads in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
            runs = ceil(anchor.length / (threads * lanes))
            if threads > device.max_threads_per_block or (threads > 1 and threads * lanes >= 2 * anchor.length):
                continue
            for keep in (True, False):
                if keep == (runs * lanes > MAX_KEPT):
                    continue
                for block in (128, 256) if threads <= 128 else (threads,):
                    for unroll in (1,) if keep else (1, 2, 4):
                        made = _row_candidates(anchor, workload, device, lanes, threads, runs, keep, block, unroll,
                                               outputs == anchor.rows, bits)  # fmt: skip
                        found += slowed(made, narrow(lanes, widths[0]))
        found += slowed(_clusters(anchor, workload, device, lanes, outputs == anchor.rows), narrow(lanes, widths[0]))
    return found


def _clusters(anchor: Rowwise, workload: Workload, device: CUDAModel, lanes: int, is_total: bool) -> list[Candidate]:
    """Several blocks have a row: of few rows a block each leaves the device idle, of long ones it reads them again."""
    is_long = not is_total and anchor.length > _LONGEST_KEPT
    if device.capability < CLUSTERS_SINCE or (anchor.rows > 2 * device.sms and not is_long):
        return []
    found = []
    for cluster, threads in product((2, 4, 8), (256, 512, 1024)):
        runs = ceil(anchor.length / (threads * lanes * cluster))
        if threads * lanes * cluster >= 2 * anchor.length:
            continue
        keep = runs * lanes <= (MAX_KEPT if threads < 1024 else MAX_KEPT // 2)
        unroll = 1 if keep else 4
        in_flight = lanes * (runs if keep else unroll) * workload.nbytes // max(1, anchor.rows * anchor.length)
        registers = 28 + (runs * lanes * 3 // 2 if keep else unroll * lanes)
        nbytes = workload.nbytes if keep or is_total else workload.nbytes * 1.5
        cost = _COST_OF_SEVERAL if reduces_several(workload) else _COST_OF_TOTAL if is_total else _COST
        seconds = streaming_s(device, nbytes, anchor.rows * cluster, threads, max(1, in_flight), registers,
                              operations=anchor.rows * anchor.length * cost)  # fmt: skip
        knobs: dict[str, int | bool] = {"keep": True} if keep else {"unroll": unroll}
        knobs |= {"threads": threads, "rows": 1, "lanes": lanes, "cluster": cluster}
        found.append(Candidate.make("cuda.rowwise", seconds + _CLUSTER_S, **knobs))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]


def _row_candidates(
    anchor: Rowwise, workload: Workload, device: CUDAModel, lanes: int, threads: int, runs: int, keep: bool,
    block: int, unroll: int, is_total: bool, bits: int,
) -> list[Candidate]:  # fmt: skip
    rows = max(1, block // threads)
    is_product = is_total and len(workload.args) > 2  # something is read beside the rows
    in_flight = lanes * (runs if keep else unroll) * workload.nbytes // max(1, anchor.rows * anchor.length)
    registers = 28 + (runs * lanes * 3 // 2 if keep else unroll * lanes)
    nbytes = workload.nbytes if keep or is_total else workload.nbytes * 1.5
    cost = _COST_OF_SEVERAL if reduces_several(workload) else _COST_OF_TOTAL if is_total else _COST
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
            part = part_length(anchor.length, split, lanes)
            if part < threads * lanes or anchor.rows * split > 16 * device.sms:
                continue
            parts = streaming_s(device, nbytes, ceil(anchor.rows * split / rows), block, max(1, in_flight), registers,
                                operations=work)  # fmt: skip
            found.append(Candidate.make("cuda.rowwise", parts + 2 * device.launch_s, split=split, **common))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]
