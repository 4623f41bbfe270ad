"""Partition: every anchor grows its epilogue, then its prologue; what is left becomes elementwise groups.

Analysis only; `subtune.passes.outline` does what is decided here. In the spirit of hidet's fuse_operator.
"""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx
from tvm.ir import IRModule

from subtune.core.forms import ANY, Forms
from subtune.core.graph import Group, Kind, Left, OpNode, Origin, PartitionGraph, Value
from subtune.passes.partition_draft import Draft, Drafts
from subtune.passes.partition_left import leave_bytes, leave_what_is_sorted
from subtune.passes.partition_read import flatten, read_dataflow
from subtune.passes.partition_rules import (
    MAX_ELEMENTWISE_OUTPUTS,
    MAX_OUTPUTS,
    is_rounding,
    refuses_copies,
    refuses_epilogue,
    refuses_inline,
    refuses_prologue,
)


def partition(mod: IRModule, forms: Forms = ANY) -> PartitionGraph:
    """Decide which ops of `mod["main"]` become one PrimFunc.

    Args:
        mod: a normalised module: one straight-line Relax function `main`.
        forms: `Backend.forms` of the device.

    Raises:
        SubtuneError: there is no `main`, it calls another function, or it holds control flow.

    >>> from subtune import models
    >>> from subtune.frontends import load
    >>> from subtune.pipeline import normalize
    >>> graph = partition(normalize(load(models.reduced("mlp")).mod))
    >>> [group.ops for group in graph.groups]
    [('matmul_0', 'add_0', 'relu_0'), ('matmul_1', 'add_1', 'relu_1'), ('matmul_2', 'add_2')]
    """
    flow = read_dataflow(mod)
    results = flatten(flow.result)
    if forms.sorts_computed:
        leave_what_is_sorted(flow.dag, {value.source for value in results})
    drafts = Drafts(flow.dag, frozenset((v.source, v.index) for v in results if v.origin is Origin.OP))
    anchors = [name for name in drafts.order if drafts.op(name).kind.is_anchor]
    for name in anchors:
        drafts.open(name, is_anchored=True)
    latest = _latest_anchor(drafts)
    for name in anchors:
        _grow_epilogue(drafts, drafts.home[name], latest)
    for name in reversed(anchors):  # what the later of two anchors refused, an earlier one may take
        _grow_epilogue(drafts, drafts.home[name], None)
    for name in anchors:
        _grow_prologue(drafts, drafts.home[name])
    _group_leftovers(drafts)
    graph = PartitionGraph(flow.dag, _groups(drafts), _left(drafts), results)
    check_partition(graph)
    return graph


def check_partition(graph: PartitionGraph) -> None:
    """Assert the invariants: every op in exactly one place, no cycle between groups (so each group is convex)."""
    places = [op for group in graph.groups for op in group.ops] + [left.name for left in graph.left]
    twice = sorted({op for op in places if places.count(op) > 1}) if len(set(places)) != len(places) else []
    assert not twice, f"ops in two groups: {', '.join(twice)}"
    missing = sorted(set(graph.dag) - set(places))
    assert not missing, f"ops in no group: {', '.join(missing)}"
    quotient = graph.quotient()
    assert nx.is_directed_acyclic_graph(quotient), f"groups depend on each other: {nx.find_cycle(quotient)}"
    names = [group.name for group in graph.groups]
    assert len(set(names)) == len(names), "two groups have one name"
    for group in graph.groups:
        assert group.anchor in group.ops, f"{group.name} lost its anchor {group.anchor}"
        assert set(group.prologue) | set(group.epilogue) | {group.anchor} == set(group.ops), f"{group.name} is torn"


def _latest_anchor(drafts: Drafts) -> dict[str, int]:
    """For each op, the rank of the last anchor (or opaque op) it gets data from, itself included."""
    latest: dict[str, int] = {}
    for name in drafts.order:
        if drafts.op(name).kind.is_anchor or drafts.op(name).kind is Kind.OPAQUE:
            latest[name] = drafts.rank[name]
        else:
            latest[name] = max((latest[p] for p in drafts.dag.predecessors(name)), default=-1)
    return latest


