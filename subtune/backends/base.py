"""What the core asks of a kind of device (`Backend`), of one device (`Device`), of a way to schedule (`Family`).

The core never asks which kind it has. A backend is one folder and one line in `subtune.backends.BACKENDS`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from subtune.backends.elsewhere import Elsewhere
from subtune.backends.many_shapes import ManyShapes, TileShape
from subtune.backends.planned import Planned
from subtune.core.candidate import Candidate
from subtune.core.errors import TargetError
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.measurement import Failure
from subtune.core.measuring import Bench, Measuring
from subtune.core.numerics import PLAIN, Numerics
from subtune.core.versions import Scope, Versions
from subtune.core.workload import Workload

if TYPE_CHECKING:
    import tvm

    from subtune.backends.calibration import Calibration
    from subtune.core.manifest import Manifest
    from subtune.core.memory_plan import MemoryPlan
    from subtune.core.program import Program


@cache
def tvm_version() -> str:
    try:
        return version("apache-tvm")
    except PackageNotFoundError:  # TVM built from source, found by its path
        import tvm

        return str(tvm.__version__)


@dataclass(frozen=True, slots=True)
class Host:
    """The processor that calls the kernels: LLVM's triple, the extensions its code needs, threads it may use."""

    triple: str
    features: tuple[str, ...]
    threads: int


class HardwareModel(Protocol):
    """What every room may ask of a device's model: frozen, picklable data. Seconds, bytes, operations per second."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str:
        """What tells a user which device this is."""
        ...

    @property
    def host(self) -> Host: ...

    @property
    def dram_bytes_per_s(self) -> float: ...

    @property
    def between_kernels_s(self) -> float:
        """What a kernel takes in a network and not alone."""
        ...

    def target(self) -> tvm.target.Target: ...

    def obstacle(self) -> str:
        """Why what is built for this device cannot run in this process; "" when it can."""
        ...

    def fingerprint(self) -> str:
        """Short text, equal exactly for devices whose measurements may be exchanged."""
        ...

    def peak_flops(self, dtype: str = "") -> float:
        """What a kernel on operands of `dtype` can reach; of any type without one."""
        ...

    def comes_from_memory(self, weights_bytes: int) -> bool:
        """Whether a subgraph with so many bytes of weights belongs to a model whose weights stay in no cache."""
        ...

    def for_working_set(self, nbytes: int) -> HardwareModel:
        """As it is for a model that reads and writes so many bytes in a run."""
        ...

    @property
    def measured_state(self) -> str:
        """Where kernels find their data, in a word: measurements of one state do not hold in another. "" as a rule."""
        ...

    def to_json(self) -> str: ...

    def overridden(self, path: str | os.PathLike[str], threads: int | None = None) -> HardwareModel:
        """This model with the fields that the JSON object in `path` gives; `threads`, if given, is not among them."""
        ...


class OneState:
    """A part of the models of devices whose kernels find their data alike, whatever a model reads and writes."""

    __slots__ = ()
    measured_state = ""

    def for_working_set(self, nbytes: int) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class Device:
    """What kernels are built for: a hardware model, the kind it is of, and the roundings that the user allows."""

    model: HardwareModel
    backend: Backend
    numerics: Numerics = PLAIN

    def for_working_set(self, nbytes: int) -> Device:
        """For a model that reads and writes so many bytes in a run."""
        return replace(self, model=self.model.for_working_set(nbytes))

    def fingerprint(self) -> str:
        """Short text: which device, under which roundings."""
        return "/".join((self.model.fingerprint(), *self.numerics.tags))

    def scope(self) -> Scope:
        """Under what its measurements hold."""
        parts = filter(None, (self.fingerprint(), self.model.measured_state))
        return Scope("/".join(parts), self.backend.versions())


OUTER: Mapping[str, str] = MappingProxyType({"role": "outer"})
"""Metadata of a knob's field: it arranges the loops round a tile, what the tile itself costs does not depend on it."""

M = TypeVar("M", bound=HardwareModel)
K = TypeVar("K")


