"""Candidates for attention on mma.sync: rows and keys of a block, blocks that share keys.

Sources: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding", 2023.
"""

from __future__ import annotations

from itertools import product
from math import ceil

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.attention.operands import operands_of
from subtune.backends.cuda.families.attention.scores import Scores, scores_of
from subtune.backends.cuda.families.attention_mma.tiling import (
    CLUSTERS,
    DTYPES,
    ROWS,
    Heads,
    Knobs,
    heads_of,
    obstacle,
)
from subtune.backends.cuda.model.streaming import resident_blocks
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.chain import Chain, chain_expressions
from subtune.patterns.recognise import Unrecognised
from subtune.patterns.rows import Columns, Rowwise

_SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (4, 1), (8, 1))  # warps along rows and keys
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_KEPT = 24
_FEW_ROWS = 64  # up to which it may beat wgmma, whose tiles are 64 rows
_REACHED = {True: 0.92, False: 0.86}  # of the bandwidth of memory, straight to registers or through shared memory
# Of the multiprocessors, those that clusters of so many blocks find room on: each lies in one part of the GPU.
_CLUSTERED = {2: 1.0, 4: 0.9, 8: 0.9}
_LATENCY_S = 8e-7  # of memory under load
_MMA_REACHED = 0.55  # of the tensor cores' rate, next to the softmax
_PRODUCTS = 3  # of tf32 for one of float32
_SCORE_CYCLES = 14.0  # instructions of a lane for a score: maximum, exponential, sum, rounding
# Fitted by hand to decoding on an H100 (2026-11-27), where one warp alone is what all waits for.
_STEP_CYCLES = 1100.0  # a step of a warp, one operation after the other
_KEY_CYCLES = 0.42  # more of it for a key and a column of K or V
_DIRECT_CYCLES = 600.0  # of a step whose keys and values are in registers
_DIRECT_AHEAD = 0.75  # of a step's keys and values, on average on the way
_OTHERS = 0.1  # of what does not bound a step
_MERGE_S = 2e-6  # a second kernel
_CLUSTER_S = 1e-6  # until all blocks of a cluster are there, twice


def accepts(problem: Problem[CUDAModel]) -> str:
    if problem.device.capability < 80 or problem.numerics.tensor_core == "off":
        return "no mma.sync of 16 x 8 x 16, or tensor cores are off"
    if not {arg.dtype for arg in problem.workload.args} & {"float16", "bfloat16"} and problem.numerics.exact:
        return "floats are multiplied as two numbers each"
    pattern = problem.pattern
    if len(problem.workload.args) > 3 and isinstance(pattern, Unrecognised | Rowwise | Columns):
        # one row is a chain only for who asks
        form = chain_expressions(problem.workload.func, problem.workload.num_outputs, one_row=True)
        pattern = pattern if isinstance(form, NotApplicable) else form.pattern
    return "" if isinstance(pattern, Chain) and pattern.is_softmax else "no attention"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Best first; empty where an operand cannot be copied as it lies, or wgmma has rows enough."""
    form = chain_expressions(problem.workload.func, problem.workload.num_outputs, one_row=True)
    if isinstance(form, NotApplicable):
        return []
    operands = operands_of(form, list(problem.workload.func.params), DTYPES)
    if isinstance(operands, NotApplicable):
        return []
    heads, scores = heads_of(form, *operands[1:]), scores_of(form)
    dtype, size = operands[0].dtype, dtype_bits(operands[0].dtype) // 8
    if problem.device.capability == 90 and heads.rows > _FEW_ROWS and size == 2:
        return []
    found = []
    ways = [(splits, False) for splits in _SPLITS] + [(splits, True) for splits in CLUSTERS]
    for (row_warps, key_warps), keys, stages, way in product(_SHAPES, (16, 32, 64), (1, 2, 3, 4), ways):
        knobs, splits = Knobs(row_warps, key_warps, keys, stages, *way), way[0]
        steps = ceil(form.extents[form.n] / knobs.step)
        wasteful = ROWS * (row_warps - 1) >= heads.rows or splits > steps or stages > max(2, ceil(steps / splits) + 1)
        if wasteful or obstacle(knobs, operands[0].inner, operands[2].inner, size, problem.device):
            continue
        seconds = _predict(problem, heads, scores, knobs, dtype)
        found.append(Candidate.of("cuda.attention_mma", knobs, seconds))
    return sorted(found, key=lambda candidate: candidate.predicted_s)[:_KEPT]


def _predict(problem: Problem[CUDAModel], heads: Heads, scores: Scores, knobs: Knobs, dtype: str) -> float:
    """Seconds: the slowest of memory, products and softmax in each wave, and the merge."""
    device, form, size = problem.device, heads.form, dtype_bits(dtype) // 8
    keys, k, columns = (form.extents[axis] for axis in (form.n, form.k, form.j))
    shared = size * knobs.shared_elements(k, columns, size)
    resident = max(1, resident_blocks(device, knobs.threads, knobs.registers(k, columns), shared))
    resident = max(resident, knobs.least_blocks(k, columns, device))
    blocks = heads.count * ceil(heads.rows / knobs.rows) * knobs.splits
    seen = 0.5 if scores.offset is not None and form.extents[form.m] > knobs.rows else 1.0
    steps = ceil(ceil(keys / knobs.step) / knobs.splits) * seen
    at_a_time = min(resident, ceil(blocks / device.sms))
    step_bytes = size * knobs.step * (k + columns)
    flops = device.mma_flops(dtype) if size == 2 else device.mma_flops("tfloat32") / _PRODUCTS
    per_flop = device.sms * device.cycles_per_s / flops / _MMA_REACHED
    products = 2 * knobs.rows * knobs.step * (k + columns) * per_flop
    softmax = knobs.rows * knobs.step * _SCORE_CYCLES / device.fma_per_cycle
    copies = step_bytes * device.sms * device.cycles_per_s / device.l2_bytes_per_s
    alone = _STEP_CYCLES + _KEY_CYCLES * knobs.keys * (k + columns)
    if knobs.is_direct:  # a step's values are asked for when it begins
        copies, alone = 0.0, _DIRECT_CYCLES + _LATENCY_S * device.cycles_per_s
    parts_of_step = (products + softmax, copies, alone / at_a_time)
    step = max(parts_of_step) * (1 - _OTHERS) + sum(parts_of_step) * _OTHERS
    waves = ceil(blocks / (device.sms * resident * (_CLUSTERED[knobs.splits] if knobs.cluster else 1.0)))
    work = waves * at_a_time * steps * step / device.cycles_per_s
    ahead = _DIRECT_AHEAD if knobs.is_direct else knobs.stages - 1
    flying = step_bytes * ahead * at_a_time * min(device.sms, blocks)
    reached = min(device.dram_bytes_per_s * _REACHED[knobs.is_direct], flying / _LATENCY_S)
    even = waves * at_a_time * device.sms / blocks
    memory = problem.workload.nbytes / reached * even
    parts = 0.0
    if knobs.cluster:
        parts = _CLUSTER_S
    elif knobs.has_second:
        parts = _MERGE_S + 8.0 * heads.count * heads.rows * knobs.splits * (columns + 2) / device.l2_bytes_per_s
    return max(work, memory) + _LATENCY_S + parts + device.launch_s
