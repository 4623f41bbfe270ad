"""Successive halving finds the fastest, costs little, and breaks ties the same way every time."""

from __future__ import annotations

import math
import time

import pytest

from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.measure import ReplayMeasurer, halve
from subtune.measure.clock import calls_per_sample, summarise, time_calls, time_pairs

TWENTY = [Candidate.make("t", i=i) for i in range(20)]


def run(outcomes, candidates=TWENTY, deadline=math.inf, looks=None):
    measurer = ReplayMeasurer({DEFAULT: 1.0, **outcomes})
    seconds = []
    reported = []
    with measurer.session(None, None) as session:
        plain = session.time

        def time_it(candidate, share_s, stop_above_s):
            seconds.append(share_s)
            return plain(candidate, share_s, stop_above_s)

        session.time = time_it
        order = halve(session, candidates, deadline, lambda c, o: reported.append((c, o)), looks or {}, full_s=1.0)
    return order, seconds, reported


def test_the_fastest_comes_first_at_the_cost_of_six_full_measurements():
    outcomes = {c: 1.0 + ((7 * i) % 20) / 10 for i, c in enumerate(TWENTY)}
    order, seconds, _ = run(outcomes)
    assert outcomes[order[0]] == min(outcomes.values())
    assert sorted(order, key=lambda c: c.knobs) == TWENTY  # all that were timed, so that all are recorded
    assert sum(seconds) <= 6.0


def test_whoever_was_looked_at_is_not_looked_at_again_in_the_first_round():
    outcomes = {c: 1.0 + ((7 * i) % 20) / 10 for i, c in enumerate(TWENTY)}
    looks = {c: Timing(outcomes[c], outcomes[c], 0.0, 3) for c in TWENTY[:8]}
    order, seconds, _ = run(outcomes, looks=looks)
    assert order == run(outcomes)[0]
    assert seconds.count(min(seconds)) == 12


def test_failures_are_reported_and_left_out():
    wrong = Failure(FailureKind.WRONG_RESULT, "no")
    outcomes = {c: wrong if i % 2 else 1.0 + i for i, c in enumerate(TWENTY)}
    order, _, reported = run(outcomes)
    assert order[0] == TWENTY[0]
    assert not set(order) & set(TWENTY[1::2])
    assert [c for c, o in reported if o == wrong] == TWENTY[1::2]


def test_nothing_timed_gives_an_empty_order():
    assert run({c: Failure(FailureKind.CRASH, "x") for c in TWENTY})[0] == []
    assert run({}, candidates=[])[0] == []


def test_ties_within_noise_go_to_the_earlier_candidate():
    outcomes = {c: 1.0 - i * 1e-4 for i, c in enumerate(TWENTY)}  # the last is fastest by 0.2 %
    assert run(outcomes)[0][0] == TWENTY[0]
    outcomes[TWENTY[12]] = 0.9
    assert run(outcomes)[0][0] == TWENTY[12]


def test_no_look_begins_after_the_deadline():
    order, seconds, _ = run(dict.fromkeys(TWENTY, 1.0), deadline=time.monotonic() - 1)
    assert order == []
    assert seconds == []


def test_the_replay_table_needs_the_default():
    with pytest.raises(ValueError, match="default"):
        ReplayMeasurer({TWENTY[0]: 1.0})


def taking(seconds, calls):
    """A sampler by which each call takes what `seconds` says of it; `calls` notes them."""

    def sample(call, count):
        calls.extend([call] * count)
        return seconds[call]

    return sample


def test_samples_are_batches_long_enough_to_be_read():
    assert calls_per_sample(1e-6) == 300
    assert calls_per_sample(1.0) == 1
    calls = []
    timing = time_calls("short", 0.0, sample=taking({"short": 1e-6}, calls))
    assert timing == Timing(1e-6, 1e-6, 0.0, 3)
    assert len(calls) == 1 + 3 * 300


def test_the_clock_is_read_around_the_calls():
    calls = []
    timing = time_calls(lambda: calls.append(time.sleep(0.002)), 0.0)
    assert timing.min_s >= 0.002
    assert len(calls) == 1 + timing.samples


def test_a_slow_call_is_given_up_after_three():
    calls = []
    timing = time_calls("slow", math.inf, 0.001, taking({"slow": 0.002}, calls))
    assert timing.samples == len(calls) == 3


def test_a_short_call_by_itself_is_no_reason_to_give_up():
    calls = []
    timing = time_calls("short", math.inf, 0.0, taking({"short": 1e-6}, calls))
    assert timing.samples == 3
    assert len(calls) == 1 + 2 * 16


def test_pairs_are_interleaved_and_the_ratio_is_second_over_first():
    calls = []
    first, second, gain, noise = time_pairs("a", "b", 0.0, taking({"a": 0.001, "b": 0.005}, calls))
    assert (first.median_s, second.median_s) == (0.001, 0.005)
    assert gain == pytest.approx(5.0)
    assert noise == pytest.approx(0.0, abs=1e-9)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"


def test_the_median_ignores_a_disturbed_sample():
    timing = summarise([1.0, 1.0, 1.01, 0.99, 50.0])
    assert timing.median_s == 1.0
    assert timing.min_s == 0.99
    assert timing.spread < 0.02
