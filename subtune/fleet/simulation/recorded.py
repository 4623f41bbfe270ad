"""A real run, watched: how long each build and each measurement took."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Failure, Timing
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.fleet.simulation.durations import Durations, Spread, called, grouped
from subtune.measure import LocalMeasurer
from subtune.measure.messages import CheckJob, CompareJob, Job, PrepareJob, TimeJob
from subtune.measure.pool import Builders
from subtune.measure.runner import Runner
from subtune.measure.site import Site
from subtune.measure.supply import LocalSupply, here
from subtune.tuning.job import Single
from subtune.tuning.proposals import policy
from subtune.tuning.search import Search, tune

_NAMES = {PrepareJob: "prepare", CheckJob: "check", TimeJob: "time", CompareJob: "compare"}


class WatchedRunner:
    """A runner's calls with what they took: (name as `called` gives it, session, seconds)."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.site: Site = runner.site
        self.host = runner.host
        self.start, self.interrupt = runner.start, runner.interrupt
        self.kill, self.close = runner.kill, runner.close
        self.seen: list[tuple[str, str, float]] = []

    @property
    def is_there(self) -> bool:
        return self._runner.is_there

    def call(self, job: Job, limit_s: float) -> Any:
        begin = time.perf_counter()
        answer = self._runner.call(job, limit_s)
        if name := _NAMES.get(type(job)):
            took_s = time.perf_counter() - begin
            self.seen.append((called(name, getattr(job, "seconds", 0.0)), str(getattr(job, "session", "")), took_s))
        return answer


class WatchedSupply:
    """This machine's workers, whose runners are watched."""

    def __init__(self) -> None:
        self._supply: LocalSupply = here()
        self.sites: Sequence[Site] = self._supply.sites
        self.kept_bytes = self._supply.kept_bytes
        self.is_there, self.interrupt, self.close = self._supply.is_there, self._supply.interrupt, self._supply.close
        self.runners: Sequence[WatchedRunner] = ()

    def workers(self, device: Device) -> tuple[Builders, Sequence[Runner]]:
        builders, runners = self._supply.workers(device)
        self.runners = self.runners or [WatchedRunner(runner) for runner in runners]
        return builders, self.runners


def recorded(
    workloads: Sequence[Workload], device: Device, database: Database, tell: Callable[[str], None] = lambda _: None
) -> Durations:
    """Tune `workloads` on this machine, and say what took how long. `database` begins empty."""
    supply, finding_s = WatchedSupply(), 0.0

    def timed_policy(workload: Workload, on: Device, topk: int) -> Sequence[Candidate]:
        nonlocal finding_s
        begin = time.thread_time()
        found = policy(workload, on, topk)
        finding_s += time.thread_time() - begin
        return found

    with LocalMeasurer(supply=supply) as measurer:
        begin_s, begin = time.process_time(), time.perf_counter()
        search = Search(candidates=timed_policy)
        records = tune([Single(one) for one in workloads], device, search, database=database, measurer=measurer)
        driver_s, wall_s = time.process_time() - begin_s - finding_s, time.perf_counter() - begin
    seen = [one for runner in supply.runners for one in runner.seen]
    tell(f"{len(records)} of {len(workloads)} workloads, {len(seen)} calls, {driver_s:.1f} CPU seconds of the driver")
    tried = {key: dict(outcomes) for key, outcomes in records.outcomes.items()}
    count = sum(map(len, tried.values()))
    builds = [
        (one.key, measurement.build_s)
        for one in workloads
        for measurement in database.measurements(one.key, device.scope())
    ]
    calls = defaultdict(list)
    for name, session, seconds in seen:
        calls[name].append((session, seconds))
    kinds = [str(outcome.kind) for one in tried.values() for outcome in one.values() if isinstance(outcome, Failure)]
    ratios, gains = [], []
    for key, outcomes in tried.items():
        times = {c: o.min_s for c, o in outcomes.items() if isinstance(o, Timing) and c != DEFAULT}
        predicted = [(key, seconds / c.predicted_s) for c, seconds in times.items() if c.predicted_s > 0]
        ratios += predicted
        record = records.get(key)
        if times and record is not None:
            gains.append((key, record.default_timing.min_s / min(times.values())))
    return Durations(
        Spread.of(grouped(builds)),
        {name: Spread.of(grouped(pairs)) for name, pairs in calls.items()},
        {kind: kinds.count(kind) / count for kind in sorted(set(kinds))},
        Spread.of(grouped(ratios)),
        Spread.of(grouped(gains)),
        driver_s / count,
        wall_s,
    )
