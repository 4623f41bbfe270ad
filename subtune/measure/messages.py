"""What parent and worker processes say to one another: plain picklable values."""

from __future__ import annotations

from dataclasses import dataclass

from subtune.candidate import Candidate
from subtune.device import CPUModel
from subtune.kernel import Packing


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Schedule `candidate` with `schedule` ("module:function") and compile it to the file `stem` + an extension."""

    workload_json: str
    num_outputs: int
    device: CPUModel
    candidate: Candidate
    schedule: str
    stem: str


@dataclass(frozen=True, slots=True)
class Library:
    """A compiled kernel on disk, with what the caller must do to its constants before a call."""

    path: str
    func_hash: str
    packings: tuple[tuple[int, Packing], ...]
    build_s: float


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Make the inputs of a workload and compute the reference outputs with its default kernel."""

    workload_json: str
    num_outputs: int
    device: CPUModel
    default: Library


@dataclass(frozen=True, slots=True)
class Prepared:
    """Seconds of one call of the default kernel."""

    default_s: float


@dataclass(frozen=True, slots=True)
class TimeJob:
    library: Library
    seconds: float
    stop_above_s: float
    checked: bool
    """True when an earlier job has compared the outputs of this library."""


@dataclass(frozen=True, slots=True)
class CompareJob:
    library: Library
    seconds: float


Job = BuildJob | PrepareJob | TimeJob | CompareJob
