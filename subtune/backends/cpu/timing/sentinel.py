"""Is the machine as fast as it was? A fixed kernel tells, and timing waits for a while when it is not.

On a shared machine the cores are at times hyper-threads of one, or busy with someone else's work, for a second or
more: a candidate that is looked at meanwhile seems half as fast as the one before it. The kernel here does nothing but
fused multiply-adds on registers, on all threads, so what slows it down is not in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.timing.probes import multiply_adds
from subtune.measure.sentinel_base import Patience

_CALLS = 8


class Sentinel(Patience):
    def __init__(self, device: CPUModel) -> None:
        call = _kernel(device)

        def sample() -> float:
            begin = time.perf_counter()
            for _ in range(_CALLS):
                call()
            return (time.perf_counter() - begin) / _CALLS

        super().__init__(sample)


def _kernel(device: CPUModel) -> Callable[[], object]:
    """About 20 microseconds of multiply-adds on every thread."""
    return multiply_adds(device, vectors=2 * device.fma_latency, rounds=40, depth=256)
