"""One workload measured on this machine: its builds, its checks, its times."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Built, Comparison, Failure, FailureKind, Timing
from subtune.core.workload import Workload, dtype_bits
from subtune.measure.lost import MOST_LOSSES, HostLost
from subtune.measure.messages import (
    BuildJob,
    CheckJob,
    CompareJob,
    Library,
    Prepared,
    PrepareJob,
    RunJob,
    TimeJob,
    Unprepared,
)
from subtune.measure.pool import Build, Builders
from subtune.measure.runner import Runner
from subtune.runtime.remote import SESSION_S

_log = logging.getLogger(__name__)

SCHEDULE = "subtune.backends:schedule"
_REFERENCE_LIMIT_S = 120.0
"""For inputs and the runs of the default schedule, which may be a thousand times slower than the best."""
_LEAST_LIMIT_S = 0.2
_LOOK_S = 0.2
"""Between two looks for a site that is there."""
_MORE_OF_REMOTE_S = 2.5 * SESSION_S


@dataclass(slots=True)
class Settings:
    """What holds for all sessions of a measurer: see `LocalMeasurer`."""

    schedule: str
    build_limit_s: float
    run_limit_s: float
    kept_bytes: int
    gpu_mode: str
    is_remote: bool = False
    """Kernels are sent to where they run."""
    shares_cores: bool = True
    """As `Site.shares_cores`."""
    rows_past_end: int = 0
    kept: str = ""
    """As `BuildJob.kept`."""


class LocalSession:
    """See `subtune.measure.protocol.Session`."""

    def __init__(
        self,
        workload: Workload,
        device: Device,
        builders: Builders,
        runners: Sequence[Runner],
        settings: Settings,
        directory: Path,
        deadline: float,
    ) -> None:
        self._workload = workload
        self._text = workload.to_json()
        self._device, self._measuring = device, device.backend.measuring
        self._builders, self._runners, self.runner = builders, runners, runners[0]
        self._settings = settings
        self._directory = directory
        self.deadline = deadline
        self._builds: dict[Candidate, Build] = {}
        self._numbers = itertools.count()
        self._checked: set[Candidate] = set()
        self._crashes: Counter[str] = Counter()
        self._default_s = 0.0
        self._is_whole = True
        """Of the reference outputs: those of some input sets may have been left for later."""

    def move(self, site: int) -> None:
        """See `Session`."""
        self.runner = self._runners[site]

    def close(self) -> None:
        self._builders.drop(list(self._builds.values()))

    # -- builds

    def prefetch(self, candidates: Sequence[Candidate]) -> None:
        fresh: dict[Candidate, Build] = {}
        for candidate in self._with_reference(candidates):
            if candidate not in self._builds:
                fresh[candidate] = Build(self._build_job(candidate), self._build_limit(candidate))
        self._builds |= fresh
        self._builders.submit(list(fresh.values()))

    def build(self, candidates: Sequence[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        if time.monotonic() < min(deadline, self.deadline):
            self.prefetch(candidates)
        wanted = {c: self._builds[c] for c in self._with_reference(candidates) if c in self._builds}
        self._builders.wait(list(wanted.values()), deadline, self.deadline)
        for candidate, build in wanted.items():
            if build.outcome is None:  # it was cut off, and may be asked for again
                del self._builds[candidate]
        return {
            candidate: self._built(self._builds[candidate].outcome)
            for candidate in candidates
            if candidate in self._builds
        }

    def _with_reference(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        reference = self._measuring.reference
        if reference is None or DEFAULT not in candidates:
            return tuple(candidates)
        return tuple(c for one in candidates for c in ((one, reference) if one == DEFAULT else (one,)))

    def _built(self, outcome: Library | Failure) -> Built | Failure:
        if isinstance(outcome, Failure):
            return outcome
        packed = {index: prod(packing.shape) for index, packing in outcome.packings}
        weights_bytes = sum(
            packed[i] * dtype_bits(arg.dtype) // 8 if i in packed else arg.nbytes
            for i, arg in enumerate(self._workload.args)
            if arg.is_constant
        )
        return Built(outcome.build_s, outcome.func_hash, weights_bytes)

    def _build_limit(self, candidate: Candidate) -> float:
        """Where all wait for the slowest candidate, one that takes ten times as long as others is left out.

        A kernel of many shapes is worth the time of several.
        """
        is_needed = candidate in (DEFAULT, self._measuring.reference) or self._settings.schedule != SCHEDULE
        return min(self._settings.build_limit_s, math.inf if is_needed else self._measuring.build_limit_s)

    def _build_job(self, candidate: Candidate) -> BuildJob:
        stem = str(self._directory / f"k{next(self._numbers)}-{hash(candidate) & 0xFFFFFFFF:08x}")
        is_reference = candidate == self._measuring.reference
        is_optional = candidate != DEFAULT and not is_reference
        schedule, kept = (SCHEDULE, "") if is_reference else (self._settings.schedule, self._settings.kept)
        of_workload = (self._text, self._workload.num_outputs, self._device)
        return BuildJob(*of_workload, candidate, schedule, stem, is_optional, kept, self._settings.is_remote)

    def library(self, candidate: Candidate) -> Library:
        """Of a candidate that was built here, or lent."""
        library: Library = self._builds[candidate].outcome
        return library

    def lend(self, candidate: Candidate, library: Library, is_checked: bool = False) -> None:
        """What another session has built, and perhaps checked, serves as `candidate` here."""
        build = Build(self._build_job(candidate), 0.0)
        build.outcome, build.has_begun, build.is_over = library, True, True
        self._builds[candidate] = build
        if is_checked:
            self._checked.add(candidate)

    # -- runs

    def check(self, candidate: Candidate, patience_s: float = math.inf) -> Comparison | Failure:
        outcome: Comparison | Failure = self._run(candidate, CheckJob(self.library(candidate), patience_s), 0.0)
        if isinstance(outcome, Comparison):
            outcome = replace(outcome, is_partial=not self._is_whole)
        return outcome

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing | Failure:
        job = TimeJob(self.library(candidate), seconds, stop_above_s, candidate in self._checked)
        outcome: Timing | Failure = self._run(candidate, job, seconds)
        return outcome

    def compare(self, candidate: Candidate, seconds: float, other: Candidate = DEFAULT) -> Comparison | Failure:
        library = None if other == DEFAULT else self.library(other)
        job = CompareJob(self.library(candidate), seconds, library)
        outcome: Comparison | Failure = self._run(candidate, job, seconds)
        return outcome

    def silence(self) -> contextlib.AbstractContextManager[None]:
        """What is timed has the cores for itself, where building takes some of them; also between looks that follow
        one another. What these need has to be built."""
        is_quiet = self._measuring.overlaps or not self._settings.shares_cores
        return contextlib.nullcontext() if is_quiet else self._builders.silence(self.runner.host)

    def _run(self, candidate: Candidate, job: RunJob, seconds: float) -> Any:
        most = self._measuring.max_crashes
        if most is not None and self._crashes[candidate.family] >= most and candidate not in self._checked:
            return Failure(FailureKind.CRASH, f"not tried: {most} kernels of {candidate.family} crashed")
        outcome = self._answered(replace(job, session=str(self._directory)), seconds)
        if not isinstance(outcome, Failure):
            if self._is_whole:
                self._checked.add(candidate)
        elif outcome.kind is FailureKind.CRASH:
            self._crashes[candidate.family] += 1
        return outcome

    def _answered(self, job: RunJob, seconds: float) -> Any:
        """On another site, where the one at hand is lost."""
        losses = 0
        while True:
            try:
                return self._answered_here(job, seconds)
            except HostLost as e:
                losses += 1
                if losses == MOST_LOSSES:
                    return Failure(FailureKind.CRASH, f"{e}; {MOST_LOSSES} times")
                if not self._find_another():
                    return Failure(FailureKind.TIMEOUT, f"{e}, and no other one was there in time")

    def _find_another(self) -> bool:
        """Whether a site is there before the session's deadline."""
        begin = self._runners.index(self.runner) + 1
        while time.monotonic() < self.deadline:
            in_turn = (*self._runners[begin:], *self._runners[:begin])
            if (found := next((one for one in in_turn if one.is_there), None)) is not None:
                self.runner = found
                return True
            time.sleep(_LOOK_S)
        return False

    def _answered_here(self, job: RunJob, seconds: float) -> Any:
        patience_s = _patience(job)
        # what was left for later, it being wanted now: the candidate's own limit is not for the default's runs
        wants_more = self._default_s > 0 and not self._is_whole and patience_s == math.inf
        if wants_more and (failure := self._prepare(patience_s)):
            return failure
        outcome = self._call(job, seconds)
        while isinstance(outcome, Unprepared):  # also what another thread, whose site is lost, has pushed out meanwhile
            if failure := self._prepare(patience_s):  # outside of the silence: it may have the default built
                return failure
            outcome = self._call(job, seconds)
        return outcome

    def _call(self, job: RunJob, seconds: float) -> Any:
        with contextlib.nullcontext() if isinstance(job, CheckJob) else self.silence():
            return self.runner.call(job, self._limit(seconds))

    def _prepare(self, patience_s: float) -> Failure | None:
        """Let the runner make the reference of this workload, or more of it.

        Raises:
            SubtuneError: there is none, as the default schedule cannot be built or run.
        """
        default = self.build([DEFAULT], math.inf).get(DEFAULT)
        if default is None:
            return Failure(FailureKind.TIMEOUT, "the default schedule was not built in time")
        key = self._workload.key
        if isinstance(default, Failure):
            raise SubtuneError(
                f"the default schedule of workload {key} cannot be built ({default.kind}): {default.message}"
            )
        job = PrepareJob(
            self._text,
            self._workload.num_outputs,
            self._device,
            self.library(DEFAULT),
            self._reference(),
            self._settings.gpu_mode,
            str(self._directory),
            self._settings.kept_bytes,
            patience_s,
            self._settings.rows_past_end,
            self.runner.site.remote,
        )
        answer: Prepared | Failure = self.runner.call(job, self._until_deadline(_REFERENCE_LIMIT_S))
        if isinstance(answer, Failure):
            if time.monotonic() >= self.deadline:
                return answer
            raise SubtuneError(f"the default schedule of workload {key} does not run ({answer.kind}): {answer.message}")
        self._default_s, self._is_whole = answer.default_s, answer.is_whole
        return None

    def _reference(self) -> Library | None:
        """What was built with the default schedule to be compared with; None where there is nothing."""
        reference = self._measuring.reference
        if reference is None or reference not in self._builds:
            return None
        built = self._builds[reference].outcome
        if isinstance(built, Failure):
            _log.info("workload %s has no reference but its default schedule: %s", self._workload.key, built.message)
        return built if isinstance(built, Library) else None

    def _limit(self, seconds: float) -> float:
        """A candidate many times slower than the default may be killed: it could not win."""
        return self._until_deadline(self._settings.run_limit_s + 2 * seconds + 10 * self._default_s)

    def _until_deadline(self, limit_s: float) -> float:
        """`limit_s`, or less when the deadline comes first; a little is always left for one call.

        Of another machine more: its server ends what hangs there, and dies itself where the runner is killed before.
        """
        if self._settings.is_remote:
            return limit_s + _MORE_OF_REMOTE_S
        return max(_LEAST_LIMIT_S, min(limit_s, self.deadline - time.monotonic()))


def _patience(job: RunJob) -> float:
    """Of a job that finds nothing prepared. What was checked before is compared on the first input set, if at all."""
    if isinstance(job, CheckJob):
        return job.patience_s
    return 0.0 if isinstance(job, CompareJob) or job.checked else math.inf
