"""A model's alternatives on their way to a choice: lowered, foreseen by a policy or not, looked up."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from subtune import backends
from subtune.backends.base import Device, HardwareModel
from subtune.core.graph import Alternatives, PartitionGraph, Subgraph
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.passes.partition import check_partition
from subtune.passes.regroup import rearrange
from subtune.tuning.choose import Choice, choose, chosen_alternatives

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)


def foreseen(
    subgraphs: Sequence[Subgraph], device: Device, database: Database | None
) -> tuple[list[Subgraph], dict[str, str]]:
    """The alternatives that have a candidate; and, by workload key, why the others are not worth a measurement.

    Candidates come from the policy, or from `database`, which may have been given some from elsewhere.
    """
    found, reasons = [], {}
    for subgraph in subgraphs:
        if _has_candidate(subgraph.workload, device, database):
            found.append(subgraph)
        else:
            reasons[subgraph.workload.key] = "no template schedules it"
    return found, reasons


def _has_candidate(workload: Workload, device: Device, database: Database | None) -> bool:
    if database and (database.lookup(workload, device.scope()) or database.suggestions(workload)):
        return True
    try:
        return bool(backends.candidates(workload, device, 1))
    except Exception as e:  # as in the tuner: a policy that does not foresee a workload costs no more than that
        logger.debug("workload %s: %s: %s", workload.key, type(e).__name__, e)
        return False


def chosen_partition(graph: PartitionGraph, others: Alternatives, choices: Sequence[Choice]) -> PartitionGraph:
    """`graph` with the alternatives that were taken; `graph` itself where its own are the best everywhere."""
    alternatives = chosen_alternatives(others, choices)
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
    return choose(others, records, foreseen(others.subgraphs, device, database)[1], device.model.between_kernels_s)
