"""What is made for each input set, one after the other, as far as somebody's patience reaches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class InTurn(Generic[T]):
    """What is made for each of `count` input sets, of which the first is made whatever it takes.

    It does not hold what makes it: the two would keep one another, and the inputs' memory with them, until Python looks
    for cycles, which it does by the number of objects and not by their bytes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._made: list[T] = []
        self._last_s = 0.0

    @property
    def made(self) -> Sequence[T]:
        return self._made

    @property
    def is_whole(self) -> bool:
        return len(self._made) == self._count

    def proceed(self, make: Callable[[int], T], patience_s: float) -> None:
        """Make the next ones by `make(index)`, those that take `patience_s` seconds or less beside the first.

        What the last one took says what the next one takes: the first, in a process that is new, may take longer.
        """
        left_s = patience_s
        while not self.is_whole and (not self._made or self._last_s <= left_s):
            is_first = not self._made
            begin = time.perf_counter()
            self._made.append(make(len(self._made)))
            self._last_s = time.perf_counter() - begin
            left_s -= 0.0 if is_first else self._last_s
