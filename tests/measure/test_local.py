"""Good candidates get a time, every kind of bad one its own reason, and none harms the next."""

from __future__ import annotations

import math
import time

import pytest

from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.measure import Built, Comparison, LocalMeasurer
from tests.measure.patient import PatientMeasurer

GOOD = [Candidate("vector"), Candidate("packed"), Candidate("slow")]


@pytest.fixture(scope="module")
def session(measurer, doubles, device):
    with measurer.session(doubles.workload(), device) as opened:
        yield opened


def built(session, *candidates):
    outcomes = session.build(candidates, math.inf)
    assert list(outcomes) == list(candidates)
    return outcomes


def test_builds_report_their_seconds_and_the_hash_of_the_scheduled_function(session, doubles):
    from subtune.core.record import func_hash

    outcomes = built(session, *GOOD)
    for candidate in GOOD:
        outcome = outcomes[candidate]
        assert isinstance(outcome, Built)
        assert outcome.build_s > 0
        assert outcome.func_hash == func_hash(doubles.KERNELS[candidate.family])


def test_good_candidates_are_checked_and_timed(session):
    built(session, *GOOD)
    for candidate in GOOD:
        timing = session.time(candidate, 0.01, math.inf)
        assert isinstance(timing, Timing)
        assert 0 < timing.min_s <= timing.median_s
        assert timing.samples >= 3
    slow = session.time(Candidate("slow"), 0.01, math.inf)
    assert slow.min_s >= 0.1  # it sleeps that long


def test_a_hopeless_candidate_is_given_up_early(session):
    built(session, Candidate("slow"))
    timing = session.time(Candidate("slow"), 100.0, 0.0005)
    assert isinstance(timing, Timing)
    assert timing.samples == 3


def test_comparison_with_the_default_is_on_the_same_scale(session):
    built(session, Candidate("vector"), Candidate("slow"))
    faster = session.compare(Candidate("vector"), 0.02)
    slower = session.compare(Candidate("slow"), 0.02)
    assert isinstance(faster, Comparison)
    assert isinstance(slower, Comparison)
    assert slower.gain < 1 < faster.gain  # the default sleeps 0.3 ms, `slow` 100 ms, `vector` not at all
    assert faster.default_timing.min_s >= 0.0003


@pytest.mark.parametrize(
    ("template", "kind", "words"),
    [
        ("inapplicable", FailureKind.INVALID, "no reason at all"),
        ("raises", FailureKind.INVALID, "a template with a bug"),
        ("imports torch", FailureKind.INVALID, "import of torch halted"),  # loading it would take seconds
        ("counts garbage", FailureKind.INVALID, "collecting: True, TVM left alone: True"),
        ("malformed", FailureKind.BUILD, "Error"),
        ("hoards", FailureKind.MEMORY, "out of memory"),
    ],
)
def test_candidates_that_cannot_be_built(session, template, kind, words):
    outcomes = built(session, Candidate(template), Candidate("vector"))
    failure = outcomes[Candidate(template)]
    assert isinstance(failure, Failure)
    assert failure.kind == kind
    assert words in failure.message
    assert isinstance(outcomes[Candidate("vector")], Built)


@pytest.mark.parametrize(
    ("template", "kind", "words"),
    [
        ("segfault", FailureKind.CRASH, "SIGSEGV"),
        ("abort", FailureKind.CRASH, "SIGABRT"),
        ("hang", FailureKind.TIMEOUT, "did not finish within"),
        ("huge", FailureKind.MEMORY, "memory"),
        ("nan", FailureKind.WRONG_RESULT, "[17]"),
        ("swallows", FailureKind.WRONG_RESULT, "on special inputs"),
        ("beyond", FailureKind.WRONG_RESULT, "out of bounds of C, 0 bytes behind its end"),
        ("before", FailureKind.WRONG_RESULT, "out of bounds of C, 64 bytes before its start"),
        ("unwritten", FailureKind.WRONG_RESULT, "[999]"),
        ("scribbler", FailureKind.WRONG_RESULT, "changed its input A"),
        ("undefined", FailureKind.LAUNCH, "there_is_no_such_function"),
    ],
)
def test_candidates_that_build_and_then_misbehave(session, template, kind, words):
    candidate, good = Candidate(template), Candidate("vector")
    built(session, candidate, good)
    failure = session.time(candidate, 0.01, math.inf)
    assert isinstance(failure, Failure)
    assert failure.kind == kind
    assert words in failure.message
    assert isinstance(session.time(good, 0.001, math.inf), Timing)


