"""Held-out instances: is the kernel that would be chosen there the fastest? Where it is not sure, it is timed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from subtune.core.candidate import Candidate
from subtune.core.dispatch import Extents
from subtune.core.domain import Domain
from subtune.dynamic.measured import Measured
from subtune.dynamic.predict import instances_of, times_of
from subtune.dynamic.workload import DynamicWorkload

_CLOSE = 1.1
"""Times the fastest kernel's predicted seconds, up to which a kernel may be the fastest."""
_MOST_CLOSE = 4
"""Kernels that are timed at one instance."""
_APART = 1.08
"""Times an extent that is measured, up to which another is as good as measured."""
_MOST = 8
"""Instances."""
_DRAWN = 64
"""Instances that are looked at."""
_RIGHT, _ENOUGH = 0.02, 3
"""So near the fastest, so many times in a row, and the choice is trusted."""


class HeldOut:
    """Draws instances by their weights, evenly, and names those at which several kernels are about as fast.

    What it is called with has the times that it asked for before.
    """

    def __init__(self, workload: DynamicWorkload, domain: Domain) -> None:
        instances, weights = instances_of(workload, domain)
        order = sorted(range(len(instances)), key=lambda i: (math.prod(instances[i]), instances[i]))
        shares = np.cumsum(weights[order]) / weights.sum()
        drawn = [order[int(np.searchsorted(shares, _bits_turned(i)))] for i in range(1, _DRAWN + 1)]
        self._left = [instances[i] for i in dict.fromkeys(drawn)]
        self._asked: tuple[Extents, Candidate] | None = None
        self._count = self._right = 0

    def likely(self, known: Sequence[Extents]) -> list[Extents]:
        """Instances that may be asked for, where kernels are checked or timed at the `known` ones."""
        apart = [at for at in self._left if not any(_is_apart_little(at, one) for one in known)]
        return apart[:_MOST]

    def __call__(self, found: Measured) -> tuple[Extents, Sequence[Candidate]] | None:
        """The next instance, and the kernels to time there, the one that would be chosen first; None: no more."""
        self._judge(found)
        if not (self._left and found.libraries) or self._count >= _MOST or self._right >= _ENOUGH:
            return None
        kernels = list(found.libraries)
        seconds = np.array([times_of(found, one, self._left) for one in kernels])
        for at, column in zip(list(self._left), seconds.T, strict=True):
            self._left.remove(at)
            close = _close(kernels, column)
            if len(close) > 1 and not _is_known(found, at):
                self._count += 1
                self._asked = (at, close[0])
                return at, close
        return None

    def _judge(self, found: Measured) -> None:
        """How good the choice was at the last instance."""
        if self._asked is None:
            return
        at, chosen = self._asked
        seconds = {one: of[at] for one, of in found.seconds.items() if at in of}
        if chosen in seconds and seconds[chosen] <= (1 + _RIGHT) * min(seconds.values()):
            self._right += 1
        else:
            self._right = 0


def _close(kernels: Sequence[Candidate], seconds: np.ndarray) -> list[Candidate]:
    """Those that may be the fastest, the one that is predicted to be first."""
    order = np.argsort(seconds, kind="stable")[:_MOST_CLOSE]
    return [kernels[i] for i in order if np.isfinite(seconds[i]) and seconds[i] <= _CLOSE * seconds[order[0]]]


def _is_known(found: Measured, at: Extents) -> bool:
    """Whether kernels were checked there, or timed next to it."""
    is_checked = any(at in of for of in found.right.values())
    return is_checked or any(_is_apart_little(at, known) for of in found.seconds.values() for known in of)


def _is_apart_little(one: Extents, other: Extents) -> bool:
    return all(a <= _APART * b and b <= _APART * a for a, b in zip(one, other, strict=True))


def _bits_turned(number: int) -> float:
    """van der Corput's sequence: 1/2, 1/4, 3/4, 1/8, …; every new one lies between those before."""
    return int(f"{number:b}"[::-1], 2) / 2 ** number.bit_length()