def _grow_epilogue(drafts: Drafts, draft: Draft, latest: dict[str, int] | None) -> None:
    """Take every consumer computable at the anchor's tile, then give back until the outputs are few enough.

    With `latest`, leave what also depends on a later anchor to that one.
    """
    anchor = drafts.op(draft.anchor)
    region = set(draft.ops)
    for name in _descending_consumers(drafts, region):
        op = drafts.op(name)
        owner = drafts.home.get(name)
        if owner is draft:
            continue
        reason = refuses_epilogue(anchor, op)
        if reason is None and owner is not None:
            reason = f"{name} belongs to {owner.anchor}, the later of its producers"
        if reason is None and latest is not None and latest[name] > drafts.rank[draft.anchor]:
            reason = f"{name} also needs a later anchor, which did not take it"
        if reason is None and any(drafts.reaches(region, p) for p in drafts.dag.predecessors(name) if p not in region):
            reason = f"{name} also needs what is computed from this group elsewhere"
        if reason is None:
            reason = refuses_copies(op, drafts.copies(region | {name}))
        if reason is None:
            region.add(name)
            draft.refused.pop(name, None)
        else:
            draft.refused[name] = reason
    taken = region - draft.ops
    leave_bytes(drafts, draft, region, taken)
    while taken and len(drafts.outputs(region)) > MAX_OUTPUTS:
        last = max((n for n in taken if not region & set(drafts.dag.successors(n))), key=drafts.rank.__getitem__)
        region.discard(last)
        taken.discard(last)
        draft.refused[last] = f"{last} would make more than {MAX_OUTPUTS} outputs"
    if taken:
        drafts.join(draft, taken)
        draft.epilogue |= taken


def _descending_consumers(drafts: Drafts, region: set[str]) -> Iterable[str]:
    """The consumers of `region`, which grows meanwhile, in rank order; each once."""
    seen: set[str] = set()
    while True:
        users = {user for name in region for user in drafts.dag.successors(name)} - seen - region
        if not users:
            return
        name = min(users, key=drafts.rank.__getitem__)
        seen.add(name)
        yield name


def _grow_prologue(drafts: Drafts, draft: Draft) -> None:
    """Take the injective producers that only this group uses, where computing them again pays."""
    anchor = drafts.op(draft.anchor)
    for name in _ascending_producers(drafts, draft.ops):
        op = drafts.op(name)
        if not op.kind.is_injective or name in drafts.home:
            continue
        users = set(drafts.dag.successors(name))
        reason = _shared(drafts, draft.ops, name)
        if reason is None and not users & draft.epilogue:
            reason = refuses_prologue(anchor, op) or _refuses_rounding(drafts, op)
        for user in sorted(users & draft.ops - {draft.anchor}, key=drafts.rank.__getitem__):
            reason = reason or refuses_inline(drafts.op(user), op, is_epilogue=user in draft.epilogue)
        if reason is None and len(op.outputs) > 1:
            reason = f"{name} has {len(op.outputs)} outputs"
        if reason is None:
            reason = refuses_copies(op, drafts.copies(draft.ops | {name}))
        if reason is None:
            drafts.join(draft, {name})
            if users & draft.epilogue:  # computed at the tile, like the epilogue it feeds
                draft.epilogue.add(name)
        else:
            draft.refused[name] = reason


def _refuses_rounding(drafts: Drafts, op: OpNode) -> str | None:
    """Why a cast to a half belongs to the kernel that makes its input, if there is one."""
    if not is_rounding(op) or op.inputs[0].origin is not Origin.OP:
        return None
    if drafts.op(op.inputs[0].source).kind in (Kind.VIEW, Kind.OPAQUE):
        return None
    return f"{op.name} stays out: rounded where it is made, its input costs half the bytes"


