"""Candidates for the moments of norms on a GPU: three kernels of many blocks, where columns are too few for one."""

from __future__ import annotations

from math import ceil

from tvm import tirx

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.columns.candidates import columns_of, is_total
from subtune.backends.cuda.model.runs import MAX_KEPT, element_bits, lanes_of, slowed
from subtune.backends.cuda.model.streaming import narrow, streaming_s
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.tir.blocks import is_reduction, root_stages, stage_block

_PART_S, _PARTS_AT_ONCE = 0.05e-6, 16  # to add up partial results


def accepts(problem: Problem[CUDAModel]) -> str:
    anchor = columns_of(problem)
    if anchor is None:
        return "no reductions that keep the innermost axis"
    if is_total(anchor, problem.workload):
        return "only the totals are wanted"
    return "" if _only_sums(problem.workload) else "reductions that are no sums"


def _only_sums(workload: Workload) -> bool:
    blocks = [stage_block(stage) for stage in root_stages(workload.func)]
    return all(isinstance(getattr(block.body, "value", None), tirx.Add) for block in blocks if is_reduction(block))


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Three kernels of many blocks, where the columns are too few for one."""
    anchor, workload, device = columns_of(problem), problem.workload, problem.device
    assert anchor is not None
    total = anchor.outer * anchor.columns * anchor.length
    widths = lanes_of(element_bits(total, workload), anchor.columns, 4)
    element_bytes = workload.nbytes / (anchor.outer * anchor.columns * anchor.length)
    found = []
    for lanes in widths:
        runs_of_columns = anchor.columns // lanes
        chunks = next(c for c in (32, 16, 8, 4, 2, 1) if runs_of_columns % c == 0)
        for block in (128, 256, 512):
            threads, rest = divmod(block, chunks)
            for runs in (1, 2, 4, 8):
                rows = threads * runs
                if rest or anchor.length % rows or anchor.length <= rows or runs * lanes > MAX_KEPT:
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
                found += slowed([Candidate.make("cuda.moments", seconds, **knobs)], narrow(lanes, widths[0]))
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]
