"""Successive halving: short looks at all candidates, longer ones at those that may still win."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from subtune.core.candidate import Candidate
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.measure.protocol import Session

FULL_S = 0.1
"""Seconds of a full measurement. 20 candidates cost 1.25 + 1.25 + 1.25 + 1.5 = 5.25 of these."""
_FIRST_SHARE = 1 / 16
LOOK_S = FULL_S * _FIRST_SHARE
_LAST_SHARE = 1 / 2
GIVE_UP = 3.0
"""A candidate whose first calls take this many times the best so far is not looked at any longer."""
_NOISE = 0.01
"""Differences below this are no differences: the earlier, that is the simpler or likelier, candidate wins."""


def halve(
    session: Session,
    candidates: Sequence[Candidate],
    deadline: float,
    report: Callable[[Candidate, Timing | Failure], None],
    looks: Mapping[Candidate, Timing] = MappingProxyType({}),
    full_s: float = FULL_S,
) -> list[Candidate]:
    """The built `candidates` that were timed, best first; `report` is called after every look at one.

    The looks grow from 1/16 to 1/2 of `full_s` seconds while the number of candidates halves; those of the last round
    come first, whatever others seemed to take at a glance. After `deadline` (`time.monotonic()`) no look begins: the
    order is then that of what was seen. Whoever is in `looks` has had its first look.
    """
    seen = dict(looks)
    alive = list(candidates)
    share = _FIRST_SHARE
    while alive:
        for candidate in list(alive):
            if share == _FIRST_SHARE and candidate in looks:
                continue
            if time.monotonic() >= deadline:
                return ranked(candidates, seen)
            best_s = min((timing.min_s for timing in seen.values()), default=math.inf)
            outcome = session.time(candidate, share * full_s, GIVE_UP * best_s)
            if isinstance(outcome, Failure) and outcome.kind == FailureKind.TIMEOUT and time.monotonic() >= deadline:
                return ranked(candidates, seen)  # it was cut off, which says nothing about it
            report(candidate, outcome)
            if isinstance(outcome, Timing):
                seen[candidate] = outcome
            else:
                seen.pop(candidate, None)
                alive.remove(candidate)
        alive = [candidate for candidate in ranked(candidates, seen) if candidate in alive]
        if len(alive) <= 1 or share >= _LAST_SHARE:
            finalists = ranked([candidate for candidate in candidates if candidate in alive], seen)
            return [*finalists, *(c for c in ranked(candidates, seen) if c not in finalists)]
        keep = max(2, math.ceil(len(alive) / 2))
        best_s = seen[alive[0]].min_s
        alive = [candidate for candidate in alive[:keep] if seen[candidate].min_s <= GIVE_UP * best_s]
        if len(alive) <= 1:
            break
        share = _LAST_SHARE if len(alive) <= 3 else min(_LAST_SHARE, 2 * share)
    return ranked(candidates, seen)


def ranked(candidates: Sequence[Candidate], seen: dict[Candidate, Timing]) -> list[Candidate]:
    """Fastest first, but the earliest of `candidates` among those that are as fast as the fastest, within noise.

    By the fastest sample: a sample lasts for 0.3 ms or more, so it is no fluke, and it is the one that other
    processes on the machine disturbed least (repeatable within 0.6 % where the median is within 2 %).
    """
    order = sorted((c for c in candidates if c in seen), key=lambda c: seen[c].min_s)
    if not order:
        return []
    fastest = seen[order[0]]
    limit = fastest.min_s * (1 + _NOISE)
    leader = next(c for c in candidates if c in seen and seen[c].min_s <= limit)
    return [leader, *(c for c in order if c != leader)]
