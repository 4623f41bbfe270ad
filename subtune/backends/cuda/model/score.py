"""How long a tiled product takes on a GPU: seconds from bytes, instructions and latencies, wave by wave.

A wave is what is resident at once: R blocks on each of S multiprocessors, R from shared memory, registers and threads.
In it, one step of depth bk takes as long as its slowest resource: the multiply-add units, shared memory, L2, DRAM. What
the stages in flight do not hide of a load's latency is paid in every step. The last wave holds fewer blocks and ends
sooner. Blocks of a wave share rows and columns of tiles through L2: only distinct ones come from DRAM.
Sources: Roller (OSDI'22), its micro-performance model; Volkov, "Understanding latency hiding on GPUs" (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from subtune.backends.cuda.device import CUDAModel
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm import Gemm

_DRAM_LATENCY_CYCLES = 800.0
_L2_LATENCY_CYCLES = 450.0
_BARRIER_CYCLES = (140.0, 20.0)  # per step: the threads of a block wait for one another; alone on its SM, and not
_BLOCK_START_CYCLES = 50.0  # launch of a block, its first addresses
_WINDOW_CYCLES = 5.0  # per 16 bytes a warp copies through windows, on four schedulers: pixel and tap from an index
_L2_BEYOND = 2.0  # what copies reach over the calibrated rate, as neighbours ask for the same lines at the same time
_L2_TO_SM = 64.0  # bytes a cycle that one multiprocessor gets from L2
_PART_S = 0.35e-6  # per part of a split sum: it is read after the one before
_L2_SHARE = 0.7  # of L2 that a wave's tiles may fill before they push one another out
_HIDDEN = 0.2  # of what does not bound a step: it still takes issue slots
_TOGETHER = 0.3  # of the lesser of what DRAM moves at least and what the waves take
_WARPS_TO_SATURATE = 10  # per multiprocessor, so that its four schedulers always have an instruction ready


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What the model has to know of a candidate. Bytes and cycles of one block."""

    bm: int
    bn: int
    bk: int
    steps: int
    blocks: int
    threads: int
    shared_bytes: int
    registers: int
    stages: int
    """Tiles in flight beside the one computed with, plus one."""
    raster: int
    flops_per_cycle: float
    """Of a whole multiprocessor on these instructions."""
    shared_bytes_per_step: float
    """Written and read, conflicts counted."""
    split: int = 1
    slices: int = 1
    """Of every step, whose sums meet in shared memory."""
    chain: float = 0.0
    """Cycles that a step takes a warp by itself: its instructions wait for one another."""
    saturating_warps: int = _WARPS_TO_SATURATE


