"""Who checks and times on a site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from subtune.measure.messages import Job
from subtune.measure.process import Worker
from subtune.measure.site import HERE, Site


class Runner(Protocol):
    """One job at a time."""

    @property
    def site(self) -> Site: ...

    @property
    def host(self) -> str:
        """Of the builders that rest while it times."""
        ...

    @property
    def is_there(self) -> bool:
        """Raises DevicesLost where neither it nor another one is, and none comes back."""
        ...

    def start(self) -> None:
        """Begin to start what it needs; returns at once."""

    def call(self, job: Job, limit_s: float) -> Any:
        """The answer, or a `Failure` that says how the process died.

        Raises:
            HostLost: the device is gone.
            KeyboardInterrupt: after `interrupt`.
        """

    def interrupt(self) -> None:
        """From another thread: a call that is under way ends soon, and so does the worker."""

    def kill(self) -> None: ...

    def close(self) -> None: ...


class ProcessRunner:
    """A process of this machine; one that died is replaced by the spare one, if there is one."""

    host = ""
    is_there = True

    def __init__(self, make: Callable[[], Worker], has_spare: bool, site: Site = HERE[0]) -> None:
        self.site = site
        self._worker = make()
        self._spare = make() if has_spare else None
        self._is_interrupted = False

    def start(self) -> None:
        self._worker.start()
        if self._spare is not None:
            self._spare.start()

    def call(self, job: Job, limit_s: float) -> Any:
        if not self._worker.is_running and self._spare is not None:
            self._worker, self._spare = self._spare, self._worker
            self._spare.start()
        answer = self._worker.call(job, limit_s)
        if self._is_interrupted:
            raise KeyboardInterrupt
        return answer

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._worker.left_s = 0.0

    def kill(self) -> None:
        self._worker.kill()

    def close(self) -> None:
        self._worker.close()
        if self._spare is not None:
            self._spare.close()
