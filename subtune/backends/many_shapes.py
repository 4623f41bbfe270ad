"""What the core asks of a kind of device for kernels of many shapes: see `subtune.dynamic`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from subtune.core.candidate import Candidate
from subtune.core.errors import TargetError
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload

if TYPE_CHECKING:
    import tvm

    from subtune.backends.base import Device, Problem


@dataclass(frozen=True, slots=True)
class TileShape:
    """What a candidate's knobs say of how a kernel's time grows with the extents that vary."""

    rows: int = 1
    """That it computes at once, of those that vary; 1 where its knobs do not say."""
    step: int | None = None
    """Of those that vary, what it adds up at once, as the keys of attention; None where it adds up none."""
    behind_s: float = 0.0
    """What it takes longer behind other kernels, or these behind it, than it does alone; less than 0 if shorter."""


class ManyShapes:
    """A part of `Backend`. As it stands, it is that of a device without dynamic shapes."""

    kind: ClassVar[str]
    compares_lowered: ClassVar[bool] = True
    """Whether elements of buffers are counted already in what `comparable` makes."""

    def comparable(self, func: tvm.tirx.PrimFunc, device: Device) -> tvm.tirx.PrimFunc:
        """A scheduled PrimFunc as instances are compared: kernels of dynamic shapes are that, with numbers of tiles as
        first parameters and the attribute `core.variants.GREATEST`. Raises TargetError where there are none."""
        raise TargetError(f"there are no dynamic shapes for {device.model.description}; give every dimension a value")

    def completed(self, func: tvm.tirx.PrimFunc, device: Device) -> tvm.tirx.PrimFunc:
        """A kernel of dynamic shapes, made of what `comparable` left, as `lower` takes it."""
        return func

    def plain(self, workload: Workload, is_single: bool = False) -> Kernel:
        """A workload as it is, its outermost loops shared out, with `is_single` one by one: alike at all extents, where
        nothing else is. Raises TargetError as `comparable` does."""
        raise TargetError(f"there are no dynamic shapes for devices of kind {self.kind}; give every dimension a value")

    def for_many_shapes(self, problem: Problem[Any], candidate: Candidate) -> Sequence[Candidate]:
        """What is tried in the place of a candidate for one instance where a kernel is to serve others, too."""
        return (candidate,)
