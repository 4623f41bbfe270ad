"""Kernels for all instances, checked and timed at one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from statistics import median

from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dispatch import Extents
from subtune.core.measurement import Failure, Timing
from subtune.dynamic.kernel import numbers_of
from subtune.measure.messages import Library
from subtune.measure.session import LocalSession

ANY = Candidate("default", (("dynamic", True),))
"""The default schedule among the candidates: in a session `DEFAULT` is what all are compared with."""
_TIME_S = 0.003
"""Of one timing of a kernel at an instance."""
_AGAIN = 2.0
"""Times the fastest kernel's seconds, up to which an instance's kernels are timed again: who was disturbed then, is not
now."""
_CLOSE, _MOST_CLOSE, _TURNS = 1.2, 6, 5
"""The same of those that are timed in turns instead, so many at most, so often: a processor's clock may change by a
tenth between the looks at two kernels, and would choose."""
_BEHIND = 1.05
"""Who was further behind in each of two turns is not the fastest."""
_LONG_S, _FEW_TURNS = 1e-3, 3
"""Of kernels that take longer, fewer turns: every look takes several calls."""
_DISTURBED, MOST_AGAIN = 1.15, 4
"""Times what a kernel took for a larger instance: it is timed again, as whoever shares the machine with it may take its
processor for longer than a look takes, a whole millisecond of every call; so many times at most."""


def timed(
    extents: Extents,
    session: LocalSession,
    libraries: Mapping[Candidate, Library],
    is_timed: bool,
    known: Collection[Candidate],
    above: Mapping[Candidate, float],
    in_haste: bool = False,
) -> dict[Candidate, float | Failure]:
    """Seconds of each library, or why there are none.

    Args:
        known: those that were checked at other instances: here on the first input set alone.
        above: what larger instances took.
        in_haste: one look at each is enough.
    """
    results: dict[Candidate, float | Failure] = {}
    by_layout = sorted(libraries.items(), key=lambda one: str(one[1].packings))  # which are made one after the other
    for candidate, library in by_layout:
        lent = named(candidate)
        numbers = numbers_of(extents, library.granules, library.knows_extents)
        past = numbers[0] * library.granules[0] - extents[0] if extents else 0
        session.lend(lent, replace(library, numbers=numbers, rows_past_end=past), candidate in known)
        checked = session.check(lent, 0.0 if candidate in known else math.inf)
        results[candidate] = checked if isinstance(checked, Failure) else checked.timing.min_s
    if is_timed:
        with session.silence():
            _time(results, session)
            if not in_haste:
                _time_again(results, session, above)
    return results


def _time(results: dict[Candidate, float | Failure], session: LocalSession) -> None:
    """Put in the place of seconds of single calls what a look at each says."""
    for candidate in [one for one, of in results.items() if not isinstance(of, Failure)]:
        look = session.time(named(candidate), _TIME_S, math.inf)
        results[candidate] = look.min_s if isinstance(look, Timing) else look


def _time_again(
    results: dict[Candidate, float | Failure], session: LocalSession, above: Mapping[Candidate, float]
) -> None:
    """Those that may be the fastest, and those that took longer than a larger instance of theirs."""
    first = _close(results)
    for candidate, before in _near(results, _AGAIN).items():
        if candidate not in first or len(first) == 1:
            results[candidate] = less(session, candidate, before)
    if len(close := _close(results)) > 1:
        results |= in_turns(close, lambda one: session.time(named(one), _TIME_S, math.inf))
    for candidate, larger in above.items():
        for _ in range(MOST_AGAIN):
            taken = results.get(candidate)
            if not isinstance(taken, float) or taken <= _DISTURBED * larger:
                break
            results[candidate] = less(session, candidate, taken)


def _near(results: Mapping[Candidate, float | Failure], times: float) -> dict[Candidate, float]:
    """Those that took at most so many times the seconds of the fastest."""
    seconds = {one: of for one, of in results.items() if not isinstance(of, Failure)}
    best = min(seconds.values(), default=0.0)
    return {one: of for one, of in seconds.items() if of <= times * best}


def _close(results: Mapping[Candidate, float | Failure]) -> dict[Candidate, float]:
    """Those that are timed in turns."""
    return dict(sorted(_near(results, _CLOSE).items(), key=lambda one: one[1])[:_MOST_CLOSE])


def in_turns(taken: Mapping[Candidate, float], time: Callable[[Candidate], Timing | Failure]) -> dict[Candidate, float]:
    """Seconds by several rounds, in each of which all are timed that may be the fastest: the median of what each took
    over the fastest of its round. That itself takes what it does now or, as others are not timed again, what the
    fastest had `taken` before. Of what cannot be timed the seconds before count."""
    shares: dict[Candidate, list[float]] = {one: [] for one in taken}
    fastest, left = [], list(taken)
    for _ in range(_TURNS if min(taken.values()) < _LONG_S else _FEW_TURNS):
        looks = {one: time(one) for one in left}
        seconds = {one: look.min_s if isinstance(look, Timing) else taken[one] for one, look in looks.items()}
        fastest.append(min(seconds.values()))
        for one, of in seconds.items():
            shares[one].append(of / fastest[-1])
        timed_twice = [one for one, look in looks.items() if isinstance(look, Timing) and len(shares[one]) > 1]
        left = [one for one in left if one not in timed_twice or min(shares[one]) <= _BEHIND]
    level = min(median(fastest), *taken.values())
    return {one: level * median(of) for one, of in shares.items()}


def less(session: LocalSession, candidate: Candidate, taken_s: float) -> float:
    """Seconds by another look, if they are less than those taken so far."""
    again = session.time(named(candidate), _TIME_S, math.inf)
    return min(taken_s, again.min_s) if isinstance(again, Timing) else taken_s


def named(candidate: Candidate) -> Candidate:
    return ANY if candidate == DEFAULT else candidate
