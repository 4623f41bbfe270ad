"""A symbol of a domain as a manifest has it: its values as on the command line, and weights only if they differ."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

from subtune.core.domain import Symbol

_NAME = re.compile(r"[A-Za-z_][\w.]*")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")  # less than 2^62
_MOST_VALUES = 1 << 20
"""Of one symbol: a range is written in a few characters and takes memory for each value."""


@dataclass(frozen=True, slots=True)
class SymbolForm:
    """`text` is the symbol's `str`: `seq=1..512`, `seq=16,32,64`.

    >>> form = SymbolForm.of(Symbol("seq", (1, 2, 3), (0.5, 0.25, 0.25)))
    >>> form.text, form.weights, form.value().values
    ('seq=1..3', (0.5, 0.25, 0.25), (1, 2, 3))

    Attributes:
        weights: one of each value; none where all are the same.
    """

    text: str
    weights: tuple[float, ...] = ()

    @classmethod
    def of(cls, symbol: Symbol) -> SymbolForm:
        is_uniform = symbol == Symbol.uniform(symbol.name, symbol.values)
        return cls(str(symbol), () if is_uniform else symbol.weights)

    def value(self) -> Symbol:
        """The symbol. Raises ValueError if `text` or `weights` are none's."""
        name, _, written = self.text.partition("=")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{self.text!r} names no symbol")
        symbol = Symbol.uniform(name, self._values(written))
        if str(symbol) != self.text:
            raise ValueError(f"{self.text!r} should be {str(symbol)!r}")
        if not self.weights:
            return symbol
        if len(self.weights) != len(symbol.values):
            raise ValueError(f"{name} has {len(symbol.values)} values and {len(self.weights)} weights")
        if min(self.weights) < 0 or not math.isclose(math.fsum(self.weights), 1.0, rel_tol=1e-6):
            raise ValueError(f"the weights of {name} are negative or do not sum to 1")
        return Symbol(name, symbol.values, self.weights)

    def _values(self, written: str) -> tuple[int, ...]:
        first, dots, last = written.partition("..")
        numbers = [first, last] if dots else written.split(",")
        if not all(_NUMBER.fullmatch(number) for number in numbers):
            raise ValueError(f"{self.text!r} has no values as 1..512 or 16,32,64 are")
        values = tuple(map(int, numbers))
        if any(a >= b for a, b in itertools.pairwise(values)):
            raise ValueError(f"the values of {self.text!r} do not increase")
        if not dots:
            return values
        if values[1] - values[0] >= _MOST_VALUES:
            raise ValueError(f"{self.text!r} has more than {_MOST_VALUES} values")
        return tuple(range(values[0], values[1] + 1))
