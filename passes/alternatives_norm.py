"""Fusing a norm with the product whose rows it normalises: what lies between is neither written nor read again.

Or its two parts, where it was taken apart (`carry_norms`), with the products before and behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from subtune.core.graph import Group, Kind
from subtune.core.numerics import HALVES
from subtune.passes.alternatives_copies import Copied
from subtune.passes.neighbours import Neighbours, Proposal, nbytes
from subtune.tir.row_moments import MOMENTS, SCALES

_NORMS = frozenset({"nn.layer_norm", "nn.rms_norm"})


def normed_products(most_columns: int, around: Neighbours) -> Iterator[Proposal]:
    """A product of halves and the norm along its rows; others may read the product as well, which is then stored."""
    for group in around.graph.groups:
        anchor = around.anchor(group)
        if anchor.kind is not Kind.CONTRACTION or anchor.op != "matmul" or len(group.outputs) != 1:
            continue
        columns = anchor.output.shape[-1]
        if not isinstance(columns, int) or columns > most_columns or anchor.inputs[0].tensor.dtype not in HALVES:
            continue
        if not (norm := _norm_of(around, group)):
            continue
        why = f"{norm.anchor} is taken of {group.anchor}'s rows while they are in registers"
        yield Proposal("one kernel", why, (frozenset(group.ops) | frozenset(norm.ops),), 2 * nbytes(group))


def _norm_of(around: Neighbours, group: Group) -> Group | None:
    """The one group that normalises the rows of what `group` makes."""
    made = group.outputs[0]
    homes = {around.home[user].anchor: around.home[user] for user in around.graph.dag.successors(made.source)
             if user in around.home}  # fmt: skip
    found = [
        other for other in homes.values()
        if other is not group
        and around.anchor(other).op in _NORMS
        and len(other.outputs) == 1
        and other.outputs[0].tensor.shape == made.tensor.shape
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def carried_norms(copies: Mapping[str, Copied], around: Neighbours) -> Iterator[Proposal]:
    """A product, the moments of the rows that it makes, and the scales of those that it reads.

    Args:
        copies: of their results, that products can store as well (`copied_products`).
    """
    for group in around.graph.groups:
        if around.anchor(group).op != "matmul":
            continue
        before = [other for other in around.feeding(group) if around.anchor(other).op == f"tir.{SCALES}"]
        after = [other for other in around.fed(group) if around.anchor(other).op == f"tir.{MOMENTS}"]
        if not before and not after:
            continue
        parts = [part for part, found in (("scales", before), ("moments", after)) if found]
        why = f"{group.anchor} has the {' and '.join(parts)} of its rows in registers"
        ops = frozenset(group.ops).union(*(other.ops for other in (*before, *after)))
        stake = max(value.tensor.nbytes for value in (*group.inputs, *group.outputs))
        yield Proposal("moments in products", why, (ops,), stake)
        if copied := copies.get(group.anchor):  # proposals that share a group exclude each other
            both = f"{why}, and {copied.why}"
            yield Proposal("moments and copies in products", both, (ops | copied.ops,), stake + copied.stake_bytes)
