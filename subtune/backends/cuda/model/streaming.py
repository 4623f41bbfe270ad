"""How long a GPU takes to move bytes, from how many of them are on their way at a time (Little's law)."""

from __future__ import annotations

from math import ceil

from subtune.backends.cuda.device import CUDAModel

_LATENCY_S = 7e-7  # of DRAM under load
_REACHED = 0.93  # of the published bandwidth: 4.4 TB/s of an H200's 4.8, measured
_OVERLAPPING_WARPS = 8.0  # so many of an SM compute while others wait for memory: measured on an H200
_ALONE = 0.25  # a block that is alone on its SM loads nothing while it begins and ends
_BARRIER_S = 1.0e-6  # totals of a block: shuffles, shared memory, and nobody loads meanwhile


def resident_blocks(device: CUDAModel, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """Blocks that one SM runs at a time; 0 where not even one fits."""
    limits = [
        device.max_blocks_per_sm,
        device.max_threads_per_sm // threads,
        device.registers_per_sm // max(1, threads * min(registers, device.max_registers_per_thread)),
    ]
    if shared_bytes:
        limits.append(device.shared_per_sm_bytes // shared_bytes)
    return min(limits)


def streaming_s(
    device: CUDAModel,
    nbytes: float,
    blocks: int,
    threads: int,
    in_flight_bytes: int,
    registers: int = 40,
    shared_bytes: int = 0,
    operations: float = 0.0,
) -> float:
    """Seconds of a kernel that moves `nbytes` through DRAM, launch included.

    Args:
        in_flight_bytes: what one thread has asked for before it waits.
        operations: instructions of all threads, one lane each.
    """
    resident = resident_blocks(device, threads, registers, shared_bytes)
    if not resident or threads > device.max_threads_per_block or shared_bytes > device.shared_per_block_bytes:
        return float("inf")
    at_a_time = min(resident, ceil(blocks / device.sms))
    needed = device.dram_bytes_per_s * _LATENCY_S / device.sms
    reached = min(1.0, at_a_time * threads * in_flight_bytes / needed) * min(1.0, blocks / device.sms)
    waves = blocks / (device.sms * resident)
    tail = ceil(waves) / waves if waves < 4 and waves > 1 else 1.0 + 0.25 / max(waves, 1.0)
    moving = nbytes / (device.dram_bytes_per_s * _REACHED * reached)
    issuing = operations / (device.sms * device.fma_per_cycle * device.cycles_per_s * min(1.0, blocks / device.sms))
    warps = at_a_time * threads / device.warp_size
    alone = 1.0 + _ALONE / resident**2 if waves > 1 else 1.0
    apart = min(1.0, _OVERLAPPING_WARPS / warps)
    return device.launch_s + max(moving, issuing) * tail * alone + apart * min(moving, issuing)


def narrow(lanes: int, widest: int) -> float:
    """By how much accesses of `lanes` elements instead of `widest` slow a kernel down: there are more of them."""
    return 1.0 + 0.02 * (widest.bit_length() - lanes.bit_length())


def barrier_s(blocks: int, resident: int, device: CUDAModel) -> float:
    """What the barriers of totals add: less where other blocks of an SM load meanwhile."""
    waves = max(1.0, blocks / (device.sms * max(resident, 1)))
    return _BARRIER_S * waves / max(resident, 1)
