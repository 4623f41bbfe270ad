"""What a run of one instance reads and writes: of few rows L3 may keep all of it until the next run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from subtune.backends.base import Device
from subtune.core.dispatch import Extents
from subtune.dynamic.workload import DynamicWorkload
from subtune.pipeline import Prepared

DeviceAt = Callable[[Extents], Device]
"""The device as an instance finds it."""


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Bytes of a model in a run: constants, and all at the greatest instance."""

    constant: int
    greatest: int

    @classmethod
    def of(cls, greatest: Prepared) -> WorkingSet:
        constants = (
            one.uses * arg.nbytes for one in greatest.subgraphs for arg in one.workload.args if arg.is_constant
        )
        return cls(sum(constants), greatest.working_set_bytes)

    def device_at(self, device: Device, workload: DynamicWorkload) -> DeviceAt:
        """`device` for the model at instances of one of its workloads: what is no constant grows as its extents do."""
        whole, varying = prod(workload.greatest), self.greatest - self.constant

        def at(extents: Extents) -> Device:
            share = min(1.0, prod(extents) / whole) if whole else 1.0
            return device.for_working_set(self.constant + int(share * varying))

        return at
