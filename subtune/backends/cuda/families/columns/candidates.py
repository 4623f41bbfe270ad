"""Candidates for column-wise reductions on a GPU: whole axes that are reduced, windows among them."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.rowwise.schedule import CLUSTERS_SINCE
from subtune.backends.cuda.model.runs import MAX_KEPT, element_bits, lanes_of, slowed
from subtune.backends.cuda.model.streaming import barrier_s, narrow, resident_blocks, streaming_s
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.patterns.rows import Columns
from subtune.patterns.stages import reduces_several
from subtune.patterns.window import Window

_MIN_COLUMN = 16  # elements: a window that long may be one of a whole axis
_CLUSTERS, _CLUSTER_S = (1, 2, 4, 8), 4e-6  # blocks that wait for one another
_COST_OF_SEVERAL = 10  # instructions for an element that is compared with what was found, and with where


def columns_of(problem: Problem[CUDAModel]) -> Columns | None:
    """The pattern as columns: also a window over a whole axis, as of a global pooling; None where it is none."""
    pattern = problem.pattern
    if isinstance(pattern, Columns):
        return pattern
    if not isinstance(pattern, Window):
        return None
    taps = prod(axis.extent for axis in pattern.of_role("k"))
    columns = pattern.of_role("n")[0].extent
    if taps < _MIN_COLUMN or columns < 2 or pattern.to_pack or pattern.is_padded:
        return None
    return Columns(prod(axis.extent for axis in pattern.of_role("m")), columns, taps, 1)


def is_total(anchor: Columns, workload: Workload) -> bool:
    """Only the reductions' results are written; a norm writes as much as it reads."""
    outputs = sum(prod(int(d) for d in arg.shape) for arg in workload.args if arg.is_output)
    return outputs * anchor.length <= anchor.outer * anchor.columns * anchor.length


def accepts(problem: Problem[CUDAModel]) -> str:
    return "no reductions that keep the innermost axis" if columns_of(problem) is None else ""


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Runs of columns of a thread, threads of a column, and parts of its length for other blocks."""
    anchor, workload, device = columns_of(problem), problem.workload, problem.device
    assert anchor is not None
    total = anchor.outer * anchor.columns * anchor.length
    only_total = is_total(anchor, workload)
    found = []
    widths = lanes_of(element_bits(total, workload), anchor.columns, 4)
    for lanes in widths if anchor.group == 1 else ():  # a group's columns are different threads'
        for chunks in (8, 16, 32, 64):
            if chunks // 2 * lanes >= anchor.columns and chunks > 8:
                continue
            for threads in (1, 2, 4, 8, 16, 32, 64):
                if not 64 <= threads * chunks <= 512 or threads >= 2 * anchor.length:
                    continue
                blocks = ceil(anchor.columns / (chunks * lanes)) * anchor.outer
                is_shared = not only_total and threads >= _CLUSTERS[-1] and blocks < 2 * device.sms
                for cluster in _CLUSTERS if is_shared and device.capability >= CLUSTERS_SINCE else _CLUSTERS[:1]:
                    if cluster > 1 and threads * cluster >= 2 * anchor.length:
                        continue
                    made = _column_candidates(anchor, workload, device, (lanes, chunks, threads, cluster), only_total)
                    found += slowed(made, narrow(lanes, widths[0]))
    return found


def _column_candidates(
    anchor: Columns, workload: Workload, device: CUDAModel, shape: tuple[int, int, int, int], is_total: bool
) -> list[Candidate]:
    """`shape`: columns of a thread, such runs of a block, threads of a column, blocks of a cluster that share it."""
    lanes, chunks, threads, cluster = shape
    total = anchor.outer * anchor.columns * anchor.length
    element_bytes = workload.nbytes / total
    runs = ceil(anchor.length / (threads * cluster))
    keep = not is_total and runs * lanes <= MAX_KEPT
    unroll = min(runs, 4)
    shared = threads * chunks * lanes * 4 if threads > 1 else 0
    blocks = ceil(anchor.columns / (chunks * lanes)) * anchor.outer * cluster
    in_flight = max(1, int(lanes * (runs if keep else unroll) * element_bytes))
    registers = 32 + lanes * (runs * 2 if keep else unroll + 1)
    nbytes = workload.nbytes if keep or is_total else workload.nbytes * 1.6
    operations = total * (_COST_OF_SEVERAL if reduces_several(workload) else 4.0)
    common: dict[str, int | str | bool] = {"threads": threads, "chunks": chunks, "lanes": lanes}
    common |= {"keep": True} if keep else {"unroll": unroll}
    seconds = streaming_s(device, nbytes, blocks, threads * chunks, in_flight, registers, shared, operations)
    if cluster > 1:
        common["cluster"] = cluster
        seconds += _CLUSTER_S
    elif threads > 1:
        seconds += barrier_s(blocks, resident_blocks(device, threads * chunks, registers, shared), device)
    found = [Candidate.make("cuda.columns", seconds, **common)]
    if is_total and blocks < 4 * device.sms:
        for split in (4, 8, 16, 32, 64, 128):
            if ceil(anchor.length / split) < threads or blocks * split > 16 * device.sms:
                continue
            parts = streaming_s(device, nbytes, blocks * split, threads * chunks, in_flight, registers, shared,
                                operations)  # fmt: skip
            found.append(Candidate.make("cuda.columns", parts + 2 * device.launch_s, split=split, **common))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]
