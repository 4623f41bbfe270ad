"""A chain of two contractions written anew, in stages of plain indices that a schedule can move.

    b_packed[o, n/nr, k, nr], e_packed[o, j/nr2, n, nr2]     unless they are constants (packed at compile time) or stay
    s[o, m, n]  sums of the first contraction, rows and columns padded to whole tiles
    t = f(s)    and for a softmax  largest, p = exp(t - largest), inverse = 1 / sum p
    o[o, m, j]  sums of the second contraction, over p not yet divided
    done = o * inverse
    out = g(done)

Rows beyond the end repeat the last one; columns beyond the end are -inf for a softmax, and are never summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.families.chain.candidates import Knobs
from subtune.core.kernel import Packing
from subtune.patterns.axes import Operand
from subtune.patterns.chain import ChainExpressions, is_packed_once, padded
from subtune.tir.blocks import nest, with_stages
from subtune.tir.expressions import loads, variables
from subtune.tir.substitute import substitute

_REDUCE = tirx.IterVar.CommReduce
_Right = Callable[[Any, Any, Any], Any]


# long: one computation, stage by stage; every stage reads the one before and the extents
def rewrite(
    func: PrimFunc, form: ChainExpressions, tile: Knobs, lanes: int
) -> tuple[PrimFunc, tuple[tuple[int, Packing], ...]]:
    """The function in stages, and what it wants of its constants."""
    extent = form.extents
    rows, columns = padded(extent[form.m], tile.mb), padded(extent[form.n], tile.nr)
    outer = [extent[v] for v in form.outer]
    stages = Stages()
    packings: list[tuple[int, Packing]] = []
    between = Between(form, rows, columns, lanes)
    axes, inside = between.axes, between.inside

    def right(name: str, expr: Any, operand: Operand, axis: tuple[Any, Any], nr: int, packs: bool) -> _Right:
        """A right operand as a function of (the outer axes and m, column, reduced index)."""
        column, reduced = axis
        own = [v for v in form.outer if v in variables(expr)]
        panels = [*(extent[v] for v in own), padded(extent[column], nr) // nr, extent[reduced], nr]
        if is_packed_once(operand):
            packing = _packing(operand, nr)
            packed = tirx.decl_buffer([tirx.const(d, "int64") for d in packing.shape], operand.dtype, name)
            stages.params[operand.param] = packed
            packings.append((operand.param, packing))
            return _panel(packed, own, nr, len(packing.shape) - len(panels))
        if not packs:
            return lambda env, at, of: substitute(expr, {**env, column: at, reduced: of})

        def pack(*i: Any) -> Any:
            at = inside(i[-3] * tirx.const(nr, "int64") + i[-1], column, padded(extent[column], nr))
            return substitute(expr, {**dict(zip(own, i, strict=False)), reduced: i[-2], column: at})

        return _panel(stages.add(name, panels, pack), own, nr, 0)

    b = right("b_packed", form.b, form.pattern.first.b, (form.n, form.k), tile.nr, True)
    e = right("e_packed", form.e, form.pattern.second.b, (form.j, form.n), tile.nr2, tile.pack_e)

    def left(*i: Any) -> Any:
        *o, m, k = i
        return substitute(form.a, {**axes(*o, inside(m, form.m, rows)), form.k: k})

    copied = stages.add("a_rows", [*outer, rows, extent[form.k]], left) if tile.copy_a else None
    a = left if copied is None else lambda *i: tirx.BufferLoad(copied, list(i))
    s = stages.add(
        "s", [*outer, rows, columns],
        lambda *i: a(*i[:-2], i[-1]) * b(axes(*i), i[-2], i[-1]),
        reduce=extent[form.k],
    )  # fmt: skip

    p = stages.add("t", [*outer, rows, columns], between.scores(s))
    inverse = None
    if form.pattern.is_softmax:
        p, inverse = softmax(stages, p, [*outer, rows], columns, lanes)

    second_columns = padded(extent[form.j], tile.nr2)
    total = stages.add(
        "o", [*outer, rows, second_columns],
        lambda *i: tirx.BufferLoad(p, [*i[:-2], i[-1]]) * e(axes(*i), i[-2], i[-1]),
        reduce=extent[form.n],
    )  # fmt: skip

    between.finish(stages, total, inverse, [*outer, rows, second_columns], func)
    return stages.function(func), tuple(packings)


@dataclass(frozen=True, slots=True)
class Between:
    """What happens to the sums of both contractions, in terms of stages whose axes are (outer..., row, column).

    `rows`, `columns`: of the scores, padded to whole tiles.
    """

    form: ChainExpressions
    rows: int
    columns: int
    lanes: int

    def axes(self, *at: Any) -> dict[Any, Any]:
        """The chain's outer axes and m at the stage's `at`."""
        form = self.form
        return dict(zip((*form.outer, form.m), at[: len(form.outer) + 1], strict=True))

    def inside(self, index: Any, of: Any, size: int) -> Any:
        """`index` along the axis `of`, the last one where a stage has `size` elements, which are more."""
        extent = self.form.extents[of]
        return index if size == extent else tirx.min(index, tirx.const(extent - 1, "int64"))

    def scores(self, s: Any) -> Callable[..., Any]:
        """f of the sums `s`; columns beyond the end are -inf for a softmax."""
        form, columns, lanes = self.form, self.columns, self.lanes
        extent = form.extents[form.n]

        def score(*i: Any) -> Any:
            *o, m, n = i
            env = {**self.axes(*o, self.inside(m, form.m, self.rows)), form.score: tirx.BufferLoad(s, list(i))}
            value = substitute(form.f, {**env, form.n: n})
            if columns != extent and any(form.n in variables(load) for load in loads(form.f)):
                # a vector of elements that a clamp may hold back is read one by one: only the last one is
                is_whole = (n // lanes + 1) * lanes <= tirx.const(extent, "int64")
                clamped = substitute(form.f, {**env, form.n: self.inside(n, form.n, columns)})
                value = tirx.if_then_else(is_whole, value, clamped)
            if not form.pattern.is_softmax or columns == extent:
                return value
            exists = n < tirx.const(extent, "int64")
            return tirx.Select(exists, value, tirx.const(float("-inf"), "float32"))

        return score

    def finish(self, stages: Stages, total: Any, inverse: Any | None, shape: Sequence[int], func: PrimFunc) -> None:
        """The stages behind the sums `total` of the second contraction, of `shape`: "done" and "out"."""
        form = self.form

        def divided(*i: Any) -> Any:
            value = tirx.BufferLoad(total, list(i))
            if inverse is None:
                return value
            by = tirx.BufferLoad(inverse, list(i[:-1]))
            if not form.pattern.nan_is_zero:
                return value * by
            return tirx.Select(by < tirx.const(math.inf, "float32"), value * by, tirx.const(0.0, "float32"))

        done = stages.add("done", shape, divided)

        def result(*i: Any) -> Any:
            return substitute(form.out, {**self.axes(*i), form.j: i[-1], form.sum: tirx.BufferLoad(done, list(i))})

        def place(*i: Any) -> list[Any]:
            return [substitute(index, {**self.axes(*i), form.j: i[-1]}) for index in form.out_indices]

        extents = [*shape[:-2], form.extents[form.m], form.extents[form.j]]
        stages.add("out", extents, result, into=(func.params[-1], place))


def _packing(operand: Operand, nr: int) -> Packing:
    """`[ones..., batch..., column / nr, reduced, nr]`; the column axis is the last but one of the contraction's."""
    reduced = max(operand.axes)
    column = reduced - 1
    split: list[tuple[int, ...]] = []
    place: dict[tuple[int, int], int] = {}
    count = 0
    for dim, axis in enumerate(operand.axes):
        size = operand.shape[dim]
        split.append((padded(size, nr) // nr, nr) if axis == column else (size,))
        for part in range(len(split[-1])):
            place[axis if axis >= 0 else -1 - dim, part] = count
            count += 1
    lead = sorted(key for key in place if key[0] < 0)
    batch = sorted(key for key in place if 0 <= key[0] < column)
    order = [*lead, *batch, (column, 0), (reduced, 0), (column, 1)]
    return Packing(tuple(split), tuple(place[key] for key in order))


def _panel(packed: Any, own: Sequence[Any], nr: int, lead: int) -> _Right:
    zero, width = tirx.const(0, "int64"), tirx.const(nr, "int64")

    def read(env: Any, at: Any, of: Any) -> Any:
        batch = [env[v] for v in own]
        indices = [*[zero] * lead, *batch, tirx.floordiv(at, width), of, tirx.floormod(at, width)]
        return tirx.BufferLoad(packed, indices).astype("float32")

    return read


def softmax(stages: Stages, t: Any, rows: list[int], columns: int, lanes: int) -> tuple[Any, Any]:
    """exp(t - its row's largest), and one over its row's sum; reductions keep one vector of partial results."""
    lowest = tirx.min_value("float32")

    def chunk(buffer: Any) -> Callable[..., Any]:
        return lambda *i: tirx.BufferLoad(buffer, [*i[:-2], i[-1] * tirx.const(lanes, "int64") + i[-2]])

    def lane(buffer: Any) -> Callable[..., Any]:
        return lambda *i: tirx.BufferLoad(buffer, list(i))

    chunks = columns // lanes
    part = stages.add("largest_part", [*rows, lanes], chunk(t), reduce=chunks, combine=tirx.max, start=lowest)
    largest = stages.add("largest", rows, lane(part), reduce=lanes, combine=tirx.max, start=lowest)
    p = stages.add(
        "p", [*rows, columns],
        lambda *i: tirx.exp(tirx.BufferLoad(t, list(i)) - tirx.BufferLoad(largest, list(i[:-1]))),
    )  # fmt: skip
    part = stages.add("total_part", [*rows, lanes], chunk(p), reduce=chunks)
    total = stages.add("total", rows, lane(part), reduce=lanes)
    inverse = stages.add("inverse", rows, lambda *i: tirx.const(1.0, "float32") / tirx.BufferLoad(total, list(i)))
    return p, inverse


@dataclass(slots=True)
class Stages:
    """Loop nests in program order, the buffers between them, and the parameters that changed."""

    nests: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=list)
    params: dict[int, Any] = field(default_factory=dict)

    def add(
        self,
        name: str,
        shape: Sequence[int],
        value: Callable[..., Any],
        reduce: int = 0,
        combine: Callable[[Any, Any], Any] = lambda x, y: x + y,
        start: Any = None,
        into: tuple[Any, Callable[..., list[Any]]] | None = None,
    ) -> Any:
        """`buffer[i...] = value(i...)`, or the reduction of `value(i..., r)` over `reduce` elements."""
        extents = [*shape, *([reduce] if reduce else [])]
        ivs = [
            tirx.IterVar(
                ir.Range(tirx.const(0, "int64"), tirx.const(size, "int64")),
                tirx.Var(f"v{i}", "int64"),
                _REDUCE if i >= len(shape) else tirx.IterVar.DataPar,
            )
            for i, size in enumerate(extents)
        ]
        variables_ = [iv.var for iv in ivs]
        at = variables_[: len(shape)]
        if into is None:
            buffer = tirx.decl_buffer([tirx.const(d, "int64") for d in shape], "float32", name)
            self.buffers.append(buffer)
            indices = list(at)
        else:
            buffer, indices = into[0], into[1](*at)
        result = value(*variables_)
        init = None
        if reduce:
            init = tirx.BufferStore(buffer, tirx.const(0.0, "float32") if start is None else start, indices)
            result = combine(tirx.BufferLoad(buffer, indices), result)
        body = tirx.BufferStore(buffer, result, indices)
        self.nests.append(nest(name, ivs, {}, body, init))
        return buffer

    def function(self, func: PrimFunc) -> PrimFunc:
        params = [self.params.get(i, p) for i, p in enumerate(func.params)]
        return with_stages(func, self.nests, self.buffers, params)
