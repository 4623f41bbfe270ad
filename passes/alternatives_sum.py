"""Adding up two pointwise convolutions in one kernel: the shortcut of a residual network's block, and its last one."""

from __future__ import annotations

from collections.abc import Iterator

from subtune.core.graph import Group
from subtune.core.numerics import HALVES
from subtune.passes.neighbours import Neighbours, Proposal, nbytes, pointwise_filters

_CASTS_AND_SUMS = frozenset({"add", "astype"})


def summed_products(around: Neighbours) -> Iterator[Proposal]:
    """A pointwise convolution of halves, and one that is only added to it: they are one product of more channels."""
    for group in around.graph.groups:
        if not _multiplies(around, group):
            continue
        for other, link in around.before(group):
            if link.views or not _multiplies(around, other) or not _is_added(around, other, group):
                continue
            why = f"{other.anchor} and {group.anchor} are added up: one product, of the channels of both"
            yield Proposal("one product", why, (frozenset(group.ops) | frozenset(other.ops),), 2 * nbytes(other))


def _multiplies(around: Neighbours, group: Group) -> bool:
    anchor = around.anchor(group)
    return bool(pointwise_filters(anchor)) and anchor.inputs[0].tensor.dtype in HALVES


def _is_added(around: Neighbours, other: Group, group: Group) -> bool:
    """Whether `group` adds what `other` makes, a sum itself, to all that its anchor makes."""
    made = other.outputs[0]
    if made.tensor.shape != around.anchor(group).output.shape:
        return False
    if not {around.op(name).op for name in other.ops if name != other.anchor} <= _CASTS_AND_SUMS:
        return False
    readers = [made.source]
    while readers and all(around.op(name).op == "astype" or name == made.source for name in readers):
        readers = [user for name in readers for user in around.graph.dag.successors(name)]
    return bool(readers) and all(around.op(name).op == "add" for name in readers)
