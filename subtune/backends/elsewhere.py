"""What the core asks of a kind of device about other machines: measuring there, and what was measured there."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from subtune.backends.base import Device
    from subtune.core.measurement import Failure


class Elsewhere:
    """A part of `Backend`. By default nothing can."""

    measures_there: ClassVar[bool] = False
    """Whether kernels can be measured on another machine, built by `build_to_send`."""

    def build_to_send(self, func: PrimFunc, device: Device, stem: str, is_optional: bool) -> str | Failure:
        """As `Backend.build`, for the runner of another machine."""
        raise AssertionError("device_at refuses devices of kinds that cannot be measured there")

    def distance(self, own: str, other: str) -> float:
        """Between two devices as of `Device.scope`: 0.0 for one and the same, inf where kernels of one tell nothing of
        the other's. In doublings of a loop, as that of workloads."""
        return 0.0 if own == other else inf
