"""The worker process: jobs in and outcomes out over a socket.

It is started as a program of its own (`launch.Programs`) or forked from one (`fork_server`), not through
`multiprocessing`, so that the user's main module is not imported again and nothing of it is inherited. Whatever
happens to it costs the job at hand only:

* the parent kills it when its time is over, even inside native code that never returns;
* memory is limited by the operating system, so a huge allocation fails instead of starting to swap;
* when the parent dies the socket closes and the worker leaves, at the latest at an alarm whose default action kills.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from subtune.core.measurement import Failure, FailureKind
from subtune.measure.messages import BuildJob, ScheduleJob

MESSAGE_CHARS = 2000
"""Of a failure's text at most this much is kept: TVM's errors print whole functions."""


def main() -> None:
    """A worker that is a program of its own. Arguments: see `work`."""
    work(int(sys.argv[1]), int(sys.argv[2]))


def work(fd: int, memory_bytes: int) -> None:
    """Answer what comes over the channel until its other end is closed, which ends the process.

    Args:
        fd: the worker's end of the channel.
        memory_bytes: address space it may use; 0: no limit.
    """
    channel = Connection(fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    _limit_memory(memory_bytes)
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(channel, jobs), daemon=True).start()
    import tvm  # noqa: F401  # paid here, before the first job's clock runs

    gc.freeze()
    gc.enable()
    channel.send("ready")
    while True:
        job, alarm_s = pickle.loads(jobs.get())
        signal.setitimer(signal.ITIMER_REAL, alarm_s)
        outcome = _run(job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        channel.send(outcome)


def _receive(channel: Connection, jobs: SimpleQueue[bytes]) -> None:
    """Wait for jobs in a thread, so that the parent's end is noticed while a kernel runs."""
    while True:
        try:
            jobs.put(channel.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


def _run(job: Any) -> Any:
    try:
        return _handler(job)(job)
    except MemoryError as e:
        return Failure(FailureKind.MEMORY, f"out of memory: {e}"[:MESSAGE_CHARS])
    except Exception as e:
        kind = FailureKind.BUILD if isinstance(job, BuildJob) else FailureKind.LAUNCH
        text = f"{type(e).__name__}: {e}".strip()
        if "bad_alloc" in text or "Cannot allocate memory" in text:
            kind = FailureKind.MEMORY
        return Failure(kind, text[-MESSAGE_CHARS:])


def _handler(job: Any) -> Callable[[Any], Any]:
    """Late imports: a builder never needs the timing code, nor the runner the templates."""
    name = "build" if isinstance(job, BuildJob | ScheduleJob) else "run"
    handler: Callable[[Any], Any] = importlib.import_module(f"subtune.measure.{name}").handle
    return handler


def _limit_memory(limit_bytes: int) -> None:
    if limit_bytes <= 0 or sys.platform != "linux":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