def _ascending_producers(drafts: Drafts, region: set[str]) -> Iterable[str]:
    """The producers of `region`, which grows meanwhile, last first; each once."""
    seen: set[str] = set()
    while True:
        found = {pred for name in region for pred in drafts.dag.predecessors(name)} - seen - region
        if not found:
            return
        name = max(found, key=drafts.rank.__getitem__)
        seen.add(name)
        yield name


def _shared(drafts: Drafts, ops: set[str], name: str) -> str | None:
    if drafts.is_result(name):
        return f"{name} stays out: it is a result of the model"
    others = sorted(set(drafts.dag.successors(name)) - ops, key=drafts.rank.__getitem__)
    if others:
        return f"{name} stays out: {', '.join(others)} {'needs' if len(others) == 1 else 'need'} it too"
    return None


def _group_leftovers(drafts: Drafts) -> None:
    """Make groups of the injective ops no anchor took: each with what feeds it, and with its siblings."""
    leftovers = [n for n in drafts.order if drafts.op(n).kind.is_injective and n not in drafts.home]
    for name in leftovers:
        drafts.open(name, is_anchored=False)
    changed = True
    while changed:
        changed = False
        for name in reversed(leftovers):
            draft = drafts.home[name]
            if draft.anchor == name and _absorb(drafts, draft):
                changed = True


def _absorb(drafts: Drafts, draft: Draft) -> bool:
    """Merge one neighbour into the elementwise group `draft`; False if none may be."""
    for producer in _neighbours(drafts, draft):
        reason = _refuses_feed(drafts, draft, producer)
        if reason is not None:
            reason = _refuses_sibling(drafts, draft, producer) and reason
        if reason is None:
            reason = refuses_copies(drafts.op(producer.anchor), drafts.copies(draft.ops | producer.ops))
        if reason is None:
            drafts.merge(draft, producer)
            draft.anchor = max(draft.ops, key=drafts.rank.__getitem__)
            return True
        draft.refused[producer.anchor] = reason
    return False


def _neighbours(drafts: Drafts, draft: Draft) -> list[Draft]:
    """Elementwise groups that feed `draft`, or read what it reads; the last first."""
    names = {p for name in draft.ops for p in drafts.dag.predecessors(name)}
    names |= {user for p in names for user in drafts.dag.successors(p)}
    names -= draft.ops
    found = {id(drafts.home[n]): drafts.home[n] for n in names if n in drafts.home and not drafts.home[n].is_anchored}
    return sorted(found.values(), key=lambda d: drafts.rank[d.anchor], reverse=True)


def _refuses_feed(drafts: Drafts, draft: Draft, producer: Draft) -> str | None:
    """Why `producer` cannot be computed inside its only user `draft`."""
    both = draft.ops | producer.ops
    for name, _ in drafts.outputs(producer.ops):
        op = drafts.op(name)
        reason = _shared(drafts, both, name)
        if reason is not None:
            return reason
        for user in sorted(set(drafts.dag.successors(name)) & draft.ops, key=drafts.rank.__getitem__):
            inline = refuses_inline(drafts.op(user), op, is_epilogue=False)
            if inline is not None:
                return inline
    return None


def _refuses_sibling(drafts: Drafts, draft: Draft, other: Draft) -> str | None:
    """Why two elementwise groups that share an input do not become one group with several outputs."""
    one, two = drafts.op(draft.anchor), drafts.op(other.anchor)
    if Kind.MOVEMENT in (one.kind, two.kind) or one.output.shape != two.output.shape:
        return f"{two.name} makes {two.output}, another shape than {one.output}"
    outputs = drafts.outputs(draft.ops | other.ops)
    if any(drafts.op(name).outputs[i].shape != one.output.shape for name, i in outputs):
        return f"{two.name} shares its inputs with another shape"
    if len(outputs) > MAX_ELEMENTWISE_OUTPUTS:
        return f"{two.name} would make more than {MAX_ELEMENTWISE_OUTPUTS} outputs"
    if drafts.makes_cycle(draft.ops, other.ops):
        return f"{two.name} is computed from this group elsewhere"
    return None


