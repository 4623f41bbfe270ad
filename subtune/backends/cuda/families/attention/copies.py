"""K and V as results beside attention's: where the copy engine stores the keys that it has read.

A copy has the operand's elements, each once, in rows as the operand's own: its address is a sum of the same terms with
other strides. So a box of keys in shared memory, in the order that a tensor map's swizzle gives it, is stored as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation

from subtune.backends.cuda.families.attention.operands import Lying, misplaced
from subtune.backends.cuda.families.attention.scores import Scores
from subtune.core.kernel import NotApplicable
from subtune.patterns.chain import ChainExpressions
from subtune.patterns.chain_copies import Copy, CopyingChain


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of operand number `operand` (1: K, 2: V), and how it `lies`.

    `sharing` are the outer axes whose neighbours read the same rows, and how many: the first of them stores.
    """

    operand: int
    lies: Lying
    sharing: tuple[tuple[Any, int], ...]


def copied_of(
    chain: CopyingChain, operands: tuple[Lying, Lying, Lying], scores: Scores, params: list[Any]
) -> tuple[Copied, ...] | NotApplicable:
    """Every copy as one of K or V, of each one at most."""
    form, found = chain.form, []
    if chain.copies and scores.offset is not None and form.extents[form.m] + scores.offset < form.extents[form.n]:
        return NotApplicable("keys that no row sees are not read")
    for copy in chain.copies:
        taken = {one.operand for one in found}
        ways = [_copied(form, copy, i, operands[i], params) for i in (1, 2) if i not in taken]
        one = next((way for way in ways if isinstance(way, Copied)), None)
        if one is None:
            return NotApplicable("a result beside attention's is no copy of the keys or values")
        found.append(one)
    return tuple(found)


def _copied(
    form: ChainExpressions, copy: Copy, operand: int, source: Lying, params: list[Any]
) -> Copied | NotApplicable:
    if not params[source.param].same_as(copy.load.source):
        return NotApplicable("a copy of something else")
    dims = _dims(copy, source)
    if isinstance(dims, NotApplicable):
        return dims
    pitch, step, *strides = dims
    terms = tuple(term._replace(stride=stride) for term, stride in zip(source.terms, strides, strict=True))
    sharing = _sharing(form, source)
    if step != 1 or sharing is None:
        return NotApplicable("a copy whose rows are not contiguous, or of which a head has several")
    param = next(i for i, p in enumerate(params) if p.same_as(copy.out))
    lies = Lying(param, source.dtype, 0, source.rows, pitch, source.inner, terms)
    why = misplaced(lies)
    return NotApplicable(why) if why else Copied(operand, lies, sharing)
