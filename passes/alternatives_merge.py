"""Fusing more than the partition does: chains of contractions, and data movement inside the anchors it serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from subtune.core.graph import Group, Kind, OpNode
from subtune.passes.alternatives_bottleneck import bottlenecks
from subtune.passes.neighbours import Link, Neighbours, Proposal, nbytes
from subtune.passes.partition_rules import MAX_ELEMENTWISE_OUTPUTS, is_widening

SOFTMAXES = frozenset({"nn.softmax"})

INDEX_MAPS = frozenset({"permute_dims", "repeat", "strided_slice"})
"""Movements that only say where else to read. A concat has to ask, which costs a contraction its blocking."""

INPUTS_MOVED = "one kernel, inputs moved"

_FEW_CHANNELS = 4


def merges(around: Neighbours) -> Iterator[Proposal]:
    """Proposals to compute several groups of a partition in one kernel."""
    for group in around.graph.groups:
        kind = around.anchor(group).kind
        if kind is Kind.CONTRACTION:
            yield from _chain(around, group)
            yield from bottlenecks(around, group)
            yield from _permuted_store(around, group)
        if kind.is_anchor:
            yield from moved_inputs(around, group)
        if around.is_injective(group):
            yield from _through_view(around, group)
    yield from _copied_together(around)


def _chain(around: Neighbours, first: Group) -> Iterator[Proposal]:
    """contraction -> elementwise ops, softmax -> contraction, over the same rows: attention, two-layer perceptrons."""
    if around.anchor(first).op != "matmul":
        return
    middle: list[Group] = []
    views: list[str] = []
    group = first
    while True:
        link = around.after(group)
        if link is None or not _keeps_rows(around, group, link):
            return
        views += link.views
        group = link.user
        if around.anchor(group).kind is Kind.CONTRACTION:
            break
        if not _is_rowwise(around, group):
            return
        middle.append(group)
    second, op = group, around.anchor(group)
    left = op.inputs[0].tensor
    if op.op != "matmul" or left.numel != first.outputs[0].tensor.numel:
        return
    if not _is_left_operand(around, second, views, middle[-1] if middle else first):
        return
    core = [first, *middle, second]
    what = "softmax" if any(around.anchor(g).op in SOFTMAXES for g in middle) else "what lies between"
    why = f"{first.anchor}, {what} and {second.anchor} share their rows, which then never leave the cache"
    stake = 2 * sum(nbytes(g) for g in core[:-1])
    yield Proposal("one kernel", why, (_ops(core, views),), stake)
    store = next(_permuted_store(around, second), None)
    if store is not None:
        yield Proposal("one kernel, permuted", f"{why}; {store.why}", (_ops(core, views) | store.ops,), stake)
    around_core = _ops(core, views) | (store.ops if store else frozenset())
    moved = [p for g in (first, second) if (p := next(moved_inputs(around, g), None))]
    if moved:
        ops = around_core.union(*(p.ops for p in moved))
        more = sum(p.stake_bytes for p in moved)
        yield Proposal(INPUTS_MOVED, f"{why}; {moved[0].why}", (ops,), stake + more)


def _ops(groups: list[Group], views: list[str]) -> frozenset[str]:
    return frozenset(views).union(*(group.ops for group in groups))


def _keeps_rows(around: Neighbours, group: Group, link: Link) -> bool:
    """True if the views between leave the last axis alone."""
    last = group.outputs[0].tensor.shape[-1:]
    return all(around.op(view).output.shape[-1:] == last for view in link.views)


def _is_rowwise(around: Neighbours, group: Group) -> bool:
    """Softmax along the last axis with what is fused to it, or elementwise ops."""
    anchor = around.anchor(group)
    if any(around.op(name).kind is not Kind.ELEMENTWISE for name in group.ops if name != group.anchor):
        return False
    if anchor.kind is Kind.ELEMENTWISE:
        return anchor.output.shape == group.outputs[0].tensor.shape
    return anchor.op in SOFTMAXES and anchor.keeps_rows


def _is_left_operand(around: Neighbours, second: Group, views: list[str], producer: Group) -> bool:
    """True if the second contraction reads the chain as its left operand, unchanged, and nowhere else."""
    value = around.anchor(second).inputs[0]
    return value.source in (producer.outputs[0].source, *views) and all(
        around.anchor(second).name == user for user in around.graph.dag.successors(value.source)
    )


def _permuted_store(around: Neighbours, group: Group) -> Iterator[Proposal]:
    """A transpose after a contraction, done by the contraction's stores."""
    link = around.after(group)
    if link is None or link.views or len(link.user.ops) != 1:
        return
    (name,) = link.user.ops
    if around.op(name).op != "permute_dims" or not around.op(name).keeps_rows:
        return
    why = f"{name} only says where {group.anchor} stores its rows: no copy"
    yield Proposal("permuted store", why, (_ops([group, link.user], []),), 2 * nbytes(group))


