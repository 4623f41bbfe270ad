"""Work that may not end, or may end the process, in a child of this process that can be ended."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection


class Unfinished(Exception):
    """The child was ended, or ended without an answer; the text says why."""


def limited(work: Callable[[], None], seconds: float) -> None:
    """`work()`, which leaves its results in files, in at most so many seconds: see `side_by_side`."""
    side_by_side([work], seconds)


def side_by_side(works: Sequence[Callable[[], None]], seconds: float) -> None:
    """All of `works`, which leave their results in files, in at most so many seconds.

    Each runs in a forked child, where the system has that: nothing is imported or copied anew, a compiler that crashes
    takes nobody with it, and Ctrl-C ends it even in native code.

    Raises:
        Unfinished: one took longer, or crashed.
    """
    if sys.platform != "linux":  # on macOS a fork of a process with threads may hang
        for work in works:
            work()
        return
    with ExitStack() as stack:
        children = [stack.enter_context(closing(_Child(work))) for work in works]
        end = time.monotonic() + seconds
        for child in children:
            child.wait(end, seconds)


class _Child:
    def __init__(self, work: Callable[[], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._answer, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_answer, args=(theirs, work), daemon=True)
        with warnings.catch_warnings():
            # threads that only wait hold nothing that a child needs
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def wait(self, end: float, seconds: float) -> None:
        """Until it has answered, or the clock says `end`. Raises what the work did, or Unfinished."""
        try:
            if not self._answer.poll(max(0.0, end - time.monotonic())):
                raise Unfinished(f"it took longer than {seconds:.0f} s")
            error: Exception | None = self._answer.recv()
        except EOFError:
            self._process.join()
            raise Unfinished(f"its process ended with exit code {self._process.exitcode}") from None
        if error is not None:
            raise error

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._answer.close()


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
