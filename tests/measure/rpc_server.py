"""TVM's own RPC server on this machine, as a device that is somewhere else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def rpc_server(log: Path, threads: int = 2) -> Iterator[int]:
    """Its port; it may run so many threads."""
    command = [
        sys.executable,
        "-m",
        "tvm.exec.rpc_server",
        "--host",
        "127.0.0.1",
        "--port",
        "20190",
        "--port-end",
        "21190",
    ]
    env = {**os.environ, "TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
    with log.open("w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        yield _port(process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    while process.poll() is None:
        if found := re.search(r"bind to 127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError(f"the server has ended: {log.read_text()}")
