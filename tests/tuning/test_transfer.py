"""What near searches do to a search: by replayed outcomes, with nothing timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from subtune import backends
from subtune.backends import as_device
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Failure, FailureKind, Measurement, Timing
from subtune.core.record import Record
from subtune.core.versions import Scope
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.measure import ReplayMeasurer
from subtune.tuning.proposals import propose
from subtune.tuning.search import Search, Single, tune
from subtune.tuning.transfer import FAR, KEPT, Near, Neighbours, adapted, transferred
from tests.patterns.test_likeness import product
from tests.tuning.test_search import CANDIDATES, WRONG, outcomes, policy, scale, with_versions
from tests.tuning.test_sites import WORKLOADS, Measurer

MINE = scale(64)
ORDINARY = (5.0, 4.0, 3.0, 2.0, 6.0, 6.0, 6.0, 6.0)
"""Of all candidates, the fastest being the fourth: within the first half."""
LATE = (5.0, 4.0, 3.0, 6.0, 6.0, 6.0, 6.0, 2.0)


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "t.db") as opened:
        yield opened


def tuned(workload, device, database, times=ORDINARY, transfer=True, measurer=None, **options):
    measurer = measurer or ReplayMeasurer(outcomes(*times))
    search = Search(**{"topk": 8, "candidates": policy, "transfer": transfer, **options})
    records = tune([Single(workload)], device, search, database=database, measurer=measurer)
    return records, [candidate for what, candidate in measurer.log if what == "build" and candidate != DEFAULT]


def store(database: Database, workload: Workload, device: Device, name: str, times: Sequence[float]) -> None:
    """A complete search of another device."""
    scope = Scope(name, device.backend.versions())
    timings = {c: Timing(t, t, 0.0, 9) for c, t in zip(CANDIDATES, times, strict=False)}
    best = min(timings, key=lambda candidate: timings[candidate].min_s)
    database.add_measurements(workload, scope, [Measurement(c, t, 0.0) for c, t in timings.items()])
    default = Timing(10.0, 10.0, 0.0, 9)
    record = Record(workload.key, name, best, timings[best], default, 5.0, "h", 8, 8, 0, complete=True)
    database.add_record(workload, record, scope.versions)


def proposals_of(workload, device, database, ask=policy, topk=8):
    device = as_device(device)
    return propose(workload, device, topk, database, ask, Neighbours(database, device, [workload]))


def test_the_winner_of_a_near_workload_is_first_and_half_of_the_rest_is_tried(device, database):
    tuned(scale(128), device, database, transfer=False)
    found = proposals_of(MINE, device, database)
    assert found.all == (CANDIDATES[3], *CANDIDATES[:3])
    assert found.first == CANDIDATES[3:4]
    assert found.transferred.full == 8
    records, built = tuned(MINE, device, database)
    assert built == list(found.all)
    record = records[MINE.key]
    assert (record.candidate, record.tried, record.complete, record.topk) == (CANDIDATES[3], 4, True, 8)
    assert len(built) <= KEPT * len(CANDIDATES)


def test_where_the_first_half_was_not_enough_all_are_tried_the_near_winner_first(device, database):
    tuned(scale(128), device, database, LATE, transfer=False)
    records, built = tuned(MINE, device, database, LATE)
    assert built == [CANDIDATES[7], *CANDIDATES[:7]]
    assert records[MINE.key].candidate == CANDIDATES[7]


def test_a_search_that_was_cut_off_gives_its_winner_and_saves_nothing(device, database):
    store(database, scale(128), as_device(device), as_device(device).scope().device, ORDINARY)
    (record,) = database.list_records()
    database.add_suggestion(scale(128), CANDIDATES[0], 1.0)  # which makes the record incomplete
    assert not database.list_records()[0].complete
    assert record.complete
    assert proposals_of(MINE, device, database).all == (CANDIDATES[3], *CANDIDATES[:3], *CANDIDATES[4:])


def test_what_won_elsewhere_has_to_prove_itself(device, database):
    """It may compute something else here, or not apply: then it is one candidate that failed."""
    tuned(scale(128), device, database, transfer=False)
    for failure in (WRONG, Failure(FailureKind.INVALID, "31 divides nothing"), Failure(FailureKind.CRASH, "gone")):
        times = (5.0, 4.0, 3.0, failure, *[6.0] * 4)
        records, built = tuned(scale(96), device, database, times)
        assert built[0] == CANDIDATES[3]
        record = records[scale(96).key]
        assert (record.candidate, record.failed) == (CANDIDATES[2], 1)
        database.gc(older_than_s=-1)
        tuned(scale(128), device, database, transfer=False)


def test_the_nearest_count_and_those_too_far_do_not(device, database):
    own = as_device(device)
    here = own.scope().device
    for n, best in ((64 * 4, 1), (64 * 2, 2), (64 * 8, 0), (64 << 12, 0)):
        store(database, scale(n), own, here, [2.0 if i == best else 6.0 for i in range(8)])
    near = Neighbours(database, own, [MINE]).near(MINE)
    assert [(one.distance, one.record.candidate) for one in near] == [(1.0, CANDIDATES[2]), (2.0, CANDIDATES[1])]
    assert proposals_of(MINE, device, database).all == (*CANDIDATES[2:0:-1], CANDIDATES[0], CANDIDATES[3])
    far = scale(1)
    assert [one.distance for one in Neighbours(database, own, [far]).near(far)] == [7.0, 8.0]
    assert Neighbours(database, own, [product(8, 8, 8)]).near(product(8, 8, 8)) == ()
    assert all(one.distance < FAR for one in near)


def test_a_near_device_says_what_may_win_and_nothing_else_is_tried(device, database):
    """But for what the policy expects to be the fastest."""
    own = as_device(device)
    other = own.scope().device.replace("/t2", "/t4")
    assert 0 < own.backend.distance(own.scope().device, other) < FAR
    store(database, MINE, own, other, (5.0, 2.1, 3.0, 2.0, 6.0, 6.0, 6.0, 6.0))
    assert proposals_of(MINE, device, database).all == (CANDIDATES[3], CANDIDATES[1], CANDIDATES[0])
    records, built = tuned(MINE, device, database, (5.0, 1.5, 3.0, 2.0, 6.0, 6.0, 6.0, 6.0))
    assert (records[MINE.key].candidate, len(built)) == (CANDIDATES[1], 3)


def test_on_a_near_device_the_confirmed_winner_is_first_though_another_had_a_faster_sample():
    timings = {c: Timing(t, t, 0.0, 9) for c, t in zip(CANDIDATES, (5.0, 2.1, 3.0, 2.0, 6.0), strict=False)}
    record = Record("k", "d", CANDIDATES[1], *[Timing(2.0, 2.0, 0.0, 9)] * 2, 2.0, "h", 8, 8, 0, complete=True)
    near = Near(MINE, record, 1.0, timings, has_same_loops=True)
    found = transferred(CANDIDATES, CANDIDATES, [near], lambda _: CANDIDATES)
    assert (found.first, found.rest) == ((CANDIDATES[1], CANDIDATES[3]), CANDIDATES[:1])


def test_both_at_once_are_further_away_than_either(device, database):
    own = as_device(device)
    other = own.scope().device.replace("/t2", "/t4")
    store(database, scale(128), own, other, ORDINARY)
    (near,) = Neighbours(database, own, [MINE]).near(MINE)
    assert (near.distance, near.has_same_loops) == (2.0, False)
    store(database, scale(128), own, other.replace("x86_64", "sparc").replace("aarch64", "sparc"), ORDINARY)
    assert len(Neighbours(database, own, [MINE]).near(MINE)) == 1


def test_records_of_other_versions_and_of_default_schedules_are_not_looked_at(device, database):
    old, new = with_versions(device, t=1), with_versions(device, t=2)
    tuned(scale(128), old, database, transfer=False)
    assert len(Neighbours(database, old, [MINE]).near(MINE)) == 1
    assert Neighbours(database, new, [MINE]).near(MINE) == ()
    assert tuned(MINE, new, database)[1] == list(CANDIDATES)
    tuned(scale(256), device, database, [11.0] * 8, transfer=False)
    assert database.list_records(scale(256).key)[0].is_default
    assert Neighbours(database, as_device(device), [MINE]).near(MINE) == ()


def test_a_workload_with_a_record_of_its_own_is_searched_as_ever(device, database):
    tuned(scale(128), device, database, transfer=False)
    tuned(MINE, device, database, transfer=False, topk=4)
    found = proposals_of(MINE, device, database)
    assert (found.transferred, set(found.all)) == (None, set(CANDIDATES))


@pytest.mark.parametrize("is_switched_on", [False, True])
def test_nothing_is_transferred_unasked_nor_without_a_database(device, tmp_path, is_switched_on):
    if is_switched_on:
        records, built = tuned(MINE, device, None)
    else:
        with Database(tmp_path / "t.db") as database:
            tuned(scale(128), device, database, transfer=False)
            records, built = tuned(MINE, device, database, transfer=False)
    assert built == list(CANDIDATES)
    assert not records.transferred


def test_a_winner_is_adapted_by_what_its_family_proposes():
    winner = Candidate.make("c", mr=7, nr=32, order="n", prefetch=True)
    near, other_order = (Candidate.make("c", mr=mr, nr=32, order=o, prefetch=True) for mr, o in ((8, "n"), (7, "m")))
    plain, foreign = Candidate.make("c", mr=7, nr=32, order="n"), Candidate.make("d", mr=7, nr=32)
    assert adapted(winner, [foreign, plain, winner, near]) is winner
    assert adapted(winner, [foreign, other_order, plain, near]) is near
    assert adapted(winner, [foreign, other_order, plain]) is other_order, "equally far: the policy's order"
    assert adapted(winner, [foreign]) is None


def test_an_adapted_winner_may_stand_further_down_than_the_candidates_that_are_tried():
    seen = {candidate: Timing(1.0, 1.0, 0.0, 9) for candidate in CANDIDATES[:4]}
    winner = Candidate.make("t", i=40)
    record = Record("k", "d", winner, *[Timing(1.0, 1.0, 0.0, 9)] * 2, 2.0, "h", 8, 8, 0, complete=True)
    near = Near(MINE, record, 1.0, {**seen, winner: Timing(0.99, 0.99, 0.0, 9)})
    deep = Candidate.make("t", 7.0, i=32)
    found = transferred(CANDIDATES, (*CANDIDATES, deep), [near], lambda _: CANDIDATES)
    assert found.candidates == (deep, *CANDIDATES[:3])
    assert found.first[0].predicted_s == 7.0, "what is predicted here"


def test_real_winners_apply_to_real_workloads_of_other_shapes(device, database):
    """The policy proposes them, and the family schedules them."""
    own, there, here = as_device(device), product(64, 128, 64), product(96, 80, 48)
    for winner in backends.candidates(there, own, 8):
        chosen = adapted(winner, backends.candidates(here, own, 200))
        assert chosen is not None
        assert type(backends.schedule(here, chosen, own)).__name__ == "Kernel"


@pytest.mark.parametrize("is_filled", [False, True])
def test_on_any_number_of_devices_the_same_is_tried(tmp_path: Path, device, is_filled):
    """A run's own records are near to its other workloads, and are no reason to try anything."""
    found = []
    for number, sites in enumerate((1, 2, 5)):
        with Database(tmp_path / f"{number}.db") as database:
            if is_filled:
                store(database, scale(7), as_device(device), as_device(device).scope().device, ORDINARY)
            search = Search(topk=8, candidates=policy, transfer=True)
            jobs = [Single(one) for one in WORKLOADS]
            records = tune(jobs, device, search, database=database, measurer=Measurer(sites, number))
            assert len(records.transferred) == len(WORKLOADS) * is_filled
            tried = {key: frozenset(found) for key, found in records.outcomes.items()}
        found.append((dict(records), tried))
    assert found[1:] == found[:1] * 2
    assert {len(tried) for tried in found[0][1].values()} == ({4} if is_filled else {8})
