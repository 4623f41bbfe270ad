"""Whether tensor cores may multiply float32 (`source.split_tf32`). Arithmetic only."""

from __future__ import annotations

from subtune.backends.cuda.device import CUDAModel
from subtune.core.numerics import Numerics


def tensor_obstacle(device: CUDAModel, numerics: Numerics) -> str:
    """Why float32 is not multiplied on tensor cores; "" where it is."""
    if numerics.exact:
        return "sums of numbers of tf32 round otherwise than the model says"
    if numerics.tensor_core == "off":
        return "tensor cores are switched off"
    return "" if "tfloat32" in dict(device.mma_flops_per_cycle) else f"{device.arch} has no tensor cores for tf32"


def units(device: CUDAModel, numerics: Numerics) -> tuple[bool, ...]:
    """What multiplies float32, as `FmaTile.tensor` says it: CUDA cores, and tensor cores where they may."""
    return (False,) if tensor_obstacle(device, numerics) else (False, True)
