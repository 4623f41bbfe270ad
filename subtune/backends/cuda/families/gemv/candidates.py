"""Candidates for a matrix times one to eight vectors on a GPU: the matrix's bytes are the time."""

from __future__ import annotations

from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.streaming import streaming_s
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemv import Gemv, gemv

_MAX_SUMS = 32  # of one thread along k: rows times vectors


def accepts(problem: Problem[CUDAModel]) -> str:
    return "" if isinstance(problem.pattern, Contraction) else "no contraction"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Empty where neither operand is small."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    form = gemv(anchor)
    if isinstance(form, NotApplicable):
        return []
    bits = dtype_bits(anchor.a.dtype if form.is_swapped else anchor.b.dtype)
    widest = max(1, 128 // bits)
    candidates_of = _across if form.is_across else _along
    found = candidates_of(form, workload, device, widest, bits)
    return [candidate for candidate in found if candidate.predicted_s < float("inf")]


def _along(form: Gemv, workload: Workload, device: CUDAModel, widest: int, bits: int) -> list[Candidate]:
    found = []
    lanes = _divisor(form.length, widest)
    work = form.rows * form.length * (1.0 + form.vectors)
    for threads in (8, 16, 32, 64, 128, 256):
        for tile in (1, 2, 4):
            if tile * form.vectors > _MAX_SUMS or form.rows % tile or (threads > 8 and threads * lanes > form.length):
                continue
            runs = ceil(form.length / (threads * lanes))
            for unroll in (1, 2, 4, 8):
                if unroll > runs or unroll * tile * lanes > 128:
                    continue
                for block in (128, 256):
                    if block < threads:
                        continue
                    groups = block // threads
                    blocks = ceil(form.rows / (groups * tile))
                    in_flight = unroll * tile * lanes * bits // 8
                    held = unroll * form.vectors * lanes * bits // 32
                    registers = 36 + in_flight // 4 + held + 2 * tile * form.vectors
                    # the vectors come from L1: a load for each 16 bytes of a row, shared by the tile
                    vectors = form.rows / tile * form.vectors * form.length * (1.0 + 4 / lanes)
                    totals = form.rows * form.vectors * threads * 10
                    seconds = streaming_s(device, workload.nbytes, blocks, block, in_flight, registers,
                                          operations=work + vectors + totals)  # fmt: skip
                    found.append(Candidate.make("cuda.gemv", seconds, threads=threads, groups=groups, lanes=lanes,
                                                tile=tile, unroll=unroll))  # fmt: skip
    return found


def _across(form: Gemv, workload: Workload, device: CUDAModel, widest: int, bits: int) -> list[Candidate]:
    found = []
    full = _divisor(form.rows, widest)
    for lanes in sorted({full, max(1, full // 2) if form.vectors == 1 else full}):
        for chunks in (8, 16, 32):
            for threads in (4, 8, 16, 32):
                if not 128 <= threads * chunks <= 512 or threads > form.length or lanes * form.vectors > 64:
                    continue
                blocks = ceil(form.rows / (lanes * chunks))
                in_flight = 4 * lanes * 2
                registers = 32 + form.vectors * lanes + 4 * lanes
                shared = threads * chunks * lanes * form.vectors * 4
                if shared > 48 * 1024:
                    continue
                # a vector's element is a load of four bytes at most, at a quarter of the rate, and a conversion
                work = form.rows * form.length * (1.0 + form.vectors + 10.0 * form.vectors / lanes)
                short = _short(chunks * lanes * bits // 8)
                for split in (1, 2, 4, 8, 16):
                    if form.length % split or form.length // split < threads or (split > 1 and blocks * split > 16 *
                                                                                 device.sms):  # fmt: skip
                        continue
                    seconds = short * streaming_s(device, workload.nbytes, blocks * split, threads * chunks, in_flight,
                                                  registers, shared, work)  # fmt: skip
                    knobs = {"threads": threads, "groups": chunks, "lanes": lanes, "unroll": 4}
                    if split > 1:
                        seconds += 2 * device.launch_s
                        knobs["split"] = split
                    found.append(Candidate.make("cuda.gemv", seconds, **knobs))
    return found


def _short(run_bytes: int) -> float:
    """What short runs of neighbours cost: DRAM gives 64 bytes at a time, and rows of a matrix are far apart."""
    return 1.15 if run_bytes < 128 else 1.03 if run_bytes < 256 else 1.0


def _divisor(extent: int, lanes: int) -> int:
    while extent % lanes:
        lanes //= 2
    return lanes
