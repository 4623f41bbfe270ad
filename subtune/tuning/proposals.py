"""What a search will try of a workload, and what earlier runs know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from subtune import backends
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Failure, Timing
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database import Database

Policy = Callable[[Workload, Device, int], Sequence[Candidate]]
"""The candidates of a workload, at most so many, best first."""

NEAR = 1.1
"""What an earlier run timed is timed again where it was slower than the fastest by no more than this."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """`fresh` are to be built, in order; of the rest of `all` the outcome is in `known`."""

    all: tuple[Candidate, ...]
    fresh: tuple[Candidate, ...]
    known: Mapping[Candidate, Timing | Failure]
    found: Record | None
    """What an earlier run decided."""


def policy(workload: Workload, device: Device, topk: int) -> Sequence[Candidate]:
    return backends.candidates(workload, device, topk)


def propose(workload: Workload, device: Device, topk: int, database: Database | None, ask: Policy) -> Proposals:
    """An earlier run's winner, imported candidates, then the policy's.

    Raises:
        SubtuneError: the policy fails.
    """
    scope = device.scope() if database else None
    found = database.lookup(workload, scope) if database and scope else None
    proposed = [found.candidate] if found else []
    if database:
        proposed += database.suggestions(workload)
    try:
        proposed += ask(workload, device, topk)
    except Exception as e:  # a policy that does not foresee a workload costs that workload its tuning, no more
        raise SubtuneError(f"no candidates for workload {workload.key}: {type(e).__name__}: {e}") from e
    everything = tuple(dict.fromkeys(c for c in proposed if c != DEFAULT))
    stored = database.outcomes(workload, scope) if database and scope else {}
    known = {c: stored[c] for c in everything if c in stored}
    timed = [outcome.min_s for outcome in known.values() if isinstance(outcome, Timing)]
    limit_s = NEAR * min(timed, default=0.0)
    for candidate, outcome in list(known.items()):
        is_near = isinstance(outcome, Timing) and outcome.min_s <= limit_s
        if is_near or (found and candidate == found.candidate):
            del known[candidate]
    return Proposals(everything, tuple(c for c in everything if c not in known), known, found)
