"""Builders that are not there: one queue for those of all hosts, and silence on a host where something is timed.

As `subtune.measure.pool.Builders`, of which each has a thread. Here a build is an alarm of the simulated clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from subtune.fleet.simulation.clock import SimulatedThreads


class FarmBuild:
    """Of `seconds`. `is_over`: it was done."""

    __slots__ = ("is_over", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_over = False


class Farm:
    """`hosts` machines with `builders` each.

    Attributes:
        busy_s: seconds of all builders, that they built.
    """

    def __init__(self, threads: SimulatedThreads, hosts: int, builders: int) -> None:
        self.busy_s = 0.0
        self._threads = threads
        self._queue: OrderedDict[FarmBuild, None] = OrderedDict()
        self._idle = [builders] * hosts
        self._builders = builders
        self._silences = [0] * hosts
        self._open: OrderedDict[int, None] = OrderedDict.fromkeys(range(hosts))
        """Hosts that would take a build now; who took the last one comes last."""
        self._changed = [threads.condition(threads.lock()) for _ in range(hosts)]
        self._sleepers: dict[FarmBuild, list] = {}

    def submit(self, builds: Sequence[FarmBuild]) -> None:
        self._queue.update(dict.fromkeys(builds))
        self._dispatch()

    def wait(self, builds: Sequence[FarmBuild]) -> None:
        """Until all are over; those that have not begun come before all others."""
        for build in reversed(builds):
            if build in self._queue:
                self._queue.move_to_end(build, last=False)
        for build in builds:
            while not build.is_over:
                self._sleepers.setdefault(build, []).append(self._threads.current)
                self._threads.hand_over()

    def drop(self, builds: Sequence[FarmBuild]) -> None:
        """Nobody asks for them any more; what has begun goes on."""
        for build in builds:
            self._queue.pop(build, None)

    @contextmanager
    def silence(self, host: int) -> Iterator[None]:
        """Nothing is built on `host`: what runs is waited for, what waits begins afterwards."""
        self._silences[host] += 1
        self._look_at(host)
        with self._changed[host] as _:
            while self._idle[host] < self._builders:
                self._changed[host].wait()
        yield
        self._silences[host] -= 1
        self._look_at(host)
        self._dispatch()

    def _look_at(self, host: int) -> None:
        if self._idle[host] and not self._silences[host]:
            self._open.setdefault(host)
        else:
            self._open.pop(host, None)

    def _dispatch(self) -> None:
        while self._queue and self._open:
            build, _ = self._queue.popitem(last=False)
            host, _ = self._open.popitem(last=False)
            self._idle[host] -= 1
            self._look_at(host)
            self.busy_s += build.seconds
            self._threads.at(build.seconds, lambda build=build, host=host: self._done(build, host))  # type: ignore[misc]

    def _done(self, build: FarmBuild, host: int) -> None:
        build.is_over = True
        for thread in self._sleepers.pop(build, ()):
            self._threads.wake(thread)
        self._idle[host] += 1
        self._look_at(host)
        self._changed[host].notify_all()
        self._dispatch()
