"""Workers forked from a server that has loaded TVM: they answer, their ends are told, and a lost server is replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from subtune.backends import as_device
from subtune.core.candidate import Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Failure, FailureKind
from subtune.measure.fork_server import ForkedWithThreads, ForkServer
from subtune.measure.messages import BuildJob, Library
from subtune.measure.process import Worker

LONG_S = 300.0


@pytest.fixture
def cold(doubles: Any) -> Iterator[ForkServer]:
    """A server of the test's own: it begins to load with the first worker."""
    made = ForkServer({"TVM_NUM_THREADS": "1"}, [doubles.DIRECTORY], 0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def warm(doubles: Any) -> Iterator[ForkServer]:
    """One server for several tests: most of its start is to load TVM."""
    made = ForkServer({"TVM_NUM_THREADS": "1"}, [doubles.DIRECTORY], 0)
    yield made
    made.close()


@pytest.fixture
def server(warm: ForkServer) -> Iterator[ForkServer]:
    """It runs, and has no workers before a test, nor after it."""
    yield warm
    left = processes(warm)[1]
    assert not psutil.wait_procs(left, timeout=60)[1]


@pytest.fixture
def worker(server: ForkServer) -> Iterator[Worker]:
    made = Worker(server)
    yield made
    made.close()


@pytest.fixture
def job(doubles: Any, device: Any, tmp_path: Path) -> Any:
    def of(family: str) -> BuildJob:
        workload, stem = doubles.workload(), str(tmp_path / family)
        return BuildJob(
            workload.to_json(), 1, as_device(device), Candidate(family), "doubles:schedule", stem, is_optional=True
        )

    return of


def processes(server: ForkServer) -> tuple[psutil.Process, list[psutil.Process]]:
    """The server, and the workers it has forked."""
    assert server._server is not None
    process = psutil.Process(server._server.pid)
    return process, process.children()


def forked(server: ForkServer, count: int) -> list[psutil.Process]:
    while len(found := processes(server)[1]) < count:
        time.sleep(0.01)
    return found


def test_each_worker_is_a_process_of_its_own_and_builds(server: ForkServer, job: Any) -> None:
    workers = [Worker(server) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker, family in zip(workers, ("vector", "packed", "vector"), strict=True):
        outcome = worker.call(job(family), LONG_S)
        assert isinstance(outcome, Library)
        assert Path(outcome.path).exists()
    children = forked(server, 3)
    assert len({os.getpgid(child.pid) for child in children}) == 3
    for worker in workers:
        worker.close()
    assert not psutil.wait_procs(children, timeout=60)[1]


def test_a_worker_may_have_other_threads_than_its_server(server: ForkServer, worker: Worker, job: Any) -> None:
    other = Worker(ForkedWithThreads(server, 2))
    said = [one.call(job("counts threads"), LONG_S).message for one in (worker, other)]
    other.close()
    assert said == ["threads: 1", "threads: 2"]


def test_how_a_worker_ended_is_known_and_the_next_call_has_another(
    server: ForkServer, worker: Worker, job: Any
) -> None:
    assert isinstance(worker.call(job("vector"), LONG_S), Library)
    (child,) = forked(server, 1)
    child.send_signal(signal.SIGSEGV)
    child.wait(60)
    outcome = worker.call(job("vector"), LONG_S)
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.CRASH
    assert "SIGSEGV" in outcome.message
    assert isinstance(worker.call(job("vector"), LONG_S), Library)
    assert worker.starts == 2


def test_workers_outlive_their_server_and_a_new_one_forks_the_next(
    server: ForkServer, worker: Worker, job: Any
) -> None:
    assert isinstance(worker.call(job("vector"), LONG_S), Library)
    first, _ = processes(server)
    first.kill()
    first.wait(60)
    assert isinstance(worker.call(job("packed"), LONG_S), Library)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_running", _once_blind(server))
        worker.kill()
        assert isinstance(worker.call(job("packed"), LONG_S), Library)
    assert processes(server)[0].pid != first.pid


def _once_blind(server: ForkServer) -> Any:
    """`_running`, which at first does not see that the server has died, as when it does so a moment later."""
    seen: list[None] = []

    def running() -> Any:
        if not seen:
            seen.append(None)
            return server._control
        return ForkServer._running(server)

    return running


def test_why_a_server_does_not_start(doubles: Any, job: Any) -> None:
    server = ForkServer({}, [], 0, preload=["a_module_that_nobody_has"])
    worker = Worker(server)
    with pytest.raises(SubtuneError, match=r"(?s)cannot start.*a_module_that_nobody_has"):
        worker.call(job("vector"), LONG_S)
    worker.close()
    server.close()


def test_what_has_not_begun_is_given_up_at_once(cold: ForkServer) -> None:
    """The server is stopped before it forks: nobody waits for it."""
    worker = Worker(cold)
    worker.start()
    process, _ = processes(cold)
    process.suspend()
    worker.kill()
    process.resume()
    worker.close()
    cold.close()
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_one_given_up_before_its_fork_leaves(cold: ForkServer, job: Any) -> None:
    worker = Worker(cold)
    worker.start()
    worker.kill()
    assert isinstance(worker.call(job("vector"), LONG_S), Library)
    deadline = time.monotonic() + 60
    while len(processes(cold)[1]) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.close()


def test_builders_stand_back_as_far_as_they_are_told(doubles: Any, job: Any) -> None:
    server = ForkServer({}, [doubles.DIRECTORY], 0, niceness=3)
    worker = Worker(server)
    assert isinstance(worker.call(job("vector"), LONG_S), Library)
    (child,) = forked(server, 1)
    assert child.nice() == psutil.Process().nice() + 3
    worker.close()
    server.close()
