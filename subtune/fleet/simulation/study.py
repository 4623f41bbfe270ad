"""What so many devices would do with a fleet's work, and what the driver would have to do for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from subtune.backends.base import Device
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.database.statements import Row
from subtune.database.tables import Table
from subtune.fleet.pooled import Pool, tuned
from subtune.fleet.simulation.clock import SimulatedThreads
from subtune.fleet.simulation.durations import Durations
from subtune.fleet.simulation.replayed import SimulatedMeasurer
from subtune.tuning.proposals import Policy, policy
from subtune.tuning.records import Records


@dataclass(frozen=True, slots=True)
class TargetWork:
    """What is to be tuned for a target, and the driver's seconds for reading the models, and for their artifacts."""

    name: str
    pools: tuple[Pool, ...]
    prepare_s: float = 0.0
    artifacts_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plant:
    """What there is to tune with.

    Attributes:
        devices: of the kind at hand; with `side_by_side`, of all kinds together.
        builders: of each device's machine.
        side_by_side: all targets at once, each with its part of the devices; else one after the other, as a fleet's
            run does it.
        message_s: see `SimulatedMeasurer`.
        counts_cpu: the driver's own computing takes its time, by this machine's clock; else it takes none.
    """

    devices: int
    builders: int
    side_by_side: bool = False
    message_s: float = 0.0
    counts_cpu: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds are simulated ones, but for `writer_s`, and for `cpu_s` which are the driver's real ones.

    Attributes:
        seconds: of everything; `tune_s` without reading models and writing artifacts.
        measured_s: of all devices together, that they measured.
        built_s: of all builders together.
        workloads: that have a record.
        calls: of runners.
        writes: transactions.
    """

    devices: int
    side_by_side: bool
    counts_cpu: bool
    seconds: float
    tune_s: float
    measured_s: float
    built_s: float
    builders: int
    workloads: int
    candidates: int
    calls: int
    writes: int
    writer_s: float
    cpu_s: float

    @property
    def idle(self) -> float:
        """Share of the devices' time while there is tuning, in which they measure nothing."""
        return 1 - self.measured_s / (self.devices * self.tune_s) if self.tune_s else 0.0

    @property
    def idle_builders(self) -> float:
        return 1 - self.built_s / (self.devices * self.builders * self.tune_s) if self.tune_s else 0.0


class CountedDatabase(Database):
    """Counts transactions that write, and real seconds that they take."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes, self.writer_s = 0, 0.0

    def add_rows(self, workload: Workload, table: Table, given: Sequence[Row]) -> None:
        begin = time.perf_counter()
        super().add_rows(workload, table, given)
        self.writes += 1
        self.writer_s += time.perf_counter() - begin


class Found:
    """Candidates of workloads are found once; the driver's seconds for it count in every run."""

    def __init__(self, ask: Policy = policy) -> None:
        self._ask = ask
        self._found: dict[tuple[str, str, int], tuple[Sequence[Candidate], float]] = {}

    def on(self, spend: Callable[[float], None]) -> Policy:
        """`spend` is called with CPU seconds."""

        def ask(workload: Workload, device: Device, topk: int) -> Sequence[Candidate]:
            key = workload.key, device.scope().device, topk
            if key not in self._found:
                begin = time.thread_time()
                found = self._ask(workload, device, topk)
                self._found[key] = found, time.thread_time() - begin
            found, seconds = self._found[key]
            spend(seconds)
            return found

        return ask


def simulated(
    work: Sequence[TargetWork], plant: Plant, durations: Durations, topk: int, found: Found, path: Path
) -> tuple[Outcome, list[Records]]:
    """Tune for all targets, with the search's own code. What it finds is in a new database at `path`."""
    threads = SimulatedThreads(plant.counts_cpu)
    # Read in this process before, or never: what the clock counts here it must not count again.
    spend = threads.spend if plant.counts_cpu else (lambda _: None)
    measurers: list[SimulatedMeasurer] = []
    records: list[Records] = []
    tune_s = 0.0

    def tune(one: TargetWork, devices: int, database: Database) -> None:
        measurer = SimulatedMeasurer(threads, durations, devices, plant.builders, plant.message_s)
        measurers.append(measurer)
        ask = found.on(spend)
        records.extend(tuned(one.pools, topk, math.inf, database, measurer, candidates=ask, threads=threads))

    database = CountedDatabase(path)
    with database:
        if plant.side_by_side:
            spend(sum(one.prepare_s for one in work))
            shares = [plant.devices * (n + 1) // len(work) - plant.devices * n // len(work) for n in range(len(work))]
            begin_s = threads.now_s
            works = [partial(tune, one, count, database) for one, count in zip(work, shares, strict=True)]
            if errors := threads.run(works, lambda: None):
                raise errors[0]
            tune_s = threads.now_s - begin_s
            spend(sum(one.artifacts_s for one in work))
        else:
            for one in work:
                spend(one.prepare_s)
                begin_s = threads.now_s
                tune(one, plant.devices, database)
                tune_s += threads.now_s - begin_s
                spend(one.artifacts_s)
    outcome = Outcome(
        plant.devices,
        plant.side_by_side,
        plant.counts_cpu,
        threads.now_s,
        tune_s,
        sum(one.measured_s for one in measurers),
        sum(one.farm.busy_s for one in measurers),
        plant.builders,
        sum(map(len, records)),
        sum(one.candidates for one in measurers),
        sum(one.calls for one in measurers),
        database.writes,
        database.writer_s,
        threads.cpu_s,
    )
    return outcome, records
