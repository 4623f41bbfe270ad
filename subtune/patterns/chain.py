"""Two contractions in a row, recognised from the TIR: matmul, elementwise or softmax, matmul.

    S[o, m, n] = sum over k of  a(o, m, k) * b(o, n, k)
    P[o, m, n] = f(S[o, m, n])                                  elementwise; or the softmax of that over n
    O[o, m, j] = sum over n of  P[o, m, n] * e(o, n, j)
    out[...]   = g(O[o, m, j])

All blocks in between (transposes, reshapes, slices, masks, scales) are expanded into the expressions a, b, f, e and g
over the axes of the second contraction, so it does not matter how a model writes them. Names are never looked at.
Halves are read as float32, wherever the model casts: only what is loaded and stored is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, sym, tirx
from tvm.s_tir import SBlockRealize
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.patterns.axes import Axis, Operand, Role
from subtune.patterns.contraction import Contraction
from subtune.patterns.reductions import Blocks, Scope, common_indices, product
from subtune.tir.blocks import is_reduction
from subtune.tir.expressions import (
    choice_of,
    is_load_of,
    is_same,
    loads,
    number,
    replace_loads,
    variables,
)
from subtune.tir.rebuild import ForeignError, in_float32
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class Chain:
    """What policies need: both contractions over axes (batch..., m, n, k); `m` is the axis whose rows are shared.

    The first one's n axis is the second one's k axis. An operand's `param` is -1 where it is computed on the way.
    `is_softmax`: rows are normalised between the two. `b_is_contiguous`, `e_is_contiguous`: the right operands lie
    with their columns side by side, so that packing them, or reading them where they lie, moves whole vectors.
    """

    first: Contraction
    second: Contraction
    is_softmax: bool
    b_is_contiguous: bool
    e_is_contiguous: bool
    dtypes: frozenset[str] = frozenset({"float32"})
    """Of the floats that are loaded and stored."""
    nan_is_zero: bool = False
    """Rows whose softmax is NaN, those that see no key among them, give zeros."""

    @property
    def batch(self) -> int:
        return prod(axis.extent for axis in self.first.of_role("batch"))

    @property
    def m(self) -> int:
        return self.first.of_role("m")[0].extent

    @property
    def n1(self) -> int:
        return self.first.n.extent

    @property
    def n2(self) -> int:
        return self.second.n.extent

    @property
    def k(self) -> int:
        return self.first.of_role("k")[0].extent

    def cached_bytes(self, mb: int, nr: int) -> int:
        """What `mb` rows hold between the contractions, their columns padded to whole panels of `nr`."""
        return mb * padded(self.n1, nr) * 4 * (2 if self.is_softmax else 1)


def as_stored(expr: Any) -> Any:
    """A load of a half without its cast to float32."""
    return expr.value if isinstance(expr, tirx.Cast) and isinstance(expr.value, ir.TensorLoad) else expr


def padded(extent: int, tile: int) -> int:
    return -(-extent // tile) * tile


def is_packed_once(operand: Operand) -> bool:
    """Whether an operand is a constant that can be packed at compile time: every dim one axis, or of extent one."""
    named = [axis for axis in operand.axes if axis >= 0]
    plain = all(axis >= 0 or dim == 1 for axis, dim in zip(operand.axes, operand.shape, strict=True))
    return operand.is_constant and plain and len(set(named)) == len(named)


@dataclass(frozen=True, slots=True)
class ChainExpressions:
    """The chain as expressions over `outer`, `m`, `n`, `j`, `k`; `score` and `sum` stand for S and O.

    `out` is stored at `out_indices` of the function's last parameter. All expressions read parameters only.
    """

    pattern: Chain
    outer: tuple[Any, ...]
    m: Any
    n: Any
    j: Any
    k: Any
    score: Any
    sum: Any
    a: Any
    b: Any
    f: Any
    e: Any
    out: Any
    out_indices: tuple[Any, ...]
    extents: Mapping[Any, int]


def chain_expressions(
    func: PrimFunc, num_outputs: int, one_row: bool = False
) -> ChainExpressions | NotApplicable:  # fmt: skip
    """An unscheduled PrimFunc that is a chain, or why it is none.

    Args:
        one_row: attention of one row is a chain, too, with an axis `m` that nothing depends on.
    """
    if num_outputs != 1:
        return NotApplicable("several outputs")
    if not isinstance(func.body, SBlockRealize):  # loops of the importer's
        return NotApplicable("not made of blocks")
    try:
        blocks = Blocks.of(in_float32(func))
    except ForeignError as why:
        return NotApplicable(str(why))
    if isinstance(blocks, NotApplicable):
        return blocks
    contractions = [block for block in blocks.made.values() if product(block) is not None]
    others = [block for block in blocks.made.values() if is_reduction(block) and product(block) is None]
    if len(contractions) != 2 or len(others) not in (0, 2):
        return NotApplicable(f"{len(contractions)} contractions and {len(others)} other reductions are no chain")
    first, second = contractions
    scope = Scope(blocks, sym.Analyzer())
    spatial, reduced = scope.enter(second)
    if len(reduced) != 1:
        return NotApplicable("the second contraction reduces over several axes")
    n = reduced[0]
    source = first.body.buffer
    sides = [scope.expand(side) for side in product(second) or ()]
    reading = [side for side in sides if any(load.source.same_as(source) for load in loads(side))]
    if len(reading) != 1:
        return NotApplicable("the second contraction does not read the first through one operand")
    weights = reading[0]
    e = sides[0] if weights is sides[1] else sides[1]

    shown = _without_nan(weights) if others else None
    softmax = _softmax(scope, weights if shown is None else shown, others, n) if others else None
    if isinstance(softmax, NotApplicable):
        return softmax
    f = weights if softmax is None else softmax
    at = common_indices(f, source)
    if at is None:
        return NotApplicable("the first contraction's result is read at several places")
    if any(not isinstance(i, ir.Var | tirx.IntImm) for i in at):
        return NotApplicable("the first contraction's axes are not those of the second")
    inner_spatial, inner_reduced = scope.enter(first)
    moved = dict(zip(first.body.indices, at, strict=True))
    if any(scope.extent(v) != scope.extent(moved[v]) for v in inner_spatial):
        return NotApplicable("the first contraction's axes have other extents than the second's")
    if len(inner_reduced) != 1:
        return NotApplicable("the first contraction reduces over several axes")
    k = inner_reduced[0]
    a, b = (scope.expand(substitute(side, moved)) for side in product(first) or ())
    if n in variables(a):
        a, b = b, a
    is_softmax, is_shown = softmax is not None, shown is not None
    return _assemble(scope, (second, spatial), (n, k), (a, b, f, e), source, is_softmax, is_shown, one_row)


def _assemble(
    scope: Scope, owner: tuple[Any, list[Any]], reduced: tuple[Any, Any], parts: tuple[Any, ...], source: Any,
    is_softmax: bool, nan_is_zero: bool, one_row: bool,
) -> ChainExpressions | NotApplicable:  # fmt: skip
    second, spatial = owner
    (n, k), (a, b, f, e) = reduced, parts
    if n in variables(a) or n not in variables(b) or n not in variables(e):
        return NotApplicable("the axis between the contractions does not run along both right operands")
    rows_of_f = variables(f) - {n}
    columns = [v for v in spatial if v in variables(e) and v not in rows_of_f]
    if len(columns) != 1:
        return NotApplicable(f"the second contraction has {len(columns)} column axes")
    (j,) = columns
    rows = [v for v in spatial if v is not j and v not in variables(b) and v not in variables(e)]
    if not rows:
        if not (is_softmax and one_row):
            return NotApplicable("no rows share the operands: the kernel is a matrix times a vector")
        rows = [tirx.Var("row", "int64")]
        scope.analyzer.bind(rows[0], ir.Range(tirx.const(0, "int64"), tirx.const(1, "int64")))
    at = common_indices(f, source)
    assert at is not None
    if not {v for v in spatial if v is not j} <= variables(list(at)):
        return NotApplicable("the first contraction would be computed several times")
    m = rows[-1]
    outer = tuple(v for v in spatial if v is not j and v is not m)
    score, total = tirx.Var("score", "float32"), tirx.Var("total", "float32")
    f = replace_loads(f, source, score)
    epilogue = _epilogue(scope, second, total)
    if isinstance(epilogue, NotApplicable):
        return epilogue
    out, indices = epilogue
    for expr in (a, b, f, e, out):
        if not all(scope.blocks.is_param(load.source) for load in loads(expr)):
            return NotApplicable("an operand is computed by another reduction")
        if str(expr.ty.dtype) != "float32" and expr is not out:
            return NotApplicable("not of floats")
    axes = {v: i for i, v in enumerate((*outer, m, n, k))}
    axes2 = {v: i for i, v in enumerate((*outer, m, j, n))}
    read = [load.source for expr in (a, b, f, e, out) for load in loads(expr)]
    once = {p for p in scope.blocks.params if sum(p.same_as(source) for source in read) == 1}
    chained = Chain(
        _contraction(scope, axes, (a, b), len(outer), once),
        _contraction(scope, axes2, (f, e), len(outer), once),
        is_softmax,
        _is_contiguous(scope, b, n),
        _is_contiguous(scope, e, j),
        frozenset(str(p.dtype) for p in scope.blocks.params if "float" in str(p.dtype)),
        nan_is_zero,
    )
    extents = {v: scope.extent(v) for v in (*outer, m, n, j, k)}
    return ChainExpressions(chained, outer, m, n, j, k, score, total, a, b, f, e, out, indices, extents)


def _without_nan(weights: Any) -> Any | None:
    """x where `weights` is x with zeros in place of NaN; None where it is something else."""
    choice = choice_of(weights)
    if choice is None or not isinstance(choice[0], ir.Call):
        return None
    condition, yes, no = choice
    is_nan = str(getattr(condition.op, "name", "")).endswith("isnan")
    return no if is_nan and is_same(condition.args[0], no) and number(yes) == 0.0 else None


def _softmax(scope: Scope, weights: Any, others: list[Any], along: Any) -> Any:
    """f where `weights` is exp(f - max f) / sum of exp(f - max f), both over the row; else why not."""
    why = NotApplicable("what lies between the contractions is no softmax")
    if not isinstance(weights, tirx.Div) or not isinstance(weights.b, ir.TensorLoad):
        return why
    numerator, divisor = weights.a, weights.b
    is_exp = isinstance(numerator, ir.Call) and str(getattr(numerator.op, "name", "")).endswith(".exp")
    if not is_exp or not isinstance(numerator.args[0], tirx.Sub):
        return why
    f, largest = numerator.args[0].a, numerator.args[0].b
    if not isinstance(largest, ir.TensorLoad):
        return why
    by_buffer = {block.body.buffer: block for block in others}
    maxima, sums = by_buffer.get(largest.source), by_buffer.get(divisor.source)
    if maxima is None or sums is None or maxima is sums:
        return why
    is_max = isinstance(maxima.body.value, tirx.Max) and is_load_of(maxima.body.value.a, maxima.body.buffer)
    is_sum = isinstance(sums.body.value, tirx.Add) and is_load_of(sums.body.value.a, sums.body.buffer)
    if not is_max or not is_sum:
        return why
    if not _reduces(scope, maxima, largest, f, along) or not _reduces(scope, sums, divisor, numerator, along):
        return NotApplicable("the softmax does not run over the rows between the contractions")
    return f


def _reduces(scope: Scope, block: Any, load: ir.TensorLoad, term: Any, along: Any) -> bool:
    """Whether `block`, read at `load`, reduces `term` over the axis `along`."""
    scope.enter(block)
    reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce and int(iv.dom.extent) > 1]
    if len(reduced) != 1 or int(reduced[0].dom.extent) != scope.extent(along) or along in variables(load):
        return False
    env = {**dict(zip(block.body.indices, load.indices, strict=True)), reduced[0].var: along}
    return is_same(scope.expand(substitute(block.body.value.b, env)), term)


def _epilogue(scope: Scope, second: Any, total: Any) -> tuple[Any, tuple[Any, ...]] | NotApplicable:
    """What is stored for element (o, m, j) of the second contraction, and where in the output."""
    output = scope.blocks.params[-1]
    block = scope.blocks.made.get(output)
    if block is None:
        return NotApplicable("the last parameter is not written")
    if block is second:
        return total, tuple(scope.analyzer.simplify(i) for i in second.body.indices)
    if is_reduction(block):
        return NotApplicable("a reduction follows the second contraction")
    spatial, _ = scope.enter(block)
    value = scope.expand(block.body.value)
    at = common_indices(value, second.body.buffer)
    if at is None:
        return NotApplicable("the output does not read the second contraction at one place")
    shape = [scope.extent(v) for v in spatial]
    read = [(i, v) for i, v in zip(at, second.body.indices, strict=True) if scope.extent(v) > 1]
    if prod(shape) != prod(scope.extent(v) for _, v in read):
        return NotApplicable("the output has more elements than the second contraction")
    try:
        inverse = tirx.IndexMap(spatial, [i for i, _ in read], None).inverse([tirx.const(d, "int64") for d in shape])
    except (RuntimeError, ValueError) as e:
        return NotApplicable(f"the output is no rearrangement of the second contraction: {str(e).splitlines()[-1]}")
    moved = dict(zip(spatial, inverse.map_indices([v for _, v in read]), strict=True))
    stored = scope.analyzer.simplify(replace_loads(substitute(value, moved), second.body.buffer, total))
    return stored, tuple(scope.analyzer.simplify(substitute(i, moved)) for i in block.body.indices)


def _contraction(
    scope: Scope, axes: dict[Any, int], sides: tuple[Any, Any], batch: int, read_once: set[Any]
) -> Contraction:
    roles = [Role.BATCH] * batch + [Role.M, Role.N, Role.K]
    found = tuple(Axis(i, scope.extent(v), roles[i]) for v, i in axes.items())
    first, second = (_operand(scope, axes, side, read_once) for side in sides)
    return Contraction(found, first, second, "float32")


def _operand(scope: Scope, axes: dict[Any, int], expr: Any, read_once: set[Any]) -> Operand:
    """A plain read of a parameter, or `param` -1 for what is computed."""
    expr = as_stored(expr)
    if not isinstance(expr, ir.TensorLoad):
        return Operand(-1, (), "float32", (), (), -1, False)
    params = scope.blocks.params
    param = next(i for i, p in enumerate(params) if p.same_as(expr.source))
    along = tuple(axes.get(i, -1) if isinstance(i, ir.Var) else -1 for i in expr.indices)
    shape = tuple(int(d) for d in expr.source.shape)
    is_constant = param in scope.blocks.constants and params[param] in read_once
    return Operand(-1, shape, str(expr.source.dtype), along, (None,) * len(shape), param, is_constant)


def _is_contiguous(scope: Scope, expr: Any, along: Any) -> bool:
    """Whether `expr` reads neighbours for neighbouring values of `along`."""
    expr = as_stored(expr)
    if not isinstance(expr, ir.TensorLoad):
        return False
    *others, last = expr.indices
    return along not in variables(others) and along not in variables(scope.analyzer.simplify(last - along))
