"""Builders that all sessions share: what is waited for comes first, all of them rest while something is timed."""

from __future__ import annotations

import math
import threading
import time
from multiprocessing import Pipe
from typing import Any

import pytest

from subtune.measure.pool import Build, Builders, ProcessBuilder


class Worker:
    """Stands for a process: `answer(job)` is called when the test says so."""

    def __init__(self) -> None:
        self.connection, self.far = Pipe()
        self.left_s = math.inf
        self.jobs: list[str] = []
        self.kills = 0
        self.sent = threading.Semaphore(0)

    def start(self) -> None:
        pass

    def send(self, job: str, limit_s: float) -> None:
        self.jobs.append(job)
        self.sent.release()

    def answer(self) -> None:
        assert self.sent.acquire(timeout=600)
        self.far.send(f"{self.jobs[-1]} done")

    def receive(self) -> Any:
        return self.connection.recv()

    def kill(self) -> None:
        self.kills += 1

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def builders(worker: Worker) -> Any:
    made = Builders([ProcessBuilder(worker)], grace_s=1.0)  # type: ignore[arg-type]
    made.start()
    yield made
    made.close()


def builds(*names: str) -> list[Build]:
    return [Build(name, 1.0) for name in names]  # type: ignore[arg-type]


def in_thread(work: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args)
    thread.start()
    return thread


def test_what_is_waited_for_comes_before_what_was_only_asked_for(builders: Builders, worker: Worker) -> None:
    first, ahead, urgent = builds("first", "ahead", "urgent")
    builders.submit([first, ahead, urgent])
    assert worker.sent.acquire(timeout=600)
    worker.sent.release()
    waiting = in_thread(builders.wait, [urgent], math.inf, math.inf)
    while builders._queue[:1] != [urgent]:
        time.sleep(0.001)
    for _ in range(3):
        worker.answer()
    waiting.join()
    builders.wait([first, ahead], math.inf, math.inf)
    assert worker.jobs == ["first", "urgent", "ahead"]
    assert [b.outcome for b in (first, ahead, urgent)] == ["first done", "ahead done", "urgent done"]


def test_after_the_deadline_nothing_begins_and_at_the_hard_one_nobody_waits(builders: Builders, worker: Worker) -> None:
    runs, waits, later = builds("runs", "waits", "later")
    builders.submit([runs, waits])
    assert worker.sent.acquire(timeout=600)
    worker.sent.release()
    now = time.monotonic()
    builders.wait([runs, waits], now, now)
    assert worker.jobs == ["runs"]
    assert runs.outcome is waits.outcome is None
    worker.answer()  # soon enough: the process is kept for the next one
    builders.submit([later])
    worker.answer()
    builders.wait([later], math.inf, math.inf)
    assert (later.outcome, worker.kills) == ("later done", 0)


def test_what_nobody_wants_any_more_ends_where_silence_is_wanted(builders: Builders, worker: Worker) -> None:
    (build,) = builds("one")
    builders.submit([build])
    assert worker.sent.acquire(timeout=600)
    builders.drop([build])
    with builders.silence():
        assert worker.kills == 1


def test_nothing_is_built_in_silence(builders: Builders, worker: Worker) -> None:
    one, two = builds("one", "two")
    builders.submit([one, two])
    assert worker.sent.acquire(timeout=600)
    worker.sent.release()
    silent, over = threading.Event(), threading.Event()

    def measure() -> None:
        with builders.silence():
            silent.set()
            over.wait(600)

    measuring = in_thread(measure)
    assert not silent.wait(0.05), "the build that runs is waited for"
    worker.answer()
    assert silent.wait(600)
    time.sleep(0.05)
    assert worker.jobs == ["one"]
    over.set()
    measuring.join()
    worker.answer()
    builders.wait([one, two], math.inf, math.inf)
    assert two.outcome == "two done"


def test_a_process_that_cannot_start_is_told_to_who_waits(builders: Builders, worker: Worker) -> None:
    def fail(job: str, limit_s: float) -> None:
        raise RuntimeError("no room")

    worker.send = fail  # type: ignore[method-assign]
    (build,) = builds("one")
    builders.submit([build])
    with pytest.raises(RuntimeError, match="no room"):
        builders.wait([build], math.inf, math.inf)


class Instant:
    """A builder whose builds take a moment, and that keeps them."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.built: list[Any] = []

    def start(self) -> None:
        pass

    def answer(self, job: Any, limit_s: float, is_given_up: Any) -> Any:
        self.built.append(job)
        return f"{job} done"

    def close(self) -> None:
        pass


def test_a_build_wakes_one_builder_and_not_hundreds(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    class Counting(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                looks.append(1)
            return super().wait(timeout)

    monkeypatch.setattr("subtune.measure.pool.threading.Condition", Counting)
    made = Builders([Instant(str(number // 4)) for number in range(200)], grace_s=1.0)
    made.start()
    while made._resting.total() < 200:
        time.sleep(0.001)
    looks.clear()
    for number in range(50):
        (build,) = builds(str(number))
        made.submit([build])
        made.wait([build], math.inf, math.inf)
        assert build.outcome == f"{number} done"
    made.close()
    assert len(looks) <= 50


def test_many_sessions_on_many_hosts_lose_no_build() -> None:
    """Silences come and go while builds are submitted: whoever is woken in vain passes it on."""
    builders = [Instant(str(number // 2)) for number in range(8)]
    made = Builders(builders, grace_s=1.0)
    made.start()
    done: list[Any] = []

    def session(number: int) -> None:
        for turn in range(100):
            some = builds(*(f"{number}/{turn}/{place}" for place in range(3)))
            made.submit(some)
            made.wait(some, math.inf, math.inf)
            with made.silence(str(number)):
                done.extend(build.outcome for build in some)

    threads = [in_thread(session, number) for number in range(4)]
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    made.close()
    assert len(done) == len(set(done)) == 4 * 100 * 3
    assert sorted(f"{job} done" for builder in builders for job in builder.built) == sorted(done)


def test_builds_of_a_host_in_silence_are_begun_by_another() -> None:
    here, there = Instant("here"), Instant("there")
    made = Builders([here, there], grace_s=1.0)
    made.start()
    with made.silence("here"):
        some = builds("one", "two", "three")
        made.submit(some)
        made.wait(some, math.inf, math.inf)
    made.close()
    assert (here.built, there.built) == ([], ["one", "two", "three"])
