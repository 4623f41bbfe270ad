"""What an expression of scores reads, a mask that is added: asked for while the scores themselves are not there yet.

A thread has two columns of every eight, of two rows eight apart: score e is of row e // 2 % 2, and of the columns that
it has of column e // 4 * 2 + e % 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from subtune.backends.cuda.families.attention.scores import Scores
from subtune.patterns.chain import ChainExpressions
from subtune.tir.expressions import choices, distinct, loads, variables
from subtune.tir.rebuild import NARROW, Rebuild


@dataclass(frozen=True, slots=True)
class Asked:
    """One load. `buffers`: the kernel's, where these are others than the expression's."""

    load: Any
    form: ChainExpressions
    buffers: Any

    @property
    def dtype(self) -> str:
        return str(self.load.ty.dtype)

    def number(self, e: int) -> int:
        """Which of a thread's numbers is for score `e`: scores of a row, or of a column, may share one."""
        row, column = e // 2 % 2, e // 4 * 2 + e % 2
        among = variables(list(self.load.indices))
        if self.form.m not in among:
            return column if self.form.n in among else 0
        return e if self.form.n in among else row

    def numbers(self, scores: Sequence[int]) -> int:
        """How many a thread has, for so many scores."""
        return 1 + max(map(self.number, scores))

    def firsts(self, scores: Sequence[int]) -> list[int]:
        """The first score of each number."""
        first: dict[int, int] = {}
        for e in scores:
            first.setdefault(self.number(e), e)
        return list(first.values())

    def value(self, place: dict[Any, Any]) -> Any:
        """What is loaded, the axes being at `place`."""
        rebuild = Rebuild(place, None, self.buffers)
        source = self.buffers.get(self.load.source, self.load.source)
        return tirx.BufferLoad(source, [rebuild(index) for index in self.load.indices])


def asked_of(scores: Scores, form: ChainExpressions, buffers: Any, ours: Sequence[int], room: int) -> tuple[Asked, ...]:
    """Nothing where only a choice says what may be read, or where more than `room` registers are needed."""
    if scores.factor or choices(scores.value):
        return ()
    found = tuple(Asked(load, form, buffers) for load in distinct(loads(scores.value)))
    return found if sum(one.numbers(ours) for one in found) <= room else ()


def in_float32(value: Any) -> Any:
    return value.astype("float32") if str(value.ty.dtype) in NARROW else value