def resident_blocks(shape: BlockShape, device: CUDAModel) -> int:
    """Blocks on one multiprocessor at once; 0 where not even one fits."""
    registers = max(24, -(-shape.registers // 8) * 8) * shape.threads
    return min(
        device.max_blocks_per_sm,
        device.max_threads_per_sm // shape.threads,
        device.registers_per_sm // registers,
        device.shared_per_sm_bytes // (shape.shared_bytes + 1024),
    )


def seconds(shape: BlockShape, gemm: Gemm, device: CUDAModel) -> float:
    """Predicted run time; infinite where no block fits on a multiprocessor."""
    resident = resident_blocks(shape, device)
    if resident < 1:
        return float("inf")
    at_once = resident * device.sms
    full, rest = divmod(shape.blocks, at_once)
    cycles = full * _wave_cycles(shape, gemm, device, at_once)
    if rest:
        cycles += _wave_cycles(shape, gemm, device, rest)
    moving, working = gemm.compulsory_bytes / device.dram_bytes_per_s, cycles / device.cycles_per_s
    total = device.launch_s + max(moving, working) + _TOGETHER * min(moving, working)
    if shape.split > 1:  # the parts are written and read once more, and added by a second kernel
        parts = 2.0 * shape.split * gemm.m * gemm.n * gemm.batch * 4
        speed = device.l2_bytes_per_s if parts < _L2_SHARE * device.l2_bytes else device.dram_bytes_per_s
        total += device.launch_s + parts / speed + shape.split * _PART_S
    return total


def _wave_cycles(shape: BlockShape, gemm: Gemm, device: CUDAModel, blocks: int) -> float:
    """Cycles of `blocks` blocks that run at the same time."""
    per_sm = ceil(blocks / device.sms)
    busy = min(blocks, device.sms)
    a_bytes, b_bytes = (dtype_bits(side.dtype) / 8 for side in (gemm.a, gemm.b))
    warps = per_sm * shape.threads / 32
    compute = per_sm * 2.0 * shape.bm * shape.bn * shape.bk / shape.flops_per_cycle
    compute /= min(1.0, warps / shape.saturating_warps)
    shared = per_sm * shape.shared_bytes_per_step / device.shared_bytes_per_cycle
    loaded = blocks * (shape.bm * a_bytes + shape.bn * b_bytes) * shape.bk
    l2_rate = min(_L2_BEYOND * device.l2_bytes_per_s / device.cycles_per_s, _L2_TO_SM * busy)
    dram = (
        _distinct_bytes(shape, gemm, device, blocks, a_bytes, b_bytes) / device.dram_bytes_per_s * device.cycles_per_s
    )
    times = (max(compute, shape.chain), shared, loaded / l2_rate, dram)
    step = max(times) + _HIDDEN * (sum(times) - max(times)) + _BARRIER_CYCLES[per_sm > 1]
    if gemm.is_window:
        copied = per_sm * shape.bm * shape.bk * a_bytes / 16 / 32
        step += _WINDOW_CYCLES * copied / min(1.0, warps / _WARPS_TO_SATURATE)
    # blocks of one wave all ask for what nobody has asked for yet
    is_warm = shape.blocks > blocks and gemm.a.nbytes + gemm.b.nbytes < _L2_SHARE * device.l2_bytes
    latency = _L2_LATENCY_CYCLES if is_warm else _DRAM_LATENCY_CYCLES
    exposed = max(0.0, latency - (shape.stages - 1) * step) / per_sm
    return (
        _BLOCK_START_CYCLES + latency + shape.steps * (step + exposed) + _epilogue_cycles(shape, gemm, device, blocks)
    )


def _distinct_bytes(
    shape: BlockShape, gemm: Gemm, device: CUDAModel, blocks: int, a_bytes: float, b_bytes: float
) -> float:
    """Bytes from DRAM in one step of a wave: its blocks cover a rectangle of tiles; L2 shares rows and columns."""
    rows, columns = ceil(gemm.m / shape.bm), ceil(gemm.n / shape.bn)
    per_product = max(1, blocks // (gemm.batch * shape.split))
    if shape.raster > 1:
        high = min(rows, max(shape.raster, int(sqrt(per_product))) if shape.raster >= rows else shape.raster)
    else:
        high = max(1, min(rows, per_product // columns))
    wide = min(columns, ceil(per_product / high))
    distinct = (high * shape.bm * a_bytes + wide * shape.bn * b_bytes) * shape.bk * max(1.0, blocks / per_product)
    every = (gemm.a.nbytes + gemm.b.nbytes) / shape.steps / ceil(rows * columns / max(1, high * wide))
    if gemm.is_window:
        distinct = min(distinct, every)  # neighbouring windows read the same pixels again
    reused = gemm.a.nbytes + gemm.b.nbytes < _L2_SHARE * device.l2_bytes
    return min(distinct, every) if reused else distinct


def _epilogue_cycles(shape: BlockShape, gemm: Gemm, device: CUDAModel, blocks: int) -> float:
    """Sums through shared memory, operands of the epilogue in, outputs out."""
    per_sm = ceil(blocks / device.sms)
    shared = per_sm * 2.0 * shape.slices * shape.bm * shape.bn * 4 / device.shared_bytes_per_cycle
    share = min(1.0, blocks * shape.bm * shape.bn / (gemm.batch * gemm.m * gemm.n * shape.split))
    memory = gemm.epilogue_bytes * share / device.dram_bytes_per_s * device.cycles_per_s
    return shared + memory + _L2_LATENCY_CYCLES
