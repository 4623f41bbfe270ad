"""A chain of two contractions of bfloat16 written anew, its operands in tiles.

    b_tiles, e_tiles       the right operands, pairs of k woven into rows
    a_tiles                rows of the left one
    s, t                   sums of the first contraction, f of them; largest, p and inverse as in `chain`
    p_tiles                p rounded to bfloat16, the left operand of the second contraction
    o, done, out           sums of the second one, divided, and the epilogue

Sums of p are those of what is not rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.families.amx_chain.candidates import Knobs, columns_of
from subtune.backends.cpu.families.chain.stages import Between, Stages, softmax
from subtune.backends.cpu.math.amx_tiles import COLUMNS, DEPTH
from subtune.backends.cpu.math.bf16_ops import dot
from subtune.patterns.chain import ChainExpressions, as_stored, padded
from subtune.tir.expressions import variables
from subtune.tir.substitute import substitute

_PAIRS = DEPTH // 2


def rewrite(func: PrimFunc, form: ChainExpressions, knobs: Knobs) -> PrimFunc:
    """The function in stages."""
    extent = form.extents
    height, width = knobs.mr * knobs.rows, knobs.nr * COLUMNS
    rows, columns = padded(extent[form.m], knobs.mb * height), padded(extent[form.n], columns_of(knobs))
    results, k_steps = padded(extent[form.j], width), -(-extent[form.k] // DEPTH)
    outer = [extent[v] for v in form.outer]
    between = Between(form, rows, columns, COLUMNS)
    tiles = _Tiles(form, between, knobs)

    b, own_b = tiles.right("b_tiles", form.b, (form.n, form.k), (columns // COLUMNS, k_steps))
    e, own_e = tiles.right("e_tiles", form.e, (form.j, form.n), (results // COLUMNS, columns // DEPTH))
    a = tiles.left([*outer, rows // knobs.rows], k_steps)
    s = tiles.product("s", (a, b, own_b), [*outer, rows, columns], k_steps)
    stages = tiles.stages
    p = stages.add("t", [*outer, rows, columns], between.scores(s))
    inverse = None
    if form.pattern.is_softmax:
        p, inverse = softmax(stages, p, [*outer, rows], columns, COLUMNS)
    halves = tiles.rounded(p, [*outer, rows, columns])
    o = tiles.product("o", (halves, e, own_e), [*outer, rows, results], columns // DEPTH)
    between.finish(stages, o, inverse, [*outer, rows, results], func)
    return stages.function(func)


class _Tiles:
    def __init__(self, form: ChainExpressions, between: Between, knobs: Knobs) -> None:
        self._form, self._between, self._knobs = form, between, knobs
        self.stages = Stages()

    def left(self, tiles: Sequence[int], steps: int) -> Any:
        """Rows of the left operand of the first contraction; zeros beyond its k."""
        form, rows = self._form, self._knobs.rows
        expr = as_stored(form.a)

        def value(*i: Any) -> Any:
            *outer, t, row, step, lane = i
            m = self._between.inside(t * rows + row, form.m, tiles[-1] * rows)
            env = {**self._between.axes(*outer, m), form.k: step * DEPTH + lane}
            return _bits(expr, env, (form.k, form.extents[form.k]), steps * DEPTH)

        return self._stored("a_tiles", [*tiles, rows, steps, DEPTH], value, "uint16", lambda *i: _in_tile(*i))

    def rounded(self, p: Any, shape: Sequence[int]) -> Any:
        """`p`, of (outer..., rows, columns), as bfloat16 in tiles."""
        *outer, rows, columns = shape
        height, extent = self._knobs.rows, self._form.extents[self._form.n]
        is_zero_beyond = self._form.pattern.is_softmax or columns == extent  # exp of -inf is

        def value(*i: Any) -> Any:
            bits = tirx.reinterpret("uint16", tirx.Cast("bfloat16", tirx.BufferLoad(p, list(i))))
            if is_zero_beyond:
                return bits
            return tirx.if_then_else(i[-1] < tirx.const(extent, "int64"), bits, tirx.const(0, "uint16"))

        def place(*i: Any) -> list[Any]:
            *o, m, n = i
            return [*o, m // height, n // DEPTH, m % height, n % DEPTH]

        buffer = self._buffer("p_tiles", [*outer, rows // height, columns // DEPTH, height, DEPTH], "uint16")
        return self.stages.add("p_tiles", shape, value, into=(buffer, place))

    def right(self, name: str, expr: Any, along: tuple[Any, Any], tiles: tuple[int, int]) -> tuple[Any, list[Any]]:
        """A right operand in tiles, and which of the outer axes it has. Columns beyond the end repeat the last one."""
        form = self._form
        stored, (column, reduced) = as_stored(expr), along
        own = [v for v in form.outer if v in variables(stored)]
        panels, steps = tiles

        def value(*i: Any) -> Any:
            *at, panel, step, pair, lane = i
            n = self._between.inside(panel * COLUMNS + lane, column, panels * COLUMNS)
            first = step * DEPTH + pair * 2
            env = {**dict(zip(own, at, strict=True)), column: n}
            end = (reduced, form.extents[reduced])
            low, high = (
                tirx.Cast("int32", _bits(stored, {**env, reduced: k}, end, steps * DEPTH))
                for k in (first, first + tirx.const(1, "int64"))
            )
            return low | (high << tirx.const(16, "int32"))

        shape = [*(form.extents[v] for v in own), panels, steps, _PAIRS, COLUMNS]
        return self._stored(name, shape, value, "int32", lambda *i: list(i)), own

    def product(self, name: str, operands: tuple[Any, Any, list[Any]], shape: Sequence[int], steps: int) -> Any:
        """Sums over pairs of `operands`: rows in tiles, columns in tiles, and the outer axes that these have."""
        a, b, own = operands
        height, outer = self._knobs.rows, self._form.outer

        def value(*i: Any) -> Any:
            *o, m, n, q = i
            lanes = tirx.Ramp(q % _PAIRS * 2, tirx.const(1, "int64"), 2)
            rows = tirx.BufferLoad(a, [*o, m // height, q // _PAIRS, m % height, lanes])
            batch = [at for at, v in zip(o, outer, strict=True) if v in own]
            place = [n // COLUMNS, q // _PAIRS, q % _PAIRS, n % COLUMNS]
            return tirx.reinterpret("int32", rows), tirx.BufferLoad(b, [*batch, *place])

        return self.stages.add(name, shape, value, reduce=steps * _PAIRS, combine=lambda c, ab: dot(c, *ab))

    def _stored(self, name: str, shape: Sequence[int], value: Any, dtype: str, place: Any) -> Any:
        order = place(*range(len(shape)))
        buffer = self._buffer(name, [shape[i] for i in order], dtype)
        return self.stages.add(name, shape, value, into=(buffer, place))

    def _buffer(self, name: str, shape: Sequence[int], dtype: str) -> Any:
        buffer = tirx.decl_buffer([tirx.const(dim, "int64") for dim in shape], dtype, name)
        self.stages.buffers.append(buffer)
        return buffer


def _in_tile(*i: Any) -> list[Any]:
    *outer, row, step, lane = i
    return [*outer, step, row, lane]


def _bits(expr: Any, env: Mapping[Any, Any], end: tuple[Any, int], whole: int) -> Any:
    """The bits of a bfloat16; zero where the reduced axis, `end[0]`, is past its end."""
    reduced, extent = end
    bits = tirx.reinterpret("uint16", substitute(expr, env))
    if extent == whole:
        return bits
    return tirx.if_then_else(env[reduced] < tirx.const(extent, "int64"), bits, tirx.const(0, "uint16"))
