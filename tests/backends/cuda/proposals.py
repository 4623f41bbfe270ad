"""What one family proposes for a workload, and a device with other numerics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from subtune.backends import as_device
from subtune.backends.base import Device, Family, HardwareModel, Problem
from subtune.backends.cuda.families import FAMILIES
from subtune.core.candidate import Candidate
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload


def proposed(family: Family[Any, Any], workload: Workload, device: Device | HardwareModel) -> list[Candidate]:
    device = as_device(device)
    problem = Problem(workload, device.model, device.numerics)
    return [] if family.accepts(problem) else list(family.candidates(problem))


def allowing(model: HardwareModel, **numerics: Any) -> Device:
    return replace(as_device(model), numerics=Numerics(**numerics))


def tile_of(candidate: Candidate) -> Any:
    """The tile that a candidate decides on, as its family reads it."""
    family = next(family for family in FAMILIES if family.name == candidate.family)
    knobs = candidate.as_knobs(family.knobs)
    return getattr(knobs, "tiling", getattr(knobs, "tile", knobs)) if family.name != "cuda.gemv_packed" else knobs
