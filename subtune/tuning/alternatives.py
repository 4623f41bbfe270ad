"""A model's alternatives on their way to a choice: lowered, foreseen by a policy or not, looked up."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from subtune import backends
from subtune.backends.base import Device, HardwareModel
from subtune.core.graph import Alternative, Alternatives, PartitionGraph, Subgraph
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.passes.partition import check_partition
from subtune.passes.regroup import rearrange
from subtune.tuning.choose import Choice, choose, chosen_alternatives, fastest_foreseen, foreseen_as_fast
from subtune.tuning.prospects import Prospects
from subtune.tuning.records import Records
from subtune.tuning.search import Single

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tuned first and what later: `tuning.search.tune`'s parts.

    First come the kernels of the partition that the policy expects to be the fastest: one that does a region's work in
    a fraction of the time must not wait until those are tuned whose place it takes. Their rivals are expected to be as
    fast, or are the partition's own: with a short budget, they would never be tried if they waited, and what
    disappoints would lose to the plain schedules of what nobody tuned.

    Attributes:
        expected: seconds of a workload, by key: measured earlier or predicted. Without those that nothing schedules.
        reasons: by workload key, why it is not worth a measurement.
        prospects: which of `later` may still win.
    """

    first: tuple[Single, ...]
    rivals: tuple[Single, ...]
    later: tuple[Single, ...]
    expected: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    prospects: Prospects = field(default_factory=lambda: Prospects((), {}))

    def choices(self, others: Alternatives, records: Records) -> tuple[Choice, ...]:
        """What is taken by what was measured: confirmed or not, as a rebuild will find it in the database."""
        reasons = {**self.reasons, **records.reasons()}
        expected = {**self.expected, **records.least_s()}
        return choose(others, records, reasons, self.prospects.between_s, expected)


def plan(own: Sequence[Subgraph], others: Alternatives, device: Device, database: Database | None) -> Plan:
    """In which order the kernels of a partition (`own`) and of its alternatives are tuned.

    Candidates come from the policy, or from `database`, which may have been given some from elsewhere.
    """
    workloads = {subgraph.workload.key: subgraph.workload for subgraph in (*own, *others.subgraphs)}
    concerned = {key for region in others.regions for one in region.alternatives for key in one.keys}
    guesses = {key: _expected_s(workloads[key], device, database) for key in concerned & set(workloads)}
    expected = {key: seconds for key, seconds in guesses.items() if seconds is not None}
    mine = {subgraph.workload.key for subgraph in own}
    reasons = {key: "no template schedules it" for key in workloads if key not in expected and key not in mine}
    uses = Counter({subgraph.workload.key: subgraph.uses for subgraph in own})
    between_s = device.model.between_kernels_s
    rivals: set[str] = set()
    for region in others.regions:
        taken = fastest_foreseen(region, expected, between_s)
        uses.subtract(region.alternatives[0].keys)
        uses.update(region.alternatives[taken].keys)
        own_too = region.alternatives[:1] if taken else ()  # untuned, it would ship where the other disappoints
        fast = (*own_too, *foreseen_as_fast(region, expected, between_s))
        rivals.update(key for one in fast for key in one.keys)
    first = [Single(workloads[key], count) for key, count in uses.items() if count > 0]
    rest = [Single(workload, 1) for key, workload in workloads.items() if uses[key] <= 0 and key not in reasons]
    beside = tuple(one for one in rest if one.workload.key in rivals)
    later = tuple(one for one in rest if one.workload.key not in rivals)
    prospects = Prospects(others.regions, expected, between_s)
    return Plan(tuple(first), beside, later, expected, reasons, prospects)


def _expected_s(workload: Workload, device: Device, database: Database | None) -> float | None:
    """None where there is no candidate; 0.0 where there is one that nobody has predicted."""
    if database and (seen := database.least_s(workload, device.scope())):
        return seen
    try:
        found = backends.candidates(workload, device, 1)
    except Exception as e:  # as in the tuner: a policy that does not foresee a workload costs no more than that
        logger.debug("workload %s: %s: %s", workload.key, type(e).__name__, e)
        found = ()
    if found:
        return found[0].predicted_s or 0.0
    return 0.0 if database and database.suggestions(workload) else None


def chosen_partition(graph: PartitionGraph, others: Alternatives, choices: Sequence[Choice]) -> PartitionGraph:
    """`graph` with the alternatives that were taken; `graph` itself where its own are the best everywhere."""
    return with_alternatives(graph, chosen_alternatives(others, choices))


def with_alternatives(graph: PartitionGraph, alternatives: Sequence[Alternative]) -> PartitionGraph:
    """`graph` with these in the place of its own parts; itself where there are none."""
    if not alternatives:
        return graph
    changed = rearrange(graph, alternatives)
    check_partition(changed)
    return changed


def recorded_choices(
    others: Alternatives, own: Sequence[Subgraph], device: Device | HardwareModel, database: Database | None
) -> tuple[Choice, ...]:
    """What would be chosen by what `database` holds: nothing is measured."""
    device = backends.as_device(device)
    records: Mapping[str, Record] = {
        subgraph.workload.key: record
        for subgraph in (*own, *others.subgraphs)
        if database and (record := database.lookup(subgraph.workload, device.scope()))
    }
    planned = plan(own, others, device, database)
    return choose(others, records, planned.reasons, device.model.between_kernels_s, planned.expected)
