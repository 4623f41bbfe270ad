"""A family of operators: how its sizes are drawn, and what it computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from subtune.bench.coverage.case import Sizes
from subtune.bench.coverage.dialect import Dialect, Value

_T = TypeVar("_T")
_STEPS = (64, 32, 8, 8, 2, 1, 1)
"""Extents are multiples of one of these: round ones, even ones, and whatever comes."""
_PRIME_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Draw:
    """A source of sizes.

    Attributes:
        is_gpu: ranges are those of a GPU's work.
        growth: by how much ranges are wider than they are meant to be, where those gave too little work.
    """

    rng: Random
    is_gpu: bool
    growth: float = 1.0

    def extent(self, low: int, high: int) -> int:
        """Between the bounds, even on a logarithmic scale: round, even, odd or prime."""
        high = max(low, int(high * self.growth))
        value = math.exp(self.rng.uniform(math.log(low), math.log(high)))
        if self.rng.random() < _PRIME_SHARE:
            return _prime_near(int(value), low, high)
        step = self.rng.choice(_STEPS)
        return min(max(round(value / step) * step, low), high)

    def pick(self, *options: _T) -> _T:
        return self.rng.choice(options)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def larger(self, number: int, factor: int = 4) -> int:
        """`number` on a CPU, times `factor` on a GPU."""
        return number * factor if self.is_gpu else number


@dataclass(frozen=True, slots=True)
class Family:
    """`body` gives one value or several; an epilogue follows only where it is one and `takes_epilogue`.

    `epilogues` are those that may follow, `dtypes` those that it may be drawn in; empty for all.
    """

    name: str
    draw: Callable[[Draw], dict[str, Any]]
    body: Callable[[Dialect, Sizes], Value | Sequence[Value]]
    takes_epilogue: bool = True
    dtypes: tuple[str, ...] = ()


def _prime_near(value: int, low: int, high: int) -> int:
    """The first prime from `value` up, or down where that is above `high`; `value` itself where there is none."""
    return next((n for n in (*range(value, high + 1), *range(value, low - 1, -1)) if _is_prime(n)), value)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
