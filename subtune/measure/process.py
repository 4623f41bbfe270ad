"""The parent's end of one worker process: start it, give it a job, learn how it ended, replace it."""

from __future__ import annotations

import contextlib
import math
import pickle
import signal
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any

from subtune.core.errors import SubtuneError
from subtune.core.measurement import Failure, FailureKind
from subtune.measure.launch import Launcher, Log, Process
from subtune.measure.messages import LOST, Job

_START_LIMIT_S = 120.0
_PIECE_S = 0.5
"""Waiting is cut into pieces of this length at most, of which each counts twice at most: while the machine stands
still, as when a container is frozen, no job runs out of its time."""
_ORPHAN_S = 600.0
"""So long after its limit a worker's own alarm rings: for one whose parent has died, and which has not noticed."""


class Worker:
    """A process that is started on first use, stays warm, and is started anew after it died."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._process: Process | None = None
        self._channel: Connection | None = None
        self._log = Log()
        self._limit_s = 0.0
        self.left_s = 0.0
        """What the job at hand may still take; less with every piece of waiting."""
        self._is_ready = False
        self.starts = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Begin to start the process, if it does not run; it loads TVM meanwhile."""
        if self._process is not None:
            return
        ours, theirs = Pipe()
        with theirs:
            self._process = self._launcher.launch(theirs.fileno(), self._log.fileno())
        self._channel = ours
        self._is_ready = False
        self.starts += 1

    def send(self, job: Job, limit_s: float) -> None:
        """Give `job` to an idle worker; it is killed when it takes longer than `limit_s` seconds."""
        self.start()
        self._await_ready()
        self._limit_s = self.left_s = limit_s
        self._log.clear()
        assert self._channel is not None
        # A worker that died while idle is noticed by `receive`, as an end of file.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send_bytes(pickle.dumps((job, limit_s + _ORPHAN_S)))

    @property
    def connection(self) -> Connection:
        assert self._channel is not None
        return self._channel

    def receive(self) -> Any:
        """The outcome of the job at hand: what the worker answered, or a `Failure` that says how it died."""
        assert self._channel is not None
        first_finished([self], math.inf)
        try:
            if self._channel.poll():
                return self._channel.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return self._obituary()
        self.kill()
        return Failure(FailureKind.TIMEOUT, f"did not finish within {self._limit_s:.1f} s")

    def call(self, job: Job, limit_s: float) -> Any:
        self.send(job, limit_s)
        return self.receive()

    def kill(self) -> None:
        """End the process at once and wait for its end; the next `send` starts a new one."""
        if self._process is not None:
            self._process.end()
        self._process = None
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def close(self) -> None:
        self.kill()
        self._log.close()

    def _await_ready(self) -> None:
        if self._is_ready:
            return
        assert self._channel is not None
        self.left_s = _START_LIMIT_S
        first_finished([self], math.inf)
        try:
            if self._channel.poll() and self._channel.recv() == "ready":
                self._is_ready = True
                return
        except (EOFError, OSError):
            pass
        log = self._log.last_words() or self._launcher.last_words()
        self.kill()
        raise SubtuneError(f"a measuring process cannot start: {log or 'it ended without a word'}")

    def _obituary(self) -> Failure:
        assert self._process is not None
        code = self._process.code()
        log = self._log.last_words()
        self.kill()
        if "bad_alloc" in log or "MemoryError" in log or "out of memory" in log.lower():
            return Failure(FailureKind.MEMORY, f"the process ran out of its memory allowance: {log}")
        if code == LOST:
            return Failure(FailureKind.CRASH, f"the device's context was lost: {log}")
        if "symbol lookup error" in log:  # the dynamic linker's last words before it ends the process
            return Failure(FailureKind.LAUNCH, log)
        if code == -signal.SIGKILL:
            return Failure(FailureKind.MEMORY, "the process was killed, as the system does when memory runs out")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return Failure(FailureKind.CRASH, f"the process ended {how}" + (f": {log}" if log else ""))


def first_finished(workers: Sequence[Worker], deadline: float) -> Worker | None:
    """The first of the busy `workers` that answered, died or ran over its limit; None when `deadline` came first."""
    connections = [worker.connection for worker in workers]
    while True:
        begin = time.monotonic()
        piece_s = max(0.0, min(_PIECE_S, deadline - begin, *(worker.left_s for worker in workers)))
        ready = wait_for(connections, piece_s)
        now = time.monotonic()
        for worker in workers:
            worker.left_s -= min(now - begin, 2 * piece_s)
        for worker in workers:
            if worker.connection in ready or worker.left_s <= 0:
                return worker
        if now >= deadline:
            return None
