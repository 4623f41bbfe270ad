"""What joint tuning remembers of one dynamic workload."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tvm import te

from subtune.core.candidate import Candidate
from subtune.core.measurement import Failure, FailureKind
from subtune.core.versions import Scope, Versions
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.database.instances import Instances, Known, Outcome

ONE, OTHER = Candidate.make("tiled", mr=4), Candidate.make("other", mr=4)
TODAY = Versions("tvm-1/cpu-1", (("default", 1), ("tiled", 3), ("other", 2)))
WRONG = Failure(FailureKind.WRONG_RESULT, "off by one")


def copy(n: int) -> Workload:
    x = te.placeholder((n,), name="x")
    return Workload.of(te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1)]), 1)


@pytest.fixture
def database(place: Path | str) -> Iterator[Database]:
    with Database(place) as found:
        yield found


def of(database: Database, n: int = 8, device: str = "cpu/x", versions: Versions = TODAY) -> Instances:
    return Instances(database, copy(n), Scope(device, versions))


def test_what_was_added_is_known_under_the_same_scope_alone(database):
    added = of(database)
    added.add_builds({ONE: {"granules": [4]}, OTHER: WRONG})
    added.add_outcomes((8, 16), {ONE: Outcome(1e-3)})
    added.add_outcomes((4, 16), {ONE: Outcome(2e-3, is_timed=False)})
    added.add_outcomes((2, 16), {ONE: Outcome(WRONG)})
    outcomes = {(8, 16): Outcome(1e-3), (4, 16): Outcome(2e-3, is_timed=False), (2, 16): Outcome(WRONG)}
    expected = {ONE: Known({"granules": [4]}, outcomes), OTHER: Known(WRONG)}
    assert of(database).known() == expected
    assert of(database, n=9).known() == {}
    assert of(database, device="cpu/y").known() == {}
    newer = Versions(TODAY.common, (("default", 1), ("tiled", 4), ("other", 2)))
    assert of(database, versions=newer).known() == {OTHER: Known(WRONG)}


def test_the_newest_outcome_counts(database):
    added = of(database)
    added.add_builds({ONE: {}})
    added.add_outcomes((), {ONE: Outcome(2e-3, is_timed=False)})
    added.add_outcomes((), {ONE: Outcome(1e-3)})
    assert of(database).known() == {ONE: Known({}, {(): Outcome(1e-3)})}


def test_failures_of_the_machine_are_not_known(database):
    added = of(database)
    added.add_builds({ONE: {}, OTHER: Failure(FailureKind.TIMEOUT, "late")})
    added.add_outcomes((8,), {ONE: Outcome(Failure(FailureKind.CRASH, "died"))})
    assert of(database).known() == {ONE: Known({})}


def test_gc_drops_what_does_not_hold_any_more(database):
    of(database).add_builds({ONE: {}, OTHER: {}})
    newer = Versions(TODAY.common, (("default", 1), ("tiled", 4), ("other", 2)))
    assert database.gc(versions=[TODAY]) == 0
    assert database.gc(versions=[newer]) == 1
    assert of(database).known() == {OTHER: Known({})}
    time.sleep(0.01)
    assert database.gc(older_than_s=0.001) == 2  # with its workload
    assert of(database).known() == {}


def test_outcomes_without_a_build_say_nothing(database):
    of(database).add_outcomes((8,), {ONE: Outcome(1e-3)})
    assert of(database).known() == {}
