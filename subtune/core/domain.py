"""The shapes that a dynamic model is compiled for: its symbols, the values each may have, and how often it has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbolic dimension: `values` in increasing order, 0 or more, and how much each counts; weights sum to 1."""

    name: str
    values: tuple[int, ...]
    weights: tuple[float, ...]

    @classmethod
    def uniform(cls, name: str, values: tuple[int, ...]) -> Symbol:
        return cls(name, values, (1.0 / len(values),) * len(values))

    @property
    def step(self) -> int:
        """The greatest number that divides all values.

        >>> Symbol.uniform("height", (64, 96, 256)).step
        32
        """
        return gcd(*self.values) or 1

    def __str__(self) -> str:
        """As on the command line: `seq=1..512`, `seq=16,32,64`."""
        first, last = self.values[0], self.values[-1]
        is_range = len(self.values) > 1 and self.values == tuple(range(first, last + 1))
        return f"{self.name}={first}..{last}" if is_range else f"{self.name}={','.join(map(str, self.values))}"


@dataclass(frozen=True)
class Domain:
    """All combinations of the values of its symbols; weights of combinations are products."""

    symbols: tuple[Symbol, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(symbol.name for symbol in self.symbols)

    @property
    def size(self) -> int:
        """How many instances there are."""
        return prod(len(symbol.values) for symbol in self.symbols)

    @cached_property
    def greatest(self) -> dict[str, int]:
        """The largest value of every symbol: what memory is laid out for."""
        return {symbol.name: symbol.values[-1] for symbol in self.symbols}

    @cached_property
    def least(self) -> dict[str, int]:
        """The least value above 0 of every symbol that has one."""
        return {one.name: next((value for value in one.values if value), 0) for one in self.symbols}

    def instances(self) -> Iterator[tuple[dict[str, int], float]]:
        """Every instance and its weight."""
        pairs = [tuple(zip(symbol.values, symbol.weights, strict=True)) for symbol in self.symbols]
        for chosen in itertools.product(*pairs):
            values = {name: value for name, (value, _) in zip(self.names, chosen, strict=True)}
            yield values, prod(weight for _, weight in chosen)

    def complaint(self, values: Mapping[str, int]) -> str:
        """Why an instance is not one of its own, in words; "" where it is."""
        for symbol in self.symbols:
            value = values[symbol.name]
            if value not in self._members[symbol.name]:
                return f"{symbol.name} is {value}, and the model was compiled for {symbol}"
        return ""

    @cached_property
    def _members(self) -> dict[str, frozenset[int]]:
        return {symbol.name: frozenset(symbol.values) for symbol in self.symbols}

    def __str__(self) -> str:
        return " ".join(map(str, self.symbols))
