"""K and V as results beside attention's: where the copy engine stores the keys that it has read.

A copy has the operand's elements, each once, in rows as the operand's own: its address is a sum of the same terms with
other strides. So a box of keys in shared memory, in the order that a tensor map's swizzle gives it, is stored as it is;
or, for a copy of float32, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx

from subtune.backends.cuda.families.attention.operands import Lying, misplaced
from subtune.backends.cuda.families.attention.scores import Scores
from subtune.core.kernel import NotApplicable
from subtune.patterns.chain import ChainExpressions
from subtune.patterns.chain_copies import CopyingChain
from subtune.patterns.copies import Copy, walked

WIDENED = 8
"""Elements that a thread widens and stores at once."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of operand number `operand` (1: K, 2: V), and how it `lies`: in float32 it `is_wider` than the operand.

    `sharing` has the outer axes whose neighbours, so many of them, read the same rows: the first of them stores.
    """

    operand: int
    lies: Lying
    sharing: tuple[tuple[Any, int], ...]

    @property
    def is_wider(self) -> bool:
        return self.lies.dtype == "float32"


def copied_of(
    chain: CopyingChain, operands: tuple[Lying, Lying, Lying], scores: Scores, params: list[Any]
) -> tuple[Copied, ...] | NotApplicable:
    """Every copy as one of K or V, at most one of each; all keys have to be read by the last rows at the latest.

    Args:
        params: of the function.
    """
    form = chain.form
    found: list[Copied] = []
    if chain.copies and scores.offset is not None and form.extents[form.m] + scores.offset < form.extents[form.n]:
        return NotApplicable("keys that no row sees are not read")
    for copy in chain.copies:
        left = {1, 2} - {one.operand for one in found}
        ways = [_copied(form, copy, operand, operands[operand], params) for operand in sorted(left)]
        one = next((way for way in ways if isinstance(way, Copied)), None)
        if one is None:
            reasons = [way.reason for way in ways if isinstance(way, NotApplicable)]
            return NotApplicable("; ".join(reasons) or "more than one copy of keys and of values")
        found.append(one)
    return tuple(found)


def _copied(
    form: ChainExpressions, copy: Copy, operand: int, source: Lying, params: list[Any]
) -> Copied | NotApplicable:
    sharing = _sharing(form, source)
    if not params[source.param].same_as(copy.load.source) or sharing is None:
        return NotApplicable("a copy of something else, or of heads whose order is not plain")
    dims = [(source.pitch, source.rows), (1, source.inner), *((term.stride, term.extent) for term in source.terms)]
    strides = _strides(copy, source.first, dims)
    if strides is None or strides[1] != 1:
        return NotApplicable("a copy of other elements, or of rows that are not contiguous")
    terms = tuple(replace(term, stride=stride) for term, stride in zip(source.terms, strides[2:], strict=True))
    param = next(i for i, p in enumerate(params) if p.same_as(copy.out))
    lies = replace(source, param=param, dtype=str(copy.out.dtype), first=0, pitch=strides[0], terms=terms)
    copied = Copied(operand, lies, sharing)
    if copied.is_wider and source.inner % WIDENED:
        return NotApplicable(f"rows that are no {WIDENED} elements each time")
    why = misplaced(lies)
    return NotApplicable(why) if why else copied


def _strides(copy: Copy, first: int, dims: list[tuple[int, int]]) -> list[int] | None:
    """Of the copy, for each of the operand's `dims` (stride and extent): one axis of the copy walks one of them."""
    begin, axes = walked(copy) or (first, ())
    strides = {(axis.step, axis.extent): prod(int(d) for d in copy.out.shape[axis.dim + 1 :]) for axis in axes}
    if begin != first or len(strides) != len(axes) or sorted(strides) != sorted(dims):
        return None
    return [strides[dim] for dim in dims]


def _sharing(form: ChainExpressions, source: Lying) -> tuple[tuple[Any, int], ...] | None:
    """`Copied.sharing`; None unless each term is an outer axis of its own, or that divided by what shares a head."""
    counts, left = {axis: form.extents[axis] for axis in form.outer}, set(form.outer)
    for term in source.terms:
        axis, count = (term.value.a, term.value.b) if isinstance(term.value, tirx.FloorDiv) else (term.value, 1)
        if axis not in left or not isinstance(count, int | tirx.IntImm):
            return None
        if form.extents[axis] != int(count) * term.extent:
            return None
        left.remove(axis)
        counts[axis] = int(count)
    return tuple((axis, count) for axis, count in counts.items() if count > 1)
