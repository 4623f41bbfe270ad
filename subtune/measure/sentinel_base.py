"""Waiting while the machine is not itself, as a fixed piece of work tells that is timed before and after a look."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

SLOWER = 1.2
"""Above this the machine counts as disturbed; its frequency moves by less."""
_SAMPLES = 3
_PAUSE_S = 0.02
_FRESH_S = 0.01
"""So long after the machine was itself it is taken to be: looks of a few milliseconds follow one another."""
_PATIENCE_S = 1.0
"""For one job, and for all jobs of a workload together twice that: then the machine is taken as it is."""
_CREDIT_S = 4.0
_CREDIT_PER_WORKLOAD_S = 0.2
"""A machine that is disturbed for minutes is not waited for at every workload: this much, and a little for each."""


class Patience:
    """`sample` gives the seconds that the fixed work took just now."""

    def __init__(self, sample: Callable[[], float]) -> None:
        self._sample = sample
        self._best_s = min(sample() for _ in range(20))
        self._credit_s = _CREDIT_S
        self._left_s = 0.0
        self._calm_at = -math.inf
        self.begin_workload()

    def begin_workload(self) -> None:
        self._credit_s = min(_CREDIT_S, self._credit_s + _CREDIT_PER_WORKLOAD_S)
        self._left_s = min(2 * _PATIENCE_S, self._credit_s)

    def undisturbed(self, look: Callable[[], Any]) -> Any:
        """What `look` returns when the machine was itself before it and after it, as far as patience reaches."""
        end = time.perf_counter() + min(_PATIENCE_S, self._left_s)
        while True:
            begin = time.perf_counter()
            if begin - self._calm_at > _FRESH_S:
                while self.slowdown() > SLOWER and time.perf_counter() < end:
                    time.sleep(_PAUSE_S)
            waited = time.perf_counter() - begin
            found = look()
            is_disturbed = self.slowdown() > SLOWER
            self._calm_at = -math.inf if is_disturbed else time.perf_counter()
            spent = waited if not is_disturbed else time.perf_counter() - begin
            self._left_s -= spent
            self._credit_s -= spent
            if not is_disturbed or time.perf_counter() >= end:
                return found

    def slowdown(self) -> float:
        """The work's time now over its best, 1.0 or a little more when nothing disturbs."""
        now_s = min(self._sample() for _ in range(_SAMPLES))
        self._best_s = min(self._best_s, now_s)
        return now_s / self._best_s
