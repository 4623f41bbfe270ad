"""Work on several devices at once: a thread for each, and one lock round all decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from subtune.tuning.threads import LOOK_S, MACHINE, Threads

_T = TypeVar("_T")


class Crew(Generic[_T]):
    """Every device asks for its next turn, takes it, and asks again, until there is none for any of them.

    Args:
        count: of the devices; one alone is served by the caller's own thread.
        next_turn: by the device's number; nothing, where others must be waited for. Called under `lock`.
        is_over: whether a device for which there is nothing, while none does anything, may stop: there will be nothing
            for it. Called under `lock`.
        take: a turn, on the device of that number. Called without the lock.
        interrupt: whatever `take` does in other threads ends soon, with an exception.
    """

    def __init__(
        self,
        count: int,
        next_turn: Callable[[int], Sequence[_T]],
        is_over: Callable[[], bool],
        take: Callable[[Sequence[_T], int], None],
        interrupt: Callable[[], None],
        threads: Threads = MACHINE,
    ) -> None:
        self.lock, self._threads = threads.lock(), threads
        self._count, self._next_turn, self._take, self._interrupt = count, next_turn, take, interrupt
        self._nothing_is_left = is_over
        self._changed = threads.condition(self.lock)
        self._busy = self._waiting = 0
        self._is_over = False

    def run(self) -> None:
        """Raises what `take` or `next_turn` raises, or Ctrl-C, as soon as all devices have stopped."""
        if self._count == 1:
            self._serve(0)
            return
        errors = self._threads.run([partial(self._serve, number) for number in range(self._count)], self._stop)
        for error in sorted(errors, key=lambda error: isinstance(error, KeyboardInterrupt)):
            raise error  # those that were interrupted come after who is to blame

    def _serve(self, number: int) -> None:
        try:
            while turn := self._turn(number):
                self._take(turn, number)
                with self._changed:
                    self._busy -= 1
                    self._changed.notify()
        except BaseException:
            if self._count > 1:
                self._stop()
            raise

    def _turn(self, number: int) -> Sequence[_T]:
        """One that waits is woken at a time, and wakes the next one if there was something for it: where hundreds wait,
        all of them asking after every turn would take the driver more time than the turns."""
        with self._changed:
            while not self._is_over:
                if turn := self._next_turn(number):
                    self._busy += 1
                    self._changed.notify()
                    return turn
                if not self._busy and self._nothing_is_left():
                    self._changed.notify_all()
                    return ()
                self._waiting += 1
                self._changed.wait(self._waiting * LOOK_S)  # a device that was lost may be back: one of them sees it
                self._waiting -= 1
            return ()

    def _stop(self) -> None:
        with self._changed:
            is_first, self._is_over = not self._is_over, True
            self._changed.notify_all()
        if is_first:
            self._interrupt()
