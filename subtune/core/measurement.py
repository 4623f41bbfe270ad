"""What is known of a candidate after it was tried: a time, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from subtune.core.candidate import Candidate


class FailureKind(StrEnum):
    INVALID = "invalid"  # the template does not apply, or the schedule is illegal
    BUILD = "build"  # lowering or code generation failed
    LAUNCH = "launch"  # the library could not be loaded or called
    WRONG_RESULT = "wrong-result"  # output differs from the reference, or writes out of bounds
    TIMEOUT = "timeout"  # build or run took longer than allowed
    CRASH = "crash"  # the worker process died
    MEMORY = "memory"  # the worker process ran out of its memory allowance


DETERMINISTIC = (FailureKind.INVALID, FailureKind.BUILD, FailureKind.LAUNCH, FailureKind.WRONG_RESULT)
"""Failures that come again; crashes, time limits and memory may have been the machine's."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency in seconds of one call: median over `samples` samples, their minimum, and the relative spread."""

    median_s: float
    min_s: float
    spread: float
    samples: int


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Measurement:
    candidate: Candidate
    outcome: Timing | Failure
    build_s: float = 0.0

    @property
    def is_timed(self) -> bool:
        return isinstance(self.outcome, Timing)


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate that compiled: seconds it took, the structural hash of its scheduled PrimFunc, and the bytes of the
    workload's constants as it wants them packed."""

    build_s: float
    func_hash: str
    weights_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate and the default schedule, timed in turns in one process.

    `gain` is the default's latency over the candidate's, median over pairs; `noise` the standard error of its
    logarithm. `is_partial`: its outputs were compared on some of the input sets, those of the others would have taken
    long.
    """

    timing: Timing
    default_timing: Timing
    gain: float
    noise: float
    is_partial: bool = False
