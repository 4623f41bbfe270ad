"""Where Q, K, V lie: an operand's rows as the copy engine walks them, whatever views lead to them.

    element (o, row, inner) is at   first + row * pitch + inner + sum of term(o) * stride

The terms are expressions over the outer axes: `head // 4` for keys that heads share, `head * 64` of a joined
projection. Each is a dim of the tensor map, so that a box ends where the rows of its own batch end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation

from subtune.backends.cuda.families.wgmma.tiling import ROW_BYTES
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.chain import ChainExpressions, as_stored
from subtune.tir.expressions import variables
from subtune.tir.rebuild import NARROW

_ALIGNMENT = 16  # bytes, of everything that a tensor map is told
_MAX_RANK = 5
_SWIZZLE_128B, _L2_PROMOTION_256B = 3, 3  # CUtensorMapSwizzle, CUtensorMapL2promotion


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the address that the outer axes decide: `value`, below `extent`, counts `stride` elements."""

    value: Any
    stride: int
    extent: int


@dataclass(frozen=True, slots=True)
class Lying:
    """Rows of an operand of the function's parameter number `param`; all in elements."""

    param: int
    dtype: str
    first: int
    rows: int
    pitch: int
    inner: int
    terms: tuple[Term, ...]

    def arguments(self, box_rows: int) -> tuple[int, ...]:
        """Of `cuTensorMapEncodeTiled` after the address: boxes of `box_rows` rows and 128 bytes of each."""
        size = dtype_bits(self.dtype) // 8
        extents = [self.inner, self.rows, *(term.extent for term in self.terms)]
        strides = [self.pitch * size, *(term.stride * size for term in self.terms)]
        boxes = [ROW_BYTES // size, box_rows, *(1 for _ in self.terms)]
        rank = len(extents)
        return (rank, *extents, *strides, *boxes, *[1] * rank, 0, _SWIZZLE_128B, _L2_PROMOTION_256B, 0)

    @property
    def rank(self) -> int:
        return 2 + len(self.terms)


def lying(expr: Any, row: Any, inner: Any, outer: tuple[Any, ...], extents: Any, params: Any) -> Lying | NotApplicable:
    """How `expr`, a load, runs along `row` and `inner`.

    Args:
        extents: of every axis.
        params: of the function.
    """
    load = as_stored(expr)
    if not isinstance(load, ir.TensorLoad):
        return NotApplicable("an operand is computed on the way")
    shape = [int(d) for d in load.source.shape]
    analyzer = Analyzer()
    for axis in (*outer, row, inner):
        analyzer.bind(axis, ir.Range(tirx.const(0, "int64"), tirx.const(extents[axis], "int64")))
    flat: Any = tirx.const(0, "int64")
    for d, index in enumerate(load.indices):
        flat = flat + index * prod(shape[d + 1 :])
    linear = detect_linear_equation(analyzer.simplify(flat), [row, inner])
    if len(linear) != 3 or not all(isinstance(analyzer.simplify(c), tirx.IntImm) for c in linear[:2]):
        return NotApplicable("an operand's rows are no rows in memory")
    pitch, step = (int(analyzer.simplify(c)) for c in linear[:2])
    if step != 1:
        return NotApplicable("an operand's rows are not contiguous")
    first, terms = _terms(analyzer.simplify(linear[2]), analyzer)
    param = next(i for i, p in enumerate(params) if p.same_as(load.source))
    found = Lying(param, str(load.source.dtype), first, extents[row], pitch, extents[inner], tuple(terms))
    why = misplaced(found)
    return NotApplicable(why) if why else found


def misplaced(lies: Lying) -> str:
    """Why no tensor map walks rows that lie so; "" where one does."""
    size = dtype_bits(lies.dtype) // 8
    apart = [lies.first, lies.pitch, *(term.stride for term in lies.terms)]
    if any(x * size % _ALIGNMENT for x in apart) or any(x < 0 for x in apart):
        return f"an operand that is not aligned to {_ALIGNMENT} bytes"
    return f"an operand of more than {_MAX_RANK} dims" if lies.rank > _MAX_RANK else ""


def _terms(expr: Any, analyzer: Analyzer) -> tuple[int, list[Term]]:
    """An expression over the outer axes as a constant and terms."""
    if isinstance(expr, tirx.IntImm):
        return int(expr.value), []
    if isinstance(expr, tirx.Add):
        parts = [_terms(side, analyzer) for side in (expr.a, expr.b)]
        return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
    stride = 1
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm):
        expr, stride = expr.a, int(expr.b.value)
        if isinstance(expr, tirx.Add):
            parts = [_terms(analyzer.simplify(side * stride), analyzer) for side in (expr.a, expr.b)]
            return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
    assert variables(expr), expr
    return 0, [Term(expr, stride, int(analyzer.const_int_bound(expr).max_value) + 1)]


def operands_of(
    form: ChainExpressions, params: list[Any], dtypes: Collection[str] = NARROW
) -> tuple[Lying, Lying, Lying] | NotApplicable:
    """Q, K and V, of one type among `dtypes`."""
    rows = []
    for expr, row, inner in ((form.a, form.m, form.k), (form.b, form.n, form.k), (form.e, form.n, form.j)):
        found = lying(expr, row, inner, form.outer, form.extents, params)
        if isinstance(found, NotApplicable):
            return found
        rows.append(found)
    q, k, v = rows
    if len({q.dtype, k.dtype, v.dtype}) > 1 or q.dtype not in dtypes:
        return NotApplicable(f"no products of {q.dtype}, {k.dtype} and {v.dtype}")
    return q, k, v
