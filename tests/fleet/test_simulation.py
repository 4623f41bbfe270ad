"""A fleet's devices simulated: the clock, the builders, and the search's own turns on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tvm import te

from subtune.backends import as_device
from subtune.backends.base import Device
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.fleet import FleetModel
from subtune.fleet.pooled import Pool
from subtune.fleet.simulation.clock import Deadlock, SimulatedThreads
from subtune.fleet.simulation.durations import Durations, Spread
from subtune.fleet.simulation.farm import Farm, FarmBuild
from subtune.fleet.simulation.study import Found, Outcome, Plant, TargetWork, simulated
from subtune.tuning.alternatives import Plan
from subtune.tuning.crew import Crew
from subtune.tuning.job import Single

SPREAD = Spread((0.01, 0.1, 0.3, 2.0), 0.4)
DURATIONS = Durations(
    SPREAD,
    dict.fromkeys(("prepare", "check"), SPREAD),  # what is timed takes the seconds that it is given
    {"build": 0.1, "wrong-result": 0.1},
    Spread((0.5, 1.0, 1.1, 2.0), 0.5),
    Spread((1.0, 2.0, 9.0), 1.0),
    driver_s=0.0,
    wall_s=0.0,
)
CANDIDATES = tuple(Candidate.make("t", predicted_s=1e-3 * (i + 1), i=i) for i in range(10))


def scale(n: int) -> Workload:
    a = te.placeholder((n,), "float32", name="a")
    return Workload.of(te.create_prim_func([a, te.compute((n,), lambda i: a[i] * 2)]), 1)


def policy(workload: Workload, device: Device, topk: int) -> Sequence[Candidate]:
    return CANDIDATES[:topk]


@pytest.fixture(scope="module")
def work(device):
    plan = Plan(tuple(Single(scale(n)) for n in range(8, 20)), (), ())
    pool = Pool(as_device(device), (FleetModel("one", "one"),), (plan,))
    return [TargetWork("here", (pool,))]


def run(work: list[TargetWork], path: Path, devices: int, **plant) -> tuple[Outcome, dict, list]:
    """The outcome, what was found, and what the database holds of it."""
    plant = {"counts_cpu": False, **plant}
    outcome, records = simulated(work, Plant(devices, 2, **plant), DURATIONS, 10, Found(policy), path)
    with Database(path) as database:
        stored = sorted(database.list_records(), key=lambda record: record.workload_key)
    return outcome, {key: record for one in records for key, record in one.items()}, stored


def test_devices_find_what_one_finds_in_less_time(tmp_path, work):
    one, records, stored = run(work, tmp_path / "1.db", 1)
    assert len(records) == len(stored) == one.workloads == 12
    assert one.writes > len(records)
    assert one.measured_s < one.seconds
    seconds = [one.seconds]
    for devices in (2, 8):
        outcome, found, kept = run(work, tmp_path / f"{devices}.db", devices)
        assert (found, kept) == (records, stored)
        assert 0 <= outcome.idle <= 1
        assert 0 <= outcome.idle_builders <= 1
        assert outcome.measured_s == pytest.approx(one.measured_s)
        seconds.append(outcome.seconds)
    assert seconds == sorted(seconds, reverse=True)


def test_the_same_run_takes_the_same_turns(tmp_path, work):
    outcomes = [run(work, tmp_path / f"{n}.db", 8)[0] for n in range(2)]
    of_clock = [(one.seconds, one.measured_s, one.built_s, one.calls, one.writes) for one in outcomes]
    assert of_clock[0] == of_clock[1]


def test_targets_side_by_side_share_the_devices(tmp_path, work):
    both = [work[0], TargetWork("again", work[0].pools)]
    outcome, records, _ = run(both, tmp_path / "side.db", 5, side_by_side=True)
    assert outcome.workloads == 2 * len(records)
    assert 0 <= outcome.idle <= 1


def test_what_the_driver_computes_takes_its_time(tmp_path, work):
    free, _, stored = run(work, tmp_path / "free.db", 8)
    busy, _, same = run(work, tmp_path / "busy.db", 8, counts_cpu=True, message_s=1.0)
    assert same == stored
    assert busy.seconds > max(free.seconds, busy.calls * 1.0)


def test_threads_wait_by_the_clock():
    threads, seen = SimulatedThreads(), []
    lock = threads.lock()
    condition = threads.condition(lock)

    def waits() -> None:
        with condition:
            seen.append(condition.wait(5.0))
            seen.append((threads.now_s, condition.wait(1.0)))

    def notifies() -> None:
        threads.sleep(3.0)
        with lock, condition:
            condition.notify_all()

    assert threads.run([waits, notifies], lambda: None) == []
    assert seen == [True, (3.0, False)]
    assert threads.now_s == 4.0


def test_threads_that_wait_for_one_another_are_told():
    threads = SimulatedThreads()
    with pytest.raises(Deadlock):
        threads.hand_over()


def test_an_error_of_a_thread_is_returned():
    def fails() -> None:
        raise ZeroDivisionError

    (error,) = SimulatedThreads().run([fails, lambda: None], lambda: None)
    assert isinstance(error, ZeroDivisionError)


def test_builders_rest_while_their_machine_times():
    threads = SimulatedThreads()
    farm = Farm(threads, 1, 2)
    builds = [FarmBuild(seconds) for seconds in (1.0, 2.0, 4.0)]
    farm.submit(builds)
    with farm.silence(0):
        assert threads.now_s == 2.0, "what runs is waited for"
        threads.sleep(10.0)
        assert not builds[2].is_over
    farm.wait(builds)
    assert threads.now_s == 16.0
    assert farm.busy_s == 7.0


def test_hundreds_that_wait_are_not_asked_after_every_turn():
    """One long chain of turns: each leaves work for one device."""
    threads, left, asked = SimulatedThreads(), [100], Counter()
    is_taken = [False]

    def next_turn(number: int) -> list[int]:
        asked[number] += 1
        if is_taken[0] or not left[0]:
            return []
        is_taken[0] = True
        return [left[0]]

    def take(turn: Sequence[int], number: int) -> None:
        threads.sleep(0.1)
        left[0] -= 1
        is_taken[0] = False

    crew = Crew(300, next_turn, lambda: not left[0], take, lambda: None, threads)
    crew.run()
    assert left == [0]
    assert asked.total() < 300 + 3 * 100 + 300 + 100
