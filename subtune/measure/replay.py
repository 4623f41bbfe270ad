"""Outcomes from a table instead of from a machine: what the search decides can be tested, and repeated, exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Built, Comparison, Failure, FailureKind, Timing
from subtune.core.workload import Workload
from subtune.measure.clock import few_calls


class ReplayMeasurer:
    """Every candidate has the latency in seconds, or the failure, that `outcomes` gives it.

    Failures of kind invalid and build appear when it is built, all others when it is timed; a candidate that
    is not in the table does not apply. `log` records what is done for the first time, or again where that takes time,
    as ("build" | "check" | "time" | "compare", candidate); `workloads` whose it was.
    """

    def __init__(
        self,
        outcomes: Mapping[Candidate, float | Failure],
        *,
        spread: float = 0.0,
        call_s: float = 0.0,
        sites: int = 1,
    ) -> None:
        if not isinstance(outcomes.get(DEFAULT), float):
            raise ValueError("the table must give the default schedule a latency")
        self._outcomes = dict(outcomes)
        self._spread = spread
        self._call_s = call_s
        self.sites = sites
        self.log: list[tuple[str, Candidate]] = []
        self.workloads: list[str] = []

    def start(self, device: Device) -> None:
        """There is nothing to start."""

    def is_there(self, site: int) -> bool:
        """A table is never lost."""
        return True

    def overlaps(self, device: Device) -> bool:
        return device.backend.measuring.overlaps

    def interrupt(self) -> None:
        """Nobody waits for long."""

    @contextmanager
    def session(self, workload: Workload, device: Device, deadline: float = math.inf) -> Iterator[ReplaySession]:
        yield ReplaySession(self, workload, self._outcomes, self._spread, self._call_s)


class ReplaySession:
    """See `subtune.measure.protocol.Session`. Whatever is logged takes `call_s` seconds of real time."""

    def __init__(
        self,
        measurer: ReplayMeasurer,
        workload: Workload | None,
        outcomes: Mapping[Candidate, float | Failure],
        spread: float = 0.0,
        call_s: float = 0.0,
    ) -> None:
        self._measurer = measurer
        self._key = workload.key if workload else ""
        self._outcomes = outcomes
        self._spread = spread
        self._call_s = call_s
        self._built: dict[Candidate, Built | Failure] = {}

    def move(self, site: int) -> None:
        """All have the same table."""

    def prefetch(self, candidates: Sequence[Candidate]) -> None:
        """A table needs no time."""

    def build(self, candidates: Sequence[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        for candidate in candidates:
            if candidate in self._built:
                continue
            if time.monotonic() >= deadline:
                break
            self._note("build", candidate)
            outcome = self._outcomes.get(candidate, Failure(FailureKind.INVALID, "not in the table"))
            fails = isinstance(outcome, Failure) and outcome.kind in (FailureKind.INVALID, FailureKind.BUILD)
            self._built[candidate] = (
                outcome if isinstance(outcome, Failure) and fails else Built(0.0, f"hash-of-{candidate}")
            )
        return {candidate: self._built[candidate] for candidate in candidates if candidate in self._built}

    def check(self, candidate: Candidate, patience_s: float = math.inf) -> Comparison | Failure:
        self._note("check", candidate)
        outcome, default = self._outcomes[candidate], self._outcomes[DEFAULT]
        assert isinstance(default, float)
        return outcome if isinstance(outcome, Failure) else few_calls([outcome] * 3, [default] * 3)

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing | Failure:
        self._note("time", candidate)
        outcome = self._outcomes[candidate]
        return outcome if isinstance(outcome, Failure) else self._timing(outcome)

    def compare(self, candidate: Candidate, seconds: float, other: Candidate = DEFAULT) -> Comparison | Failure:
        self._note("compare", candidate)
        outcome, beside = self._outcomes[candidate], self._outcomes[other]
        assert isinstance(beside, float)
        if isinstance(outcome, Failure):
            return outcome
        return Comparison(self._timing(outcome), self._timing(beside), beside / outcome, self._spread / 3)

    def _timing(self, seconds: float) -> Timing:
        return Timing(seconds, seconds, self._spread, 10)

    def _note(self, what: str, candidate: Candidate) -> None:
        self._measurer.log.append((what, candidate))
        self._measurer.workloads.append(self._key)
        if self._call_s:
            time.sleep(self._call_s)
