"""The polynomial that goes through a number's values at several points."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod

from subtune.core.dims import Dim, Monomial, Quotient

_MOST_TERMS = 3
"""Of a polynomial: `batch*seq + 2*seq + 1` is as far as shapes, strides and loops go."""
_MOST_FACTORS = 3
"""Of a term: `batch*seq*seq`, the scores of an attention."""
DIVISORS = tuple(dict.fromkeys((32, 4, 16, 8, 64, 2, *range(3, 64), 80, 96, 112, 128, 192, 256, 384, 512, 768, 1024)))
"""Rows of tiles and lanes of vectors."""


class Fitter:
    """Polynomials in the symbols of `points`, found once for the same values.

    Args:
        points: the values of the symbols at each point; one point more than a polynomial has terms makes it certain.
        divisors: by which extents may be divided, rounded up or down.
    """

    def __init__(self, points: Sequence[Mapping[str, int]], divisors: Sequence[int] = DIVISORS) -> None:
        self._points = points
        self._divisors = divisors
        self._names = sorted(points[0])
        self._columns = {name: [point[name] for point in points] for name in self._names}
        self._monomials = self._products(self._names)
        self._found: dict[tuple[int, ...], Dim | None] = {}

    def fit(self, values: Sequence[int]) -> Dim | None:
        """The one of fewest terms, whole coefficients and least degree; None: there is none, or too few points."""
        key = tuple(values)
        if key not in self._found:
            self._found[key] = self._fit(key)
        return self._found[key]

    def _fit(self, values: tuple[int, ...]) -> Dim | None:
        if len(set(values)) == 1:
            return Dim.number(values[0])
        most = min(_MOST_TERMS, len(self._points) - 1)
        plain = self._sum(self._monomials, values, most)
        if plain is not None:
            return plain
        for quotient, column in self._quotients(values):
            self._columns[quotient] = column
            found = self._sum(self._products([*self._names, quotient]), values, min(2, most), needed=quotient)
            if found is not None:
                return found
        return None

    def _quotients(self, values: tuple[int, ...]) -> Iterator[tuple[str, list[int]]]:
        """Extents divided, as a symbol each. Of divisors that say the same at all points the first is taken."""
        seen: set[tuple[int, ...]] = set()
        for dividend in self._dividends():
            whole = [dividend.at(point) for point in self._points]
            for divisor in self._divisors:
                for up in (True, False):
                    column = [-(-one // divisor) if up else one // divisor for one in whole]
                    key = tuple(column)
                    if key not in seen and len(set(column)) > 1:
                        seen.add(key)
                        yield Quotient(dividend, divisor, up).name, column

    def _dividends(self) -> list[Dim]:
        single = [Dim.symbol(name) for name in self._names]
        pairs = [Dim.of({pair: 1}) for pair in itertools.combinations(self._names, 2)]
        return [*single, *pairs]

    def _products(self, names: Sequence[str]) -> list[Monomial]:
        return [
            tuple(sorted(one))
            for factors in range(_MOST_FACTORS + 1)
            for one in itertools.combinations_with_replacement(names, factors)
        ]

    def _sum(self, monomials: Sequence[Monomial], values: tuple[int, ...], most: int, needed: str = "") -> Dim | None:
        columns = {m: [prod(self._columns[n][i] for n in m) for i in range(len(self._points))] for m in monomials}
        for terms in range(1, most + 1):
            for chosen in sorted(itertools.combinations(monomials, terms), key=lambda some: sum(map(len, some))):
                if needed and not any(needed in monomial for monomial in chosen):
                    continue
                factors = _solved([columns[m] for m in chosen], values)
                if factors is not None:
                    return Dim.of(dict(zip(chosen, factors, strict=True)))
        return None


def _solved(columns: Sequence[Sequence[int]], values: Sequence[int]) -> list[int] | None:
    """Whole x with `columns x = values` in every row, none of them 0; None: there are none."""
    if len(columns) == 1:
        first = columns[0]
        factor = values[0] // first[0] if first[0] else 0
        return [factor] if factor and all(factor * x == y for x, y in zip(first, values, strict=True)) else None
    width = len(columns)
    rows = [[*map(Fraction, row), Fraction(value)] for *row, value in zip(*columns, values, strict=True)]
    for at in range(width):
        pivot = next((i for i in range(at, len(rows)) if rows[i][at]), None)
        if pivot is None:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        rows[at] = [x / rows[at][at] for x in rows[at]]
        for i, row in enumerate(rows):
            if i != at and row[at]:
                rows[i] = [x - row[at] * y for x, y in zip(row, rows[at], strict=True)]
    found = [rows[i][width] for i in range(width)]
    fits = all(not row[width] for row in rows[width:]) and all(x and x.denominator == 1 for x in found)
    return [int(x) for x in found] if fits else None
