"""What the core asks of a kind of device whose kernels can be measured on another machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from subtune.core.errors import TargetError

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
        raise TargetError(f"target {device.model.name}: kernels for it are measured on this machine, not by --remote")
