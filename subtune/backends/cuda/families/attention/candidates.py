"""Candidates for attention in one kernel: keys at a time, warpgroups and blocks of a multiprocessor.

Counts, per block of keys, what the tensor cores and what the units for exponentials take; where several warpgroups
share a multiprocessor, one's products hide the other's softmax.
Sources: Shah et al., "FlashAttention-3", 2024, section 3; CUDA C++ Programming Guide, throughput of native arithmetic.
"""

from __future__ import annotations

from itertools import product
from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.attention.copies import copied_of
from subtune.backends.cuda.families.attention.operands import Lying, operands_of
from subtune.backends.cuda.families.attention.scores import Scores, scores_of
from subtune.backends.cuda.families.attention.tiling import CONSUMERS, ROWS, Knobs, obstacle
from subtune.backends.cuda.families.attention.walk import is_dealt
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.patterns.chain import Chain, ChainExpressions
from subtune.patterns.chain_copies import ChainWithCopies, copying_chain

_KEYS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208)
_STAGES = (1, 2)  # a third one measured no faster
_EXPONENTIALS = 16  # per cycle of a multiprocessor
_LANES = 128
_SHARED_BYTES_PER_CYCLE = 128

# Fitted to 41 kernels on an H200 (2026-11-24; root mean square of the logarithms' error 0.12).
_OTHERS = 5.3  # instructions for a score beside its exponential
_VALUE = 8.0  # the same for an expression of its own, a mask that is added: a guess
_HIDDEN_LOSS = 1.03  # of the longer of products and softmax, where one hides the other
_LATENCY_CYCLES = 780.0  # of a block of keys: product, maximum, exponentials, product, one after the other
_FILL_CYCLES = 1960.0  # of a block's first copies, where no tile was before
_UNEVEN = 0.25  # of causal tiles that are dealt in turn: those of a few blocks see more keys
_LAST = 0.1  # of a tile: what blocks that are dealt their tiles end apart
_START_S = 3e-6


def accepts(problem: Problem[CUDAModel]) -> str:
    pattern = problem.pattern.chain if isinstance(problem.pattern, ChainWithCopies) else problem.pattern
    if not isinstance(pattern, Chain) or not pattern.is_softmax:
        return "no attention"
    if problem.device.capability != 90:
        return "wgmma is an instruction of sm_90a"
    return "" if pattern.dtypes & {"float16", "bfloat16"} else "products of float32"


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Every tile that fits; empty where an operand cannot be copied as it lies."""
    func = problem.workload.func
    chain, params = copying_chain(func, problem.workload.num_outputs), list(func.params)
    if isinstance(chain, NotApplicable):
        return []
    form, scores = chain.form, scores_of(chain.form)
    operands = operands_of(form, params)
    if isinstance(operands, NotApplicable) or isinstance(copied_of(chain, operands, scores, params), NotApplicable):
        return []
    found = []
    for keys, stages, consumers, blocks in product(_KEYS, _STAGES, (1, 2, 3), (1, 2, 3)):
        if (consumers, blocks) not in CONSUMERS or _is_wasteful(form, keys, consumers, stages):
            continue
        for persistent in (False, True):
            knobs = Knobs(keys, stages, consumers, persistent, blocks)
            if not obstacle(knobs, operands[0].inner, operands[2].inner, problem.device):
                seconds = _predict(form, operands, scores, knobs, problem)
                found.append(Candidate.of("cuda.attention", knobs, seconds))
    return found


def _is_wasteful(form: ChainExpressions, keys: int, consumers: int, stages: int) -> bool:
    """Whether fewer keys, rows or stages do the same, or one stage has to wait for every copy."""
    rows, all_keys = form.extents[form.m], form.extents[form.n]
    steps = ceil(all_keys / keys)
    fewer = any(ceil(all_keys / less) == steps for less in _KEYS if less < keys)
    return (fewer if steps == 1 else stages == 1) or (consumers > 1 and ROWS * (consumers - 1) >= rows)


def _predict(
    form: ChainExpressions, operands: tuple[Lying, Lying, Lying], scores: Scores, knobs: Knobs,
    problem: Problem[CUDAModel],
) -> float:  # fmt: skip
    """Seconds: cycles of a multiprocessor for each of its tiles, times its tiles."""
    device, rows, keys = problem.device, form.extents[form.m], form.extents[form.n]
    k, columns = ceil(operands[0].inner / 16) * 16, ceil(operands[2].inner / 8) * 8
    per_flop = device.sms * device.cycles_per_s / device.mma_flops(operands[0].dtype)
    read = k / 16 * (ROWS + knobs.keys) * 32 + knobs.keys / 16 * columns * 32
    moved = knobs.keys * (k + columns) * 2 / knobs.consumers
    products = max(2 * ROWS * knobs.keys * (k + columns) * per_flop, read / _SHARED_BYTES_PER_CYCLE)
    others = _OTHERS + (0 if scores.factor else _VALUE)
    softmax = ROWS * knobs.keys * (1 / _EXPONENTIALS + others / _LANES)
    copies = moved * device.sms * device.cycles_per_s / device.l2_bytes_per_s
    warpgroups = knobs.consumers * knobs.blocks
    step = max(
        max(products, softmax, copies) * _HIDDEN_LOSS, (products + softmax + _LATENCY_CYCLES) / warpgroups
    )  # fmt: skip
    steps = [_steps(first, rows, keys, knobs, scores) for first in range(0, rows, knobs.rows)]
    alone = (products + softmax) / 2 / knobs.blocks  # the first block of keys has nothing to hide behind
    tile = sum(steps) / len(steps) * step * knobs.consumers + alone
    tile += 0 if knobs.persistent else _FILL_CYCLES / knobs.blocks
    tiles = prod(form.extents[axis] for axis in form.outer) * len(steps)
    each = max(tiles / device.sms, 1.0)
    if is_dealt(knobs, scores.offset, tiles, device.sms):
        waves = max(each, max(steps) * len(steps) / sum(steps)) + _LAST
    elif scores.offset is not None:
        waves = each * (1 + (_UNEVEN if knobs.persistent else 0)) + 0.3
    else:
        dealt = max(ceil(tiles / (device.sms * knobs.blocks)) * knobs.blocks, 1)
        waves = dealt if knobs.persistent else (dealt + each) / 2
    memory_s = problem.workload.nbytes / device.dram_bytes_per_s
    return max(waves * tile / device.cycles_per_s, memory_s) + _START_S


def _steps(first: int, rows: int, keys: int, knobs: Knobs, scores: Scores) -> int:
    """Blocks of keys that the tile from row `first` on walks."""
    seen = keys if scores.offset is None else min(keys, first + knobs.rows + scores.offset)
    return ceil(seen / knobs.keys)
