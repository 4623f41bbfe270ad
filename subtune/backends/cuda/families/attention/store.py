"""A tile of attention's sums on its way to memory, straight from registers.

A thread has two columns of every eight, of two rows. Four threads exchange them, so that each stores 16 bytes of a row:
no shared memory, no barrier, and the next tile may be copied meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from tvm import ir, tirx
from tvm.script import tirx as T
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation

from subtune.backends.cuda.families.attention.walk import Walk
from subtune.backends.cuda.source.emit import FULL_WARP
from subtune.tir.rebuild import NARROW, Rebuild

_EIGHT = 8  # halves in 16 bytes, and columns of which a thread has two


@dataclass(frozen=True, slots=True)
class Store:
    """The last parameter, in which sums times `1 / total` of their row, and what follows, are stored."""

    walk: Walk
    out: Any

    def emit(self, sums: Any, scale: Any, outer: dict[Any, Any], row: Any, lane: Any) -> None:
        """A thread's part of a tile: rows `row` and `row + 8`."""
        groups = ceil(self._columns / _EIGHT)
        wide = groups // 4 * 4 if self._is_wide() else 0
        words = T.alloc_local((4,), "uint32")
        for r in range(2):
            inside = row + r * 8 < self.walk.m_extent
            for first in range(0, wide, 4):
                for i in range(4):
                    pair = [self._value(sums, scale, outer, row, (first + i, r, e), lane) for e in range(2)]
                    T.evaluate(T.ptx[f"cvt.rn.{_NAMES[str(self.out.dtype)]}x2.f32"](words[i], pair[1], pair[0]))
                _transpose(words, lane)
                with T.If(inside), T.Then():
                    column = (lane % 4 + first) * _EIGHT
                    there = tirx.address_of(tirx.BufferLoad(self.out, self._indices(outer, row + r * 8, column)))
                    T.evaluate(T.ptx["st.v4.b32"](there, *[words[i] for i in range(4)]))
            with T.If(inside), T.Then():
                for group in range(wide, groups):
                    for e in range(2):
                        self._single(sums, scale, outer, row, (group, r, e), lane)

    @property
    def _columns(self) -> int:
        return self.walk.form.extents[self.walk.form.j]

    def _value(
        self, sums: Any, scale: Any, outer: dict[Any, Any], row: Any, at: tuple[int, int, int], lane: Any
    ) -> Any:
        """In float32: column `lane % 4 * 2 + e` of the group, of row r."""
        group, r, e = at
        form = self.walk.form
        last = min(group * _EIGHT + 6 + e, self._columns - 1)
        column = (
            tirx.min(lane % 4 * 2 + (group * _EIGHT + e), last)
            if last < group * _EIGHT + 6 + e
            else (lane % 4 * 2 + (group * _EIGHT + e))
        )
        env = outer | {form.m: tirx.min(row + r * 8, self.walk.m_extent - 1), form.j: column}
        value = sums[group * 4 + r * 2 + e] * scale[r]
        if form.pattern.nan_is_zero:
            value = T.Select(scale[r] < T.float32(math.inf), value, T.float32(0))
        env[form.sum] = value
        return Rebuild(env, None, self.walk.buffers)(form.out).astype("float32")

    def _single(
        self, sums: Any, scale: Any, outer: dict[Any, Any], row: Any, at: tuple[int, int, int], lane: Any
    ) -> None:
        group, r, e = at
        column = lane % 4 * 2 + (group * _EIGHT + e)
        value = self._value(sums, scale, outer, row, at, lane).astype(str(self.out.dtype))
        indices = self._indices(outer, row + r * 8, column)
        if self._columns % _EIGHT == 0:
            T.buffer_store(self.out, value, indices)
            return
        with T.If(column < self._columns), T.Then():
            T.buffer_store(self.out, value, indices)

    def _indices(self, outer: dict[Any, Any], row: Any, column: Any) -> list[Any]:
        rebuild = Rebuild(outer | {self.walk.form.m: row, self.walk.form.j: column})
        return [rebuild(i) for i in self.walk.form.out_indices]

    def _is_wide(self) -> bool:
        """Whether eight neighbouring columns are 16 aligned bytes of the output."""
        form, shape = self.walk.form, [int(d) for d in self.out.shape]
        if str(self.out.dtype) not in NARROW:
            return False
        analyzer = Analyzer()
        for axis in (*form.outer, form.m, form.j):
            analyzer.bind(axis, ir.Range(tirx.const(0, "int64"), tirx.const(form.extents[axis], "int64")))
        flat: Any = tirx.const(0, "int64")
        for d, index in enumerate(form.out_indices):
            flat = flat + index * prod(shape[d + 1 :])
        found = detect_linear_equation(analyzer.simplify(flat), [form.j])
        if len(found) != 2:
            return False
        step, rest = (analyzer.simplify(part) for part in found)
        is_aligned = analyzer.can_prove_equal(tirx.floormod(rest, tirx.const(_EIGHT, "int64")), 0)
        return isinstance(step, tirx.IntImm) and int(step) == 1 and bool(is_aligned)


_NAMES = {"float16": "f16", "bfloat16": "bf16"}


def _transpose(words: Any, lane: Any) -> None:
    """Word i of thread t of four becomes word t of thread i."""
    for apart in (1, 2):
        is_upper = lane // apart % 2 == 1
        for i in (i for i in range(4) if not i & apart):
            j = i | apart
            sent = T.Bind(T.Select(is_upper, words[i], words[j]))
            got = T.Bind(T.tvm_warp_shuffle_xor(FULL_WARP, sent, apart, 32, 32))
            T.buffer_store(words, T.Select(is_upper, got, words[i]), [i])
            T.buffer_store(words, T.Select(is_upper, words[j], got), [j])
