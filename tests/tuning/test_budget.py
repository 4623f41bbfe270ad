"""A short budget among workloads of which one has a plain schedule that runs for seconds."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest

from subtune.backends import as_device
from subtune.core.candidate import DEFAULT
from subtune.core.measurement import Comparison, Failure, FailureKind
from subtune.core.record import CALLS
from subtune.database import Database
from subtune.measure import ReplayMeasurer
from subtune.measure.replay import ReplaySession
from subtune.tuning.order import bound_s
from tests.tuning.test_search import CANDIDATES, WRONG, Clock, Subgraph, outcomes, scale, tune_all

SMALL, LARGE = scale(64), scale(1 << 26)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in ("tuning.search", "tuning.workload_search", "measure.halving", "measure.replay"):
        monkeypatch.setattr(f"subtune.{module}.time", made)
    return made


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "t.db") as opened:
        yield opened


class Slow(ReplayMeasurer):
    """The plain schedule of `LARGE` takes `call_s` seconds: once for the first inputs, and three times for the others.

    `late` are wrong on the others only.
    """

    def __init__(self, clock, times, plain_s, late=()):
        super().__init__(times)
        self.clock, self.plain_s, self.late = clock, plain_s, late

    def session(self, workload, device, deadline=math.inf):
        one = SlowSession if workload.key == LARGE.key else ReplaySession
        made = one(self, workload, self._outcomes)
        made.deadline = deadline
        return nullcontext(made)


class SlowSession(ReplaySession):
    sets = 0

    def _reaches(self, sets):
        clock = self._measurer.clock
        while self.sets < sets and clock.now_s + self._measurer.plain_s <= self.deadline:
            clock.sleep(self._measurer.plain_s)
            self.sets += 1
        if self.sets < sets:
            clock.now_s = max(clock.now_s, self.deadline)
            self.sets = 0  # the process was ended
        return self.sets >= sets

    def check(self, candidate, patience_s=math.inf):
        is_whole = self.sets == 4 or patience_s >= 3 * self._measurer.plain_s
        if not self._reaches(4 if is_whole else 1):
            return Failure(FailureKind.TIMEOUT, "did not finish")
        seen = super().check(candidate)
        if is_whole and candidate in self._measurer.late:
            return WRONG
        return replace(seen, is_partial=not is_whole) if isinstance(seen, Comparison) else seen


@pytest.fixture
def large_is_long(device, monkeypatch):
    """By its roofline, and the constant of the order: whatever the machine is."""
    monkeypatch.setattr("subtune.tuning.order._PLAIN", 5.0 / bound_s(LARGE, as_device(device)))


def test_what_may_take_more_than_its_share_comes_last(device, clock, large_is_long):
    measurer = Slow(clock, outcomes(*[2.0] * 8), plain_s=60.0)
    records = tune_all([Subgraph(LARGE, uses=100), Subgraph(SMALL)], device, measurer, budget_s=8.0)
    assert records[SMALL.key].candidate == CANDIDATES[0], "it had its turn first"
    assert LARGE.key not in records
    measurer = Slow(clock, outcomes(*[2.0] * 8), plain_s=0.0)
    tune_all([Subgraph(LARGE, uses=100), Subgraph(SMALL)], device, measurer, budget_s=80.0)
    assert measurer.workloads[0] == LARGE.key, "where its share is enough, what has most at stake is first"


def test_a_kernel_right_on_the_first_inputs_ships_when_there_is_no_time_for_others(device, clock, database):
    measurer = Slow(clock, outcomes(*[2.0] * 8), plain_s=3.0)
    records = tune_all([Subgraph(LARGE), Subgraph(SMALL)], device, measurer, database=database, budget_s=5.0)
    record = records[LARGE.key]
    assert (record.candidate, record.confirmed, record.complete) == (CANDIDATES[0], CALLS, False)
    assert database.lookup(LARGE, as_device(device).scope()).candidate == CANDIDATES[0]
    assert records[SMALL.key].complete, "what cannot be checked in the time left leaves it to the others"


def test_with_time_it_is_checked_on_all_inputs_and_tuned_to_the_end(device, clock):
    measurer = Slow(clock, outcomes(4.0, 2.0, *[9.0] * 6), plain_s=3.0)
    record = tune_all([Subgraph(LARGE)], device, measurer, budget_s=60.0)[LARGE.key]
    assert (record.candidate, record.complete) == (CANDIDATES[1], True)
    assert [c for what, c in measurer.log if what == "check"][:2] == [CANDIDATES[0]] * 2


def test_what_is_wrong_on_other_inputs_is_taken_back(device, clock, database):
    measurer = Slow(clock, outcomes(2.0, 2.5, *[9.0] * 6), plain_s=1.0, late=CANDIDATES[:1])
    records = tune_all([Subgraph(LARGE)], device, measurer, database=database, budget_s=60.0)
    assert records[LARGE.key].candidate == CANDIDATES[1]
    assert records.outcomes[LARGE.key][CANDIDATES[0]] == WRONG
    alone = outcomes(2.0, *[WRONG] * 7)
    measurer = Slow(clock, alone, plain_s=1.0, late=CANDIDATES[:1])
    records = tune_all([Subgraph(LARGE)], device, measurer, budget_s=60.0)
    assert records[LARGE.key].candidate == DEFAULT


def test_without_a_budget_all_inputs_are_compared_at_once(device, clock):
    measurer = Slow(clock, outcomes(*[2.0] * 8), plain_s=3.0)
    tune_all([Subgraph(LARGE)], device, measurer)
    assert [c for what, c in measurer.log if what == "check"].count(CANDIDATES[0]) == 1


def test_a_check_that_the_deadline_cut_off_is_no_failure(device, clock, database):
    """Kept as one, it would never be tried again: the default would ship once more."""
    measurer = Slow(clock, outcomes(*[2.0] * 8), plain_s=60.0)
    records = tune_all([Subgraph(LARGE)], device, measurer, database=database, budget_s=5.0)
    assert records == {}
    assert records.outcomes[LARGE.key] == {}
    assert database.outcomes(LARGE, as_device(device).scope()) == {}
    measurer = Slow(clock, outcomes(*[2.0] * 8), plain_s=0.1)
    records = tune_all([Subgraph(LARGE)], device, measurer, database=database, budget_s=5.0)
    assert records[LARGE.key].candidate == CANDIDATES[0]
