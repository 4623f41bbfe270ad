"""The parent's end of a worker process: started, told to time, and stopped whenever it is not its turn.

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


class LineProcess:
    """A Python module that runs in a process of its own and answers JSON lines with JSON lines.

    Args:
        name: what its errors begin with.
        threads: told to every library that reads such a number from the environment.
    """

    def __init__(self, module: str, name: str, threads: int):
        self.name = name
        env = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads)), **_ENVIRONMENT}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
            # Ctrl-C is for the parent, which keeps what was measured and ends its workers.
            process_group=0 if sys.platform != "win32" else None,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, line: str, timeout_s: float) -> dict[str, Any]:
        """The answer. Raises BenchError where there is none in time, the process died, or it says {"error": ...}."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as e:
            raise BenchError(f"{self.name}: its process died ({e})") from e
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise BenchError(f"{self.name}: no answer within {timeout_s:g} s")
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchError(f"{self.name}: its process died {_how(self._process.wait())}")
        reply = json.loads(answer)
        if "error" in reply:
            raise BenchError(f"{self.name}: {reply['error']}")
        return dict(reply)

    def pause(self) -> None:
        if hasattr(signal, "SIGSTOP"):
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if hasattr(signal, "SIGCONT"):
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.is_alive:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # What the dead process did not read any more is of no interest.
            with suppress(OSError):
                if pipe:
                    pipe.close()


class Worker:
    """A process that times one framework on command.

    Attributes:
        before_bytes: resident memory of the process once inputs and libraries were there, before the model was.
        via: what made the framework's model of the file, where that is not the framework itself.
    """

    def __init__(self, job: Job, start_timeout_s: float):
        self._start(job)
        try:
            self._take(job, start_timeout_s)
        except BaseException:  # Ctrl-C while a framework loads, too
            self.close()
            raise

    @classmethod
    def started(cls, job: Job) -> Worker:
        """The process of the job's framework, which has loaded nothing yet."""
        worker = cls.__new__(cls)
        worker._start(job)
        return worker

    def load(self, job: Job, timeout_s: float) -> None:
        """Another model of the same framework in the same process; memory figures make no sense then.

        Raises BenchError; the process may live on (`is_alive`) and take the next one.
        """
        self._process.resume()
        self._take(job, timeout_s)

    def time(self, calls: int, warmup: int, timeout_s: float) -> Round:
        """Time `calls` calls after `warmup` untimed ones."""
        self._process.resume()
        reply = self._process.ask(json.dumps({"calls": calls, "warmup": warmup}), timeout_s)
        self._process.pause()
        return Round.from_reply(reply)

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _start(self, job: Job) -> None:
        self.framework = job.framework
        self._process = LineProcess("subtune.bench.worker", job.framework, job.threads)

    def _take(self, job: Job, timeout_s: float) -> None:
        self.job = job
        reply = self._process.ask(job.to_json(), timeout_s)
        self.before_bytes, self.via = int(reply["before_bytes"]), str(reply["via"])
        self._process.pause()


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"of {signal.Signals(-code).name}"
    except ValueError:
        return f"of signal {-code}"
