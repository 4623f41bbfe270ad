"""Reference outputs that take long are left for later: a candidate is then checked on some of the inputs first."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from subtune.backends import as_device
from subtune.backends.cpu.timing.bench import Bench
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Comparison, Failure, FailureKind, Timing
from subtune.measure import build as building
from subtune.measure import in_turn
from subtune.measure.in_turn import InTurn
from subtune.measure.messages import BuildJob, CheckJob, CompareJob, Prepared, PrepareJob, TimeJob, Unprepared
from subtune.measure.session import LocalSession, Settings
from subtune.measure.site import Site

TIMING = Timing(1.0, 1.0, 0.0, 3)


class TestInTurn:
    @pytest.fixture
    def made(self, monkeypatch):
        """Four sets that take a second each, and what makes as many as patience reaches for."""
        clock = SimpleNamespace(now_s=0.0)
        monkeypatch.setattr(in_turn, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))

        def make(index):
            clock.now_s += 1.0
            return index

        sets = InTurn(4)
        return sets, lambda patience_s: sets.proceed(make, patience_s)

    def test_the_first_is_made_whatever_it_takes(self, made):
        sets, proceed = made
        proceed(0.0)
        assert (list(sets.made), sets.is_whole) == ([0], False)

    def test_so_many_more_are_made_as_patience_reaches_for(self, made):
        sets, proceed = made
        proceed(2.9)
        assert (list(sets.made), sets.is_whole) == ([0, 1, 2], False)
        proceed(0.9)
        assert list(sets.made) == [0, 1, 2]
        proceed(1.0)
        assert (list(sets.made), sets.is_whole) == ([0, 1, 2, 3], True)

    def test_a_slow_start_is_not_taken_for_all(self, monkeypatch):
        clock = SimpleNamespace(now_s=0.0)
        monkeypatch.setattr(in_turn, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))

        def make(index):
            clock.now_s += 0.01 if index else 0.4

        sets = InTurn(4)
        sets.proceed(make, 0.5)
        assert sets.is_whole

    def test_nothing_is_made_twice(self, made):
        sets, proceed = made
        for _ in range(3):
            proceed(math.inf)
        assert list(sets.made) == [0, 1, 2, 3]


def test_what_is_wrong_on_later_inputs_is_found_when_their_outputs_are_there(doubles, device, tmp_path):
    workload = doubles.workload()

    def library(candidate):
        stem = str(tmp_path / candidate.family)
        return building.handle(BuildJob(workload.to_json(), 1, as_device(device), candidate, "doubles:schedule", stem))

    bench = Bench(workload, device, library(DEFAULT), patience_s=0.0)
    swallows, vector = (CheckJob(library(Candidate(name))) for name in ("swallows", "vector"))
    assert not bench.is_whole
    for job in (swallows, vector):
        assert isinstance(bench.check(job), Comparison), "only infinities tell them apart"
    bench.prepare(math.inf)
    assert bench.is_whole
    assert isinstance(bench.check(vector), Comparison)
    outcome = bench.check(swallows)
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.WRONG_RESULT


class Runner:
    """Answers at once; what it prepares is whole where patience has no end."""

    site = Site()

    def __init__(self):
        self.jobs, self.prepared = [], False

    def call(self, job, limit_s):
        self.jobs.append(job)
        if isinstance(job, PrepareJob):
            self.prepared = True
            return Prepared(2.0, job.patience_s == math.inf)
        if not self.prepared:
            return Unprepared()
        return TIMING if isinstance(job, TimeJob) else Comparison(TIMING, TIMING, 1.0, 0.0)

    def took(self):
        """What was asked for since the last time: patience, or the kind of job."""
        said = [job.patience_s if isinstance(job, PrepareJob) else type(job) for job in self.jobs]
        self.jobs.clear()
        return said


@pytest.fixture
def runner():
    return Runner()


@pytest.fixture
def session(runner, doubles, device, tmp_path):
    whole = as_device(device)

    class Overlapping(type(whole.backend)):
        measuring = replace(whole.backend.measuring, overlaps=True, reference=None)

    builders = SimpleNamespace(submit=lambda builds: None, wait=lambda *args: None)
    settings = Settings("doubles:schedule", 30.0, 5.0, 0, "rotating")
    device = replace(whole, backend=Overlapping())
    made = LocalSession(doubles.workload(), device, builders, [runner], settings, tmp_path, math.inf)
    made.prefetch([DEFAULT, *(Candidate(name) for name in ("vector", "packed"))])
    for build in made._builds.values():
        build.outcome = building.handle(build.job)
    return made


def test_a_session_asks_for_the_rest_before_a_check_of_all(session, runner):
    first = session.check(Candidate("vector"), 0.5)
    assert first.is_partial
    assert runner.took() == [CheckJob, 0.5, CheckJob]
    assert session.check(Candidate("packed"), 0.5).is_partial
    assert runner.took() == [CheckJob], "it has patience for no more"
    assert not session.check(Candidate("vector")).is_partial
    assert runner.took() == [math.inf, CheckJob]


def test_what_was_checked_in_part_is_checked_before_it_is_timed(session, runner):
    session.check(Candidate("vector"), 0.5)
    runner.took()
    session.time(Candidate("vector"), 0.1, math.inf)
    assert [job.checked for job in runner.jobs if isinstance(job, TimeJob)] == [False]
    assert runner.took() == [math.inf, TimeJob]
    session.time(Candidate("vector"), 0.1, math.inf)
    assert [job.checked for job in runner.jobs] == [True]


def test_a_new_process_makes_no_more_than_what_is_needed(session, runner):
    session.check(Candidate("vector"))
    runner.took()
    runner.prepared = False  # the process was replaced
    session.compare(Candidate("vector"), 0.1)
    assert runner.took() == [CompareJob, 0.0, CompareJob]
