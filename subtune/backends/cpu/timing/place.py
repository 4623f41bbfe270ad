"""Where kernels run that are checked and timed: in this process, or on another machine (`there.There`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Protocol

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.timing.sentinel import Sentinel
from subtune.core.measurement import Comparison, Timing
from subtune.measure.clock import time_calls, time_pairs
from subtune.measure.guarded import Guarded
from subtune.measure.messages import Library

_TOUCHING_S = 0.05


class Place(Protocol):
    """What `Bench` asks of the place. Kernels and callers are its own."""

    def begin_workload(self) -> None: ...

    def load(self, library: Library) -> Any:
        """The kernel of a library."""

    def run(self, kernel: Any, inputs: Sequence[Guarded], outputs: Sequence[Guarded]) -> float:
        """One call; its seconds. What it wrote, zones included, is in the arguments afterwards."""

    def caller(self, kernel: Any, arguments_of: Callable[[int], Sequence[Guarded]], copies: int, is_fresh: bool) -> Any:
        """What calls the kernel on one copy of its arguments after the other.

        Args:
            arguments_of: makes a copy by its number.
            is_fresh: nobody has touched all of these yet.
        """

    def time(self, caller: Any, seconds: float, stop_above_s: float) -> Timing:
        """As `clock.time_calls`, with nothing beside it."""

    def compare(self, one: Any, other: Any, seconds: float) -> Comparison:
        """As `clock.time_pairs`."""


class Here:
    """This process, on this machine."""

    def __init__(self, device: CPUModel) -> None:
        self._sentinel = Sentinel(device)

    def begin_workload(self) -> None:
        self._sentinel.begin_workload()

    def load(self, library: Library) -> Any:
        import tvm

        kernel = tvm.runtime.load_module(library.path)["main"]
        return partial(kernel, *library.numbers) if library.numbers else kernel

    def run(self, kernel: Any, inputs: Sequence[Guarded], outputs: Sequence[Guarded]) -> float:
        tensors = [one.tensor for one in (*inputs, *outputs)]
        begin = time.perf_counter()
        kernel(*tensors)
        return time.perf_counter() - begin

    def caller(
        self, kernel: Any, arguments_of: Callable[[int], Sequence[Guarded]], copies: int, is_fresh: bool
    ) -> Callable[[], object]:
        calls = [partial(kernel, *(one.tensor for one in arguments_of(copy))) for copy in range(copies)]
        begin = time.perf_counter()
        for call in calls if is_fresh else ():
            call()
            if time.perf_counter() - begin > _TOUCHING_S:
                break
        if len(calls) == 1:
            return calls[0]
        ring: Iterator[Callable[[], object]] = cycle(calls)
        return lambda: next(ring)()

    def time(self, caller: Any, seconds: float, stop_above_s: float) -> Timing:
        timing: Timing = self._sentinel.undisturbed(lambda: time_calls(caller, seconds, stop_above_s))
        return timing

    def compare(self, one: Any, other: Any, seconds: float) -> Comparison:
        found: Comparison = self._sentinel.undisturbed(lambda: Comparison(*time_pairs(one, other, seconds)))
        return found
