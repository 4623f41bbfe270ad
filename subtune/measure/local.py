"""Measuring on this machine: builder processes side by side, then one runner process with nothing beside it."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from subtune.candidate import DEFAULT, Candidate
from subtune.device import CPUModel, usable_cores
from subtune.errors import SubtuneError
from subtune.measure.messages import BuildJob, CompareJob, Library, Prepared, PrepareJob, TimeJob
from subtune.measure.process import Worker, first_finished
from subtune.measure.protocol import Built, Comparison
from subtune.measurement import Failure, Timing
from subtune.scratch import TEMPORARY, TEMPORARY_END, scratch
from subtune.workload import Workload

SCHEDULE = "subtune.templates:schedule"
_MAX_BUILDERS = 16  # each holds TVM and LLVM in memory, about 150 MB
_REFERENCE_LIMIT_S = 120.0
"""For inputs and four runs of the default schedule, which may be a thousand times slower than the best."""


_LEAST_LIMIT_S = 0.2


class LocalMeasurer:
    """Worker processes that start on first use and stay warm over many sessions; close it, or use `with`.

    Args:
        builders: processes that compile side by side; default: the cores this process may use.
        schedule: "module:function" with the signature of `subtune.templates.schedule`, imported by the workers.
        search_path: directories in which the workers look for that module before the installed ones.
        build_limit_s: seconds a build may take.
        run_limit_s: seconds that checking and timing a candidate may take beyond the time asked for.
        memory_bytes: address space of each worker; default: half of the machine's memory.
    """

    def __init__(
        self,
        *,
        builders: int | None = None,
        schedule: str = SCHEDULE,
        search_path: Sequence[str] = (),
        build_limit_s: float = 30.0,
        run_limit_s: float = 5.0,
        memory_bytes: int | None = None,
    ) -> None:
        self.schedule = schedule
        self.build_limit_s = build_limit_s
        self.run_limit_s = run_limit_s
        self._search_path = tuple(search_path)
        self._memory_bytes = _half_of_memory() if memory_bytes is None else memory_bytes
        count = builders or min(usable_cores(), _MAX_BUILDERS)
        self._runners: dict[int, Worker] = {}
        try:
            self._builders = [self._worker(threads=1) for _ in range(count)]
            self._scratch = scratch(TEMPORARY, TEMPORARY_END)
        except OSError as e:
            raise SubtuneError(f"tuning needs room for temporary files: {e}; name another place in TMPDIR") from e

    def start(self, device: CPUModel) -> None:
        """Begin to start all processes; returns at once. Later calls find them warm."""
        for worker in (*self._builders, self._runner(device)):
            worker.start()

    @contextmanager
    def session(self, workload: Workload, device: CPUModel, deadline: float = math.inf) -> Iterator[LocalSession]:
        self.start(device)
        directory = Path(tempfile.mkdtemp(dir=self._scratch.path))
        session = LocalSession(self, workload, device, self._builders, self._runner(device), directory, deadline)
        try:
            yield session
        except SubtuneError:
            raise
        except BaseException:
            # Ctrl-C, most likely: whoever still works does so for nobody.
            for worker in (*self._builders, self._runner(device)):
                worker.kill()
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        for worker in (*self._builders, *self._runners.values()):
            worker.close()
        self._scratch.remove()

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _runner(self, device: CPUModel) -> Worker:
        if device.threads not in self._runners:
            self._runners[device.threads] = self._worker(device.threads)
        return self._runners[device.threads]

    def _worker(self, threads: int) -> Worker:
        # TVM reads both before it is loaded. Bound, its pool puts a worker on the core the main thread may be on.
        env = {"TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
        return Worker(env, self._search_path, self._memory_bytes)


class LocalSession:
    """See `subtune.measure.protocol.Session`."""

    def __init__(
        self,
        measurer: LocalMeasurer,
        workload: Workload,
        device: CPUModel,
        builders: Sequence[Worker],
        runner: Worker,
        directory: Path,
        deadline: float,
    ) -> None:
        self._measurer = measurer
        self._workload = workload
        self._text = workload.to_json()
        self._device = device
        self._builders = builders
        self._runner = runner
        self._directory = directory
        self._deadline = deadline
        self._libraries: dict[Candidate, Library] = {}
        self._checked: set[Candidate] = set()
        self._prepared_in = 0  # which start of the runner holds the reference
        self._default_s = 0.0

    def build(self, candidates: Sequence[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        waiting = list(reversed(candidates))
        idle = list(self._builders)
        busy: dict[Worker, Candidate] = {}
        outcomes: dict[Candidate, Library | Failure] = {}
        while busy or (waiting and time.monotonic() < deadline):
            while idle and waiting and time.monotonic() < deadline:
                candidate = waiting.pop()
                worker = idle.pop()
                worker.send(self._build_job(candidate), self._measurer.build_limit_s)
                busy[worker] = candidate
            finished = first_finished(list(busy), self._deadline)
            if finished is None:
                for worker in busy:
                    worker.kill()
                break
            outcomes[busy.pop(finished)] = finished.receive()
            idle.append(finished)
        self._libraries.update({c: library for c, library in outcomes.items() if isinstance(library, Library)})
        return {
            candidate: Built(o.build_s, o.func_hash) if isinstance(o, Library) else o
            for candidate in candidates
            if (o := outcomes.get(candidate)) is not None
        }

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing | Failure:
        library = self._libraries[candidate]
        if failure := self._prepare():
            return failure
        job = TimeJob(library, seconds, stop_above_s, candidate in self._checked)
        outcome: Timing | Failure = self._runner.call(job, self._limit(seconds))
        if isinstance(outcome, Timing):
            self._checked.add(candidate)
        return outcome

    def compare(self, candidate: Candidate, seconds: float) -> Comparison | Failure:
        library = self._libraries[candidate]
        if failure := self._prepare():
            return failure
        outcome: Comparison | Failure = self._runner.call(CompareJob(library, seconds), self._limit(seconds))
        return outcome

    def _limit(self, seconds: float) -> float:
        """A candidate many times slower than the default may be killed: it could not win."""
        return self._until_deadline(self._measurer.run_limit_s + 2 * seconds + 10 * self._default_s)

    def _until_deadline(self, limit_s: float) -> float:
        """`limit_s`, or less when the deadline comes first; a little is always left for one call."""
        return max(_LEAST_LIMIT_S, min(limit_s, self._deadline - time.monotonic()))

    def _prepare(self) -> Failure | None:
        """See to it that the runner, which may be a new process, holds the reference of this workload.

        Raises:
            SubtuneError: there is no reference, as the default schedule cannot be built or run.
        """
        self._runner.start()
        if self._prepared_in == self._runner.starts:
            return None
        default = self._libraries.get(DEFAULT)
        if default is None:
            default = self._build_default()
        job = PrepareJob(self._text, self._workload.num_outputs, self._device, default)
        answer: Prepared | Failure = self._runner.call(job, self._until_deadline(_REFERENCE_LIMIT_S))
        if isinstance(answer, Failure):
            if time.monotonic() >= self._deadline:
                return answer
            raise SubtuneError(
                f"the default schedule of workload {self._workload.key} does not run ({answer.kind}): {answer.message}"
            )
        self._prepared_in = self._runner.starts
        self._default_s = answer.default_s
        return None

    def _build_default(self) -> Library:
        built: Library | Failure = self._builders[0].call(self._build_job(DEFAULT), self._measurer.build_limit_s)
        if isinstance(built, Failure):
            raise SubtuneError(
                f"the default schedule of workload {self._workload.key} cannot be built ({built.kind}): {built.message}"
            )
        self._libraries[DEFAULT] = built
        return built

    def _build_job(self, candidate: Candidate) -> BuildJob:
        stem = str(self._directory / f"k{len(list(self._directory.iterdir()))}-{hash(candidate) & 0xFFFFFFFF:08x}")
        return BuildJob(self._text, self._workload.num_outputs, self._device, candidate, self._measurer.schedule, stem)


def _half_of_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total // 2)