def test_a_build_that_hangs_is_ended_and_its_worker_replaced(doubles, device):
    with (
        PatientMeasurer(builders=1, schedule="doubles:schedule", search_path=[doubles.DIRECTORY]) as measurer,
        measurer.session(doubles.workload(), device) as session,
    ):
        outcomes = session.build([DEFAULT, Candidate("sleeps"), Candidate("vector")], math.inf)
    assert outcomes[Candidate("sleeps")].kind == FailureKind.TIMEOUT
    assert isinstance(outcomes[Candidate("vector")], Built)


def test_nothing_begins_after_the_deadline_and_what_runs_then_is_cut_off(doubles, device):
    """Without deadlines, what hangs here would do so for an hour."""
    hang, vector = Candidate("hang"), Candidate("vector")
    with LocalMeasurer(
        builders=1,
        schedule="doubles:schedule",
        search_path=[doubles.DIRECTORY],
        build_limit_s=3600,
        run_limit_s=3600,
    ) as measurer:
        with measurer.session(doubles.workload(), device) as session:
            assert session.build([vector], time.monotonic() - 1) == {}
        with measurer.session(doubles.workload(), device, time.monotonic() + 0.5) as session:
            assert session.build([Candidate("sleeps")], math.inf) == {}
        with measurer.session(doubles.workload(), device) as session:
            assert isinstance(session.build([DEFAULT, hang, vector], math.inf)[vector], Built)
            assert isinstance(session.time(vector, 0.001, math.inf), Timing)
            session.deadline = time.monotonic() + 0.5
            assert session.time(hang, 0.001, math.inf).kind == FailureKind.TIMEOUT


def test_while_the_machine_stands_still_no_job_runs_out_of_its_time(doubles, device, monkeypatch):
    """A clock that leaps ahead is what a process sees that was frozen, together with its workers."""

    class Leaping:
        leaps = 0

        def monotonic(self):
            self.leaps += 1
            return time.monotonic() + 1000.0 * self.leaps

    with PatientMeasurer(builders=1, schedule="doubles:schedule", search_path=[doubles.DIRECTORY]) as measurer:
        monkeypatch.setattr("subtune.measure.process.time", Leaping())
        with measurer.session(doubles.workload(), device) as session:
            assert isinstance(session.build([Candidate("vector")], math.inf)[Candidate("vector")], Built)
            assert isinstance(session.time(Candidate("vector"), 0.001, math.inf), Timing)


def test_without_a_linker_the_runner_compiles_the_module_itself(doubles, device, monkeypatch, tmp_path):
    from subtune.backends import as_device
    from subtune.backends.cpu.timing.bench import Bench
    from subtune.backends.host import kernel_library as linking
    from subtune.measure import build as building
    from subtune.measure.messages import BuildJob, Library

    monkeypatch.setattr(linking, "linker", tuple)
    workload = doubles.workload()

    def library(candidate):
        stem = str(tmp_path / candidate.family)
        job = BuildJob(workload.to_json(), 1, as_device(device), candidate, "doubles:schedule", stem)
        return building.handle(job)

    default = library(DEFAULT)
    assert isinstance(default, Library)
    assert default.path.endswith(".ll")
    from subtune.measure.messages import TimeJob

    outcome = Bench(workload, device, default).time(TimeJob(library(Candidate("packed")), 0.001, math.inf, False))
    assert isinstance(outcome, Timing)
