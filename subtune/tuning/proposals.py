"""What a search will try of a workload, and what earlier runs know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subtune import backends
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Failure, Timing
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.tuning.transfer import Neighbours, Policy, Transferred

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
    transferred: Transferred | None = None
    """What near searches had to say; nothing where an earlier run decided."""

    @property
    def first(self) -> tuple[Candidate, ...]:
        """Of `fresh` what near searches found to be the fastest there."""
        return tuple(c for c in self.transferred.first if c in self.fresh) if self.transferred else ()


def policy(workload: Workload, device: Device, topk: int) -> Sequence[Candidate]:
    return backends.candidates(workload, device, topk)


def propose(
    workload: Workload,
    device: Device,
    topk: int,
    database: Database | None,
    ask: Policy,
    neighbours: Neighbours | None = None,
) -> Proposals:
    """An earlier run's winner, imported candidates, then the policy's; where no run decided and others were near, what
    won there and fewer of the policy's.

    Raises:
        SubtuneError: the policy fails.
    """
    scope = device.scope() if database else None
    found = database.lookup(workload, scope) if database and scope else None
    proposed = [found.candidate] if found else []
    if database:
        proposed += database.suggestions(workload)
    try:
        own: Sequence[Candidate] = tuple(ask(workload, device, topk))
        moved = neighbours.transferred(workload, own, topk, ask) if neighbours and not found else None
    except Exception as e:  # a policy that does not foresee a workload costs that workload its tuning, no more
        raise SubtuneError(f"no candidates for workload {workload.key}: {type(e).__name__}: {e}") from e
    proposed += moved.candidates if moved else own
    everything = tuple(dict.fromkeys(c for c in proposed if c != DEFAULT))
    stored = database.outcomes(workload, scope) if database and scope else {}
    known = {c: stored[c] for c in everything if c in stored}
    timed = [outcome.min_s for outcome in known.values() if isinstance(outcome, Timing)]
    limit_s = NEAR * min(timed, default=0.0)
    for candidate, outcome in list(known.items()):
        is_near = isinstance(outcome, Timing) and outcome.min_s <= limit_s
        if is_near or (found and candidate == found.candidate):
            del known[candidate]
    return Proposals(everything, tuple(c for c in everything if c not in known), known, found, moved)
