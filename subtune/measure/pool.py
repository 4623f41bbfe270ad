"""Builders that work through one queue, on this machine or on several."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from subtune.core.measurement import Failure, FailureKind
from subtune.measure.lost import MOST_LOSSES, HostLost
from subtune.measure.messages import BuildJob, ScheduleJob
from subtune.measure.process import Worker, first_finished

_POLL_S = 0.05
"""How long a thread waits for its process before it looks whether anybody still wants the outcome."""


class Builder(Protocol):
    """Does one job at a time."""

    @property
    def host(self) -> str:
        """Where it runs: while something is timed there, it rests."""
        ...

    def start(self) -> None:
        """Begin to get ready, where it is not; returns at once."""

    def answer(self, job: BuildJob | ScheduleJob, limit_s: float, is_given_up: Callable[[], bool]) -> Any:
        """The outcome, or None: it was given up, as `is_given_up`, asked again and again, said.

        Raises HostLost: the builder is gone for good.
        """

    def close(self) -> None: ...


class ProcessBuilder:
    """A process of this machine."""

    host = ""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def start(self) -> None:
        self._worker.start()

    def answer(self, job: BuildJob | ScheduleJob, limit_s: float, is_given_up: Callable[[], bool]) -> Any:
        self._worker.send(job, limit_s)
        while first_finished([self._worker], time.monotonic() + _POLL_S) is None:
            if is_given_up():
                self._worker.kill()
                return None
        return self._worker.receive()

    def close(self) -> None:
        self._worker.close()


class Build:
    """A job in the queue. `outcome` is None until it is done, and stays None where it was stopped."""

    def __init__(self, job: BuildJob | ScheduleJob, limit_s: float) -> None:
        self.job = job
        self.limit_s = limit_s
        self.outcome: Any = None
        self.error: Exception | None = None
        self.has_begun = self.is_over = self.is_stopped = False
        self.losses = 0
        self.watchers: list[threading.Condition] = []
        """Of those who wait for it."""


class Builders:
    """Each has a thread; what is waited for is built first, and then what was asked for.

    Nobody is woken for nothing: of thousands of builders, all woken for every build, the driver would do nothing else.

    `grace_s`: see `Measuring`.
    """

    def __init__(self, builders: Sequence[Builder], grace_s: float) -> None:
        self._builders = list(builders)
        self._grace_s = grace_s
        self._threads: list[threading.Thread] = []
        self._queue: list[Build] = []
        self._lock = threading.RLock()
        self._wanted: dict[str, threading.Condition] = {}
        """By host: its builders that rest wait for it. `_resting` of them were not woken."""
        self._resting: Counter[str] = Counter()
        self._quiet: dict[str, threading.Condition] = {}
        """By host: who wants silence there waits for it."""
        self._busy: Counter[str] = Counter()
        self._silences: Counter[str] = Counter()
        self._is_closed = False
        self._ending: BaseException | None = None

    def start(self) -> None:
        """Begin to start the processes, once; returns at once."""
        for builder in self._builders[len(self._threads) :]:
            builder.start()
            self._threads.append(threading.Thread(target=self._work, args=(builder,), daemon=True))
            self._threads[-1].start()

    def join(self, builders: Sequence[Builder]) -> None:
        """More of them, which begin at once. Of one thread's, which is also the first's to call `start`."""
        self._builders += builders
        self.start()

    def submit(self, builds: Sequence[Build]) -> None:
        with self._lock:
            self._queue += builds
            self._wake(len(builds))

    def interrupt(self, ending: BaseException | None = None) -> None:
        """Whoever waits, in any thread, gets a KeyboardInterrupt, or `ending`."""
        with self._lock:
            self._ending = self._ending or ending or KeyboardInterrupt()

    def wait(self, builds: Sequence[Build], deadline: float, hard: float) -> None:
        """Until all are over. What has not begun by `deadline` is withdrawn, what still runs at `hard` is given up."""
        changed = threading.Condition(self._lock)
        with changed:
            urgent = [build for build in builds if not build.has_begun]
            others = [build for build in self._queue if build not in urgent]
            fresh = len(urgent) + len(others) - len(self._queue)
            self._queue = urgent + others
            for build in builds:
                build.watchers.append(changed)
            self._wake(fresh)  # for those that were submitted before, builders were woken
            while not all(build.is_over for build in builds):
                now = time.monotonic()
                if now >= min(deadline, hard):
                    self._withdraw(builds)
                if now >= hard:
                    self._stop(builds)
                    break
                if self._ending is not None:
                    raise self._ending
                changed.wait(_POLL_S)
        for build in builds:
            if build.error is not None:
                raise build.error

    def drop(self, builds: Sequence[Build]) -> None:
        """Nobody asks for them any more. Those that run are ended, unless they end by themselves soon."""
        with self._lock:
            self._withdraw(builds)
            self._stop(builds)

    @contextmanager
    def silence(self, host: str = "") -> Iterator[None]:
        """Nothing is built on `host`: what runs is waited for, what waits begins afterwards."""
        quiet = self._of_host(self._quiet, host)
        with quiet:
            self._silences[host] += 1
            while self._busy[host]:
                quiet.wait()
        try:
            yield
        finally:
            with self._lock:
                self._silences[host] -= 1
                self._wake(len(self._queue))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            for wanted in self._wanted.values():
                wanted.notify_all()
        for builder in self._builders[len(self._threads) :]:
            builder.close()
        for thread in self._threads:
            thread.join()

    def _withdraw(self, builds: Sequence[Build]) -> None:
        for build in builds:
            if not build.has_begun:
                build.has_begun = build.is_over = True
        self._queue = [build for build in self._queue if not build.is_over]

    def _stop(self, builds: Sequence[Build]) -> None:
        for build in builds:
            build.is_stopped = True

    def _wake(self, count: int) -> None:
        """So many builders that rest, of hosts where building is allowed."""
        for host in [host for host, resting in self._resting.items() if resting and not self._silences[host]]:
            if not count:
                return
            woken = min(count, self._resting[host])
            self._resting[host] -= woken
            self._wanted[host].notify(woken)
            count -= woken

    def _of_host(self, conditions: dict[str, threading.Condition], host: str) -> threading.Condition:
        with self._lock:
            return conditions.setdefault(host, threading.Condition(self._lock))

    def _next(self, host: str) -> Build | None:
        wanted = self._of_host(self._wanted, host)
        with wanted:
            while not self._is_closed and (self._silences[host] or not self._queue):
                if self._queue:
                    self._wake(1)  # it was woken for a build, and there is silence now: another one may begin it
                self._resting[host] += 1
                wanted.wait()
            if self._is_closed:
                return None
            build = self._queue.pop(0)
            build.has_begun = True
            self._busy[host] += 1
            return build

    def _work(self, builder: Builder) -> None:
        """In a thread: only it touches the builder."""
        is_lost = False
        while not is_lost and (build := self._next(builder.host)) is not None:
            try:
                self._run(builder, build)
            except HostLost as e:
                is_lost = True
                build.losses += 1
                if build.losses == MOST_LOSSES:
                    build.outcome = Failure(FailureKind.CRASH, f"{e}; {MOST_LOSSES} times")
            except Exception as e:  # for whoever waits
                build.error = e
            with self._lock:
                self._busy[builder.host] -= 1
                if is_lost and build.outcome is None and not build.is_stopped:
                    build.has_begun = False
                    self._queue.insert(0, build)  # it has waited the longest
                    self._wake(1)
                else:
                    build.is_over = True
                    for watcher in build.watchers:
                        watcher.notify()
                if not self._busy[builder.host]:
                    self._of_host(self._quiet, builder.host).notify_all()
        builder.close()

    def _run(self, builder: Builder, build: Build) -> None:
        stopped = 0.0

        def is_given_up() -> bool:
            nonlocal stopped
            if build.is_stopped and not stopped:
                stopped = time.monotonic()
            is_late = time.monotonic() - stopped > self._grace_s
            return self._is_closed or bool(stopped and (self._silences[builder.host] or is_late))

        build.outcome = builder.answer(build.job, build.limit_s, is_given_up)
        if build.outcome is None and not self._is_closed and not self._silences[builder.host]:
            builder.start()  # so that the next build finds it ready
