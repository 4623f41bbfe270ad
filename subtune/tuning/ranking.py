"""Two units, an op alone and its subgraph, and how they order the same candidates: Kendall's tau.

What a search saw follows one another, is rough, and is of other candidates on either side. So the fastest of either
search are built for both units and timed in turns. Noise alone turns neighbours round: the same measurement is
therefore compared with itself, odd rounds with even ones, which says how near to 1 a tau can come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Built, Failure, Timing
from subtune.core.workload import Workload
from subtune.measure import Measurer, Session

ENOUGH = 4
"""With fewer candidates there are too few pairs to speak of an order: three have three."""
_FASTEST = 8
_ROUNDS = 6
_ROUND_S = 0.02
_LEAST_ROUNDS = 2

Outcomes = Mapping[Candidate, Timing | Failure]
_Samples = dict[Candidate, tuple[list[float], list[float]]]


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate on both units: seconds, medians over rounds in turns."""

    candidate: str
    op_s: float
    subgraph_s: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """How alike an op alone and its subgraph order the same candidates.

    `tau` is Kendall's tau-b over `points`, None where there are fewer than `ENOUGH` of them, or all are equal: `why`
    says so. `repeated_tau` is that of a unit's odd rounds and its even ones, the lower one of the two units. `searched`
    candidates were timed in both searches; `searched_tau` is the tau of those rougher times.
    """

    points: tuple[Point, ...] = ()
    tau: float | None = None
    repeated_tau: float | None = None
    searched: int = 0
    searched_tau: float | None = None
    why: str = ""


NOT_RANKED = Ranking(why="it was not asked for")


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of paired values: 1 for the same order, -1 for the reverse one, about 0 for unrelated ones.

    None where either has no two values that differ. Source: Kendall, "The Treatment of Ties in Ranking Problems",
    Biometrika 33(3), 1945.

    >>> kendall_tau([1, 2, 3, 4], [10, 20, 40, 30])
    0.6666666666666666
    """
    one, other = np.asarray(first, float), np.asarray(second, float)
    i, j = np.triu_indices(len(one), 1)
    x, y = np.sign(one[i] - one[j]), np.sign(other[i] - other[j])
    size = math.sqrt(np.count_nonzero(x) * np.count_nonzero(y))
    return float((x * y).sum()) / size if size else None


def searched_alike(op: Outcomes, own: Outcomes) -> tuple[int, float | None]:
    """How many candidates were timed in both searches, and the tau of their times, None for fewer than `ENOUGH`."""
    found = (_timed(op), _timed(own))
    both = [candidate for candidate in found[0] if candidate in found[1]]
    tau = kendall_tau(*([of[candidate] for candidate in both] for of in found)) if len(both) >= ENOUGH else None
    return len(both), tau


def common_candidates(winners: Sequence[Candidate], searches: Sequence[Outcomes]) -> tuple[Candidate, ...]:
    """The winners, and the fastest few of either search, however they did in the other."""
    fastest: list[Candidate] = []
    for seconds in map(_timed, searches):
        fastest += sorted(seconds, key=lambda candidate: seconds[candidate])[:_FASTEST]
    return tuple(dict.fromkeys([*winners, *fastest]))


def measured(
    units: tuple[Workload, Workload],
    candidates: Collection[Candidate],
    device: Device,
    measurer: Measurer,
    deadline: float = math.inf,
) -> Ranking:
    """`candidates` on the op alone and on the subgraph, in turns; those that fail on one of them are left out.

    Args:
        deadline: a value of `time.monotonic()` after which no round begins.
    """
    try:
        with ExitStack() as stack:
            sessions = [stack.enter_context(measurer.session(unit, device)) for unit in units]
            wanted = list(dict.fromkeys([DEFAULT, *candidates]))
            built = [session.build(wanted, deadline) for session in sessions]
            common = [c for c in candidates if all(isinstance(of.get(c), Built) for of in built)]
            if len(common) < ENOUGH:
                return Ranking(why=_too_few(len(common), len(candidates), deadline))
            samples = _in_turns(sessions, common, deadline)
    except SubtuneError as e:
        return Ranking(why=str(e))
    if len(samples) < ENOUGH:
        return Ranking(why=_too_few(len(samples), len(candidates), deadline))
    return ranking_of(samples)


def ranking_of(samples: _Samples) -> Ranking:
    """What the rounds say: seconds of each candidate on the op alone, and on the subgraph."""
    points = tuple(Point(str(c), *map(median, of)) for c, of in samples.items())
    tau = kendall_tau([point.op_s for point in points], [point.subgraph_s for point in points])
    halves = [
        kendall_tau(*([median(of[unit][half::2]) for of in samples.values()] for half in (0, 1))) for unit in (0, 1)
    ]
    known = [one for one in halves if one is not None]
    return Ranking(points, tau, min(known, default=None), why="" if tau is not None else "all take the same time")


def _in_turns(sessions: Sequence[Session], candidates: Sequence[Candidate], deadline: float) -> _Samples:
    """Every candidate on every unit, then all again. Nothing where time is up after less than two rounds."""
    samples: _Samples = {candidate: ([], []) for candidate in candidates}
    for done in range(_ROUNDS):
        if time.monotonic() >= deadline:
            return samples if done >= _LEAST_ROUNDS else {}
        for candidate in list(samples):
            outcomes = [session.time(candidate, _ROUND_S, math.inf) for session in sessions]
            if any(isinstance(outcome, Failure) for outcome in outcomes):
                del samples[candidate]
                continue
            for of, outcome in zip(samples[candidate], outcomes, strict=True):
                assert isinstance(outcome, Timing)
                of.append(outcome.median_s)
    return samples


def _timed(outcomes: Outcomes) -> dict[Candidate, float]:
    return {candidate: one.min_s for candidate, one in outcomes.items() if isinstance(one, Timing)}


def _too_few(count: int, of: int, deadline: float) -> str:
    if time.monotonic() >= deadline:
        return "the time was up before its candidates were timed"
    return f"{count} of {of} candidates run on both the op and the subgraph: fewer than {ENOUGH} have no order"
