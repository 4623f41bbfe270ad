"""What an expression of scores reads, a mask that is added: asked for while the scores themselves are not there yet.

Its loads are written out as instructions: what a compiler loads itself it may move behind the barrier where the scores
are waited for, and does.

A thread has two columns of every eight, of two rows eight apart: score e is of row e // 2 % 2, and of the columns that
it has of column e // 4 * 2 + e % 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.attention.scores import Scores
from subtune.patterns.chain import ChainExpressions
from subtune.tir.expressions import choices, distinct, loads, variables
from subtune.tir.rebuild import NARROW, Rebuild

_LOADS = {"float16": ("b16", "uint16"), "bfloat16": ("b16", "uint16"), "float32": ("f32", "float32")}
"""PTX's name of a load, and the type of the register."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One load. `buffers`: the kernel's, where these are others than the expression's."""

    load: Any
    form: ChainExpressions
    buffers: Any

    @property
    def register(self) -> str:
        """The type of the registers that hold its numbers."""
        return _LOADS[str(self.load.ty.dtype)][1]

    def instruction(self, register: Any, place: dict[Any, Any]) -> Any:
        """Loads the number at `place` into a register."""
        name, _ = _LOADS[str(self.load.ty.dtype)]
        return T.ptx[f"ld.global.{name}"](register, T.address_of(self._value(place)))

    def known(self, register: Any) -> Any:
        """What was loaded, in float32."""
        dtype = str(self.load.ty.dtype)
        return tirx.reinterpret(dtype, register).astype("float32") if dtype in NARROW else register

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

    def _value(self, place: dict[Any, Any]) -> Any:
        """What is loaded, the axes being at `place`."""
        rebuild = Rebuild(place, None, self.buffers)
        source = self.buffers.get(self.load.source, self.load.source)
        return tirx.BufferLoad(source, [rebuild(index) for index in self.load.indices])


def asked_of(scores: Scores, form: ChainExpressions, buffers: Any, ours: Sequence[int], room: int) -> tuple[Asked, ...]:
    """Nothing where only a choice says what may be read, or where more than `room` registers are needed."""
    if scores.factor or choices(scores.value):
        return ()
    found = tuple(Asked(load, form, buffers) for load in distinct(loads(scores.value)))
    are_floats = all(str(one.load.ty.dtype) in _LOADS for one in found)
    return found if are_floats and sum(one.numbers(ours) for one in found) <= room else ()
