"""Fusing less than the partition does: prologues that are computed or read in a bad order, epilogues in the way."""

from __future__ import annotations

from collections.abc import Iterator

from subtune.core.graph import Group, Kind, OpNode, Origin
from subtune.passes.neighbours import Neighbours, Proposal
from subtune.passes.partition_rules import CASTS, is_costly, is_expanding

SHALLOW = 64
"""A contraction with fewer steps of its reduction computes a result in little more time than one exp takes."""

MIN_COLUMNS = 16
"""A vector of floats on the widest CPUs: a narrower output leaves lanes of every epilogue instruction idle."""

MAX_OPERANDS = 1
"""Other tensors of the output's size an epilogue may read beside the tile's own without a second thought."""


def splits(around: Neighbours) -> Iterator[Proposal]:
    """Proposals to compute a group of a partition in two kernels."""
    for group in around.graph.groups:
        anchor = around.anchor(group)
        if not anchor.kind.is_anchor or anchor.kind in (Kind.GATHER, Kind.OTHER):
            continue
        yield from _prologue_apart(around, group)
        yield from _epilogue_apart(around, group)


def _prologue_apart(around: Neighbours, group: Group) -> Iterator[Proposal]:
    """The producers of an anchor that it would compute or gather again and again, in a kernel of their own."""
    anchor = around.anchor(group)
    reasons = {name: reason for name in group.prologue if (reason := _may_lose(anchor, around.op(name)))}
    if not reasons or any(is_expanding(around.op(name)) for name in group.prologue):  # of weights' bits, on every run
        return
    # what feeds a producer that leaves goes with it
    apart = set(reasons)
    for name in reversed(group.prologue):
        if set(around.graph.dag.successors(name)) & apart:
            apart.add(name)
    parts = [part for part in _connected(around, apart) if part]
    rest = frozenset(group.ops) - apart
    stake = 2 * sum(around.op(name).output.nbytes for name in reasons)
    yield Proposal("prologue apart", "; ".join(reasons.values()), (*parts, rest), stake)


def _may_lose(anchor: OpNode, op: OpNode) -> str:
    """Why `op` might be cheaper outside of the anchor that reads it; empty if not."""
    if op.op in CASTS or op.op == "nn.pad":
        return ""
    if op.kind is Kind.MOVEMENT:
        is_strided = op.op == "permute_dims" and not op.keeps_rows
        return f"{anchor.name} reads {op.name} with large strides" if is_strided else ""
    if anchor.kind is Kind.POOLING:
        return f"{anchor.name} computes {op.name} for every window"
    if is_costly(op):
        return f"{op.name} is costly and {anchor.name} may not vectorise it"
    if anchor.kind is Kind.NORMALIZATION and op.output.numel == anchor.output.numel:
        return f"{anchor.name} reads its rows several times and computes {op.name} each time"
    return ""


def _connected(around: Neighbours, ops: set[str]) -> list[frozenset[str]]:
    """`ops` in one part for each of the values they hand on to the rest of the group."""
    dag = around.graph.dag
    exits = [name for name in sorted(ops, key=around.rank.__getitem__) if set(dag.successors(name)) - ops]
    taken: set[str] = set()
    parts = []
    for name in exits:
        members, todo = set(), [name]
        while todo:
            one = todo.pop()
            if one in ops and one not in taken:
                taken.add(one)
                members.add(one)
                todo += dag.predecessors(one)
        parts.append(frozenset(members))
    return parts


def _epilogue_apart(around: Neighbours, group: Group) -> Iterator[Proposal]:
    """The end of an epilogue in a kernel of its own, or in the copy that follows."""
    anchor = around.anchor(group)
    if anchor.kind is not Kind.CONTRACTION or not group.epilogue:
        return
    cut = _cut(around, group, anchor)
    if cut is None:
        return
    index, reason = cut
    tail = frozenset(group.epilogue[index:])
    head = frozenset(group.ops) - tail
    stake = 2 * around.op(group.epilogue[index]).output.nbytes
    link = around.after(group)
    if link and not link.views and around.is_movement(link.user):
        tail |= set(link.user.ops)
        stake += 2 * around.op(link.user.anchor).output.nbytes
    yield Proposal("epilogue apart", reason, (head, tail), stake)


def _cut(around: Neighbours, group: Group, anchor: OpNode) -> tuple[int, str] | None:
    """Where in the epilogue to cut, and why; None if fusing all of it clearly pays."""
    steps = around.operations(anchor.name) // max(2 * anchor.output.numel, 1)
    columns = int(anchor.output.shape[-1])
    wide = 0
    for index, name in enumerate(group.epilogue):
        op = around.op(name)
        others = (v for v in op.inputs if v.origin is not Origin.CONSTANT and v.source not in group.ops)
        wide += sum(value.tensor.numel == op.output.numel for value in others)
        if is_costly(op) and (steps < SHALLOW or columns < MIN_COLUMNS):
            return index, f"{name} costs as much as the {steps} steps of {anchor.name} on {columns} columns"
        if wide > MAX_OPERANDS:
            return index, f"{name} is the second to read a whole tensor while {anchor.name} holds its tile"
    if len(group.outputs) > 1:
        written = [value.source for value in group.outputs]
        first = next((i for i, name in enumerate(group.epilogue) if name in written), -1) + 1
        if 0 < first < len(group.epilogue):
            return first, f"{anchor.name}'s tile would be stored twice, before and after {group.epilogue[first]}"
    return None
