"""What tuning decided for a workload: the winner, both its times, and the hash of the PrimFunc that was measured."""

from __future__ import annotations

from dataclasses import dataclass

from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Timing

PAIRS, CALLS = "pairs", "calls"
"""How a winner was found to be faster than the default: timed in turns with it, or twice as fast in the few calls in
which both were checked. The second is what there is until the search has time for the first."""


@dataclass(frozen=True, slots=True)
class Record:
    """The winner of one workload on one device.

    `timing` and `default_timing` come from one interleaved run of the winner and the default schedule, where
    `confirmed` says so; when the default won they are equal. A record is written only after the winner's outputs were
    compared with the default's and its time was confirmed.
    """

    workload_key: str
    device: str
    """As of `device.scope()`."""
    candidate: Candidate
    timing: Timing
    default_timing: Timing
    gain: float
    """Latency of the default over the winner's, the median over interleaved pairs of samples: at least 1."""
    func_hash: str
    """Structural hash of the scheduled PrimFunc that was timed: the one that ships must have the same."""
    topk: int
    """How many candidates the search was asked to consider."""
    tried: int
    """Candidates with an outcome, failures included, the default left out."""
    failed: int
    complete: bool
    """False when the budget or the user ended the search early: a later run continues it."""
    confirmed: str = PAIRS

    @property
    def is_default(self) -> bool:
        return self.candidate == DEFAULT

    @property
    def default_s(self) -> float:
        """What the default takes where the winner takes its median, in seconds: the pairs say it.

        The median of the default's samples alone may come from another state of the machine.
        """
        return self.gain * self.timing.median_s


def func_hash(func: object) -> str:
    """Structural hash of a PrimFunc, 16 hexadecimal digits, whatever global symbol it carries."""
    from tvm_ffi import structural_hash

    return f"{structural_hash(func.with_attr('global_symbol', 'main')) & (2**64 - 1):016x}"  # type: ignore[attr-defined]
