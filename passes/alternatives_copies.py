"""Products that store copies of what they make, where these are results: the keys and values that a model gives back.

A product is bound by its multiplications, behind which the copies are written; their source is in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from subtune.core.graph import Group, Kind
from subtune.core.numerics import HALVES
from subtune.passes.alternatives_merge import ResultCopy, only_moves, result_copies
from subtune.passes.neighbours import Neighbours, Proposal, nbytes

MAX_COPIES = 4
"""Of one product: for each, every vector that is stored asks whether it belongs to it."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The `ops` of all copies of what a product makes, and of the views before them; `copies` are their last groups."""

    ops: frozenset[str]
    copies: tuple[Group, ...]

    @property
    def stake_bytes(self) -> int:
        return 2 * sum(nbytes(copy) for copy in self.copies)

    @property
    def why(self) -> str:
        return f"stores {', '.join(copy.anchor for copy in self.copies)} from its registers"


def copied_products(around: Neighbours) -> Mapping[str, Copied]:
    """By the anchor of each product of halves that can store all copies of its result which are results themselves."""
    found: dict[str, list[ResultCopy]] = {}
    for copy in result_copies(around):
        if only_moves(around, copy):
            found.setdefault(copy.source, []).append(copy)
    products = {}
    for source, copies in found.items():
        group = around.home.get(source)
        if group is None or len(copies) > MAX_COPIES or not _is_product_of_halves(around, group):
            continue
        ops = frozenset().union(*(copy.ops for copy in copies), *(_views_before(around, copy) for copy in copies))
        # one result of its own: as the product makes it, or behind a view that others read
        if len(around.stored(ops.union(group.ops))) == 1 + len(copies):
            products[group.anchor] = Copied(ops, tuple(copy.last for copy in copies))
    return products


def products_with_copies(copies: Mapping[str, Copied], around: Neighbours) -> Iterator[Proposal]:
    """A product and the copies of its result in one kernel; `copies` are `copied_products`'."""
    for anchor, copied in copies.items():
        ops = copied.ops.union(around.home[anchor].ops)
        yield Proposal("copies in products", f"{anchor} {copied.why}", (ops,), copied.stake_bytes)


def _is_product_of_halves(around: Neighbours, group: Group) -> bool:
    anchor = around.anchor(group)
    is_matmul = anchor.kind is Kind.CONTRACTION and anchor.op == "matmul"
    return is_matmul and len(group.outputs) == 1 and anchor.inputs[0].tensor.dtype in HALVES


def _views_before(around: Neighbours, copy: ResultCopy) -> set[str]:
    """The views through which the copy reads its source."""
    read = {value.source for name in copy.ops for value in around.op(name).inputs} - copy.ops
    found: set[str] = set()
    for name in read:
        while name != copy.source and name in around.graph.dag and around.op(name).kind is Kind.VIEW:
            found.add(name)
            name = around.op(name).inputs[0].source
    return found
