"""How wide the accesses are of kernels that memory bounds, and what of a line fits a thread's registers."""

from __future__ import annotations

from dataclasses import replace

from subtune.core.candidate import Candidate
from subtune.core.workload import Workload

ACCESS_BITS = 128
MAX_KEPT = 64
"""Elements of a line in one thread's registers."""
_MAX_LANES = 32


def slowed(found: list[Candidate], factor: float) -> list[Candidate]:
    """`found`, predicted to take `factor` times as long."""
    return [replace(candidate, predicted_s=candidate.predicted_s * factor) for candidate in found]


def element_bits(elements: int, workload: Workload) -> int:
    """Bits of one element of the narrowest operand that has (about) one for every element that is reduced."""
    sizes = [arg.nbytes * 8 / elements for arg in workload.args]
    return max(4, round(min([size for size in sizes if size >= 3.0], default=32.0)))


def lanes_of(bits: int, extent: int, count: int = 3) -> list[int]:
    """Up to `count` numbers that divide `extent`, the largest first, at most 16 bytes of elements of `bits`.

    They are powers of two, and of an odd extent any.
    """
    most = min(_MAX_LANES, max(1, ACCESS_BITS // max(bits, 1)))
    divisors = [lanes for lanes in range(most, 0, -1) if extent % lanes == 0]
    return [lanes for lanes in divisors if extent % 2 or lanes & (lanes - 1) == 0][:count]


def part_length(length: int, count: int, lanes: int) -> int:
    """Elements of each of `count` parts but the last ones, which may have fewer: whole runs of `lanes`."""
    return -(-length // (count * lanes)) * lanes
