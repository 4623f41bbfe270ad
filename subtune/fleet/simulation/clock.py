"""A clock that jumps to what happens next, and threads that live by it: one of them runs at a time.

Whoever sleeps or waits hands over to the thread that is next, so the same program takes the same turns in every run.
Where `counts_cpu` is set, the clock also goes on by the CPU seconds that a thread computes: as on a driver whose
threads have one interpreter between them.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


class Deadlock(RuntimeError):
    """All threads wait for one another."""


class _Thread:
    """`turn` counts its waits: what was to wake it from an earlier one does nothing."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.turn = 0
        self.began_s = time.thread_time()


class SimulatedThreads:
    """See `subtune.tuning.threads.Threads`. Made in the thread that is to be the first.

    Attributes:
        now_s: seconds since the beginning.
        cpu_s: seconds of them, in which a thread computed.
    """

    def __init__(self, counts_cpu: bool = False) -> None:
        self.now_s = self.cpu_s = 0.0
        self._counts_cpu = counts_cpu
        self._current = _Thread()
        self._ready: deque[_Thread] = deque()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._alarm_count = 0

    # -- what the threads do

    def sleep(self, seconds: float) -> None:
        self.wake_in(seconds)
        self.hand_over()

    def spend(self, seconds: float) -> None:
        """The calling thread computes for so long, and no other one does anything meanwhile."""
        self.now_s += seconds
        self.cpu_s += seconds

    def hand_over(self) -> None:
        """Until somebody calls `wake`, or the alarm rings."""
        me = self._current
        self._count_cpu(me)
        found = self._next()
        if found is not me:
            self._current = found
            found.gate.release()
            me.gate.acquire()
        me.turn += 1
        me.began_s = time.thread_time()

    def wake(self, thread: _Thread) -> None:
        self._ready.append(thread)

    def wake_in(self, seconds: float) -> None:
        """The calling thread, unless it was woken before then."""
        me, turn = self._current, self._current.turn
        self.at(seconds, lambda: self.wake(me) if me.turn == turn else None)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """So many seconds from now `action` is done; it may wake threads, and waits for nothing."""
        self._alarm_count += 1
        heapq.heappush(self._alarms, (self.now_s + seconds, self._alarm_count, action))

    @property
    def current(self) -> _Thread:
        return self._current

    # -- for a crew

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self)

    def condition(self, lock: SimulatedLock) -> SimulatedCondition:
        return SimulatedCondition(self, lock)

    def run(self, works: Sequence[Callable[[], None]], stop: Callable[[], None]) -> list[BaseException]:
        """See `Threads`. Nobody but a thread itself ends the wait."""
        errors: list[BaseException] = []
        parent, left = self._current, len(works)

        def served(work: Callable[[], None], me: _Thread) -> None:
            nonlocal left
            me.gate.acquire()
            me.began_s = time.thread_time()
            try:
                work()
            except BaseException as e:
                errors.append(e)
            left -= 1
            if not left:
                self.wake(parent)
            self._count_cpu(me)
            self._current = self._next()
            self._current.gate.release()

        threads = []
        for work in works:
            one = _Thread()
            threads.append(threading.Thread(target=served, args=(work, one), daemon=True))
            threads[-1].start()
            self.wake(one)
        if works:
            self.hand_over()
        for thread in threads:
            thread.join()
        return errors

    # -- the clock

    def _next(self) -> _Thread:
        while not self._ready:
            if not self._alarms:
                raise Deadlock("every thread waits for another")
            at_s, _, action = heapq.heappop(self._alarms)
            self.now_s = max(self.now_s, at_s)
            action()
        return self._ready.popleft()

    def _count_cpu(self, thread: _Thread) -> None:
        spent_s = time.thread_time() - thread.began_s
        self.cpu_s += spent_s
        if self._counts_cpu:
            self.now_s += spent_s


class SimulatedLock:
    """As `threading.RLock`; who has waited longest is next."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._holder: _Thread | None = None
        self._depth = 0
        self._waiting: deque[_Thread] = deque()

    def __enter__(self) -> bool:
        me = self._threads.current
        if self._holder is not me:
            if self._holder is not None:
                self._waiting.append(me)
                self._threads.hand_over()
            self._holder = me
        self._depth += 1
        return True

    def __exit__(self, *about: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._pass_on()

    def let_go(self) -> int:
        """However often it was taken; how often that was."""
        depth, self._depth = self._depth, 0
        self._pass_on()
        return depth

    def take_again(self, depth: int) -> None:
        with self:
            self._depth += depth

    def _pass_on(self) -> None:
        self._holder = self._waiting.popleft() if self._waiting else None
        if self._holder is not None:
            self._threads.wake(self._holder)


class SimulatedCondition:
    """As `threading.Condition`."""

    def __init__(self, threads: SimulatedThreads, lock: SimulatedLock) -> None:
        self._threads, self._lock = threads, lock
        self._waiting: dict[_Thread, None] = {}

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *about: Any) -> None:
        self._lock.__exit__(*about)

    def wait(self, timeout: float | None = None) -> bool:
        """Whether somebody has notified it."""
        me = self._threads.current
        self._waiting[me] = None
        if timeout is not None:
            self._threads.wake_in(timeout)
        depth = self._lock.let_go()
        self._threads.hand_over()
        is_notified = me not in self._waiting
        self._waiting.pop(me, None)
        self._lock.take_again(depth)
        return is_notified

    def notify(self) -> None:
        thread = next(iter(self._waiting), None)
        if thread is not None:
            del self._waiting[thread]
            self._threads.wake(thread)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for thread in waiting:
            self._threads.wake(thread)
