"""The softmax of attention, online: what a thread does with its scores of a block of keys, in registers.

A thread has two columns of every eight, of two rows; four threads share a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.attention.asked import Asked, asked_of
from subtune.backends.cuda.families.attention.scores import Scores
from subtune.backends.cuda.families.attention.tiling import registers_of
from subtune.backends.cuda.families.attention.walk import Walk
from subtune.backends.cuda.source.emit import FULL_WARP
from subtune.tir.rebuild import Rebuild


@dataclass(frozen=True, slots=True)
class Softmax:
    """Of `scores` in the tiles of `walk`; `dtype` is PTX's name of what the weights are rounded to."""

    scores: Scores
    walk: Walk
    dtype: str

    @property
    def count(self) -> int:
        """Scores of a thread."""
        return self.walk.knobs.keys // 2

    @property
    def factor(self) -> float:
        """Of a score, on its way to a power of two."""
        return (self.scores.factor or 1.0) * math.log2(math.e)

    def narrow(self, weights: Any, values: Any) -> None:
        """P as the multiplication reads it: pairs of neighbours."""
        for i in range(self.count // 2):
            T.evaluate(T.ptx[f"cvt.rn.{self.dtype}x2.f32"](weights[i], values[2 * i + 1], values[2 * i]))

    @property
    def _asked(self) -> tuple[Asked, ...]:
        walk = self.walk
        room = walk.knobs.setmaxnreg[1] - registers_of(walk.knobs, walk.form.extents[walk.form.j])
        return asked_of(self.scores, walk.form, walk.buffers, range(self.count), room)

    def registers(self) -> list[Any]:
        """For what `ask` reads."""
        return [T.alloc_local((one.numbers(range(self.count)),), one.register) for one in self._asked]

    def ask(self, held: list[Any], at: dict[Any, Any], row: Any, first: Any, lane: Any, is_last: bool) -> None:
        """Load what is done to the scores of a block of keys while they are not there yet.

        Args:
            is_last: the block of the last keys, which alone may reach beyond them.
        """
        for one, buffer in zip(self._asked, held, strict=True):
            for e in one.firsts(range(self.count)):
                T.evaluate(one.instruction(buffer[one.number(e)], self._place(at, row, first, lane, e, is_last)))

    def _place(self, at: dict[Any, Any], row: Any, first: Any, lane: Any, e: int, is_last: bool) -> dict[Any, Any]:
        """The axes at score `e`; of rows and keys past the last ones, those of the last."""
        walk = self.walk
        n = first + lane % 4 * 2 + (e // 4 * 8 + e % 2)
        n = tirx.min(n, walk.n_extent - 1) if is_last and walk.n_extent % walk.knobs.keys else n
        return at | {walk.m: tirx.min(row + e // 2 % 2 * 8, walk.m_extent - 1), walk.n: n}

    def prepared(
        self, values: Any, held: list[Any], at: dict[Any, Any], row: Any, first: Any, lane: Any, seen_by_all: Any,
        is_last: bool,
    ) -> None:  # fmt: skip
        """What the softmax reads: the model's expression of the scores, and no key that is hidden or none."""
        scores, walk, bn = self.scores, self.walk, self.walk.knobs.keys
        column = first + lane % 4 * 2
        if not scores.factor:
            for e in range(self.count):
                here = self._place(at, row, first, lane, e, is_last) | {walk.score: values[e]}
                asked = zip(self._asked, held, strict=True)
                known = {one.load: one.known(buffer[one.number(e)]) for one, buffer in asked}
                T.buffer_store(values, Rebuild(here, known, walk.buffers)(scores.value), [e])
        if not is_last and scores.offset is None:
            return
        if scores.offset is None and walk.n_extent % bn == 0:
            return
        with T.If(first + bn > seen_by_all), T.Then():
            for e in range(self.count):
                limit = walk.n_extent
                n = column + (e // 4 * 8 + e % 2)
                if scores.offset is not None:
                    limit = tirx.min(row + (e // 2 % 2 * 8 + scores.offset + 1), walk.n_extent)
                T.buffer_store(values, T.Select(n < limit, values[e], T.float32(-math.inf)), [e])

    def largest(self, values: Any, into: Any, previous: Any) -> None:
        """Of every row: the largest score so far, over the four threads that share it."""
        for r in range(2):
            mine = [e for e in range(self.count) if e // 2 % 2 == r]
            T.buffer_store(into, values[mine[0]] if previous is None else previous[r], [r])
            for e in mine[0 if previous is not None else 1 :]:
                T.evaluate(T.ptx["max.f32"](into[r], into[r], values[e]))
        for apart in (1, 2):
            for r in range(2):
                other = T.Bind(T.tvm_warp_shuffle_xor(FULL_WARP, into[r], apart, 32, 32))
                T.evaluate(T.ptx["max.f32"](into[r], into[r], other))

    def exponentials(self, values: Any, best: Any, total: Any, zero: Any) -> None:
        """The scores' exponentials in their place, added to the rows' sums."""
        for r in range(2):
            is_none = best[r] == T.float32(-math.inf)  # so far, or of a row that sees no key
            T.buffer_store(zero, T.Select(is_none, T.float32(0), best[r] * T.float32(self.factor)), [r])
        for e in range(self.count):
            r = e // 2 % 2
            T.buffer_store(values, T.exp2(values[e] * T.float32(self.factor) - zero[r]), [e])
        for r in range(2):
            for e in (e for e in range(self.count) if e // 2 % 2 == r):
                T.buffer_store(total, total[r] + values[e], [r])
