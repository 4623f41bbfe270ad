"""Where a workload stands under the roofline: its operations, its bytes, and what either takes at least.

Source: Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from subtune.backends.base import Device
from subtune.core.workload import Workload, dtype_bits

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Position:
    """A workload on a device. `flops` counts operations on floats or integers, as TVM does; `nbytes` every argument
    once, read or written; the rates are the device's, per second, that of `flops` for the workload's data type."""

    flops: int
    nbytes: int
    flops_per_s: float
    bytes_per_s: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def bound_s(self) -> float:
        """The roofline: it takes at least the time of its arithmetic and that of its bytes."""
        return max(self.flops / self.flops_per_s, self.nbytes / self.bytes_per_s)

    @property
    def limit(self) -> str:
        """Which of the two takes longer, "compute" or "memory"."""
        return "compute" if self.flops / self.flops_per_s >= self.nbytes / self.bytes_per_s else "memory"


@dataclass(frozen=True, slots=True)
class Placed:
    """A kernel of a workload at `position` that takes so many seconds."""

    position: Position
    seconds: float

    @property
    def flops_per_s(self) -> float:
        """Operations per second."""
        return self.position.flops / self.seconds if self.seconds else 0.0

    @property
    def reached(self) -> float:
        """The share of the roofline: the least time over that of the kernel.

        Above 1 where data come from a cache, or an algorithm (Winograd, Strassen) does with fewer operations.
        """
        return self.position.bound_s / self.seconds if self.seconds else 0.0


def position(workload: Workload, device: Device) -> Position:
    """At the rate of the narrowest array among the inputs: what multiplies bytes does so faster than floats."""
    model = device.model
    rate = model.peak_flops(narrowest_input(workload))
    return Position(operations(workload), workload.nbytes, rate, model.dram_bytes_per_s)


def narrowest_input(workload: Workload) -> str:
    """The data type with the fewest bits among the inputs but single numbers, such as a zero point; float32 where there
    are none."""
    inputs = [arg.dtype for arg in workload.args if not arg.is_output and arg.shape]
    return min(inputs, key=dtype_bits, default="float32")


def operations(workload: Workload) -> int:
    """`workload.flops`; 0 where TVM cannot count them: of a loop whose extent is data, for one."""
    try:
        return workload.flops
    except Exception as e:
        _log.debug("operations of workload %s: %s", workload.key, e)
        return 0