@dataclass(frozen=True)
class Problem(Generic[M]):
    """What a family is asked to schedule: a workload for a device, under the user's numerics."""

    workload: Workload
    device: M
    numerics: Numerics = PLAIN

    @cached_property
    def pattern(self) -> Any:
        """The computation as `subtune.patterns` recognises it."""
        from subtune.patterns.recognise import recognise

        return recognise(self.workload)


@dataclass(frozen=True, slots=True)
class Family(Generic[M, K]):
    """One way to schedule some patterns: its policy, its legality, its schedule, side by side.

    `version` is part of the database's key: raise it when old candidates' names mean other kernels.
    """

    name: str
    version: int
    knobs: type[K]
    """A frozen dataclass, one field per decision; a field with its default value is left out of the candidate."""
    accepts: Callable[[Problem[M]], str]
    """Why the family has nothing for a problem; "" where it has. Cheap: patterns, shapes, dtypes, no schedule."""
    candidates: Callable[[Problem[M]], Sequence[Candidate]]
    """Every sensible candidate with its predicted seconds, in any order. Arithmetic only: no build, no clock."""
    schedule: Callable[[Problem[M], K], Kernel | NotApplicable]
    """The kernel, or the reason why not; whatever is illegal or known to be wrong is refused here."""
    traits: Collection[str] = ()
    """Words of its backend, such as `serial`: what the backend may do to the family's candidates and kernels."""

    def kernel(self, problem: Problem[M], candidate: Candidate) -> Kernel | NotApplicable:
        """`schedule` with the candidate's knobs; knobs that are not the family's are a reason."""
        knobs = candidate.as_knobs(self.knobs)
        return NotApplicable(knobs) if isinstance(knobs, str) else self.schedule(problem, knobs)


@dataclass(frozen=True, slots=True)
class NoKnobs:
    """Of a family that decides nothing."""


def proposes_nothing(problem: Problem[Any]) -> str:
    """`accepts` of a family that is asked for by name."""
    return "asked for by name only"


