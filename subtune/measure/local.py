"""Measuring on this machine: builder processes side by side, then one runner process with nothing beside it."""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType

from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel, Measuring
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Built, Comparison, Failure, FailureKind, Timing
from subtune.core.scratch import TEMPORARY, TEMPORARY_END, scratch
from subtune.core.workload import Workload, dtype_bits
from subtune.measure.messages import BuildJob, CompareJob, Library, Prepared, PrepareJob, TimeJob
from subtune.measure.process import Worker, first_finished
from subtune.runtime.host import usable_cores

_log = logging.getLogger(__name__)

SCHEDULE = "subtune.backends:schedule"
_MAX_BUILDERS = 16  # each holds TVM and LLVM in memory, about 150 MB
_REFERENCE_LIMIT_S = 120.0
"""For inputs and four runs of the default schedule, which may be a thousand times slower than the best."""


_LEAST_LIMIT_S = 0.2

_POLL_S = 0.02
"""How long a session waits for one of its own builders before it looks for others."""


class LocalMeasurer:
    """Worker processes that start on first use and stay warm over many sessions; close it, or use `with`.

    Args:
        builders: processes that compile side by side; default: the cores this process may use.
        schedule: "module:function" with the signature of `subtune.backends.schedule`, imported by the workers.
        search_path: directories in which the workers look for that module before the installed ones.
        build_limit_s: seconds a build may take.
        run_limit_s: seconds that checking and timing a candidate may take beyond the time asked for.
        memory_bytes: address space of each worker; default: half of the machine's memory. Not for a GPU, whose driver
            reserves more than the machine has.
        gpu_mode: what a kernel on a GPU finds in L2 when it is timed (`PrepareJob.mode`).
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
        gpu_mode: str = "rotating",
    ) -> None:
        self.gpu_mode = gpu_mode
        self.schedule = schedule
        self.build_limit_s = build_limit_s
        self.run_limit_s = run_limit_s
        self._search_path = tuple(search_path)
        self._memory_bytes = _half_of_memory() if memory_bytes is None else memory_bytes
        self._count = builders or min(usable_cores(), _MAX_BUILDERS)
        self._runners: dict[tuple[str, int], Worker] = {}
        self._spares: dict[tuple[str, int], Worker] = {}
        self._builders: dict[str, _Builders] = {}
        self._ahead: list[_Ahead] = []
        try:
            self._scratch = scratch(TEMPORARY, TEMPORARY_END)
        except OSError as e:
            raise _no_room(e) from e

    def start(self, device: Device | HardwareModel) -> None:
        """Begin to start all processes; returns at once. Later calls find them warm."""
        device = as_device(device)
        try:
            workers = (*self._builders_of(device).workers, self._runner(device))
        except OSError as e:
            raise _no_room(e) from e
        for worker in workers:
            worker.start()

    def prefetch(self, workload: Workload, device: Device, candidates: Sequence[Candidate]) -> None:
        """Begin to build what a later session will ask for, where building leaves alone what measures: on a GPU.

        Sessions are built in the order of these calls, each as soon as builders have nothing to do for those before.
        """
        device = as_device(device)
        if device.backend.measuring.overlaps:
            before = self._ahead[-1].session if self._ahead else None
            self._ahead.append(_Ahead(self._new_session(workload, device, math.inf), candidates, before))

    def is_ahead(self, workload: Workload, device: Device) -> bool:
        """Whether `prefetch` has been called for this session, which has not begun."""
        return any(ahead.session.is_for(workload, device) for ahead in self._ahead)

    def _new_session(self, workload: Workload, device: Device, deadline: float) -> LocalSession:
        self.start(device)
        directory = Path(tempfile.mkdtemp(dir=self._scratch.path))
        return LocalSession(
            self, workload, device, self._builders_of(device), self._runner(device), directory, deadline
        )

    def _drop(self, ahead: Sequence[_Ahead]) -> None:
        for one in ahead:
            one.session.give_up()
        for one in ahead:
            one.thread.join()
            shutil.rmtree(one.session.directory, ignore_errors=True)

    @contextmanager
    def session(
        self, workload: Workload, device: Device | HardwareModel, deadline: float = math.inf
    ) -> Iterator[LocalSession]:
        device = as_device(device)
        builders = self._builders_of(device).workers
        found = next((i for i, one in enumerate(self._ahead) if one.session.is_for(workload, device)), -1)
        if found >= 0:
            skipped, ahead, self._ahead = self._ahead[:found], self._ahead[found], self._ahead[found + 1 :]
            self._drop(skipped)
            session = ahead.session
            session.take_over(self._runner(device), deadline)
            ahead.wait_until(deadline)
        else:
            session = self._new_session(workload, device, deadline)
        directory = session.directory
        try:
            yield session
        except SubtuneError:
            raise
        except BaseException:
            # Ctrl-C, most likely: whoever still works does so for nobody.
            for worker in (*builders, self._runner(device)):
                worker.kill()
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        builders = [worker for builders in self._builders.values() for worker in builders.workers]
        for one in self._ahead:
            one.session.give_up()
        if self._ahead:
            for worker in builders:
                worker.kill()
        self._drop(self._ahead)
        for worker in (*builders, *self._runners.values(), *self._spares.values()):
            worker.close()
        self._scratch.remove()

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _builders_of(self, device: Device) -> _Builders:
        kind, measuring = device.backend.kind, device.backend.measuring
        if kind not in self._builders:
            count = int(measuring.builders_per_core * self._count)
            workers = [self._worker(1, measuring, measuring.builder_environment) for _ in range(count)]
            self._builders[kind] = _Builders(workers)
        return self._builders[kind]

    def _runner(self, device: Device) -> Worker:
        measuring, key = device.backend.measuring, _key(device)
        if key not in self._runners:
            self._runners[key] = self._worker(device.model.host.threads, measuring)
            if measuring.has_spare_runner:
                self._spares[key] = self._worker(device.model.host.threads, measuring)
                self._spares[key].start()
        return self._runners[key]

    def replace_runner(self, device: Device) -> Worker:
        """Another runner in the place of one that died: the spare one, if there is one, waits with TVM loaded."""
        old, key = self._runner(device), _key(device)
        if key not in self._spares:
            return old
        old.kill()
        self._runners[key], self._spares[key] = self._spares[key], old
        old.start()
        return self._runners[key]

    def _worker(self, threads: int, measuring: Measuring, more: Mapping[str, str] = MappingProxyType({})) -> Worker:
        # TVM reads both before it is loaded. Bound, its pool puts a worker on the core the main thread may be on.
        env = {"TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0", **more}
        return Worker(env, self._search_path, self._memory_bytes if measuring.limits_memory else 0)


class LocalSession:
    """See `subtune.measure.protocol.Session`."""

    def __init__(
        self,
        measurer: LocalMeasurer,
        workload: Workload,
        device: Device,
        builders: _Builders,
        runner: Worker,
        directory: Path,
        deadline: float,
    ) -> None:
        self._measurer = measurer
        self._workload = workload
        self._text = workload.to_json()
        self._device, self._measuring = device, device.backend.measuring
        self._builders = builders
        self._runner = runner
        self.directory = directory
        self.deadline = deadline
        self._libraries: dict[Candidate, Library] = {}
        self._outcomes: dict[Candidate, Library | Failure] = {}
        self._is_given_up = False
        self.is_given_out = threading.Event()
        """Set when builders have, or have had, all of a `build`."""
        self._numbers = count()
        self._checked: set[Candidate] = set()
        self._prepared_in: tuple[Worker, int] | None = None  # which start of which runner holds the reference
        self._crashes: Counter[str] = Counter()
        self._default_s = 0.0

    def is_for(self, workload: Workload, device: Device) -> bool:
        return (workload.key, device) == (self._workload.key, self._device)

    def take_over(self, runner: Worker, deadline: float) -> None:
        """Measuring begins: with the runner of now, which may be another one than when building began."""
        self._runner, self.deadline = runner, deadline

    def give_up(self) -> None:
        """Nobody will ask for what is being built."""
        self._is_given_up = True

    def build(self, candidates: Sequence[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        try:
            self._build([candidate for candidate in candidates if candidate not in self._outcomes], deadline)
        finally:
            self.is_given_out.set()
        return {
            candidate: Built(o.build_s, o.func_hash, self._weights_bytes(o)) if isinstance(o, Library) else o
            for candidate in candidates
            if (o := self._outcomes.get(candidate)) is not None
        }

    def _weights_bytes(self, library: Library) -> int:
        packed = {index: prod(packing.shape) for index, packing in library.packings}
        return sum(
            packed[i] * dtype_bits(arg.dtype) // 8 if i in packed else arg.nbytes
            for i, arg in enumerate(self._workload.args)
            if arg.is_constant
        )

    def _build(self, candidates: Sequence[Candidate], deadline: float) -> None:
        wanted = list(candidates)
        if DEFAULT in wanted and self._measuring.reference is not None:
            wanted.insert(wanted.index(DEFAULT) + 1, self._measuring.reference)  # it will be asked for
        waiting = list(reversed(wanted))
        busy: dict[Worker, Candidate] = {}
        try:
            while busy or (waiting and time.monotonic() < deadline and not self._is_given_up):
                while waiting and time.monotonic() < deadline and not self._is_given_up:
                    worker = self._builders.take(_POLL_S if not busy else 0.0)
                    if worker is None:
                        break
                    busy[worker] = candidate = waiting.pop()
                    worker.send(self._build_job(candidate), self._build_limit(candidate))
                if not waiting:
                    self.is_given_out.set()
                if not busy:
                    continue
                # another session's builders may become free at any time
                until = min(self.deadline, time.monotonic() + _POLL_S) if waiting else self.deadline
                finished = first_finished(list(busy), until)
                if finished is not None:
                    self._outcomes[busy.pop(finished)] = finished.receive()
                    self._builders.give(finished)
                elif time.monotonic() >= self.deadline:
                    break
        finally:
            for worker in busy:  # nobody waits for it any more
                worker.kill()
                self._builders.give(worker)
        self._libraries.update({c: library for c, library in self._outcomes.items() if isinstance(library, Library)})

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing | Failure:
        library = self._libraries[candidate]
        most = self._measuring.max_crashes
        if most is not None and self._crashes[candidate.family] >= most and candidate not in self._checked:
            return Failure(FailureKind.CRASH, f"not tried: {most} kernels of {candidate.family} crashed")
        if failure := self._prepare():
            return failure
        job = TimeJob(library, seconds, stop_above_s, candidate in self._checked)
        outcome: Timing | Failure = self._runner.call(job, self._limit(seconds))
        if isinstance(outcome, Timing):
            self._checked.add(candidate)
        elif outcome.kind is FailureKind.CRASH:
            self._crashes[candidate.family] += 1
        return outcome

    def compare(self, candidate: Candidate, seconds: float) -> Comparison | Failure:
        library = self._libraries[candidate]
        if failure := self._prepare():
            return failure
        outcome: Comparison | Failure = self._runner.call(CompareJob(library, seconds), self._limit(seconds))
        return outcome

    def _build_limit(self, candidate: Candidate) -> float:
        """Where all wait for the slowest candidate, one that takes ten times as long as others is left out."""
        is_needed = candidate in (DEFAULT, self._measuring.reference)
        return min(self._measurer.build_limit_s, math.inf if is_needed else self._measuring.build_limit_s)

    def _limit(self, seconds: float) -> float:
        """A candidate many times slower than the default may be killed: it could not win."""
        return self._until_deadline(self._measurer.run_limit_s + 2 * seconds + 10 * self._default_s)

    def _until_deadline(self, limit_s: float) -> float:
        """`limit_s`, or less when the deadline comes first; a little is always left for one call."""
        return max(_LEAST_LIMIT_S, min(limit_s, self.deadline - time.monotonic()))

    def _prepare(self) -> Failure | None:
        """See to it that the runner, which may be a new process, holds the reference of this workload.

        Raises:
            SubtuneError: there is no reference, as the default schedule cannot be built or run.
        """
        if not self._runner.is_running:
            self._runner = self._measurer.replace_runner(self._device)
        self._runner.start()
        if self._prepared_in == (self._runner, self._runner.starts):
            return None
        default = self._libraries.get(DEFAULT)
        if default is None:
            default = self._build_default()
        mode = self._measurer.gpu_mode
        job = PrepareJob(self._text, self._workload.num_outputs, self._device, default, self._float64(), mode)
        answer: Prepared | Failure = self._runner.call(job, self._until_deadline(_REFERENCE_LIMIT_S))
        if isinstance(answer, Failure):
            if time.monotonic() >= self.deadline:
                return answer
            raise SubtuneError(
                f"the default schedule of workload {self._workload.key} does not run ({answer.kind}): {answer.message}"
            )
        self._prepared_in = (self._runner, self._runner.starts)
        self._default_s = answer.default_s
        return None

    def _build_default(self) -> Library:
        self.build([DEFAULT], math.inf)
        built = self._outcomes[DEFAULT]
        if isinstance(built, Failure):
            raise SubtuneError(
                f"the default schedule of workload {self._workload.key} cannot be built ({built.kind}): {built.message}"
            )
        return built

    def _float64(self) -> Library | None:
        """The workload in float64, which was built with the default schedule; None where that failed."""
        reference = self._measuring.reference
        built = self._outcomes.get(reference) if reference is not None else None
        if isinstance(built, Failure):
            _log.info("workload %s has no float64 reference: %s", self._workload.key, built.message)
        return built if isinstance(built, Library) else None

    def _build_job(self, candidate: Candidate) -> BuildJob:
        stem = str(self.directory / f"k{next(self._numbers)}-{hash(candidate) & 0xFFFFFFFF:08x}")
        is_reference = candidate == self._measuring.reference
        is_optional = candidate != DEFAULT and not is_reference
        schedule = SCHEDULE if is_reference else self._measurer.schedule
        return BuildJob(self._text, self._workload.num_outputs, self._device, candidate, schedule, stem, is_optional)


class _Builders:
    """Processes that compile, of which sessions take those that are idle."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)
        self._idle = list(workers)
        self._changed = threading.Condition()

    def take(self, seconds: float) -> Worker | None:
        """An idle one, or None when there is none within so many seconds."""
        with self._changed:
            if not self._idle:
                self._changed.wait(seconds)
            return self._idle.pop() if self._idle else None

    def give(self, worker: Worker) -> None:
        with self._changed:
            self._idle.append(worker)
            self._changed.notify()


class _Ahead:
    """A session that is being built by a thread of its own while another one is measured.

    It begins when builders have all of the session `before`.
    """

    def __init__(self, session: LocalSession, candidates: Sequence[Candidate], before: LocalSession | None) -> None:
        self.session = session
        self._before = before
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, args=((DEFAULT, *candidates),), daemon=True)
        self.thread.start()

    def _work(self, candidates: Sequence[Candidate]) -> None:
        try:
            if self._before is not None:
                self._before.is_given_out.wait()
            self.session.build(candidates, math.inf)
        except Exception as e:  # for whoever waits
            self._error = e

    def wait_until(self, deadline: float) -> None:
        """Wait for the thread; after `deadline` it begins nothing new."""
        self.thread.join(None if math.isinf(deadline) else max(0.0, deadline - time.monotonic()))
        if self.thread.is_alive():
            self.session.give_up()
            self.thread.join()
        if self._error is not None:
            raise self._error


def _key(device: Device) -> tuple[str, int]:
    """What devices that share a runner have in common."""
    return device.backend.kind, device.model.host.threads


def _no_room(error: OSError) -> SubtuneError:
    return SubtuneError(f"tuning needs room for temporary files: {error}; name another place in TMPDIR")


def _half_of_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total // 2)
