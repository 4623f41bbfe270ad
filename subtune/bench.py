"""Latency of an artifact beside other frameworks: interleaved rounds, each framework in a process of its own.

While one framework is timed the others are stopped (SIGSTOP), so that nobody's spinning threads take the cores from
it: every framework can keep its own default settings.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from subtune import manifest as manifests
from subtune.errors import SubtuneError

_FOREIGN_LIMIT = 0.1
"""Cores; /proc/stat counts in hundredths of a second, so a little is noise."""

AGAINST = ("onnxruntime", "default")


class BenchError(SubtuneError):
    """A framework to be timed does not start, or died."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker process runs. `inputs` are (name, shape, dtype); random values come from `seed` and `limits`."""

    framework: str
    path: str
    threads: int
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    target: str = ""
    seed: int = 0
    limits: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "limits": dict(self.limits)})


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One framework's figures. `ratio` is its latency over subtune's: above 1, subtune is faster.

    It is the median over rounds of the ratio within a round, so that a drift of the machine cancels.
    """

    framework: str
    median_s: float
    min_s: float
    ratio: float
    samples: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class BenchReport:
    name: str
    threads: int
    device: str
    rows: tuple[BenchRow, ...]
    failures: tuple[tuple[str, str], ...] = ()
    """(framework, reason) of those that could not be timed."""
    foreign_cores: float = 0.0
    """Cores that other processes kept busy while frameworks were timed, on average: the figures suffer above 0."""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "failures": dict(self.failures)}, indent=1)

    def __str__(self) -> str:
        lines = [f"{self.name}, {self.threads} threads, {self.device}"]
        lines.append(f"{'':<14}{'median ms':>12}{'min ms':>12}{'ratio':>8}{'peak MB':>10}")
        for row in self.rows:
            lines.append(
                f"{row.framework:<14}{row.median_s * 1e3:>12.3f}{row.min_s * 1e3:>12.3f}{row.ratio:>8.2f}"
                f"{row.peak_rss_bytes / 1e6:>10.0f}"
            )
        lines += [f"{framework:<14}not timed: {reason}" for framework, reason in self.failures]
        if self.foreign_cores > _FOREIGN_LIMIT:
            lines.append(
                f"other processes kept {self.foreign_cores:.1f} cores busy meanwhile: do not trust these figures"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Round:
    """One framework's turn: seconds of each call and of all, CPU seconds of other processes meanwhile, peak bytes."""

    seconds: tuple[float, ...]
    wall_s: float
    foreign_s: float
    peak_rss_bytes: int


class Worker:
    """A process that times one framework on command; stopped whenever it is not its turn."""

    def __init__(self, job: Job, start_timeout_s: float):
        self.framework = job.framework
        env = {**os.environ, "TVM_NUM_THREADS": str(job.threads), "TVM_BIND_THREADS": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "subtune.bench_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        try:
            self._ask(job.to_json(), start_timeout_s)
        except BenchError:
            self.close()
            raise
        self._pause()

    def time(self, calls: int, warmup: int, timeout_s: float) -> Round:
        """Time `calls` calls after `warmup` untimed ones."""
        self._resume()
        reply = self._ask(json.dumps({"calls": calls, "warmup": warmup}), timeout_s)
        self._pause()
        return Round(tuple(reply["seconds"]), reply["wall_s"], reply["foreign_s"], reply["peak_rss"])

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
            raise BenchError(f"{self.framework}: its process died with exit code {self._process.wait()}")
        reply = json.loads(answer)
        if "error" in reply:
            raise BenchError(f"{self.framework}: {reply['error']}")
        return dict(reply)


def bench(
    artifact: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    against: Sequence[str] = AGAINST,
    threads: int | None = None,
    rounds: int = 7,
    round_s: float = 0.5,
    limits: dict[str, int] | None = None,
    timeout_s: float = 600.0,
) -> BenchReport:
    """Time the artifact and each framework of `against` in turn, `rounds` times.

    Args:
        artifact: the artifact's directory.
        model: the ONNX file it was compiled from, which the other frameworks run.
        threads: for all of them; default is the artifact's own number.
        round_s: about how long a framework is timed in a round, in seconds; three calls at least.
        limits: exclusive upper bounds of integer inputs (`subtune.verify.integer_limits`).
    """
    folder = Path(artifact)
    manifest = manifests.read(folder)
    if unknown := [name for name in against if name not in AGAINST]:
        raise BenchError(f"unknown framework {', '.join(unknown)}; known are {', '.join(AGAINST)}")
    if against and model is None:
        raise BenchError(f"{folder} can be timed against {', '.join(against)} only with its model file")
    count = threads or manifest.threads
    inputs = tuple((spec.name, spec.shape, spec.dtype) for spec in manifest.inputs)

    def job(framework: str) -> Job:
        path = str(folder if framework == "subtune" else model)
        return Job(framework, path, count, inputs, manifest.target, limits=tuple((limits or {}).items()))

    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(job("subtune"), timeout_s))]
        failures = []
        for framework in dict.fromkeys(against):
            try:
                workers.append(stack.enter_context(Worker(job(framework), timeout_s)))
            except BenchError as e:
                failures.append((framework, str(e).removeprefix(f"{framework}: ")))
        timed = _rounds(workers, rounds, round_s, timeout_s)
    base = [median(one.seconds) for one in timed["subtune"]]
    rows = tuple(
        BenchRow(
            framework=framework,
            median_s=median(s for one in per_round for s in one.seconds),
            min_s=min(s for one in per_round for s in one.seconds),
            ratio=median(median(one.seconds) / own for one, own in zip(per_round, base, strict=True)),
            samples=sum(len(one.seconds) for one in per_round),
            peak_rss_bytes=max(one.peak_rss_bytes for one in per_round),
        )
        for framework, per_round in timed.items()
    )
    every = [one for per_round in timed.values() for one in per_round]
    foreign = sum(one.foreign_s for one in every) / sum(one.wall_s for one in every)
    return BenchReport(manifest.name, count, manifest.device, rows, tuple(failures), foreign)


def _rounds(workers: Sequence[Worker], rounds: int, round_s: float, timeout_s: float) -> dict[str, list[Round]]:
    """Every framework's rounds, by its name."""
    timed: dict[str, list[Round]] = {worker.framework: [] for worker in workers}
    # The first call paid for page faults; the second tells how many fit into a round.
    once = {worker.framework: max(worker.time(2, 1, timeout_s).seconds[-1], 1e-6) for worker in workers}
    for _ in range(rounds):
        for worker in workers:
            calls = max(3, min(200, int(round_s / once[worker.framework])))
            timed[worker.framework].append(worker.time(calls, 2, timeout_s))
    return timed
