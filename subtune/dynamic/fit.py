"""The polynomial that goes through a number's values at several points.

What a polynomial may consist of depends on the points alone: `_Sums` tables it once, and a fit is arithmetic with whole
arrays. Most numbers of a kernel that are no polynomial are found to be none in less than a millisecond.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from subtune.core.dims import Dim, Quotient

_MOST_TERMS = 3
"""Of a polynomial: `batch*seq + 2*seq + 1` is as far as shapes, strides and loops go, but for products of two sums,
which have one more: the pixels of a padded image, `(height + 2)*(width + 2)`."""
_MOST_FACTORS = 3
"""Of a term: `batch*seq*seq`, the scores of an attention."""
_MOST_BESIDE_QUOTIENT = 2
"""Terms of a polynomial one of which has a quotient."""
DIVISORS = tuple(dict.fromkeys((32, 4, 16, 8, 64, 2, *range(3, 64), 80, 96, 112, 128, 192, 256, 384, 512, 768, 1024)))
"""Rows of tiles and lanes of vectors."""
_NUMBER, _MOST_ROWS = re.compile(r"\d+"), 1024
"""Of a knob's value; and of a tile."""
_POWERS = tuple(2**i for i in range(2, 11))
"""By which three times an extent is divided, too: rows of 768 elements in blocks of 1024."""
_MOST_OF_SHARES, _POINTS_OF_SHARES = 256, 7
"""By which multiples of extents are divided at most, where so many points leave little to chance."""
_WORD = 1 << 64
"""Tables are of whole numbers modulo this: what is equal is so there, too, and no number is too large."""

NO_STEPS: Mapping[str, int] = MappingProxyType({})

_Points = tuple[tuple[int, ...], ...]
_Chosen = tuple[int, ...]
"""The terms of a sum: their places among the products."""


def divisors_with(knobs: Sequence[tuple[str, Any]]) -> tuple[int, ...]:
    """By what extents may be divided: by a candidate's own numbers before any other that would say the same."""
    own = {int(number) for _, value in knobs for number in _NUMBER.findall(str(value))}
    return tuple(dict.fromkeys((*sorted((one for one in own if 1 < one <= _MOST_ROWS), reverse=True), *DIVISORS)))


class Fitter:
    """Polynomials in the symbols of `points`, found once for the same values.

    Args:
        points: the values of the symbols at each point; one point more than a polynomial has terms makes it certain.
        divisors: by which extents may be divided, rounded up or down.
        sums: of symbols that may be divided, too, beside symbols and products of two.
        steps: numbers that divide the values of some symbols. These are counted in them: `16*floor(height/32)`.
    """

    def __init__(
        self,
        points: Sequence[Mapping[str, int]],
        divisors: Sequence[int] = DIVISORS,
        sums: Sequence[Dim] = (),
        steps: Mapping[str, int] = NO_STEPS,
    ) -> None:
        names = tuple(sorted(points[0]))
        rows = tuple(tuple(point[name] for name in names) for point in points)
        self._search = _search(names, rows, tuple(divisors), tuple(sums), tuple(steps.get(name, 1) for name in names))

    def fit(self, values: Sequence[int]) -> Dim | None:
        """The one of fewest terms, whole coefficients and least degree; None: there is none, or too few points."""
        return self._search.found(tuple(values))


