"""The least and the greatest that a symbolic dimension may be over a domain."""

from __future__ import annotations

import itertools
from math import prod

from subtune.core.dims import Dim
from subtune.core.domain import Domain

_MOST_CORNERS = 8
"""Symbols of one dimension whose extremes are all combined; more are bounded term by term."""


def bounds(dim: Dim, domain: Domain) -> tuple[int, int]:
    """What `dim` is at least and at most; where it has both powers and differences, possibly less and more than that.

    >>> from subtune.core.dims import parse
    >>> from subtune.core.domain import Symbol
    >>> domain = Domain((Symbol.uniform("batch", (1, 2)), Symbol.uniform("seq", tuple(range(1, 9)))))
    >>> bounds(parse("batch*seq - batch"), domain), bounds(parse("8 - seq"), domain)
    ((0, 14), (0, 7))
    """
    least = {symbol.name: symbol.values[0] for symbol in domain.symbols}
    varying = [(monomial, factor) for monomial, factor in dim.terms if monomial]
    if all(factor > 0 for _, factor in varying):
        return dim.at(least), dim.at(domain.greatest)
    if len(dim.symbols) <= _MOST_CORNERS and all(len(set(monomial)) == len(monomial) for monomial, _ in varying):
        # linear in each symbol: the extremes are at corners
        ends = [(least[name], domain.greatest[name]) for name in dim.symbols]
        corners = [dim.at(dict(zip(dim.symbols, corner, strict=True))) for corner in itertools.product(*ends)]
        return min(corners), max(corners)
    low = high = 0
    for monomial, factor in dim.terms:
        ends_of = [factor * prod(values[name] for name in monomial) for values in (least, domain.greatest)]
        low, high = low + min(ends_of), high + max(ends_of)
    return low, high
