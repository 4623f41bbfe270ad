"""A measurer whose devices are not there: outcomes and durations are drawn as a recorded run had them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Built, Comparison, Failure, FailureKind, Timing
from subtune.core.workload import Workload
from subtune.fleet.simulation.clock import SimulatedThreads
from subtune.fleet.simulation.durations import Durations, called
from subtune.fleet.simulation.farm import Farm, FarmBuild
from subtune.measure.clock import few_calls

_AT_BUILD = (FailureKind.INVALID, FailureKind.BUILD)
_UNPREDICTED_S = 1e-5
"""Of a candidate that nobody has predicted."""
_SAMPLES = 10
_NOISE = 0.003
"""Of a comparison's logarithm, where it is measured in turns."""


class SimulatedMeasurer:
    """See `subtune.measure.protocol.Measurer`.

    Args:
        sites: devices of a kind, each a machine with so many `builders`, which rest while it times.
        message_s: seconds of the driver's CPU that every build and every call needs beside what is done here.

    Attributes:
        measured_s: seconds of all devices, that they measured.
        candidates: that were built, or have failed to be.
    """

    def __init__(
        self, threads: SimulatedThreads, durations: Durations, sites: int, builders: int, message_s: float = 0.0
    ) -> None:
        self.threads, self.durations, self.sites, self.message_s = threads, durations, sites, message_s
        self.farm = Farm(threads, sites, builders)
        self.measured_s = 0.0
        self.candidates = self.calls = 0

    def is_there(self, site: int) -> bool:
        """None is lost."""
        return True

    def overlaps(self, device: Device) -> bool:
        return device.backend.measuring.overlaps

    def interrupt(self) -> None:
        """Nobody waits in real time."""

    def start(self, device: Device) -> None:
        """There is nothing to start."""

    @contextmanager
    def session(self, workload: Workload, device: Device, deadline: float = math.inf) -> Iterator[SimulatedSession]:
        session = SimulatedSession(self, f"{workload.key}/{device.scope().device}", device)
        yield session
        session.close()


class SimulatedSession:
    """See `subtune.measure.protocol.Session`; `name` is that of the workload on its kind of device."""

    def __init__(self, measurer: SimulatedMeasurer, name: str, device: Device) -> None:
        self._measurer, self._name = measurer, name
        self._site, self._is_prepared = 0, False
        self._overlaps = device.backend.measuring.overlaps
        self._reference = device.backend.measuring.reference
        self._builds: dict[Candidate, FarmBuild] = {}
        self._least_s = math.inf
        self._count = 0

    def move(self, site: int) -> None:
        self._site = site

    def prefetch(self, candidates: Sequence[Candidate]) -> None:
        wanted = list(candidates)
        if DEFAULT in wanted and self._reference is not None:
            wanted.append(self._reference)
        fresh = {}
        for candidate in wanted:
            if candidate not in self._builds:
                seconds = self._measurer.durations.build_s.draw(f"build/{self._name}", str(candidate))
                fresh[candidate] = FarmBuild(seconds)
                self._message()
        self._builds |= fresh
        self._measurer.candidates += len(fresh)
        self._measurer.farm.submit(list(fresh.values()))

    def build(self, candidates: Sequence[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        self.prefetch(candidates)
        builds = [self._builds[candidate] for candidate in candidates]
        if DEFAULT in candidates and self._reference is not None:
            builds.append(self._builds[self._reference])
        self._measurer.farm.wait(builds)
        found: dict[Candidate, Built | Failure] = {}
        for candidate in candidates:
            failure = self._failure(candidate)
            is_early = failure is not None and failure.kind in _AT_BUILD
            made = Built(self._builds[candidate].seconds, f"hash-of-{candidate}")
            found[candidate] = failure if failure is not None and is_early else made
        return found

    def check(self, candidate: Candidate, patience_s: float = math.inf) -> Comparison | Failure:
        self._prepare()
        self._call("check", candidate, 0.0)
        latency = self._latency_s(candidate)
        return latency if isinstance(latency, Failure) else few_calls([latency] * 3, [self._default_s()] * 3)

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing | Failure:
        self._prepare()
        with self._silence():
            self._call("time", candidate, seconds)
        latency = self._latency_s(candidate)
        return latency if isinstance(latency, Failure) else _timing(latency)

    def compare(self, candidate: Candidate, seconds: float, other: Candidate = DEFAULT) -> Comparison | Failure:
        self._prepare()
        with self._silence():
            self._call("compare", candidate, seconds)
        latency, beside = self._latency_s(candidate), self._latency_s(other)
        if isinstance(latency, Failure):
            return latency
        assert not isinstance(beside, Failure)
        return Comparison(_timing(latency), _timing(beside), beside / latency, _NOISE)

    def close(self) -> None:
        self._measurer.farm.drop(list(self._builds.values()))

    # -- what takes time

    @contextmanager
    def _silence(self) -> Iterator[None]:
        if self._overlaps:
            yield
        else:
            with self._measurer.farm.silence(self._site):
                yield

    def _prepare(self) -> None:
        if not self._is_prepared:
            self._call("prepare", DEFAULT, 0.0)
            self._is_prepared = True

    def _call(self, what: str, candidate: Candidate, seconds: float) -> None:
        self._message()
        self._count += 1
        spread = self._measurer.durations.call_s.get(called(what, seconds))
        took_s = spread.draw(f"{what}/{self._name}", f"{candidate}/{self._count}") if spread else seconds
        self._measurer.measured_s += took_s
        self._measurer.calls += 1
        self._measurer.threads.sleep(took_s)

    def _message(self) -> None:
        self._measurer.threads.spend(self._measurer.message_s)

    # -- what comes out

    def _failure(self, candidate: Candidate) -> Failure | None:
        if candidate == DEFAULT:
            return None
        drawn = random.Random(f"fails/{self._name}/{candidate}").random()
        for kind, share in self._measurer.durations.fails.items():
            if drawn < share:
                return Failure(FailureKind(kind), f"{kind}, as many did in the recorded run")
            drawn -= share
        return None

    def _latency_s(self, candidate: Candidate) -> float | Failure:
        if candidate == DEFAULT:
            return self._default_s()
        if failure := self._failure(candidate):
            return failure
        factor = self._measurer.durations.of_predicted.draw(f"latency/{self._name}", str(candidate))
        return (candidate.predicted_s or _UNPREDICTED_S) * factor

    def _default_s(self) -> float:
        """By the first candidate that was built, whichever that is: it is the same in every run."""
        first = next((one for one in self._builds if one not in (DEFAULT, self._reference)), None)
        predicted_s = (first.predicted_s if first else 0.0) or _UNPREDICTED_S
        own = self._measurer.durations.of_predicted.draw(f"latency/{self._name}", "default")
        return predicted_s * own * self._measurer.durations.default_of_best.draw(f"default/{self._name}", "")


def _timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, _NOISE, _SAMPLES)