def _groups(drafts: Drafts) -> tuple[Group, ...]:
    """The drafts, frozen, in an execution order that keeps to the order in main as far as it can."""
    found = {id(draft): draft for draft in drafts.home.values()}
    position = {name: i for i, name in enumerate(drafts.dag)}
    home = {name: min(draft.ops, key=position.__getitem__) for name, draft in drafts.home.items()}
    quotient = nx.DiGraph()
    quotient.add_nodes_from(home.get(name, name) for name in drafts.dag)
    quotient.add_edges_from(
        (home.get(a, a), home.get(b, b)) for a, b in drafts.dag.edges if home.get(a, a) != home.get(b, b)
    )
    by_first = {min(draft.ops, key=position.__getitem__): draft for draft in found.values()}
    assert nx.is_directed_acyclic_graph(quotient), f"groups depend on each other: {nx.find_cycle(quotient)}"
    order = nx.lexicographical_topological_sort(quotient, key=position.__getitem__)
    names: dict[str, int] = {}
    return tuple(_freeze(drafts, by_first[first], names) for first in order if first in by_first)


def _freeze(drafts: Drafts, draft: Draft, names: dict[str, int]) -> Group:
    ops = tuple(sorted(draft.ops, key=drafts.rank.__getitem__))
    epilogue = tuple(name for name in ops if name in draft.epilogue)
    prologue = tuple(name for name in ops if name not in draft.epilogue and name != draft.anchor)
    base = drafts.label(ops)
    count = names[base] = names.get(base, -1) + 1
    outputs = tuple(
        Value(Origin.OP, source, drafts.op(source).outputs[index], index) for source, index in drafts.outputs(draft.ops)
    )
    return Group(
        name=f"{base}_{count}" if count else base,
        anchor=draft.anchor,
        prologue=prologue,
        epilogue=epilogue,
        ops=ops,
        inputs=drafts.inputs(draft.ops),
        outputs=outputs,
        boundary=_boundary(drafts, draft, outputs),
    )


def _boundary(drafts: Drafts, draft: Draft, outputs: tuple[Value, ...]) -> tuple[str, ...]:
    """Sentences on why the group ends: first at its outputs, then at its inputs."""
    sentences: list[str] = []
    for value in outputs:
        name = value.source
        users = sorted(set(drafts.dag.successors(name)), key=drafts.rank.__getitem__)
        if drafts.is_result(name):
            sentences.append(f"{name} is a result of the model")
        if len(users) > 1:
            sentences.append(f"{name} is used by {len(users)} ops: {', '.join(users)}")
        if len(outputs) > 1 and set(users) & draft.ops:
            sentences.append(f"{name} is written as well: all of the epilogue is computed at one tile")
        for user in users:
            if user not in draft.ops:
                sentences.append(draft.refused.get(user) or _neighbour(drafts, user))
    for value in drafts.inputs(draft.ops):
        if value.origin is Origin.OP and value.source in draft.refused:
            sentences.append(draft.refused[value.source])
    return tuple(dict.fromkeys(sentences))


def _neighbour(drafts: Drafts, user: str) -> str:
    op = drafts.op(user)
    if op.kind is Kind.VIEW:
        return f"{user} is a view: it costs nothing and ends the tile"
    if op.kind is Kind.OPAQUE:
        return f"{user} is opaque: TVM runs it its own way"
    if op.kind.is_anchor:
        return f"{user} is an anchor of its own"
    owner = drafts.home[user]
    return f"{user} is computed with {owner.anchor}"


def _left(drafts: Drafts) -> tuple[Left, ...]:
    return tuple(
        Left(name, "view: the bytes stay where they are" if kind is Kind.VIEW else "opaque: TVM runs it its own way")
        for name in drafts.dag
        if (kind := drafts.op(name).kind) in (Kind.VIEW, Kind.OPAQUE)
    )
