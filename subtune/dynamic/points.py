"""At which instances a model is compared with itself, so that what differs tells which polynomial it is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from subtune.core.dims import Dim, Quotient
from subtune.core.domain import Domain
from subtune.core.tensor_spec import TensorSpec
from subtune.dynamic.fit import NO_STEPS
from subtune.dynamic.workload import DIVISORS
from subtune.passes.pad_attention import KEYS

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109)
_LEAST = 3
"""A dim of one element is broadcast."""
_POINTS = 4
_TRIES = 200
"""Choices of points of the domain, and as many beyond it, where those that are taken first do not serve."""

Point = dict[str, int]


def sample_points(domain: Domain, sums: Sequence[Dim] = (), steps: Mapping[str, int] = NO_STEPS) -> list[Point]:
    """Instances at which the model is compared with itself: odd, and primes as far as there are some.

    A symbol has another value at every point, and at a point no two have the same, nor as many steps.

    Args:
        sums: of symbols (`sums_of`). The points tell numbers of tiles of a sum from those of anything else.
        steps: numbers whose multiples are wanted for some symbols. Of these even ones are among the points: what is
            halved once more than all declared ones can be is rounded, and that is told by both.
    """
    points = _largest(domain, steps)
    if _are_told(points, sums):
        return points
    dice = random.Random(0)
    for is_beyond in (False, True):
        for _ in range(_TRIES):
            found = _drawn(domain, steps, len(points), dice, is_beyond)
            if found is not None and _are_told(found, sums):
                return found
    return points


def points_beyond(domain: Domain, sums: Sequence[Dim] = ()) -> list[Point]:
    """As `sample_points`, primes beyond the greatest instance; none where that is large."""
    count = _POINTS + 2 * (len(domain.symbols) - 1)
    pools = [[p for p in _PRIMES if p > one.values[-1]][: count + len(domain.symbols)] for one in domain.symbols]
    dice = random.Random(0)
    for _ in range(_TRIES if all(len(pool) >= count for pool in pools) else 0):
        rows = list(zip(*(dice.sample(pool, count) for pool in pools), strict=True))
        points = [dict(zip(domain.names, row, strict=True)) for row in rows]
        if all(len({*row}) == len(row) for row in rows) and _are_told(points, sums):
            return points
    return []


def last_multiples(domain: Domain) -> Point:
    """The instance of the greatest values at which tiles end by themselves: what is rounded down is rounded up there,
    too, and odd values do not tell the one from the other.
    """
    return {one.name: _last_multiple(one.values) for one in domain.symbols}


def _last_multiple(values: Sequence[int]) -> int:
    """By as much as there is one."""
    return next((value for unit in (32, 4, 2) for value in values[::-1] if value and value % unit == 0), values[-1])


def sums_of(specs: Sequence[Sequence[TensorSpec]], points: Sequence[Point]) -> tuple[Dim, ...]:
    """Pairs of symbols whose sum is the size of some dim of a model's inputs and outputs, `past + seq`.

    Args:
        specs: the model's at each of `points`.
    """
    sizes = [[size for spec in of_point for size in spec.sizes] for of_point in specs]
    pairs = [Dim.symbol(a) + Dim.symbol(b) for a, b in itertools.combinations(sorted(points[0]), 2)]
    rows = set(zip(*sizes, strict=True))
    return tuple(pair for pair in pairs if tuple(pair.at(point) for point in points) in rows)


def _largest(domain: Domain, steps: Mapping[str, int]) -> list[Point]:
    """The largest primes of the domain, and more than those where there are too few."""
    points: list[Point] = [{} for _ in range(_POINTS + 2 * (len(domain.symbols) - 1))]
    taken: list[set[int]] = [set() for _ in points]
    for symbol in domain.symbols:
        step = steps.get(symbol.name, 1)
        most = symbol.values[-1] // step
        primes = [p for p in _PRIMES if p <= most][::-1]
        others = [n for n in range(most, _LEAST - 1, -1) if n % 2 and n not in primes] if most < _PRIMES[-1] else []
        left = [*primes[::2], *primes[1::2], *others, *(p for p in _PRIMES if p > most)]
        if step > 1:
            evens = [*range(most - most % 2, _LEAST, -2), *range(max(most, _LEAST) // 2 * 2 + 2, 2 * _PRIMES[-1], 2)]
            left = [count for pair in zip(left, evens, strict=False) for count in pair]
        for point, numbers in zip(points, taken, strict=True):
            count = next(one for one in left if not numbers & {one, one * step})
            point[symbol.name] = count * step
            numbers |= {count, count * step}
            left.remove(count)
    return points


def _drawn(
    domain: Domain, steps: Mapping[str, int], count: int, dice: random.Random, is_beyond: bool
) -> list[Point] | None:
    """Points with values at random, those of the domain where not `is_beyond`; None: two symbols have the same."""
    columns = []
    for symbol in domain.symbols:
        step = steps.get(symbol.name, 1)
        most = symbol.values[-1] // step
        inside = [n for n in range(_LEAST, most + 1, 2 if step == 1 else 1) if n in _PRIMES or most < _PRIMES[-1]]
        pool = (
            inside if len(inside) >= count and not is_beyond else _PRIMES if step == 1 else range(_LEAST, _PRIMES[-1])
        )
        columns.append(dice.sample(pool, count))
    names = [symbol.name for symbol in domain.symbols]
    factors = [steps.get(name, 1) for name in names]
    counts = list(zip(*columns, strict=True))
    rows = [tuple(one * step for one, step in zip(row, factors, strict=True)) for row in counts]
    if any(len({*row}) < len(row) for row in (*counts, *rows)):
        return None
    return [dict(zip(names, row, strict=True)) for row in rows]


def _are_told(points: Sequence[Point], sums: Sequence[Dim]) -> bool:
    """Whether no quotient of a sum is at all points that of another dividend, or the same number; and no sum a number
    of whole tiles, which nothing would be padded to."""
    if any(dim.at(point) % KEYS == 0 for dim in sums for point in points):
        return False
    symbols = [Dim.symbol(name) for name in points[0]]
    products = [Dim.of({pair: 1}) for pair in itertools.combinations(sorted(points[0]), 2)]
    for divisor in DIVISORS:
        of_sums = [_quotients(dim, divisor, points) for dim in sums]
        others = {_quotients(dim, divisor, points) for dim in (*symbols, *products)}
        if len(set(of_sums)) < len(of_sums) or any(len(set(one)) == 1 or one in others for one in of_sums):
            return False
    return True


def _quotients(dividend: Dim, divisor: int, points: Sequence[Point]) -> tuple[int, ...]:
    return tuple(Quotient(dividend, divisor, True).of(dividend.at(point)) for point in points)
