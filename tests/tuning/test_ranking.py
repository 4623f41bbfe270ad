"""Rankings of the same candidates on two units: Kendall's tau, what is ranked, and what is left out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from subtune.backends import as_device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.core.workload import Workload
from subtune.measure import ReplayMeasurer
from subtune.measure.replay import ReplaySession
from subtune.tuning.ranking import common_candidates, kendall_tau, measured, ranking_of, searched_alike
from tests.tuning.test_search import scale

CANDIDATES = tuple(Candidate.make("t", i=i) for i in range(12))
WRONG = Failure(FailureKind.WRONG_RESULT, "wrong")
INVALID = Failure(FailureKind.INVALID, "does not apply")
OP, OWN = scale(64), scale(65)


@pytest.mark.parametrize(("first", "second", "tau"), [
    ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
    ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
    ([1, 2, 3, 4], [1, 2, 4, 3], 4 / 6),
    ([3, 1, 2], [1, 3, 2], -1.0),
    ([1, 2, 3, 4], [2, 1, 4, 3], 2 / 6),
    # ties: the example of SciPy's `kendalltau`
    ([12, 2, 1, 12, 2], [1, 4, 7, 1, 0], -0.47140452079103173),
    ([1, 1, 2, 2], [5, 5, 7, 7], 1.0),
])  # fmt: skip
def test_tau_of_known_rankings(first: list[float], second: list[float], tau: float) -> None:
    assert kendall_tau(first, second) == pytest.approx(tau)
    assert kendall_tau(second, first) == pytest.approx(tau)


@pytest.mark.parametrize(("first", "second"), [([], []), ([1.0], [2.0]), ([1, 1, 1], [1, 2, 3])])
def test_what_has_no_order_has_no_tau(first: list[float], second: list[float]) -> None:
    assert kendall_tau(first, second) is None


def timings(*seconds: float) -> dict[Candidate, Timing | Failure]:
    return {c: Timing(2 * s, s, 0.0, 5) for c, s in zip(CANDIDATES, seconds, strict=False)}


def test_what_both_searches_timed() -> None:
    op, own = timings(1, 2, 3, 4, 5), timings(1, 2, 4, 3)
    assert searched_alike(op, own) == (4, pytest.approx(4 / 6))
    op[CANDIDATES[0]] = WRONG
    assert searched_alike(op, own) == (3, None)


def test_the_winners_and_the_fastest_of_either_are_ranked() -> None:
    op, own = timings(*range(12, 0, -1)), timings(*range(1, 13))
    own[CANDIDATES[1]] = WRONG
    found = common_candidates([DEFAULT, CANDIDATES[3]], [op, own])
    assert found[:2] == (DEFAULT, CANDIDATES[3])
    assert set(found) == {DEFAULT, *CANDIDATES} - {CANDIDATES[1]}, "of twelve the fastest eight of either"
    assert len(found) == 12, "each once"
    assert CANDIDATES[1] not in common_candidates([], [timings(*range(12)[:1]), own])


class ByWorkload(ReplayMeasurer):
    """Another table for each workload; of those that have none the default is all there is."""

    def __init__(self, tables: Mapping[str, Mapping[Candidate, float | Failure]]) -> None:
        super().__init__({DEFAULT: 1.0})
        self._tables = {key: {DEFAULT: 9.0, **table} for key, table in tables.items()}

    @contextmanager
    def session(self, workload: Workload, device: Any, deadline: float = 0.0) -> Iterator[ReplaySession]:
        yield ReplaySession(self, workload, self._tables.get(workload.key, {DEFAULT: 9.0}))


def rank(op: Mapping[Candidate, float | Failure], own: Mapping[Candidate, float | Failure], **options: Any) -> Any:
    measurer = ByWorkload({OP.key: op, OWN.key: own})
    ranking = measured((OP, OWN), CANDIDATES[:6], as_device(options.pop("device")), measurer, **options)
    return ranking, measurer


def table(*seconds: float | Failure) -> dict[Candidate, float | Failure]:
    return dict(zip(CANDIDATES, seconds, strict=False))


def test_both_units_are_timed_in_turns(device: Any) -> None:
    ranking, measurer = rank(table(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), table(6.0, 5.0, 4.0, 3.0, 2.0, 1.0), device=device)
    assert ranking.tau == -1.0
    assert ranking.repeated_tau == 1.0
    assert ranking.why == ""
    assert [(p.candidate, p.op_s, p.subgraph_s) for p in ranking.points][:2] == [
        (str(CANDIDATES[0]), 1.0, 6.0), (str(CANDIDATES[1]), 2.0, 5.0),
    ]  # fmt: skip
    timed = [key for (what, _), key in zip(measurer.log, measurer.workloads, strict=True) if what == "time"]
    assert timed[:4] == [OP.key, OWN.key, OP.key, OWN.key]


def test_what_fails_on_one_unit_is_left_out(device: Any) -> None:
    ranking, _ = rank(table(1.0, 2.0, 3.0, 4.0, 5.0, WRONG), table(1.0, 2.0, 3.0, INVALID, 5.0, 6.0), device=device)
    assert [point.op_s for point in ranking.points] == [1.0, 2.0, 3.0, 5.0]
    assert ranking.tau == 1.0


@pytest.mark.parametrize("failure", [WRONG, INVALID])
def test_too_few_have_no_tau_and_it_says_so(device: Any, failure: Failure) -> None:
    own = table(1.0, 2.0, failure, failure, 5.0, failure)
    ranking, _ = rank(table(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), own, device=device)
    assert ranking.tau is None
    assert ranking.points == ()
    assert ranking.why.startswith("3 of 6 candidates run on both the op and the subgraph")


def test_all_alike_have_no_tau_and_it_says_so(device: Any) -> None:
    ranking, _ = rank(table(*[1.0] * 6), table(*[2.0] * 6), device=device)
    assert (ranking.tau, ranking.repeated_tau, ranking.why) == (None, None, "all take the same time")


def test_after_the_deadline_nothing_is_ranked(device: Any) -> None:
    same = table(*map(float, range(1, 7)))
    ranking, measurer = rank(same, same, device=device, deadline=time.monotonic())
    assert ranking.why == "the time was up before its candidates were timed"
    assert [what for what, _ in measurer.log] == []


def test_a_default_that_fails_is_a_reason(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise SubtuneError("the default schedule does not run")

    monkeypatch.setattr(ReplaySession, "time", fails)
    same = table(*map(float, range(1, 7)))
    assert rank(same, same, device=device)[0].why == "the default schedule does not run"


def test_noise_shows_in_the_repetition() -> None:
    """The medians are in the same order; odd rounds and even ones of the op are not."""
    odd, even = (1.0, 2.0, 3.0, 4.0), (4.0, 3.0, 2.0, 1.0)
    samples = {
        c: ([a, b, a, b, a], [float(i)] * 5) for i, (c, a, b) in enumerate(zip(CANDIDATES, odd, even, strict=False))
    }
    ranking = ranking_of(samples)
    assert ranking.tau == 1.0
    assert ranking.repeated_tau == -1.0
