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
        self._busy = 0
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
                    self._changed.notify_all()
        except BaseException:
            if self._count > 1:
                self._stop()
            raise

    def _turn(self, number: int) -> Sequence[_T]:
        with self._changed:
            while not self._is_over:
                if turn := self._next_turn(number):
                    self._busy += 1
                    return turn
                if not self._busy and self._nothing_is_left():
                    return ()
                self._changed.wait(LOOK_S)  # a device that was lost may be back
            return ()

    def _stop(self) -> None:
        with self._changed:
            is_first, self._is_over = not self._is_over, True
            self._changed.notify_all()
        if is_first:
            self._interrupt()
