"""How a worker process comes to be: what a launcher gives back, and the one that starts a program."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_PROGRAM = """
import gc, sys
gc.disable()
sys.modules["torch"] = None
from {module} import main
main()
"""
"""A worker is ready after 0.9 s instead of 4: TVM imports torch where that is installed, and no worker needs it; and
the collector looks for garbage only when all is imported."""


class Process(Protocol):
    """What a launcher started."""

    def end(self) -> None:
        """Kill it at once, if it still runs. The other end of its channel is closed afterwards."""

    def code(self) -> int:
        """Wait for its end: the exit code, or less than 0 the signal that ended it."""


class Launcher(Protocol):
    """Starts worker processes."""

    def launch(self, channel: int, log: int) -> Process:
        """Begin to start one; returns at once. Both descriptors stay the caller's.

        Args:
            channel: the worker's end of a two-way `multiprocessing.Pipe`.
            log: the file that gets what it prints.
        """

    def last_words(self) -> str:
        """Why it starts no more processes, as far as it is known here."""


class Log:
    """What a process prints, in a file without a name."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as this object
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # so that truncating it is safe at any moment

    def fileno(self) -> int:
        return self._file.fileno()

    def clear(self) -> None:
        self._file.truncate(0)

    def last_words(self, limit: int = 600) -> str:
        self._file.flush()
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - limit))
        return self._file.read().decode(errors="replace").strip()

    def close(self) -> None:
        self._file.close()


class Programs:
    """Starts each worker as a program of its own.

    Args:
        env: variables beside this process's own.
        search_path: directories in which the workers look for modules before the installed ones.
        memory_bytes: address space of each; 0: no limit.
    """

    def __init__(self, env: Mapping[str, str], search_path: Sequence[str], memory_bytes: int) -> None:
        self._env = environment(env, search_path)
        self._memory_bytes = memory_bytes

    def launch(self, channel: int, log: int) -> Process:
        return _Program(start_program("subtune.measure.worker", channel, [str(self._memory_bytes)], self._env, log))

    def last_words(self) -> str:
        return ""


class _Program:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def code(self) -> int:
        return self._process.wait()


def environment(env: Mapping[str, str], search_path: Sequence[str]) -> dict[str, str]:
    """This process's own with `env`, in which Python finds this package and what lies in `search_path`."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *search_path, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, **env, "PYTHONPATH": path}


def start_program(
    module: str, channel: int, arguments: Sequence[str], env: Mapping[str, str], log: int
) -> subprocess.Popen[bytes]:
    """`main` of `module`, which is given the number of a descriptor and `arguments`, and prints into `log`."""
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(module=module), str(channel), *arguments],
        env=env,
        pass_fds=(channel,),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        process_group=0,  # the terminal's Ctrl-C must not reach it
    )
