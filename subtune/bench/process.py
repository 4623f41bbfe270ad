"""The parent's end of one worker process: started, told to time, and stopped whenever it is not its turn.

Stopped is meant literally (SIGSTOP): nobody's spinning threads take the cores from the framework that is timed, and
every framework can keep its own default settings.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any

from subtune.bench.job import BenchError, Job, Round

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "TVM_NUM_THREADS",
)  # fmt: skip
"""Read by a library when it is loaded."""
_ENVIRONMENT = {
    "TVM_BIND_THREADS": "0",  # TVM leaves the calling thread free to sit on the core it bound a worker to
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # above 1 it keeps helper processes
}


class Worker:
    """A process that times one framework on command.

    Attributes:
        before_bytes: resident memory of the process once inputs and libraries were there, before the model was.
    """

    def __init__(self, job: Job, start_timeout_s: float):
        self.job = job
        self.framework = job.framework
        env = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(job.threads)), **_ENVIRONMENT}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "subtune.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
            # Ctrl-C is for the parent, which keeps what was measured and ends its workers.
            process_group=0 if sys.platform != "win32" else None,
        )
        try:
            self.before_bytes = int(self._ask(job.to_json(), start_timeout_s)["before_bytes"])
        except BaseException:  # Ctrl-C while a framework loads, too
            self.close()
            raise
        self._pause()

    def time(self, calls: int, warmup: int, timeout_s: float) -> Round:
        """Time `calls` calls after `warmup` untimed ones."""
        self._resume()
        reply = self._ask(json.dumps({"calls": calls, "warmup": warmup}), timeout_s)
        self._pause()
        return Round.from_reply(reply)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # What the dead process did not read any more is of no interest.
            with suppress(OSError):
                if pipe:
                    pipe.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _pause(self) -> None:
        if hasattr(signal, "SIGSTOP"):
            self._process.send_signal(signal.SIGSTOP)

    def _resume(self) -> None:
        if hasattr(signal, "SIGCONT"):
            self._process.send_signal(signal.SIGCONT)

    def _ask(self, line: str, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as e:
            raise BenchError(f"{self.framework}: its process died ({e})") from e
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise BenchError(f"{self.framework}: no answer within {timeout_s:g} s")
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchError(f"{self.framework}: its process died {_how(self._process.wait())}")
        reply = json.loads(answer)
        if "error" in reply:
            raise BenchError(f"{self.framework}: {reply['error']}")
        return dict(reply)


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"of {signal.Signals(-code).name}"
    except ValueError:
        return f"of signal {-code}"
