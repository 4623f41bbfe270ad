"""Builder processes that work through one queue, and the runner beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from subtune.measure.messages import BuildJob, Job, ScheduleJob
from subtune.measure.process import Worker, first_finished
from subtune.measure.site import HERE, Site

_POLL_S = 0.05
"""How long a thread waits for its process before it looks whether anybody still wants the outcome."""


class Build:
    """A job in the queue. `outcome` is None until it is done, and stays None where it was stopped."""

    def __init__(self, job: BuildJob | ScheduleJob, limit_s: float) -> None:
        self.job = job
        self.limit_s = limit_s
        self.outcome: Any = None
        self.error: Exception | None = None
        self.has_begun = self.is_over = self.is_stopped = False


class Builders:
    """Processes that compile, with a thread each; what is waited for is built first, and then what was asked for.

    `grace_s`: see `Measuring`.
    """

    def __init__(self, workers: Sequence[Worker], grace_s: float) -> None:
        self._workers = list(workers)
        self._grace_s = grace_s
        self._threads: list[threading.Thread] = []
        self._queue: list[Build] = []
        self._changed = threading.Condition()
        self._busy = 0
        self._silences = 0
        self._is_closed = self._is_interrupted = False

    def start(self) -> None:
        """Begin to start the processes, once; returns at once."""
        for worker in self._workers[len(self._threads) :]:
            worker.start()
            self._threads.append(threading.Thread(target=self._work, args=(worker,), daemon=True))
            self._threads[-1].start()

    def submit(self, builds: Sequence[Build]) -> None:
        with self._changed:
            self._queue += builds
            self._changed.notify_all()

    def interrupt(self) -> None:
        """Whoever waits, in any thread, gets a KeyboardInterrupt."""
        with self._changed:
            self._is_interrupted = True
            self._changed.notify_all()

    def wait(self, builds: Sequence[Build], deadline: float, hard: float) -> None:
        """Until all are over. What has not begun by `deadline` is withdrawn, what still runs at `hard` is given up."""
        with self._changed:
            urgent = [build for build in builds if not build.has_begun]
            self._queue = urgent + [build for build in self._queue if build not in urgent]
            self._changed.notify_all()
            while not all(build.is_over for build in builds):
                now = time.monotonic()
                if now >= min(deadline, hard):
                    self._withdraw(builds)
                if now >= hard:
                    self._stop(builds)
                    break
                if self._is_interrupted:
                    raise KeyboardInterrupt
                self._changed.wait(_POLL_S)
        for build in builds:
            if build.error is not None:
                raise build.error

    def drop(self, builds: Sequence[Build]) -> None:
        """Nobody asks for them any more. Those that run are ended, unless they end by themselves soon."""
        with self._changed:
            self._withdraw(builds)
            self._stop(builds)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Nothing is built: what runs is waited for, what waits begins afterwards."""
        with self._changed:
            self._silences += 1
            while self._busy:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._silences -= 1
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()
        for worker in self._workers[len(self._threads) :]:
            worker.close()
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

    def _next(self) -> Build | None:
        with self._changed:
            while not self._is_closed and (self._silences or not self._queue):
                self._changed.wait()
            if self._is_closed:
                return None
            build = self._queue.pop(0)
            build.has_begun = True
            self._busy += 1
            return build

    def _work(self, worker: Worker) -> None:
        """In a thread: only it touches the process."""
        while (build := self._next()) is not None:
            try:
                self._run(worker, build)
            except Exception as e:  # for whoever waits
                build.error = e
            with self._changed:
                build.is_over = True
                self._busy -= 1
                self._changed.notify_all()
        worker.close()

    def _run(self, worker: Worker, build: Build) -> None:
        worker.send(build.job, build.limit_s)
        stopped = 0.0
        while first_finished([worker], time.monotonic() + _POLL_S) is None:
            if build.is_stopped and not stopped:
                stopped = time.monotonic()
            if self._is_closed or (stopped and (self._silences or time.monotonic() - stopped > self._grace_s)):
                worker.kill()
                if not self._is_closed and not self._silences:
                    worker.start()  # so that the next build finds it ready
                return
        build.outcome = worker.receive()


class Runner:
    """The process that checks and times on a site; one that died is replaced by the spare one, if there is one."""

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
        """What the worker answers, or a `Failure` that says how it died. Raises KeyboardInterrupt after `interrupt`."""
        if not self._worker.is_running and self._spare is not None:
            self._worker, self._spare = self._spare, self._worker
            self._spare.start()
        answer = self._worker.call(job, limit_s)
        if self._is_interrupted:
            raise KeyboardInterrupt
        return answer

    def interrupt(self) -> None:
        """From another thread: a call that is under way ends soon, and so does the worker."""
        self._is_interrupted = True
        self._worker.left_s = 0.0

    def kill(self) -> None:
        self._worker.kill()

    def close(self) -> None:
        self._worker.close()
        if self._spare is not None:
            self._spare.close()
