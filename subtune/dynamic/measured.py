"""What was measured of the kernels of one dynamic workload, and which instances they serve."""

from __future__ import annotations

from dataclasses import dataclass, field

from subtune.backends.many_shapes import TileShape
from subtune.core.candidate import Candidate
from subtune.core.dispatch import Extents
from subtune.core.measurement import Failure
from subtune.measure.messages import Library


@dataclass
class Measured:
    """`seconds` of kernels by instance, and why others are out.

    A schedule in blocks may hold for extents of at least a block only. Instances are measured from the greatest down,
    and where a kernel fails, it does not serve that instance or any below: see `serves`.
    """

    libraries: dict[Candidate, Library] = field(default_factory=dict)
    seconds: dict[Candidate, dict[Extents, float]] = field(default_factory=dict)
    failures: dict[Candidate, Failure] = field(default_factory=dict)
    right: dict[Candidate, list[Extents]] = field(default_factory=dict)
    """Where a kernel's results were checked, from the greatest down."""
    threads: int = 1
    """That run a kernel."""
    tiles: dict[Candidate, TileShape] = field(default_factory=dict)
    """What kernels compute at once, as their knobs say."""
    ends: tuple[Extents, Extents] = ((), ())
    """The greatest and the least of all instances at which kernels were measured."""

    def serves(self, candidate: Candidate, extents: Extents) -> bool:
        """Whether a kernel was right at instances of which one is no larger than this one in any extent, and one no
        smaller; whoever was right at the ends of all serves what is beyond them."""
        library, right = self.libraries.get(candidate), self.right.get(candidate)
        if library is not None and is_beyond(extents, library):
            return False
        if right is None:
            return candidate not in self.failures
        greatest, least = ([pick(sizes) for sizes in zip(*right, strict=True)] for pick in (max, min))
        knows_its_least = library is not None and library.least > 0
        is_down_there = candidate not in self.failures and (knows_its_least or right[-1] == self.ends[1])
        is_open = right[0] == self.ends[0], is_down_there
        return all(
            (is_open[0] or extent <= high) and (is_open[1] or extent >= low)
            for extent, high, low in zip(extents, greatest, least, strict=True)
        )


def is_beyond(extents: Extents, library: Library) -> bool:
    """Fewer rows than the kernel needs, or more than it knows of."""
    return any(extent < library.least or 0 < library.most < extent for extent in extents)
