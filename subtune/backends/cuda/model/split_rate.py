"""How fast float32 is multiplied on tensor cores, in three products of tf32 (`source.split_tf32`)."""

from __future__ import annotations

from subtune.backends.cuda.device import CUDAModel

_OF_WGMMA = 0.62
"""Of a Hopper tensor core's rate, what `mma.sync` reaches at most: measured."""
_OF_TF32 = 0.45  # likewise of products of 16 x 8 x 8: 59 TFLOP/s of three products each, nothing beside (measured)
_PARTING, _ADDING = 3, 7  # instructions that take an element apart, and those of a product
_SCHEDULERS = 4
_BESIDE = 0.4  # of the instructions' time, what does not pass while tensor cores multiply


def mma_rate(dtype: str, device: CUDAModel, share: float = _OF_WGMMA) -> float:
    """Operations that a multiprocessor's `mma.sync` does in a cycle; `share` of Hopper's."""
    rate = device.mma_flops(dtype) / device.sms / device.cycles_per_s
    return max(1.0, rate * share if device.capability >= 90 else rate)


def split_rate(rows: int, columns: int, device: CUDAModel) -> float:
    """Operations in a cycle of warps that have `rows` x `columns` sums each."""
    flops, products = 2.0 * rows * columns * 8, rows // 16 * (columns // 8)
    instructions = (rows + columns) * 8 / 32 * _PARTING + products * _ADDING
    return flops / (3 * flops / mma_rate("tfloat32", device, _OF_TF32) + _BESIDE * instructions / _SCHEDULERS)
