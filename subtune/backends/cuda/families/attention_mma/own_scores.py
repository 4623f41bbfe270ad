"""A thread's scores of a step: what the model does to them, and which of them are none.

A thread has two columns of every eight, of two rows eight apart, as mma.sync leaves its sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from subtune.backends.cuda.families.attention.asked import Asked, asked_of
from subtune.backends.cuda.families.attention.scores import Scores
from subtune.backends.cuda.families.attention_mma.tiling import ROWS, Heads, Knobs
from subtune.backends.cuda.source.emit import Code, const, load
from subtune.tir.rebuild import Rebuild

_MOST_ASKED = 32
"""Numbers of a thread that are asked for ahead of its scores."""


def is_few(heads: Heads) -> bool:
    """Whether all rows are in the first half of a warp's: of a thread's two rows, eight apart, one is looked at."""
    return heads.rows <= ROWS // 2


@dataclass(frozen=True, slots=True)
class OwnScores:
    heads: Heads
    scores: Scores
    knobs: Knobs

    @property
    def halves(self) -> range:
        return range(1 if is_few(self.heads) else 2)

    def registers(self, code: Code) -> list[Any]:
        """For what `ask` loads."""
        return [code.local(one.register, one.numbers(self._ours), "asked") for one in self._asked]

    @property
    def _ours(self) -> list[int]:
        """The scores of a thread that are looked at."""
        return [e for e in range(self.knobs.keys // 2) if e // 2 % 2 in self.halves]

    @property
    def _asked(self) -> tuple[Asked, ...]:
        return asked_of(self.scores, self.heads.form, {}, self._ours, _MOST_ASKED)

    def ask(self, code: Code, held: list[Any], head: Any, row: Any, first: Any, lane: Any) -> None:
        """Load what is done to the scores of a step while they are not there yet."""
        for one, buffer in zip(self._asked, held, strict=True):
            for e in one.firsts(self._ours):
                register = load(buffer, const(one.number(e)))
                code.emit(tirx.Evaluate(one.instruction(register, self._place_of(head, row, first, lane, e))))

    def _place_of(self, head: Any, row: Any, first: Any, lane: Any, e: int) -> dict[Any, Any]:
        """The axes at score `e`; of keys past the last one, those of the last."""
        form = self.heads.form
        last, n = _int(form.extents[form.n] - 1), self._key(first, lane, e)
        return self.heads.at(head, row + e // 2 % 2 * 8) | {form.n: tirx.min(n, last)}

    def _key(self, first: Any, lane: Any, e: int) -> Any:
        return first + tirx.floormod(lane, _int(4)) * 2 + (e // 4 * 8 + e % 2)

    def prepare(self, code: Code, values: Any, held: list[Any], head: Any, row: Any, first: Any, lane: Any) -> None:
        """What the softmax reads: the model's expression of the scores, and no key that is hidden or none."""
        form, offset = self.heads.form, self.scores.offset
        keys = form.extents[form.n]
        for e in self._ours:
            if not self.scores.factor:
                place = self._place_of(head, row, first, lane, e) | {form.score: load(values, const(e))}
                asked = zip(self._asked, held, strict=True)
                known = {one.load: one.known(load(buffer, const(one.number(e)))) for one, buffer in asked}
                code.store(values, const(e), Rebuild(place, known)(self.scores.value))
            if offset is None and keys % self.knobs.step == 0:
                continue
            limit: Any = _int(keys)
            if offset is not None:
                limit = tirx.min(self.heads.at(head, row + e // 2 % 2 * 8)[form.m] + (offset + 1), limit)
            is_seen = tirx.LT(self._key(first, lane, e), limit)
            code.store(values, const(e), tirx.Select(is_seen, load(values, const(e)), tirx.const(-math.inf, "float32")))


def _int(value: int) -> Any:
    return tirx.const(value, "int32")
