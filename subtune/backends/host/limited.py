"""Work that may not end, or may end the process, in a child of this process that can be ended."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection


class Unfinished(Exception):
    """The child was ended, or ended without an answer; the text says why."""


def limited(work: Callable[[], None], seconds: float) -> None:
    """`work()`, which leaves its results in files, in at most so many seconds.

    It runs in a forked child, where the system has that: nothing is imported or copied anew, a compiler that crashes
    takes nobody with it, and Ctrl-C ends it even in native code.

    Raises:
        Unfinished: it took longer, or crashed.
    """
    if sys.platform != "linux":  # on macOS a fork of a process with threads may hang
        work()
        return
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, work), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads that only wait hold nothing that a child needs
        child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise Unfinished(f"it took longer than {seconds:.0f} s")
        error: Exception | None = ours.recv()
    except EOFError:
        child.join()
        raise Unfinished(f"its process ended with exit code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
        ours.close()
    if error is not None:
        raise error


def _answer(channel: Connection, work: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    error: Exception | None = None
    try:
        work()
    except Exception as e:
        error = e
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # as of errors that take several arguments
        error = RuntimeError(f"{type(error).__name__}: {error}")
    channel.send(error)
