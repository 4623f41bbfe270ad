"""Other groupings of a partition: a group of any ops, and a partition with some of its groups replaced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import networkx as nx

from subtune.core.graph import Alternative, Group, Kind, Origin, PartitionGraph, Value
from subtune.passes.partition_draft import Drafts


def drafts_of(graph: PartitionGraph) -> Drafts:
    """The order of `graph`'s ops, and what sets of them read and write."""
    return Drafts(graph.dag, frozenset((v.source, v.index) for v in graph.results if v.origin is Origin.OP))


def group_of_ops(drafts: Drafts, ops: Iterable[str], why: str) -> Group:
    """The group that computes `ops`: the anchor is their last contraction, else their last anchor, else their last op.

    What the anchor is computed from is the prologue, everything else the epilogue.
    """
    members = tuple(sorted(ops, key=drafts.rank.__getitem__))
    anchors = [name for name in members if drafts.op(name).kind.is_anchor]
    contractions = [name for name in anchors if drafts.op(name).kind is Kind.CONTRACTION]
    anchor = (contractions or anchors or list(members))[-1]
    before = nx.ancestors(drafts.dag.subgraph(members), anchor)
    outputs = tuple(
        Value(Origin.OP, source, drafts.op(source).outputs[index], index)
        for source, index in drafts.outputs(set(members))
    )
    return Group(
        name=drafts.label(members),
        anchor=anchor,
        prologue=tuple(name for name in members if name in before),
        epilogue=tuple(name for name in members if name not in before and name != anchor),
        ops=members,
        inputs=drafts.inputs(set(members)),
        outputs=outputs,
        boundary=(why,),
    )


def rearrange(graph: PartitionGraph, alternatives: Iterable[Alternative]) -> PartitionGraph:
    """`graph` with each alternative's groups in place of those that hold the same ops.

    An alternative that would make groups depend on each other, together with those before it, is left out.
    """
    changed = graph
    for alternative in alternatives:
        changed = exchanged(changed, alternative) or changed
    return PartitionGraph(graph.dag, _named(_ordered(graph, changed.groups)), changed.left, graph.results)


def exchanged(graph: PartitionGraph, alternative: Alternative) -> PartitionGraph | None:
    """`graph` with the alternative's groups, in no order; None if groups would depend on each other."""
    ops = {op for group in alternative.groups for op in group.ops}
    groups = (*(group for group in graph.groups if not ops & set(group.ops)), *alternative.groups)
    # a view that an alternative computes itself no longer stays in main
    left = tuple(view for view in graph.left if view.name not in ops)
    changed = PartitionGraph(graph.dag, groups, left, graph.results)
    return changed if nx.is_directed_acyclic_graph(changed.quotient()) else None


def between(graph: PartitionGraph, ops: frozenset[str]) -> PartitionGraph:
    """The part of `graph` in which groups of `ops` may come to depend on each other: theirs, and what is between."""
    home = {op: group.anchor for group in graph.groups for op in group.ops}
    quotient = graph.quotient()
    own = {home.get(op, op) for op in ops}
    quotient.add_edges_from(("", name) for name in own)  # "": no op's name
    after = nx.descendants(quotient, "")
    quotient.remove_node("")
    quotient.add_edges_from((name, "") for name in own)
    inside = after & nx.ancestors(quotient, "")
    groups = tuple(group for group in graph.groups if group.anchor in inside)
    left = tuple(view for view in graph.left if view.name in inside)
    names = [*(op for group in groups for op in group.ops), *(view.name for view in left)]
    return PartitionGraph(graph.dag.subgraph(names).copy(), groups, left, ())


def _ordered(graph: PartitionGraph, groups: tuple[Group, ...]) -> list[Group]:
    """Execution order, as close to the order in main as can be."""
    position = {name: i for i, name in enumerate(graph.dag)}
    first = {group.anchor: min(position[op] for op in group.ops) for group in groups}
    by_anchor = {group.anchor: group for group in groups}
    quotient = PartitionGraph(graph.dag, groups, (), ()).quotient()
    order = nx.lexicographical_topological_sort(quotient, key=lambda name: first.get(name, position[name]))
    return [by_anchor[name] for name in order if name in by_anchor]


def _named(groups: list[Group]) -> tuple[Group, ...]:
    """No two groups of one name."""
    taken: set[str] = set()
    result = []
    for group in groups:
        name, count = group.name, 1
        while name in taken:
            name, count = f"{group.name}_{count}", count + 1
        taken.add(name)
        result.append(replace(group, name=name))
    return tuple(result)
