"""Held-out instances: is the kernel that would be chosen there the fastest? Where it is not sure, it is timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
_HOPE = 1.4
"""Times the least seconds foretold, up to which a kernel may be the fastest where it was proposed: it may not have been
measured with as few tiles as it has there."""
_MOST_OWN = 4
"""Such instances."""
_APART = 1.08
"""Times an extent that is measured, up to which another is as good as measured."""
_MOST = 8
"""Instances."""
_DRAWN = 64
"""Instances that are looked at."""
_RIGHT, _ENOUGH = 0.02, 3
"""So near the fastest, so many times in a row, and the choice is trusted."""


class HeldOut:
    """Names instances between those that are measured at which kernels are to be timed: those for which some were
    proposed that may be the fastest there; then, drawn by their weights, evenly, those at which several are about as
    fast.

    What it is called with has the times that it asked for before.

    Args:
        proposed: kernels that were proposed for instances that are not measured.
    """

    def __init__(
        self, workload: DynamicWorkload, domain: Domain, proposed: Mapping[Extents, Sequence[Candidate]]
    ) -> None:
        self._proposed = proposed
        self._own_left: list[tuple[Extents, Sequence[Candidate]]] | None = None
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
        if own := self._own(found):
            return own
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

    def _own(self, found: Measured) -> tuple[Extents, Sequence[Candidate]] | None:
        """The next instance for which kernels were proposed that may be the fastest: these, and who is foretold to be.

        Those of which that is likeliest come first.
        """
        if self._own_left is None:
            hopes = [hope for at, own in self._proposed.items() if (hope := _hope(found, at, own))]
            self._own_left = [(at, kernels) for _, at, kernels in sorted(hopes, reverse=True)[-_MOST_OWN:]]
        return self._own_left.pop() if self._own_left else None

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


def _hope(found: Measured, at: Extents, own: Sequence[Candidate]) -> tuple[float, Extents, Sequence[Candidate]] | None:
    """Of an instance the least seconds foretold of its own kernels, over those of all; and which to time there."""
    kernels = list(found.libraries)
    seconds = np.array([times_of(found, one, [at])[0] for one in kernels])
    order = np.argsort(seconds, kind="stable")
    hopeful = [i for i in order if kernels[i] in own and seconds[i] <= _HOPE * seconds[order[0]]]
    if not hopeful or len(kernels) == 1 or _is_known(found, at):
        return None
    return (
        float(seconds[hopeful[0]] / seconds[order[0]]),
        at,
        [kernels[i] for i in dict.fromkeys((*order[:2], *hopeful))],
    )


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
