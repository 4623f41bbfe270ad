"""At which numbers of tiles a kernel for many is looked at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from subtune.passes.pad_attention import KEYS

_POINTS = 7
"""Of one extent; of more, two more each."""
_LEAST = 19
"""Tiles: fewer than a vector's lanes are scheduled otherwise."""
_APART = 1.08
"""Of a sample and the next smaller one."""


def sample_tiles(
    most: Sequence[int], is_even: bool = False, fits: Callable[[tuple[int, ...]], bool] = lambda _: True
) -> list[tuple[int, ...]]:
    """Numbers of tiles at which a template is made: primes, in another order for every extent; one point where there is
    no extent.

    Args:
        most: of each extent at the greatest instance. Much larger extents are scheduled otherwise, and those that are
            smaller than a vector.
        is_even: primes and twice primes that leave 1 or 2 when divided by 4. What pads them to multiples of 4 has a
            loop of two or three; a loop of one would be none.
        fits: whether a kernel at such a point has the form that it has at others, as far as that is known.
    """
    if not most:
        return [()]
    count = _POINTS + 2 * (len(most) - 1)
    orders = [_primes_near(max(one, _LEAST), count, 3 * i, is_even) for i, one in enumerate(most)]
    steps = [_coprime(len(order), at) for at, order in enumerate(orders)]
    points = [
        tuple(
            order[(step * i + at * (i // len(order))) % len(order)]
            for at, (order, step) in enumerate(zip(orders, steps, strict=True))
        )
        for i in range(4 * count)
    ]
    points = list(filter(fits, dict.fromkeys(points)))
    # where extents are equal, so may be what is apart elsewhere: these come last
    return sorted(points, key=lambda point: len(set(point)) < len(point))[:count]


def _coprime(count: int, at: int) -> int:
    """The number, by its place, that leads through all of `count` places before it comes back to one."""
    numbers = (number for number in itertools.count(1) if math.gcd(number, count) == 1)
    return next(itertools.islice(numbers, at, None))


def _primes_near(most: int, count: int, turned: int, is_even: bool) -> list[int]:
    """Primes, so many at least, from a third of `most` to a little more than it, or further.

    Not beyond the tile to which all smaller extents are padded alike: what is in the workload holds up to there.
    """
    found: list[int] = []
    if most <= KEYS:
        found = [number for number in range(_LEAST - 2, KEYS - 1) if (number % 4 in (1, 2) if is_even else number % 2)]
        return [*found[turned:], *found[:turned]]
    for number in range(max(_LEAST, most // 3), 4 * most + 400):
        fits = number % 4 in (1, 2) and (_is_prime(number) or _is_prime(number / 2)) if is_even else _is_prime(number)
        if fits and (not found or number > found[-1] * _APART):
            found.append(number)
        if len(found) > count and found[-1] >= most:
            break
    chosen = [found[-1], *found[-max(count + 2, 7) : -1]]  # the one beyond `most` is always among the samples
    turned %= len(chosen)
    return [*chosen[turned:], *chosen[:turned]]


def _is_prime(number: float) -> bool:
    return number == int(number) and all(number % divisor for divisor in range(2, math.isqrt(int(number)) + 1))
