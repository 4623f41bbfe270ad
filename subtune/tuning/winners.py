"""What ships of every workload: a measured record's candidate, else a prediction, else the default schedule."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from subtune import backends
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.graph import Subgraph
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.record import Record, func_hash
from subtune.core.workload import Workload

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Winners:
    """`records` and `guesses` by workload key; a guess was predicted, not measured."""

    records: Mapping[str, Record]
    guesses: Mapping[str, Candidate] = field(default_factory=dict)

    def candidate(self, key: str) -> Candidate:
        record = self.records.get(key)
        return record.candidate if record else self.guesses.get(key, DEFAULT)

    def kernels(self, subgraphs: Sequence[Subgraph], device: Device) -> tuple[dict[str, Kernel], Winners]:
        """The winners' kernels by subgraph name, and the winners without those whose kernel is not the one timed."""
        kernels = schedule_kernels(
            subgraphs, {s.workload.key: self.candidate(s.workload.key) for s in subgraphs}, device
        )
        stale = set()
        for subgraph in subgraphs:
            record = self.records.get(subgraph.workload.key)
            if record is None or func_hash(kernels[subgraph.name].func) == record.func_hash:
                continue
            _log.warning("%s: the database's record is of another kernel than %s", subgraph.name, record.candidate)
            stale.add(subgraph.workload.key)
            kernels |= schedule_kernels([subgraph], {}, device)
        kept = {key: record for key, record in self.records.items() if key not in stale}
        return kernels, Winners(kept, self.guesses)


def schedule_kernels(
    subgraphs: Sequence[Subgraph], chosen: Mapping[str, Candidate], device: Device
) -> dict[str, Kernel]:
    """Each subgraph's candidate, scheduled on the frozen PrimFunc; the default schedule where none was chosen.

    Args:
        chosen: by workload key.
    """
    kernels = {}
    for subgraph in subgraphs:
        candidate = chosen.get(subgraph.workload.key, DEFAULT)
        kernel = applied(subgraph.workload, candidate, device)
        if isinstance(kernel, NotApplicable):  # a record of another version of the family
            _log.warning("%s: %s does not apply any more: %s", subgraph.name, candidate, kernel.reason)
            kernel = backends.schedule(subgraph.workload, DEFAULT, device)
        assert isinstance(kernel, Kernel)
        kernels[subgraph.name] = kernel
    return kernels


def applied(workload: Workload, candidate: Candidate, device: Device) -> Kernel | NotApplicable:
    """The kernel of a candidate that was chosen elsewhere, or why there is none: a family may not foresee it."""
    try:
        return backends.schedule(workload, candidate, device)
    except Exception as e:  # as in a worker process, where it would cost the candidate only
        return NotApplicable(f"{type(e).__name__}: {e}")