class Backend(ManyShapes, Elsewhere, ABC):
    """A kind of device. Without state: all instances of a class are one, in worker processes too."""

    kind: ClassVar[str]
    """Of manifests, databases and TVM's targets: `cpu`, `cuda`."""
    version: ClassVar[int]
    """Part of the database's key: of what all families share, lowering included."""
    measuring: ClassVar[Measuring] = Measuring()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @property
    @abstractmethod
    def families(self) -> tuple[Family[Any, Any], ...]:
        """In the order in which they are asked."""

    def versions(self) -> Versions:
        """Of all that decides what its candidates' names mean, for the database."""
        families = tuple((family.name, family.version) for family in self.families)
        return Versions(f"tvm-{tvm_version()}/{self.kind}-{self.version}", families)

    # -- devices

    @abstractmethod
    def is_meant_by(self, target: object) -> bool:
        """Whether `target` (text, a TVM target or its fields, a hardware model) names a device of this kind."""

    @abstractmethod
    def model(self, target: Any, threads: int | None = None) -> HardwareModel:
        """The hardware model of the device that `target` names. Raises TargetError."""

    @abstractmethod
    def check(self, device: Device, is_measured: bool) -> None:
        """Raise TargetError where `device` cannot be compiled for, or not measured here though `is_measured`."""

    def forms(self, model: HardwareModel) -> Forms:
        """What it makes of a model before the partition."""
        return Forms(halves=frozenset())

    def stand_in(self, device: Device) -> Device | None:
        """A device of this machine that runs the same PrimFuncs for the sake of their results; None: there is none."""
        return None

    def accelerators(self) -> tuple[str, ...]:
        """The names of the devices of this kind that this machine has beside its processor, as they are numbered."""
        return ()

    def facts(self, model: HardwareModel) -> Mapping[str, str]:
        """What follows from the fields of `model`, for people."""
        return {"fingerprint": model.fingerprint()}

    def calibrate(self, model: HardwareModel) -> Calibration:
        """What this machine's `model` does, measured; nothing else may run meanwhile. Raises TargetError."""
        raise TargetError(f"--calibrate: nothing is measured of {model.description}")

    # -- kernels

    def candidates(self, problem: Problem[Any], topk: int) -> tuple[Candidate, ...]:
        """At most `topk` candidates, the one predicted fastest first; the default schedule is not among them.

        No build, no clock: the same problem gives the same candidates in the same order.
        """
        found = [c for family in self.families if not family.accepts(problem) for c in family.candidates(problem)]
        return self.rank(found, problem, topk)

    def kernel(self, problem: Problem[Any], candidate: Candidate) -> Kernel | NotApplicable:
        """`candidate` as the family that it names schedules it, or the reason why not."""
        family = next((family for family in self.families if family.name == candidate.family), None)
        if family is None:
            return NotApplicable(f"unknown family {candidate.family!r}")
        found = family.kernel(problem, candidate)
        return found if isinstance(found, NotApplicable) else self.finish(found, family, candidate, problem)

    def tile(self, candidate: Candidate) -> tuple[object, ...]:
        """All of it but the loops round its tile: what the model leaves out is much the same for all that share it."""
        knobs = next((family.knobs for family in self.families if family.name == candidate.family), None)
        outer = {f.name for f in fields(knobs) if f.metadata == OUTER} if knobs else set()
        return (candidate.family, *(knob for knob in candidate.knobs if knob[0] not in outer))

    def shape_of_tile(self, candidate: Candidate) -> TileShape:
        """Of a kernel for many shapes: the property `tile_shape` of its family's knobs, or their `mr`."""
        kind = next((family.knobs for family in self.families if family.name == candidate.family), None)
        if kind is not None and hasattr(kind, "tile_shape"):
            knobs: Any = candidate.as_knobs(kind)
            shape: TileShape = knobs.tile_shape
            return shape
        return TileShape(rows=int(candidate.get("mr") or 1))

    def rank(self, found: Sequence[Candidate], problem: Problem[Any], topk: int) -> tuple[Candidate, ...]:
        """The `topk` candidates to try, in order."""
        return tuple(sorted(found, key=lambda candidate: candidate.predicted_s)[:topk])

    def finish(self, kernel: Kernel, family: Family[Any, Any], candidate: Candidate, problem: Problem[Any]) -> Kernel:
        """What is done to the kernels of all families alike."""
        return kernel

    @abstractmethod
    def lower(self, func: tvm.tirx.PrimFunc, device: Device) -> Any:
        """A scheduled PrimFunc as TVM's runtime module, or what building raises; for the host of `device`."""

    @abstractmethod
    def build(self, func: tvm.tirx.PrimFunc, device: Device, stem: str, is_optional: bool) -> str | Failure:
        """Compile a scheduled PrimFunc to a file `stem` + an extension; its path."""

    @abstractmethod
    def bench(self, workload: Workload, device: Device, job: Any) -> Bench:
        """In the runner process: ready to time candidates of `workload`. `job` is a `measure.messages.PrepareJob`."""

    def kept_bytes(self, of_host: int) -> int:
        """What the runner process may hold for workloads to which a search may come back.

        Args:
            of_host: the same, where it lies in the host's memory.
        """
        return of_host

    # -- programs

    def own_operators(self, mod: tvm.IRModule, device: Device) -> tvm.IRModule:
        """`mod`, with calls of scheduled PrimFuncs for the operators that no subgraph has: sorts, running sums."""
        return mod

    def schedule_rest(self, mod: tvm.IRModule, device: Device, keep: Collection[str]) -> tvm.IRModule:
        """What TVM legalised by itself, scheduled where loops do not do; not the PrimFuncs named in `keep`."""
        return mod

    @abstractmethod
    def executable(self, program: tvm.IRModule, device: Device) -> Any:
        """A lowered module for Relax's virtual machine, on which TVM allocates."""

    @abstractmethod
    def build_program(self, planned: Planned, device: Device, folder: Path) -> tuple[MemoryPlan, tuple[str, ...]]:
        """Write the model's library, and what belongs to it, into `folder`; the memory plan it wants, the files."""

    @abstractmethod
    def load_program(self, folder: Path, manifest: Manifest, threads: int, share_weights: bool) -> Program:
        """An artifact's program, ready to run on so many of the host's threads. Imports TVM's runtime only.

        Raises:
            ArtifactError: the device it needs is not here, or has too little memory. What TVM raises is left alone.
        """