def moved_inputs(around: Neighbours, group: Group) -> Iterator[Proposal]:
    """Copies (slices, transposes, concatenations) that only an anchor reads: it may read their source itself."""
    anchor = around.anchor(group)
    found = [(g, link) for g, link in around.before(group) if _may_feed(around, g, anchor)]
    if not found:
        return
    names = [name for g, _ in found for name in g.ops]
    ops = _ops([group, *(g for g, _ in found)], [view for _, link in found for view in link.views])
    why = f"{anchor.name} reads what {', '.join(names)} would copy"
    yield Proposal("no copy", why, (ops,), 2 * sum(nbytes(g) for g, _ in found))


def _may_feed(around: Neighbours, group: Group, anchor: OpNode) -> bool:
    moves = {around.op(name).op for name in group.ops}
    if anchor.kind is Kind.POOLING:
        return moves == {"concat"}  # which part a vector of channels is in is known where the vector begins
    if not moves <= INDEX_MAPS:
        return False
    if anchor.kind in (Kind.REDUCTION, Kind.NORMALIZATION) or anchor.op == "matmul":
        return True
    # A window reads each pixel several times, and every time from another row: measured 4x slower, save where the
    # padding makes a copy anyway and a pixel has few channels.
    filters = anchor.inputs[1].tensor.shape if anchor.kind is Kind.CONTRACTION and len(anchor.inputs) > 1 else ()
    if not filters:
        return False
    is_pointwise = prod(int(d) for d in filters[1:-1]) == 1
    return is_pointwise or (len(filters) == 4 and 1 < int(filters[3]) <= _FEW_CHANNELS)


def _through_view(around: Neighbours, group: Group) -> Iterator[Proposal]:
    """Movement, a view, and more injective ops: one copy in place of two."""
    if link := _read_through_view(around, group):
        why = f"{link.user.anchor} can read through {', '.join(link.views)}: one copy in place of two"
        yield Proposal("one copy", why, (_ops([group, link.user], list(link.views)),), 2 * nbytes(group))


def _read_through_view(around: Neighbours, group: Group) -> Link | None:
    """The injective group behind a view that may read what the injective `group` reads; one of them moves data."""
    link = around.after(group)
    if link is None or not link.views or not around.is_injective(link.user):
        return None
    return link if around.is_movement(group) or around.is_movement(link.user) else None


@dataclass(frozen=True, slots=True)
class ResultCopy:
    """Elements of `source`, an op or an input, that `ops` move to be a result of the model; `last` has the last one."""

    source: str
    ops: frozenset[str]
    last: Group


def result_copies(around: Neighbours) -> Iterator[ResultCopy]:
    """Copies that nobody here reads: the keys and values that a model gives back, say."""
    for group in around.graph.groups:
        if not around.is_injective(group) or len(group.inputs) != 1:
            continue
        link = _read_through_view(around, group)
        ops = _ops([group, link.user], list(link.views)) if link else _ops([group], [])
        last = link.user if link else group
        if any(around.op(name).kind is Kind.MOVEMENT for name in ops) and around.gives_result(last):
            yield ResultCopy(around.behind_views(group.inputs[0].source), ops, last)


def _copied_together(around: Neighbours) -> Iterator[Proposal]:
    """Copies of parts of one tensor that are results of one shape."""
    found: dict[object, list[ResultCopy]] = {}
    for copy in result_copies(around):
        found.setdefault((copy.source, copy.last.outputs[0].tensor), []).append(copy)
    for copies in found.values():
        if 1 < len(copies) <= MAX_ELEMENTWISE_OUTPUTS:
            why = f"{', '.join(copy.last.anchor for copy in copies)} are written by one kernel"
            stake = sum(nbytes(copy.last) for copy in copies)
            yield Proposal("one copy of all", why, (frozenset().union(*(copy.ops for copy in copies)),), stake)


def chains_with_copies(around: Neighbours) -> Iterator[Proposal]:
    """Attention that stores what it reads: keys and values that are results as well are in fast memory already."""
    copies = [copy for copy in result_copies(around) if only_moves(around, copy)]
    for group in around.graph.groups if copies else ():
        if around.anchor(group).kind is not Kind.CONTRACTION:
            continue
        for chain in _chain(around, group):
            if chain.name != INPUTS_MOVED or not any(around.op(name).op in SOFTMAXES for name in chain.ops):
                continue
            inputs = {value.source for name in chain.ops for value in around.op(name).inputs}
            sources = {around.behind_views(name) for name in inputs - chain.ops}
            beside = [copy for copy in copies if copy.source in sources]
            if beside:
                why = f"{chain.why}; it stores {', '.join(copy.last.anchor for copy in beside)} from what it has read"
                stake = chain.stake_bytes + 2 * sum(nbytes(copy.last) for copy in beside)
                ops = chain.ops.union(*(copy.ops for copy in beside))
                yield Proposal("one kernel, inputs moved and copied", why, (ops,), stake)


def only_moves(around: Neighbours, copy: ResultCopy) -> bool:
    """Or has halves as float32, too."""
    ops = [around.op(name) for name in copy.ops]
    return all(op.kind in (Kind.MOVEMENT, Kind.VIEW) or is_widening(op) for op in ops)