class _Search:
    """What fits values at the same points; kept, as all kernels of a model are compared at the same points."""

    def __init__(
        self,
        names: tuple[str, ...],
        points: _Points,
        divisors: tuple[int, ...],
        sums: tuple[Dim, ...],
        steps: tuple[int, ...],
    ) -> None:
        self._names, self._points, self._divisors, self._sums = names, points, divisors, sums
        counted = [Quotient(Dim.symbol(name), step, False).name for name, step in zip(names, steps, strict=True)]
        self._bases = tuple(
            name if step == 1 else of_steps for name, step, of_steps in zip(names, steps, counted, strict=True)
        )
        self._own = [
            tuple(value // step for value in column)
            for column, step in zip(zip(*points, strict=True), steps, strict=True)
        ]
        self._found: dict[tuple[int, ...], Dim | None] = {}

    def found(self, values: tuple[int, ...]) -> Dim | None:
        if values not in self._found:
            self._found[values] = self._fitted(values)
        return self._found[values]

    def _fitted(self, values: tuple[int, ...]) -> Dim | None:
        if len(set(values)) == 1:
            return Dim.number(values[0])
        plain = self._plain.first(values)
        if plain is not None:
            return plain.dim(self._bases)
        found = self._quotients.first(values)
        if (found is None or len(found.products) > 1) and (share := self._share(values)):
            return share
        return None if found is None else found.dim((*self._bases, self._quotient_names[found.set_]))

    def _share(self, values: Sequence[int]) -> Dim | None:
        """A multiple of `ceil(a*extent / b)`: rows of 768 elements are `ceil(3*rows/2)` blocks of 512.

        At odd extents `3*ceil(rows/2) - 1` says the same, which is wrong at even ones. What a kernel divides by itself
        comes before what says the same at these points.
        """
        common = math.gcd(*values)
        if len(self._points) < _POINTS_OF_SHARES or common == 0:
            return None
        shares = [divisor for divisor in self._divisors if divisor <= _MOST_OF_SHARES]
        for divisor, (name, extents) in itertools.product(
            shares, list(zip(self._names, zip(*self._points, strict=True), strict=True))
        ):
            pairs = [(value // common, extent) for value, extent in zip(values, extents, strict=True) if extent]
            times = min(value * divisor // extent for value, extent in pairs)
            share = Quotient(Dim.symbol(name) * times, divisor, True)
            if math.gcd(times, divisor) == 1 < times and all(
                share.of(times * extent) == value for value, extent in pairs
            ):
                return Dim.symbol(share.name) * common
        return None

    @cached_property
    def _plain(self) -> _Sums:
        most = min(_MOST_TERMS, len(self._points) - 1)
        return _Sums(len(self._points), [self._own], most, needed=None)

    @cached_property
    def _quotients(self) -> _Sums:
        """Sums that have a quotient, which is the last symbol. Every quotient makes a set of its own."""
        most = min(_MOST_BESIDE_QUOTIENT, len(self._points) - 1)
        sets = [[*self._own, column] for column in self._quotient_columns]
        return _Sums(len(self._points), sets, most, needed=len(self._own))

    @cached_property
    def _quotient_columns(self) -> dict[tuple[int, ...], str]:
        """Extents divided, as a symbol each. Of divisors that say the same at all points the first is taken."""
        single = [Dim.symbol(name) for name in self._names]
        pairs = [Dim.of({pair: 1}) for pair in itertools.combinations_with_replacement(self._names, 2)]
        columns: dict[tuple[int, ...], str] = {}
        dividends = [(dividend, self._divisors) for dividend in (*single, *pairs, *self._sums)]
        powers = tuple(one for one in _POWERS if one in self._divisors)
        dividends += [(dividend * 3, powers) for dividend in single]
        for dividend, divisors in dividends:
            whole = [dividend.at(dict(zip(self._names, point, strict=True))) for point in self._points]
            for divisor in divisors:
                for up in (True, False):
                    one = Quotient(dividend, divisor, up)
                    column = tuple(map(one.of, whole))
                    if len(set(column)) > 1 and column not in columns:
                        columns[column] = one.name
        return columns

    @cached_property
    def _quotient_names(self) -> tuple[str, ...]:
        return tuple(self._quotient_columns.values())


@lru_cache(maxsize=64)
def _search(
    names: tuple[str, ...],
    points: _Points,
    divisors: tuple[int, ...],
    sums: tuple[Dim, ...],
    steps: tuple[int, ...],
) -> _Search:
    return _Search(names, points, divisors, sums, steps)


class _Fit(NamedTuple):
    """A polynomial: of which set of symbols its terms are, as `_Sums` has them, and how often each is in it."""

    set_: int
    products: list[tuple[int, ...]]
    factors: list[int]

    def dim(self, names: Sequence[str]) -> Dim:
        terms = [tuple(names[symbol] for symbol in product) for product in self.products]
        return Dim.of(dict(zip(terms, self.factors, strict=True)))


class _Sums:
    """All sums of at most so many products of symbols, for several sets of symbols, and which of them fit values.

    A sum of `w` terms goes through values at `w + 1` points only if the determinant of the terms and the values there
    is 0. Its minors are known beforehand: `sum(minor * value) = 0` sorts nearly all sums out, and the rest is solved.

    Args:
        points: how many there are.
        sets: of every set, the values at all points of each symbol.
        most: terms of a sum.
        needed: the symbol that a sum must have, by its place in a set.
    """

    def __init__(self, points: int, sets: Sequence[Sequence[Sequence[int]]], most: int, needed: int | None) -> None:
        self._points, self._sets = points, sets
        symbols = range(len(sets[0]) if sets else 0)
        self._products = [
            factors
            for count in range(_MOST_FACTORS + 1)
            for factors in itertools.combinations_with_replacement(symbols, count)
        ]
        self._chosen = [self._sums_of(terms, needed) for terms in range(1, most + 1)]
        if needed is None and most == _MOST_TERMS < points - 1 and (padded := self._products_of_sums()):
            self._chosen.append(padded)
        self._minors = [self._minors_of(chosen) for chosen in self._chosen] if sets else []

    def first(self, values: tuple[int, ...]) -> _Fit | None:
        """The one of fewest terms; of such, that of the first set."""
        words = np.array([value % _WORD for value in values], np.uint64)
        left: list[tuple[int, int, int]] = []
        for width, minors in enumerate(self._minors):
            sets, sums = _zeros(minors, [words[w.start : w.stop] for w in self._windows(width + 2)])
            left += zip(itertools.repeat(width), sets.tolist(), sums.tolist(), strict=False)
        for width, set_, at in sorted(left):
            chosen = self._chosen[width][at]
            factors = _solved([self._column(set_, term) for term in chosen], values)
            if factors is not None and self._is_product(chosen, factors):
                return _Fit(set_, [self._products[term] for term in chosen], factors)
        return None

    def _sums_of(self, terms: int, needed: int | None) -> list[_Chosen]:
        """Those of least degree first."""
        sums = itertools.combinations(range(len(self._products)), terms)
        ordered = sorted(sums, key=lambda chosen: sum(len(self._products[term]) for term in chosen))
        return [one for one in ordered if needed is None or any(needed in self._products[term] for term in one)]

    def _products_of_sums(self) -> list[_Chosen]:
        """Four terms of which two have the product of the other two: `a*b + a + b + 1`."""
        pairs: dict[tuple[int, ...], list[_Chosen]] = {}
        for pair in itertools.combinations(range(len(self._products)), 2):
            of_both = tuple(sorted(factor for term in pair for factor in self._products[term]))
            pairs.setdefault(of_both, []).append(pair)
        found = {tuple(sorted((*a, *b))) for same in pairs.values() for a, b in itertools.combinations(same, 2)}
        return sorted(found, key=lambda chosen: (sum(len(self._products[term]) for term in chosen), chosen))

    def _is_product(self, chosen: _Chosen, factors: Sequence[int]) -> bool:
        """Whether a polynomial of so many terms as none but products of two sums have is one."""
        if len(chosen) <= _MOST_TERMS:
            return True
        terms = [self._products[term] for term in chosen]
        for at in range(1, len(terms)):
            i, j = (other for other in range(1, len(terms)) if other != at)
            is_same = sorted((*terms[0], *terms[at])) == sorted((*terms[i], *terms[j]))
            if is_same and factors[0] * factors[at] == factors[i] * factors[j]:
                return True
        return False

    def _minors_of(self, sums: Sequence[_Chosen]) -> np.ndarray:
        """Of each window of points, for each of its values: (windows, values, sets, sums)."""
        symbols = np.array([[[v % _WORD for v in column] for column in one] for one in self._sets], np.uint64)
        one = np.ones((len(self._sets), self._points), np.uint64)
        columns = np.stack([_product([symbols[:, f] for f in factors], one) for factors in self._products], axis=1)
        terms = columns[:, np.array(sums, int)]  # (sets, sums, terms, points)
        windows = self._windows(terms.shape[2] + 1)
        return np.array([[_minor(terms, window, out) for out in window] for window in windows], np.uint64)

    def _windows(self, size: int) -> list[range]:
        """The first and the last points, which are enough to sort by, and hold tables of many symbols small."""
        return [range(at, at + size) for at in sorted({0, self._points - size})]

    def _column(self, set_: int, term: int) -> list[int]:
        columns = [self._sets[set_][factor] for factor in self._products[term]]
        return [prod(column[i] for column in columns) for i in range(self._points)]


def _product(columns: Sequence[np.ndarray], one: np.ndarray) -> np.ndarray:
    for column in columns:
        one = one * column
    return one


def _minor(terms: np.ndarray, window: range, out: int) -> np.ndarray:
    """The determinant at the points of a window without one of them, with its sign."""
    rows = [point for point in window if point != out]
    found: np.ndarray = _determinant([[terms[..., term, point] for term in range(terms.shape[2])] for point in rows])
    return found if (out - window[0]) % 2 == 0 else np.uint64(0) - found


def _zeros(minors: np.ndarray, values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sets and sums for which the determinant is 0 in all windows."""
    totals = np.zeros(minors.shape[2:], np.uint64)
    for minor, value in zip(minors[0], values[0], strict=True):
        totals += minor * value
    sets, sums = np.nonzero(totals == 0)
    for of, at in zip(minors[1:], values[1:], strict=True):
        totals = (of[:, sets, sums] * at[:, None]).sum(axis=0, dtype=np.uint64)
        sets, sums = sets[totals == 0], sums[totals == 0]
    return sets, sums


def _determinant(rows: Sequence[Sequence[Any]]) -> Any:
    """Of whole numbers, or of arrays of them, by the first row."""
    if len(rows) == 1:
        return rows[0][0]
    total = None
    for at, first in enumerate(rows[0]):
        product = first * _determinant([[*row[:at], *row[at + 1 :]] for row in rows[1:]])
        total = product if total is None else total + product if at % 2 == 0 else total - product
    return total


def _solved(columns: Sequence[Sequence[int]], values: Sequence[int]) -> list[int] | None:
    """Whole x with `columns x = values` in every row, none of them 0; None: there are none, or many."""
    rows = list(zip(*columns, strict=True))
    if len(columns) == 1 and not rows[0][0]:  # 0 is any multiple of it: a point less that says something
        return None
    for some in itertools.combinations(range(len(rows)), len(columns)):
        whole = _determinant([rows[i] for i in some])
        if whole:
            break
    else:
        return None
    factors = []
    for at in range(len(columns)):
        replaced = [[*rows[i][:at], values[i], *rows[i][at + 1 :]] for i in some]
        factors.append(_determinant(replaced) // whole)
    fits = all(sum(f * x for f, x in zip(factors, row, strict=True)) == y for row, y in zip(rows, values, strict=True))
    return factors if fits and all(factors) else None
