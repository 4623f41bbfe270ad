"""The driver's ends of a station's builders and runners."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from subtune.cluster.facts import Missing
from subtune.cluster.files import contents, write
from subtune.measure.lost import HostLost
from subtune.measure.messages import BuildJob, Job, Library, ScheduleJob
from subtune.measure.site import Site


class Link(Protocol):
    """To a station."""

    @property
    def address(self) -> str:
        """Of its node, for people."""
        ...

    @property
    def is_ended(self) -> bool: ...

    def call(self, method: str, *given: Any, title: str = "", meanwhile: Callable[[], None] | None = None) -> Any:
        """What the station's method answers. `meanwhile` is called again and again, and may raise.

        Raises HostLost: the station, or its node, is gone; or `end` was called.
        """

    def tell(self, method: str, *given: Any) -> None:
        """Call it without waiting for an answer."""

    def end(self) -> None:
        """Its processes end, and so do all calls that are under way."""


class StationBuilder:
    """See `pool.Builder`."""

    def __init__(self, link: Link, host: str, number: int) -> None:
        self.host = host
        self._link, self._number = link, number
        self._tickets = itertools.count()

    def start(self) -> None:
        self._link.tell("start", self._number)

    def answer(self, job: BuildJob | ScheduleJob, limit_s: float, is_given_up: Callable[[], bool]) -> Any:
        ticket = next(self._tickets)
        has_told = False

        def tell() -> None:
            nonlocal has_told
            if not has_told and is_given_up():
                has_told = True
                self._link.tell("give_up", self._number, ticket)

        given = (self._number, ticket, job, limit_s)
        outcome, files = self._link.call("build", *given, title=str(job.candidate), meanwhile=tell)
        if isinstance(outcome, Library):
            with contextlib.suppress(FileNotFoundError):  # of a session that is over
                write(outcome.path, files)
        return outcome

    def close(self) -> None:
        """The station ends its processes."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One of a station's devices."""

    link: Link
    host: str
    number: int
    key: str
    """As `Facts.keys`, with the host."""


class StationRunner:
    """See `runner.Runner`. What has its seat may change: one device takes the place of another that is lost.

    One measurement at a time is on a device: all go through `call`, under a lock, and no two runners have one seat.
    """

    def __init__(self, site: Site, number: int, is_there: Callable[[int], bool]) -> None:
        self.site = site
        self.seat: Seat | None = None
        self._number, self._is_there = number, is_there
        self._at_work = threading.Lock()
        self._is_interrupted = False

    @property
    def host(self) -> str:
        seat = self.seat
        return seat.host if seat else ""

    @property
    def is_there(self) -> bool:
        self._look()  # who waits for one does so until Ctrl-C
        return self._is_there(self._number)

    def start(self) -> None:
        """The station has started it."""

    def call(self, job: Job, limit_s: float) -> Any:
        with self._at_work:
            seat = self.seat
            if seat is None:
                raise HostLost("its device is gone")
            try:
                return self._answer(seat, job, limit_s)
            except HostLost:
                self.seat = None
                raise

    def _answer(self, seat: Seat, job: Job, limit_s: float) -> Any:
        files: dict[str, dict[str, bytes]] = {}
        title = type(job).__name__.removesuffix("Job").lower()
        while True:
            given = (seat.number, job, limit_s, files)
            answer = seat.link.call("run", *given, title=title, meanwhile=self._look)
            self._look()
            if not isinstance(answer, Missing):
                return answer
            files = {path: contents(path) for path in answer.paths}

    def _look(self) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt

    def interrupt(self) -> None:
        self._is_interrupted = True

    def kill(self) -> None:
        """What still runs is ended with the station."""

    def close(self) -> None:
        """As `kill`."""
