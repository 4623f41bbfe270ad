"""What the core asks of a kind of device whose kernels can be measured on another machine."""

from __future__ import annotations

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
