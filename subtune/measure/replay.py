"""Outcomes from a table instead of from a machine: what the tuner decides can be tested, and repeated, exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Built, Comparison, Failure, FailureKind, Timing
from subtune.core.workload import Workload


class ReplayMeasurer:
    """Every candidate has the latency in seconds, or the failure, that `outcomes` gives it.

    Failures of kind invalid and build appear when it is built, all others when it is timed; a candidate that
    is not in the table does not apply. `log` records every call, as ("build" | "time" | "compare", candidate).
    """

    def __init__(
        self, outcomes: Mapping[Candidate, float | Failure], *, spread: float = 0.0, call_s: float = 0.0
    ) -> None:
        if not isinstance(outcomes.get(DEFAULT), float):
            raise ValueError("the table must give the default schedule a latency")
        self._outcomes = dict(outcomes)
        self._spread = spread
        self._call_s = call_s
        self.log: list[tuple[str, Candidate]] = []

    @contextmanager
    def session(self, workload: Workload, device: Device, deadline: float = math.inf) -> Iterator[ReplaySession]:
        yield ReplaySession(self._outcomes, self._spread, self._call_s, self.log)


class ReplaySession:
    """See `subtune.measure.protocol.Session`. Every call takes `call_s` seconds of real time."""

    def __init__(
        self,
        outcomes: Mapping[Candidate, float | Failure],
        spread: float,
        call_s: float,
        log: list[tuple[str, Candidate]],
    ) -> None:
        self._outcomes = outcomes
        self._spread = spread
        self._call_s = call_s
        self._log = log

    def build(self, candidates: Sequence[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        built: dict[Candidate, Built | Failure] = {}
        for candidate in candidates:
            if time.monotonic() >= deadline:
                break
            self._note("build", candidate)
            outcome = self._outcomes.get(candidate, Failure(FailureKind.INVALID, "not in the table"))
            fails = isinstance(outcome, Failure) and outcome.kind in (FailureKind.INVALID, FailureKind.BUILD)
            built[candidate] = outcome if isinstance(outcome, Failure) and fails else Built(0.0, f"hash-of-{candidate}")
        return built

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing | Failure:
        self._note("time", candidate)
        outcome = self._outcomes[candidate]
        return outcome if isinstance(outcome, Failure) else self._timing(outcome)

    def compare(self, candidate: Candidate, seconds: float) -> Comparison | Failure:
        self._note("compare", candidate)
        outcome, default = self._outcomes[candidate], self._outcomes[DEFAULT]
        assert isinstance(default, float)
        if isinstance(outcome, Failure):
            return outcome
        return Comparison(self._timing(outcome), self._timing(default), default / outcome, self._spread / 3)

    def _timing(self, seconds: float) -> Timing:
        return Timing(seconds, seconds, self._spread, 10)

    def _note(self, what: str, candidate: Candidate) -> None:
        self._log.append((what, candidate))
        if self._call_s:
            time.sleep(self._call_s)
