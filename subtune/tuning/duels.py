"""The fastest of a search in turns with one another, where a machine is not the same from one second to the next.

Looks at candidates follow one another, and what else a machine does lengthens them by more than they differ: on a
virtual machine of two cores the looks at one kernel's twenty candidates were a third apart, the candidates a twentieth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from subtune.core.candidate import Candidate
from subtune.core.measurement import Failure, Timing
from subtune.measure import Session
from subtune.measure.halving import FULL_S
from subtune.tuning.picks import is_faster, least_s

_CHALLENGERS = 3
_NEAR = 1.3
"""Times the fastest look, up to which another may have been unlucky."""


def duelled(
    session: Session,
    order: list[Candidate],
    outcomes: Mapping[Candidate, Timing | Failure],
    note: Callable[[Candidate, Failure], None],
    deadline: float,
) -> list[Candidate]:
    """`order`, first whoever wins in turns against the first: the next ones by their looks, one after the other.

    Those that fail are left out, and told to `note`. After `deadline` (`time.monotonic()`) no duel begins.
    """

    if not order:
        return order
    first, failed = order[0], set()
    limit_s = _NEAR * least_s(first, outcomes)
    for challenger in [one for one in order[1:] if least_s(one, outcomes) <= limit_s][:_CHALLENGERS]:
        if time.monotonic() >= deadline:
            break
        seen = session.compare(challenger, FULL_S, first)
        if isinstance(seen, Failure):
            note(challenger, seen)
            failed.add(challenger)
        elif is_faster(seen):
            first = challenger
    return [first, *(one for one in order if one != first and one not in failed)]
