"""What a crew takes its threads, locks and waits from: the machine, or a simulation in which waiting takes no time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, Protocol

LOOK_S = 0.5
"""A wait without end would not be ended by Ctrl-C."""


class Condition(Protocol):
    """As `threading.Condition`: entered, it holds its lock."""

    def __enter__(self) -> bool: ...

    def __exit__(self, *about: Any) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify(self) -> None: ...

    def notify_all(self) -> None: ...


class Threads(Protocol):
    def lock(self) -> AbstractContextManager[Any]:
        """One that its holder may take again."""
        ...

    def condition(self, lock: Any) -> Condition:
        """Of a `lock` that this has made."""
        ...

    def run(self, works: Sequence[Callable[[], None]], stop: Callable[[], None]) -> list[BaseException]:
        """What they raise, each in a thread of its own. Where the wait for them is ended, `stop` is called and they are
        waited for, before that is raised."""
        ...


class MachineThreads:
    def lock(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def condition(self, lock: Any) -> Condition:
        return threading.Condition(lock)

    def run(self, works: Sequence[Callable[[], None]], stop: Callable[[], None]) -> list[BaseException]:
        with ThreadPoolExecutor(len(works), "device") as threads:
            served = [threads.submit(work) for work in works]
            try:
                while wait(served, LOOK_S).not_done:
                    pass
            except BaseException:
                stop()
                raise
        return [error for one in served if (error := one.exception()) is not None]


MACHINE: Threads = MachineThreads()
