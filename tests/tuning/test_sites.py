"""Several devices at once: who measures what, that nobody waits for nothing, and that the winners are the same."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from subtune.backends import as_device
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import DevicesLost, SubtuneError
from subtune.core.measurement import Comparison, Failure, FailureKind, Measurement
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.measure.replay import ReplayMeasurer, ReplaySession
from subtune.tuning.crew import Crew
from subtune.tuning.search import Search, Single, tune
from tests.tuning.test_search import CANDIDATES, policy, scale, with_overlap

WORKLOADS = [scale(n) for n in range(8, 20)]
FAILS = Failure(FailureKind.CRASH, "crashed")


def table(workload: Workload) -> Mapping[Candidate, float | Failure]:
    """Made up, and the same for a workload whoever asks."""
    draw = random.Random(workload.key)
    times: dict[Candidate, float | Failure] = {c: round(draw.uniform(1.0, 9.0), 1) for c in CANDIDATES}
    times[draw.choice(CANDIDATES)] = FAILS
    return {DEFAULT: 6.0, **times}


class Session(ReplaySession):
    """Every measurement takes another while, and is written down with its site and its thread."""

    site = 0

    def move(self, site: int) -> None:
        self.site = site

    def _note(self, what: str, candidate: Candidate) -> None:
        measurer: Measurer = self._measurer  # type: ignore[assignment]
        with measurer.at(self.site):
            time.sleep(measurer.draw.uniform(0, 0.002))
        measurer.sites_of.setdefault(self._key, set()).add((self.site, threading.get_ident()))
        super()._note(what, candidate)


class Measurer(ReplayMeasurer):
    def __init__(self, sites: int, seed: int) -> None:
        super().__init__({DEFAULT: 1.0}, sites=sites)
        self.draw = random.Random(seed)
        self.sites_of: dict[str, set[tuple[int, int]]] = {}
        self._locks = [threading.Lock() for _ in range(sites)]
        self.is_interrupted = False

    @contextmanager
    def at(self, site: int) -> Iterator[None]:
        assert self._locks[site].acquire(blocking=False), "two measurements at once on one device"
        try:
            yield
        finally:
            self._locks[site].release()

    @contextmanager
    def session(self, workload: Workload, device: Device, deadline: float = math.inf) -> Iterator[Session]:
        yield Session(self, workload, table(workload))

    def interrupt(self) -> None:
        self.is_interrupted = True


class Failing(Measurer):
    """Checks of one workload raise an error."""

    def __init__(self, sites: int, error: Exception) -> None:
        super().__init__(sites, seed=0)
        self._error = error

    @contextmanager
    def session(self, workload: Workload, device: Device, deadline: float = math.inf) -> Iterator[Session]:
        session = Session(self, workload, table(workload))
        if workload.key == WORKLOADS[3].key:
            session.check = self.bad  # type: ignore[method-assign]
        yield session

    def bad(self, *_: object) -> Comparison | Failure:
        raise self._error


def tuned(path: Path, device: Device, measurer: Measurer) -> tuple[list[Record], list[list[Measurement]]]:
    """All that the database holds afterwards, but when."""
    search = Search(topk=8, candidates=policy)
    with Database(path) as database:
        records = tune([Single(one) for one in WORKLOADS], device, search, database=database, measurer=measurer)
        assert records.keys() == {one.key for one in WORKLOADS}
        assert all(record.complete for record in records.values())
        scope = as_device(device).scope()
        tried = [sorted(database.measurements(one.key, scope), key=str) for one in WORKLOADS]
        found = sorted(database.list_records(), key=lambda record: record.workload_key)
    return found, tried


@pytest.mark.parametrize("overlaps", [False, True])
def test_winners_are_the_same_on_any_number_of_devices(tmp_path, device, overlaps):
    device = with_overlap(device) if overlaps else device
    found = []
    for sites in (1, 2, 5, 5):
        measurer = Measurer(sites, seed=len(found))
        found.append(tuned(tmp_path / f"{len(found)}.db", device, measurer))
        places = list(measurer.sites_of.values())
        assert all(len(one) == 1 for one in places), "a workload stays where it began"
        assert len({site for one in places for site, _ in one}) == sites, "every device has some"
    assert sum(map(len, found[0][1])) > 5 * len(WORKLOADS)
    assert found[1:] == found[:1] * 3


class Unreliable(Measurer):
    """Some devices are lost after so many measurements: what ran on one is repeated on another, as sessions do."""

    def __init__(self, sites: int, seed: int, lost: Mapping[int, int], back: int = 10**9) -> None:
        super().__init__(sites, seed)
        self.lost, self.back = lost, back
        self.count = 0

    def is_there(self, site: int) -> bool:
        there = [one for one in range(self.sites) if not self.lost.get(one, 10**9) <= self.count < self.back]
        if not there:
            raise DevicesLost("no device is left")
        return site in there

    @contextmanager
    def at(self, site: int) -> Iterator[None]:
        with self.counting:
            self.count += 1
        while not self.is_there(site) or not self._locks[site].acquire(blocking=False):
            site = (site + 1) % self.sites
        try:
            yield
        finally:
            self._locks[site].release()

    counting = threading.Lock()


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_device_that_is_lost_changes_no_winner(tmp_path, device, overlaps):
    device = with_overlap(device) if overlaps else device
    found = [tuned(tmp_path / "whole.db", device, Measurer(1, seed=0))]
    for number, (lost, back) in enumerate([({1: 10}, 10**9), ({0: 5, 2: 30}, 10**9), ({0: 3, 1: 3}, 40)]):
        measurer = Unreliable(3, number, lost, back)
        found.append(tuned(tmp_path / f"{number}.db", device, measurer))
    assert found[1:] == found[:1] * 3


def test_where_no_device_is_left_the_run_ends_and_the_next_one_goes_on(tmp_path, device):
    whole = tuned(tmp_path / "whole.db", device, Measurer(1, seed=0))
    with pytest.raises(DevicesLost, match="no device is left"):
        tuned(tmp_path / "cut.db", device, Unreliable(2, 0, {0: 60, 1: 90}))
    assert tuned(tmp_path / "cut.db", device, Measurer(2, seed=1))[0] == whole[0]


def test_a_failure_of_one_device_ends_all(tmp_path, device):
    measurer = Failing(3, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        tune([Single(one) for one in WORKLOADS], device, Search(topk=8, candidates=policy), measurer=measurer)
    assert measurer.is_interrupted


def test_a_workload_without_a_default_is_a_note_on_any_device(device):
    records = tune(
        [Single(one) for one in WORKLOADS],
        device,
        Search(topk=8, candidates=policy),
        measurer=Failing(3, SubtuneError("it does not run")),
    )
    assert records.failures == {WORKLOADS[3].key: "it does not run"}
    assert len(records) == len(WORKLOADS) - 1


def test_ctrl_c_interrupts_what_other_threads_do(device):
    is_interrupted = threading.Event()

    def take(turn: Sequence[int], number: int) -> None:
        if number == 0:
            raise KeyboardInterrupt
        assert is_interrupted.wait(60)
        raise KeyboardInterrupt

    crew = Crew(3, lambda number: [1], lambda: True, take, is_interrupted.set)
    with pytest.raises(KeyboardInterrupt):
        crew.run()


def test_who_finds_nothing_waits_for_the_others():
    """What one device finishes may leave work for another."""
    waiting, done = ["first"], []
    begun = threading.Event()

    def next_turn(number: int) -> list[str]:
        return [waiting.pop()] if waiting else []

    def take(turn: Sequence[str], number: int) -> None:
        if turn == ["first"]:
            time.sleep(0.05)  # the other one finds nothing, and waits
            with crew.lock:
                waiting.extend(["second", "third"])
        done.extend(turn)
        begun.set()

    crew = Crew(2, next_turn, lambda: True, take, lambda: None)
    crew.run()
    assert sorted(done) == ["first", "second", "third"]
    assert begun.is_set()
