"""Of the fastest by their looks, the first is whoever wins in turns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from subtune.core.candidate import Candidate
from subtune.core.measurement import Comparison, Failure, FailureKind, Timing
from subtune.measure import ReplayMeasurer
from subtune.measure.replay import ReplaySession
from subtune.tuning.duels import duelled

A, B, C, D, E = (Candidate(name) for name in "abcde")
WRONG = Failure(FailureKind.WRONG_RESULT, "in a later run")


def order_of(true: dict[Candidate, Any], looks: dict[Candidate, float], **options: Any) -> tuple[list[str], list[str]]:
    """The order of names, and the names of those that failed, given what they take and what they seemed to take."""
    table = {Candidate("default"): 9.0, **true}
    session = ReplaySession(ReplayMeasurer(table), None, table, options.pop("spread", 0.0))
    outcomes = {candidate: Timing(seconds, seconds, 0.0, 9) for candidate, seconds in looks.items()}
    failed: list[str] = []
    found = duelled(
        session, list(looks), outcomes, lambda one, _: failed.append(one.family), options.pop("deadline", math.inf)
    )
    return [one.family for one in found], failed


def test_who_was_unlucky_wins_all_the_same() -> None:
    looks = {A: 1.0, B: 1.1, C: 1.2}
    assert order_of({A: 1.0, B: 0.9, C: 0.95}, looks) == (["b", "a", "c"], [])
    assert order_of({A: 1.0, B: 0.9, C: 0.8}, looks) == (["c", "a", "b"], [])
    assert order_of({A: 1.0, B: 1.1, C: 1.2}, looks) == (["a", "b", "c"], [])


def test_what_is_no_clear_win_is_none() -> None:
    assert order_of({A: 1.0, B: 0.995}, {A: 1.0, B: 1.1})[0] == ["a", "b"]
    assert order_of({A: 1.0, B: 0.9}, {A: 1.0, B: 1.1}, spread=0.2)[0] == ["a", "b"]


def test_three_that_were_near_are_asked() -> None:
    looks = {A: 1.0, B: 1.01, C: 1.02, D: 1.03, E: 1.04}
    assert order_of({A: 1.0, B: 1.1, C: 1.1, D: 1.1, E: 0.1}, looks)[0][0] == "a"
    assert order_of({A: 1.0, B: 0.1}, {A: 1.0, B: 1.4})[0] == ["a", "b"]


def test_who_fails_is_left_out() -> None:
    assert order_of({A: 1.0, B: WRONG, C: 0.9}, {A: 1.0, B: 1.1, C: 1.2}) == (["c", "a"], ["b"])


def test_nothing_begins_after_the_deadline() -> None:
    assert order_of({A: 1.0, B: 0.1}, {A: 1.0, B: 1.1}, deadline=0.0)[0] == ["a", "b"]
    assert order_of({}, {}) == ([], [])


@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_the_comparison_is_with_the_other(gain: float) -> None:
    table = {Candidate("default"): 9.0, A: 1.0, B: 1.0 / gain}
    seen = ReplaySession(ReplayMeasurer(table), None, table).compare(B, 0.1, A)
    assert isinstance(seen, Comparison)
    assert (seen.gain, seen.default_timing) == (gain, replace(seen.default_timing, min_s=1.0))
