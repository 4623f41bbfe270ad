"""What parent and worker processes say to one another: plain picklable values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from subtune.backends.base import Device
from subtune.core.candidate import Candidate
from subtune.core.kernel import Packing
from subtune.runtime.remote import Remote

LOST = 70
"""Exit code of a runner whose device does nothing any more; the last it printed says why."""


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Schedule `candidate` with `schedule` ("module:function") and compile it to the file `stem` + an extension."""

    workload_json: str
    num_outputs: int
    device: Device
    candidate: Candidate
    schedule: str
    stem: str
    is_optional: bool = True
    """False for the default schedule and for references: they are built whatever they take."""
    kept: str = ""
    """A directory for kernels as they are scheduled, where they are wanted again; "": they are not."""
    is_remote: bool = False
    """The library is for another machine."""


@dataclass(frozen=True, slots=True)
class ScheduleJob:
    """As `BuildJob`, but the kernel is wanted as it is scheduled, and nothing is compiled."""

    workload_json: str
    num_outputs: int
    device: Device
    candidate: Candidate
    schedule: str
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Library:
    """A compiled kernel on disk, with what the caller must do to its constants before a call."""

    path: str
    func_hash: str
    packings: tuple[tuple[int, Packing], ...]
    build_s: float
    granules: tuple[int, ...] = ()
    """As `Kernel.granules`."""
    knows_extents: bool = False
    iterations: float = 0.0
    least: int = 0
    """As `Kernel.least`, and `most` as `Kernel.most`."""
    most: int = 0
    numbers: tuple[int, ...] = ()
    """What a kernel of dynamic shapes takes before its tensors."""
    rows_past_end: int = 0
    """Of what it reads and writes, behind the last that there are."""


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Make the inputs of a workload and compute the reference outputs with its default kernel, or more of them."""

    workload_json: str
    num_outputs: int
    device: Device
    default: Library
    reference: Library | None = None
    """For a GPU the workload in float64, for a CPU a chain of halves in float32; None where that cannot be built."""
    mode: str = "rotating"
    """For a GPU: `rotating` through copies of all but inputs that L2 holds, `hot` on one set of arguments, or `cold`,
    with nothing in L2."""
    session: str = ""
    """Whose jobs this prepares."""
    kept_bytes: int = 0
    """Sessions prepared before stay ready as long as all together take no more."""
    patience_s: float = math.inf
    """Reference outputs of all but the first input set are left for later where they take longer."""
    rows_past_end: int = 0
    """The most of `Library.rows_past_end` of what will be timed."""
    remote: Remote | None = None
    """Where kernels run, if not here."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Seconds of one call of the default kernel, and whether there are reference outputs for all input sets."""

    default_s: float
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Unprepared:
    """The runner is a new process, or has let go of this session: it wants the `PrepareJob` again."""


@dataclass(frozen=True, slots=True)
class CheckJob:
    library: Library
    patience_s: float = math.inf
    """`PrepareJob.patience_s`, where this is the first that asks for reference outputs; 0: on the first input set,
    as all sets were compared at another shape."""
    session: str = ""


@dataclass(frozen=True, slots=True)
class TimeJob:
    library: Library
    seconds: float
    stop_above_s: float
    checked: bool
    """True when an earlier job has compared the outputs of this library."""
    session: str = ""


@dataclass(frozen=True, slots=True)
class CompareJob:
    library: Library
    seconds: float
    other: Library | None = None
    """That it is timed in turns with; None: the default."""
    session: str = ""


RunJob = CheckJob | TimeJob | CompareJob
Job = BuildJob | ScheduleJob | PrepareJob | RunJob
