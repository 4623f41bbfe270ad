"""The kinds of devices: candidates and schedules for whichever a device model is of."""

from __future__ import annotations

from subtune.backends.cpu.device import Device
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload


def candidates(workload: Workload, device: Device, topk: int = 20) -> tuple[Candidate, ...]:
    from subtune.backends.cpu import ranking

    return ranking.candidates(workload, device, topk)


def schedule(workload: Workload, candidate: Candidate, device: Device) -> Kernel | NotApplicable:
    from subtune.backends.cpu import scheduling

    return scheduling.schedule(workload, candidate, device)
