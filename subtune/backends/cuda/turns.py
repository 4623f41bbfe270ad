"""Runs of one program on several streams: its buffers are the same in each, so they take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from subtune.backends.cuda import api as cuda_api


class Turns:
    """Who runs a program does it in `on` or `on_host`; nothing waits on the host but in the latter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: cuda_api.Event | None = None

    @contextmanager
    def on(self, stream: cuda_api.Stream) -> Iterator[None]:
        """What is put into the stream here is done after all earlier turns."""
        with self._lock:
            if self._last is not None:
                stream.wait(self._last)
            yield
            if self._last is None:
                self._last = cuda_api.Event()
            self._last.record(stream)

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """All earlier turns are over."""
        with self._lock:
            self.settle()
            yield

    def settle(self) -> None:
        """Wait for the last turn; for who has one, or is alone."""
        if self._last is not None:
            self._last.synchronize()
