"""Worker processes forked from one that has loaded all they need: a start takes milliseconds, not seconds.

The server is a program of its own with one thread: it imports, and then forks whenever it is asked to.
A request is a number of threads, or 0 for as many as the server's environment says. It carries three descriptors: the
worker's end of its channel, its log, and a pipe on which the server tells the worker's process number at once, and
later how it ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import NoReturn

from subtune.measure.launch import Log, environment, start_program

_NUMBER = struct.Struct("q")
_UNKNOWN = -signal.SIGKILL
"""How a worker ended whose server is gone: whatever ended the one will have ended the other."""


class ForkServer:
    """A launcher of workers that share one environment; the server starts with the first of them.

    Args:
        env: variables beside this process's own.
        search_path: directories in which the workers look for modules before the installed ones.
        memory_bytes: address space of each worker; 0: no limit.
        niceness: by how much they stand back behind other processes.
        preload: modules that the server imports.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        search_path: Sequence[str],
        memory_bytes: int,
        niceness: int = 0,
        preload: Sequence[str] = (),
    ) -> None:
        # NumPy's threads would be the server's alone: no fork has them
        self._env = environment({**env, "OPENBLAS_NUM_THREADS": "1"}, search_path)
        self._arguments = [str(memory_bytes), str(niceness), *preload]
        self._log = Log()
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def launch(self, channel: int, log: int, threads: int = 0) -> Forked:
        """See `launch.Launcher`: the worker begins as soon as the server has loaded.

        Args:
            threads: of TVM's pool in that worker, which is made at its first use; 0: as `env` says.
        """
        request = _NUMBER.pack(threads)
        told, tells = os.pipe()
        try:
            with self._lock:
                try:
                    socket.send_fds(self._running(), [request], [channel, log, tells])
                except (BrokenPipeError, ConnectionResetError):  # it died a moment ago
                    self._end()
                    socket.send_fds(self._running(), [request], [channel, log, tells])
        finally:
            os.close(tells)
        return Forked(told)

    def last_words(self) -> str:
        return self._log.last_words()

    def close(self) -> None:
        """End the server; workers that still run leave when their channels are closed."""
        with self._lock:
            self._end()
            self._log.close()

    def _running(self) -> socket.socket:
        if self._server is not None and self._server.poll() is not None:
            self._end()
        if self._control is None:
            self._log.clear()
            self._control, theirs = socket.socketpair()
            with theirs:
                self._server = start_program(__name__, theirs.fileno(), self._arguments, self._env, self._log.fileno())
        return self._control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        self._control = self._server = None


class ForkedWithThreads:
    """A launcher of workers that share a server with others, and have as many threads as they are told."""

    def __init__(self, server: ForkServer, threads: int) -> None:
        self._server, self._threads = server, threads

    def launch(self, channel: int, log: int) -> Forked:
        return self._server.launch(channel, log, self._threads)

    def last_words(self) -> str:
        return self._server.last_words()


class Forked:
    """A worker that the server has forked, or will."""

    def __init__(self, told: int) -> None:
        self._told = told
        self._numbers: list[int] = []

    def end(self) -> None:
        """See `launch.Process`. One that has not begun leaves when it finds nobody at the other end of its channel."""
        while len(self._numbers) < 2 and wait([self._told], 0):  # what has ended is not killed: who has its number now?
            self._read()
        if len(self._numbers) == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._numbers[0], signal.SIGKILL)
        os.close(self._told)

    def code(self) -> int:
        while len(self._numbers) < 2:
            self._read()
        return self._numbers[1]

    def _read(self) -> None:
        data = os.read(self._told, _NUMBER.size)
        self._numbers += [*_NUMBER.unpack(data)] if data else [0, _UNKNOWN][len(self._numbers) :]


def main() -> None:
    """The server. Arguments: its control socket, and `ForkServer`'s last three."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import tvm  # noqa: F401

    for name in ("subtune.measure.build", *sys.argv[4:]):
        importlib.import_module(name)
    gc.freeze()
    os.nice(int(sys.argv[3]))
    _Server(control, int(sys.argv[2])).run()


class _Server:
    def __init__(self, control: socket.socket, memory_bytes: int) -> None:
        self._control, self._memory_bytes = control, memory_bytes
        self._workers: dict[int, int] = {}
        self._woken, wakes = socket.socketpair()
        self._wakes = wakes
        for one in (self._woken, wakes):
            one.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Until nobody is at the other end of the control socket."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    self._woken.recv(1 << 12)
                    self._reap()
                if self._control in ready:
                    request, fds, _, _ = socket.recv_fds(self._control, _NUMBER.size, 3)
                    if not request:
                        return
                    self._fork(*_NUMBER.unpack(request), *fds)

    def _fork(self, threads: int, channel: int, log: int, tells: int) -> None:
        try:
            pid = os.fork()
        except OSError as e:
            os.write(log, f"{e}\n".encode())
            pid = -1
        if pid == 0:
            self._become_worker(threads, channel, log, tells)
        os.close(channel)
        os.close(log)
        if pid < 0:
            os.close(tells)
            return
        self._workers[pid] = tells
        _tell(tells, pid)

    def _become_worker(self, threads: int, channel: int, log: int, tells: int) -> NoReturn:
        try:
            if threads:
                os.environ["TVM_NUM_THREADS"] = str(threads)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            for one in (self._control, self._woken, self._wakes):
                one.close()
            for fd in (tells, *self._workers.values()):
                os.close(fd)
            for standard in (1, 2):
                os.dup2(log, standard)
            os.close(log)
            from subtune.measure.worker import work

            work(channel, self._memory_bytes)
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def _reap(self) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            tells = self._workers.pop(pid)
            _tell(tells, os.waitstatus_to_exitcode(status))
            os.close(tells)


def _tell(tells: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(tells, _NUMBER.pack(number))
