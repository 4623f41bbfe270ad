"""The alternatives of a partition's regions as workloads, ready to be tuned beside the partition's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm.ir import IRModule

from subtune.core.errors import SubtuneError
from subtune.core.graph import (
    Alternative,
    Alternatives,
    Group,
    LoweredAlternative,
    LoweredRegion,
    PartitionGraph,
    Region,
    Subgraph,
)
from subtune.core.workload import Workload
from subtune.passes.outline import workloads_of


def lower_regions(
    mod: IRModule, graph: PartitionGraph, regions: Sequence[Region], own: Sequence[Subgraph]
) -> Alternatives:
    """Lower every group of every alternative of `regions` as `outline` would.

    An alternative with a group that TVM cannot lower has no keys, and a refusal.

    Args:
        mod: the normalised module that `graph` partitions.
        own: the partition's subgraphs: they are tuned anyway.
    """
    groups = {
        (group.anchor, group.ops): group
        for region in regions
        for alternative in region.alternatives
        for group in alternative.groups
    }
    made = dict(zip(groups, workloads_of(mod, graph, list(groups.values())), strict=True))
    lowered = tuple(
        LoweredRegion(region.name, tuple(_lowered(one, made) for one in region.alternatives)) for region in regions
    )
    return Alternatives(lowered, _others(graph, lowered, made, own))


def _lowered(
    alternative: Alternative, made: Mapping[tuple[str, tuple[str, ...]], Workload | SubtuneError]
) -> LoweredAlternative:
    keys = []
    for group in alternative.groups:
        workload = made[group.anchor, group.ops]
        if isinstance(workload, SubtuneError):
            return LoweredAlternative(alternative, (), str(workload))
        keys.append(workload.key)
    return LoweredAlternative(alternative, tuple(keys))


def _others(
    graph: PartitionGraph,
    regions: Sequence[LoweredRegion],
    made: Mapping[tuple[str, tuple[str, ...]], Workload | SubtuneError],
    own: Sequence[Subgraph],
) -> tuple[Subgraph, ...]:
    """The distinct workloads of the alternatives that can be lowered, without the partition's own."""
    known = {subgraph.workload.key for subgraph in own}
    found: dict[str, tuple[Group, Workload, set[str]]] = {}
    for region in regions:
        for alternative in region.alternatives:
            for key, group in zip(alternative.keys, alternative.alternative.groups, strict=False):
                workload = made[group.anchor, group.ops]
                if key not in known and isinstance(workload, Workload):
                    found.setdefault(key, (group, workload, set()))[2].add(group.anchor)
    return tuple(
        Subgraph(
            group.name,
            workload,
            graph.op(group.anchor).op,
            tuple(graph.op(name).op for name in group.ops),
            len(uses),
            position,
        )
        for position, (group, workload, uses) in enumerate(found.values())
    )
