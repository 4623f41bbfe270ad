"""Two contractions that are added up, recognised from the TIR: a convolution and its block's shortcut.

    S[.., m, n]   = sum over k of a(m, k) * b(n, k)
    T[.., m, n]   = sum over j of c(m, j) * d(n, j)
    out[.., m, n] = e(S[.., m, n] + T[.., m, n])

They are one product, of rows `[a c]` and columns `[b d]`. Each is a workload of its own, as all that knows contractions
reads it: `front` makes out of S alone, `beside` makes T. Names are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.s_tir import SBlock
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import HALVES
from subtune.core.workload import Workload
from subtune.patterns.reductions import Blocks, Scope, common_indices, sums_of_products
from subtune.tir.blocks import is_reduction
from subtune.tir.expressions import is_same, loads, replace_loads

_FLOATS = HALVES | {"float32"}


@dataclass(frozen=True, slots=True)
class Summed:
    """`front` is the whole with zeros in place of `beside`'s sums; both have the whole's inputs, used or not."""

    front: Workload
    beside: Workload


def summed(func: PrimFunc, num_outputs: int) -> Summed | NotApplicable:
    """An unscheduled PrimFunc as such a sum, or why it is none."""
    found = sums_of_products(func, num_outputs, (2,), "two products")
    if isinstance(found, NotApplicable):
        return found
    blocks, sums = found
    beside, front = (block.body.buffer for block in sums)
    output = blocks.made.get(blocks.params[-1])
    if output is None or is_reduction(output) or beside in blocks.needed_for(front):
        return NotApplicable("one product needs the other, or nothing is made of both")
    value = Scope(blocks, sym.Analyzer()).expand(output.body.value)
    at = [common_indices(value, source) for source in (front, beside)]
    if None in at or not is_same(*at) or list(front.shape) != list(beside.shape):
        return NotApplicable("the products are not read at one place")
    if not _is_of_sum(value, (front, beside)):
        return NotApplicable("the products are not only added up")
    return Summed(
        Workload.of(_without(func, blocks, beside), 1),
        Workload.of(blocks.until(func, beside), 1),
    )


def _is_of_sum(value: Any, sums: tuple[Any, Any]) -> bool:
    """Whether `value` depends on what `sums` hold through the sum of both alone."""
    total = tirx.Var("total", "float32")

    def replaced(node: Any) -> Any:
        terms = _terms(node)
        read = [term.source for term in terms if isinstance(term, ir.TensorLoad)]
        others = [term for term in terms if not _reads(term, sums)]
        is_sum = len(terms) == len(others) + 2 and all(sum(s.same_as(r) for r in read) == 1 for s in sums)
        return total.astype(str(node.ty.dtype)) if is_sum else node

    return not _reads(tvm_ffi.structural_map(value, (tirx.Add, replaced)), sums)


def _reads(expr: Any, sums: tuple[Any, Any]) -> bool:
    return any(load.source.same_as(source) for load in loads(expr) for source in sums)


def _terms(expr: Any) -> list[Any]:
    """What a sum adds up; its roundings on the way are none of a kernel's, which rounds what it stores."""
    if isinstance(expr, tirx.Cast) and {str(expr.ty.dtype), str(expr.value.ty.dtype)} <= _FLOATS:
        return _terms(expr.value)
    return [*_terms(expr.a), *_terms(expr.b)] if isinstance(expr, tirx.Add) else [expr]


def _without(func: PrimFunc, blocks: Blocks, source: Any) -> PrimFunc:
    """`func` with zeros in place of what `source` holds, which is then not computed."""
    zero = tirx.const(0.0, str(source.dtype))

    def of_block(block: Any) -> Any:
        if not any(region.source.same_as(source) for region in block.reads):
            return block
        reads = [region for region in block.reads if not region.source.same_as(source)]
        parts = block.iter_vars, reads, block.writes, block.name_hint, replace_loads(block.body, source, zero)
        return SBlock(*parts, block.init, block.alloc_buffers, block.match_buffers, block.annotations)

    rest = blocks.part(func, blocks.needed_for(blocks.params[-1], known=source), list(func.params))
    return rest.with_body(tvm_ffi.structural_map(rest.body, (SBlock, of_block)))
