"""Timing loops: batches of calls long enough to be read, repeated until the median is known well enough."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from subtune.core.measurement import Comparison, Timing

Sampler = Callable[[Any, int], float]

_SAMPLE_S = 300e-6
"""Least length of a sample: the clock and the loop around it are then below 0.1 %."""
_MIN_SAMPLES = 3
_WARM_CALLS = 16
"""So many calls say whether a short kernel is slow: one by itself takes a microsecond to wake threads and code."""
_TIGHT = 0.003
"""Sampling ends early when the standard error of the median is below this share of it."""
_DISTURBED = 1.05
FEW_CALLS_NOISE = math.log(2) / 3

LONG_CALL_S, SETTLE_S, CONTINUOUS_S = 100e-6, 0.15, 0.02
"""GPU kernels that take longer may draw all the power there is: they run for so long before they are timed, until the
clock is what their own power leaves, and for so long in a sample. The first to run after a pause, or after a slow
kernel, would look the fastest; and one that pauses after every call may be 15 % faster than one that does not."""


def time_calls(call: Any, seconds: float, stop_above_s: float = math.inf, sample: Sampler | None = None) -> Timing:
    """Latency of `call`, sampled for about `seconds`; given up when the first calls all exceed `stop_above_s`.

    Args:
        sample: seconds per call over so many calls in a row (default: `call()` by the host's clock).
    """
    sample = sample or _sample
    begin = time.perf_counter()
    first: list[float] = []
    # One call may have been disturbed from outside: a candidate is given up when several are slow.
    while len(first) < _MIN_SAMPLES and (not first or min(first) > stop_above_s):
        first.append(sample(call, min(_WARM_CALLS, calls_per_sample(min(first))) if first else 1))
        if time.perf_counter() - begin > seconds:
            break
    if min(first) > stop_above_s:
        return summarise(first)
    calls = calls_per_sample(min(first))
    samples: list[float] = []
    begin = time.perf_counter()
    while True:
        samples.append(sample(call, calls))
        if len(samples) < _MIN_SAMPLES:
            continue
        # Half of the samples well above the fastest: another process is at work. Twice the time may outlast it.
        allowed = 2 * seconds if median(samples) > _DISTURBED * min(samples) else seconds
        if time.perf_counter() - begin >= allowed:
            break
        if len(samples) >= 8 and standard_error(samples) < _TIGHT * median(samples):
            break
    return summarise(samples)


def time_pairs(
    first: Any, second: Any, seconds: float, sample: Sampler | None = None
) -> tuple[Timing, Timing, float, float]:
    """Both latencies sampled in turns, the median of `second` over `first`, and its logarithm's standard error.

    Sampling takes about `seconds`; an eighth when the winner is clear, three times that while it is not.
    """
    sample = sample or _sample
    calls = (first, second)
    counts = [calls_per_sample(sample(call, 1)) for call in calls]
    samples: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    begin = time.perf_counter()
    while True:
        # The order alternates: whichever runs second finds the caches as the other left them.
        for which in (0, 1) if len(ratios) % 2 == 0 else (1, 0):
            samples[which].append(sample(calls[which], counts[which]))
        ratios.append(samples[1][-1] / samples[0][-1])
        if len(ratios) < _MIN_SAMPLES:
            continue
        elapsed = time.perf_counter() - begin
        certainty = abs(math.log(median(ratios))) / max(_log_error(ratios), 0.002)
        if elapsed >= seconds / 8 and certainty > 8:
            break
        if elapsed >= seconds and len(ratios) >= 5 and (certainty > 3 or elapsed >= 3 * seconds):
            break
    return summarise(samples[0]), summarise(samples[1]), median(ratios), _log_error(ratios)


def few_calls(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """What single calls say that nothing was kept away from: the least of `second` over the median of `first`.

    Calls are lengthened by what else runs, never shortened. Three standard errors are a factor of two, more than
    builds beside the calls make of them.
    """
    one, other = summarise(list(first)), summarise(list(second))
    return Comparison(one, other, other.min_s / max(one.median_s, 1e-9), FEW_CALLS_NOISE)


def calls_per_sample(call_s: float) -> int:
    return max(1, math.ceil(_SAMPLE_S / max(call_s, 1e-7)))


def summarise(samples: list[float]) -> Timing:
    middle = median(samples)
    return Timing(middle, min(samples), _deviation(samples) / middle if middle else 0.0, len(samples))


def standard_error(samples: list[float]) -> float:
    """Of the median, from the median absolute deviation, which single disturbed samples do not move."""
    return 1.253 * 1.4826 * _deviation(samples) / math.sqrt(len(samples))


def _log_error(ratios: list[float]) -> float:
    return standard_error([math.log(ratio) for ratio in ratios])


def _deviation(samples: list[float]) -> float:
    middle = median(samples)
    return median(abs(sample - middle) for sample in samples)


def _sample(call: Callable[[], object], calls: int) -> float:
    """Seconds per call over `calls` calls in a row."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls
