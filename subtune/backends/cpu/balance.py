"""How much longer a parallel loop takes than its work over all threads."""

from __future__ import annotations

from math import ceil

from subtune.backends.cpu.device import CPUModel

_UNEVEN = 0.02
"""Of the time, by which the slower of two cores delays equal halves. Over a millisecond, two cores of a Zen 3 differ by
0.5 % (median), but by 10 to 20 % on average: something else runs on one of them now and then."""


def shares_out(grains: int, device: CPUModel) -> bool:
    """Whether there are several threads, and each gets as many of `grains` equal pieces."""
    return device.threads > 1 and grains % device.threads == 0


def imbalance(grains: int, device: CPUModel) -> float:
    """The time of `grains` equal pieces over that of work without pieces, from 1.

    Threads take over pieces of one another (`lowering.sharing`): all but one wait at the end for half of a piece. Where
    each has one piece only, they wait for the slowest core instead.
    """
    even = ceil(grains / device.threads) * device.threads / max(grains, 1)
    waits = min(_UNEVEN, device.threads / (2 * max(grains, 1))) if device.threads > 1 else 0.0
    return max(1.0, even) * (1.0 + waits)
