"""TVM's own RPC server and tracker on this machine, as devices that are somewhere else, and a network that fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def rpc_server(
    log: Path,
    threads: int = 2,
    more: Sequence[str] = (),
    python: Sequence[str] = (sys.executable,),
    host: str = "127.0.0.1",
) -> Iterator[int]:
    """Its port; it may run so many threads, on the given Python."""
    env = {"TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
    with _served("rpc_server", ["--port", "20190", "--port-end", "21190", *more], env, log, python, host) as port:
        yield port


@contextmanager
def tracker(log: Path) -> Iterator[int]:
    """Its port."""
    with _served("rpc_tracker", ["--port", "21290", "--port-end", "22290"], {}, log) as port:
        yield port


@contextmanager
def _served(
    name: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    python: Sequence[str] = (sys.executable,),
    host: str = "127.0.0.1",
) -> Iterator[int]:
    command = [*python, "-m", f"tvm.exec.{name}", "--host", host, *arguments]
    with log.open("w") as out:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=out, stderr=out, start_new_session=True)
    try:
        yield _port(process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    while process.poll() is None:
        if found := re.search(r"bind to [\d.]+:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError(f"it has ended: {log.read_text()}")


@contextmanager
def unsteady_network(server: int, log: Path, cuts: int, seed: int) -> Iterator[int]:
    """The port at which `server` is reached, through what is cut so often. A process: TVM waits with Python's lock."""
    program = [sys.executable, str(Path(__file__).with_name("unsteady_network.py")), str(server), str(cuts), str(seed)]
    with log.open("w") as out:
        process = subprocess.Popen(program, stdout=out, stderr=out, start_new_session=True)
    try:
        yield _port(process, log)
    finally:
        process.kill()
        process.wait()
