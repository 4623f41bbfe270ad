"""What a template makes of a workload: the scheduled PrimFunc that is timed and shipped, and its packed constants."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from tvm.s_tir.schedule import Trace
    from tvm.tirx import PrimFunc


@dataclass(frozen=True, slots=True)
class Packing:
    """A constant's layout in a kernel: pad with zeros, split every dim into `split`, then `order` the parts.

    `OHWI` weights packed `[O/32][H][W][I][32]`:
    `Packing(split=((O // 32, 32), (H,), (W,), (I,)), order=(0, 2, 3, 4, 1))`.
    A dim is padded up to the product of its parts.
    """

    split: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        parts = [part for dim in self.split for part in dim]
        return tuple(parts[i] for i in self.order)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        pad = [(0, prod(parts) - dim) for dim, parts in zip(array.shape, self.split, strict=True)]
        if any(after for _, after in pad):
            array = np.pad(array, pad)
        parts = [part for dim in self.split for part in dim]
        return np.ascontiguousarray(array.reshape(parts).transpose(self.order))


class ConstantTransform(Protocol):
    """What happens once, at compile time, to a constant that a kernel takes in another form. Hashable."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __call__(self, array: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Kernel:
    """`func` takes the workload's arguments in the workload's order; those named in `packings` in packed layout.

    `trace` is TVM's replayable record of the schedule when the kernel is a trace of its workload, else None.
    `granules` are those of a kernel for dynamic shapes: `func` is flat, and takes before its buffers how many tiles of
    so many elements each extent has, rounded up, as int64. With `knows_extents` it takes the extents, too, behind
    these, and `iterations` are those of its parallel loop for one tile, 0 where their number does not vary. With fewer
    elements of an extent than `least` it must not be called, nor with more than `most`, if that is not 0. `more` are
    constants that it takes once more, behind its inputs, in another layout or as they are (None).
    """

    func: PrimFunc  # scheduled
    packings: tuple[tuple[int, ConstantTransform], ...] = ()
    trace: Trace | None = None
    granules: tuple[int, ...] = ()
    knows_extents: bool = False
    iterations: float = 0.0
    least: int = 0
    most: int = 0
    more: tuple[tuple[int, ConstantTransform | None], ...] = ()


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Why a template cannot schedule a workload."""

    reason: str
