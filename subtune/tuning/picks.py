"""Which of the candidates that were checked or timed is the one to take."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Built, Comparison, Failure, FailureKind, Timing
from subtune.core.workload import Workload

_NEARLY = 1.05
"""So much slower a kernel may be whose packed weights are smaller by what does not stay in L3: others want memory."""
_MIN_GAIN = 1.01
"""A winner must beat the default by this factor and by three standard errors, or the default is kept."""
_CLEARLY = 1.1
"""Times that a check's few calls take longer: less is their noise."""

_Outcomes = Mapping[Candidate, Timing | Failure]


def is_faster(comparison: Comparison) -> bool:
    return comparison.gain > max(_MIN_GAIN, math.exp(3 * comparison.noise))


def clearly_fastest(own: Candidate, outcomes: _Outcomes, built: Mapping[Candidate, Built]) -> Candidate | None:
    """The fastest of those that were built, if it leaves `own` behind by more than a few calls' noise."""
    timed = {c: o for c in built if c != DEFAULT and isinstance(o := outcomes.get(c), Timing)}
    if own not in timed:
        return None
    best = min(timed, key=lambda candidate: timed[candidate].min_s)
    return best if timed[own].min_s > _CLEARLY * timed[best].min_s else None


def least_s(candidate: Candidate, outcomes: _Outcomes) -> float:
    """Seconds of its fastest sample; infinity where it was not timed."""
    outcome = outcomes.get(candidate)
    return outcome.min_s if isinstance(outcome, Timing) else math.inf


def light_first(
    order: list[Candidate], outcomes: _Outcomes, built: Mapping[Candidate, Built], device: Device
) -> list[Candidate]:
    """`order`, but first what is nearly as fast as the fastest and needs megabytes less of weights."""
    if not order:
        return order

    near = [c for c in order if least_s(c, outcomes) <= _NEARLY * least_s(order[0], outcomes)]
    light = min(near, key=lambda c: built[c].weights_bytes, default=order[0])
    saved = built[order[0]].weights_bytes - built[light].weights_bytes
    if not device.model.comes_from_memory(saved):
        return order
    return [light, *(c for c in order if c != light)]


def with_least(seen: Comparison, earlier: Timing | Failure | None) -> Comparison:
    """`seen` with the least of all samples: beside the default, a candidate finds the caches as that left them."""
    if not isinstance(earlier, Timing):
        return seen
    return replace(seen, timing=replace(seen.timing, min_s=min(seen.timing.min_s, earlier.min_s)))


def is_cut_off(seen: Comparison | Failure, deadline: float) -> bool:
    """Time was up, which says nothing about the candidate: noted as its failure, it would never be tried again."""
    return isinstance(seen, Failure) and seen.kind == FailureKind.TIMEOUT and time.monotonic() >= deadline


def no_default(workload: Workload, failure: Failure, what: str) -> SubtuneError:
    return SubtuneError(f"the default schedule of workload {workload.key} {what} ({failure.kind}): {failure.message}")
