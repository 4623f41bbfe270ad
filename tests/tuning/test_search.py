"""What the tuner decides, by replayed outcomes: exact, fast, and the same every time."""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from tvm import te, tirx

from subtune.backends import as_device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.core.record import CALLS, PAIRS
from subtune.core.versions import Versions
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.measure import ReplayMeasurer
from subtune.measure.replay import ReplaySession
from subtune.tuning.job import Step
from subtune.tuning.order import may_join
from subtune.tuning.search import Search, tune, tune_subgraph

CANDIDATES = tuple(Candidate.make("t", i=i) for i in range(8))
WRONG = Failure(FailureKind.WRONG_RESULT, "wrong")


@dataclass(frozen=True)
class Subgraph:
    workload: Workload
    uses: int = 1


def scale(n: int) -> Workload:
    a = te.placeholder((n,), "float32", name="a")
    return Workload.of(te.create_prim_func([a, te.compute((n,), lambda i: a[i] * 2)]), 1)


@pytest.fixture(scope="module")
def workload():
    return scale(64)


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "t.db") as opened:
        yield opened


class Clock:
    """Stands still but for those who sleep: what a deadline cuts off is the same on every machine."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in ("tuning.search", "tuning.workload_search", "tuning.picks", "measure.halving", "measure.replay"):
        monkeypatch.setattr(f"subtune.{module}.time", made)
    return made


def with_versions(device, **families):
    """The device, of a backend whose families have these versions."""
    whole = as_device(device)

    class Versioned(type(whole.backend)):
        def versions(self):
            return Versions("tvm-1/test-1", tuple(families.items()))

    return replace(whole, backend=Versioned())


def with_overlap(device):
    """The device, of a backend whose timings leave the cores free to build."""
    whole = as_device(device)

    class Overlapping(type(whole.backend)):
        measuring = replace(whole.backend.measuring, overlaps=True)

    return replace(whole, backend=Overlapping())


def policy(workload, device, topk):
    return CANDIDATES[:topk]


def outcomes(*times, default=10.0):
    return {DEFAULT: default, **dict(zip(CANDIDATES, times, strict=False))}


def search(workload, device, measurer, database=None, **options):
    wanted = Search(**{"topk": 8, "candidates": policy, **options})
    return tune_subgraph(workload, device, wanted, database=database, measurer=measurer)


def tune_all(subgraphs, device, measurer, later=(), database=None, progress=None, **options):
    wanted = Search(**{"topk": 8, "candidates": policy, **options})
    return tune(subgraphs, device, wanted, database=database, measurer=measurer, progress=progress, later=later)


def test_the_fastest_sound_candidate_wins(workload, device):
    measurer = ReplayMeasurer(outcomes(4.0, WRONG, 2.0, 3.0, Failure(FailureKind.INVALID, "no"), 5.0, 6.0, 7.0))
    record = search(workload, device, measurer)
    assert record.candidate == CANDIDATES[2]
    assert record.timing.median_s == 2.0
    assert record.default_timing.median_s == 10.0
    assert record.gain == 5.0
    assert record.default_s == 10.0
    assert record.func_hash == f"hash-of-{CANDIDATES[2]}"
    assert (record.tried, record.failed, record.complete) == (8, 2, True)
    assert (record.workload_key, record.device) == (workload.key, device.fingerprint())
    assert ("time", CANDIDATES[4]) not in measurer.log  # it was never built


def test_never_slower_than_the_default(workload, device):
    record = search(workload, device, ReplayMeasurer(outcomes(*[11.0] * 8)))
    assert record.is_default
    assert record.gain == 1.0
    assert record.timing == record.default_timing
    assert record.func_hash == f"hash-of-{DEFAULT}"


def test_what_the_default_takes_is_said_by_the_pairs(workload, device):
    """Medians of two rows of samples may come from different states of the machine, and then contradict the pairs."""
    record = search(workload, device, ReplayMeasurer(outcomes(4.0, *[20.0] * 7)))
    drifted = replace(record, gain=1.25, default_timing=replace(record.default_timing, median_s=3.9))
    assert drifted.default_s == 5.0


def test_a_gain_within_the_noise_is_no_gain(workload, device):
    times = outcomes(9.95, *[20.0] * 7)
    assert search(workload, device, ReplayMeasurer(times)).is_default
    times = outcomes(9.0, *[20.0] * 7)
    assert not search(workload, device, ReplayMeasurer(times)).is_default
    assert search(workload, device, ReplayMeasurer(times, spread=0.2)).is_default


def test_the_default_stands_when_every_candidate_fails_or_none_exists(workload, device):
    failures = [Failure(kind, "bad") for kind in FailureKind]
    record = search(workload, device, ReplayMeasurer(outcomes(*failures)), topk=len(failures))
    assert record.is_default
    assert record.failed == len(failures)
    record = search(workload, device, ReplayMeasurer({DEFAULT: 1.0}), candidates=lambda *_: ())
    assert record.is_default
    assert record.complete


def test_a_winner_that_fails_its_second_check_gives_way_to_the_next(workload, device):
    measurer = ReplayMeasurer(outcomes(2.0, 3.0, *[8.0] * 6))
    original = measurer.session

    @contextmanager
    def session(*args):
        with original(*args) as inner:
            compare = inner.compare
            inner.compare = lambda c, s: WRONG if c == CANDIDATES[0] else compare(c, s)
            yield inner

    measurer.session = session
    record = search(workload, device, measurer)
    assert record.candidate == CANDIDATES[1]
    assert record.failed == 1


def test_a_second_run_takes_the_record_and_runs_nothing(workload, device, database):
    first = search(workload, device, ReplayMeasurer(outcomes(*range(2, 10))), database)
    again = ReplayMeasurer({DEFAULT: 1.0})
    assert search(workload, device, again, database) == first
    assert again.log == []
    wider = search(workload, device, ReplayMeasurer(outcomes(*[float(i) for i in range(2, 10)])), database, topk=9)
    assert wider.topk == 9  # a wider search is not answered by a narrower one


def test_candidates_that_failed_for_good_are_not_tried_again(workload, device, database):
    crash = Failure(FailureKind.CRASH, "once")
    measurer = ReplayMeasurer(outcomes(WRONG, crash, 3.0, *[9.0] * 5))
    search(workload, device, measurer, database, topk=8)
    again = ReplayMeasurer(outcomes(1.0, 2.0, 3.0, *[9.0] * 5))
    record = search(workload, device, again, database, topk=20)
    assert ("build", CANDIDATES[0]) not in again.log
    assert record.candidate == CANDIDATES[1]  # a crash may have been the machine's: it gets a second chance
    assert record.failed == 1


def test_an_imported_candidate_is_tried_first_and_must_prove_itself(workload, device, database):
    imported = Candidate.make("trace", json="[]")
    search(workload, device, ReplayMeasurer(outcomes(5.0)), database)
    database.add_suggestion(workload, imported, 1.0)
    measurer = ReplayMeasurer({**outcomes(5.0), imported: 4.0})
    record = search(workload, device, measurer, database)
    assert record.candidate == imported
    assert record.timing.median_s == 4.0
    assert record.complete


def test_all_outcomes_are_in_the_database(workload, device, database):
    search(workload, device, ReplayMeasurer(outcomes(2.0, WRONG, 4.0, *[9.0] * 5)), database)
    _, records, measurements = database.show(workload.key)
    assert [r.candidate for r in records] == [CANDIDATES[0]]
    by_candidate = {m.candidate: m.outcome for m in measurements}
    assert by_candidate[CANDIDATES[1]] == WRONG
    assert isinstance(by_candidate[CANDIDATES[2]], Timing)
    assert set(by_candidate) == set(CANDIDATES)


def test_one_of_every_tile_is_built_first_and_other_loops_only_around_the_better_tiles(workload, device, monkeypatch):
    monkeypatch.setattr("subtune.tuning.workload_search.usable_cores", lambda: 2)
    factors = (1.3, 1.0, 1.12, 1.04)  # of the prediction, tile by tile
    tiles = [[Candidate.make("contraction", 1.0, mr=mr, order=order) for order in ("m", "mn", "n")] for mr in range(4)]
    latency = {c: factors[mr] for mr, tile in enumerate(tiles) for c in tile} | {tiles[3][2]: 0.9, tiles[0][2]: 0.5}
    measurer = ReplayMeasurer({DEFAULT: 10.0, **latency})
    proposals = [c for tile in tiles for c in tile]
    record = search(workload, device, measurer, candidates=lambda *_: proposals, topk=12)
    built = [candidate for what, candidate in measurer.log if what == "build"]
    assert built == [DEFAULT, *(tile[0] for tile in tiles), tiles[0][1], *tiles[1][1:], *tiles[3][1:]]
    assert record.candidate == tiles[3][2]  # the price: another order around the worst tile would have won
    assert record.complete
    looks = [candidate for what, candidate in measurer.log if what == "time"]
    assert looks.count(tiles[0][0]) == 1  # the look at the first wave is that of the first round


def test_a_first_wave_that_fails_leaves_the_rest_to_be_built(workload, device):
    proposals = [Candidate.make("c", 1.0, mr=mr) for mr in range(20)]
    latency = {c: WRONG if i < 19 else 1.0 for i, c in enumerate(proposals)}
    measurer = ReplayMeasurer({DEFAULT: 10.0, **latency})
    record = search(workload, device, measurer, candidates=lambda *_: proposals, topk=20)
    assert record.candidate == proposals[19]
    assert (record.tried, record.failed) == (20, 19)


def test_after_the_deadline_nothing_begins(workload, device, database, clock):
    measurer = ReplayMeasurer(outcomes(2.0))
    assert search(workload, device, measurer, database, budget_s=0.0) is None
    assert measurer.log == []


def test_a_search_that_was_cut_off_is_incomplete_and_is_continued(workload, device, database, clock):
    measurer = ReplayMeasurer(outcomes(*[5.0] * 7, 2.0), call_s=0.05)
    record = search(workload, device, measurer, database, budget_s=0.5)
    assert record is not None
    assert not record.complete
    resumed = search(workload, device, ReplayMeasurer(outcomes(*[5.0] * 7, 2.0)), database)
    assert resumed.complete
    assert resumed.candidate == CANDIDATES[7]


def test_the_same_outcomes_give_the_same_record(workload, device):
    times = outcomes(3.0, 3.01, 2.999, 3.0, 3.02, 4.0, 4.0, 4.0)
    records = {search(workload, device, ReplayMeasurer(times)) for _ in range(5)}
    assert len(records) == 1
    assert records.pop().candidate == CANDIDATES[0]


def test_every_workload_once_those_with_most_at_stake_first(device):
    small, large = scale(64), scale(4096)
    measurer = ReplayMeasurer(outcomes(*[2.0] * 8))
    seen = []
    subgraphs = [Subgraph(small), Subgraph(large), Subgraph(small)]
    records = tune_all(subgraphs, device, measurer, progress=seen.append)
    assert set(records) == {small.key, large.key}
    assert list(dict.fromkeys(p.workload_key for p in seen)) == [large.key, small.key]
    assert sum(c == DEFAULT for what, c in measurer.log if what == "build") == 2
    assert not records.interrupted
    uses = tune_all([Subgraph(small, uses=1000), Subgraph(large)], device, measurer)
    assert set(uses) == set(records)


def test_every_workload_has_its_first_before_any_has_its_second(device):
    workloads = [scale(2**i) for i in range(6, 12)]
    measurer = ReplayMeasurer(outcomes(*[2.0] * 8))
    tune_all([Subgraph(w) for w in workloads], device, measurer)
    checks = [key for key, (what, c) in zip(measurer.workloads, measurer.log, strict=True) if what == "check"]
    assert checks[:6] == [w.key for w in reversed(workloads)]
    second = measurer.log.index(("build", CANDIDATES[1]))
    assert sum(what == "check" for what, _ in measurer.log[:second]) == 6


def test_a_budget_for_the_first_round_leaves_nothing_to_its_default(device, database, clock):
    """Of eight workloads all have a kernel that is five times as fast, though time is over before the second round."""
    subgraphs = [Subgraph(scale(2**i)) for i in range(4, 12)]
    measurer = ReplayMeasurer(outcomes(*[2.0] * 8), call_s=0.02)
    records = tune_all(subgraphs, device, measurer, database=database, budget_s=8 * 3 * 0.02)
    assert len(records) == 8
    assert {(r.candidate, r.confirmed, r.complete) for r in records.values()} == {(CANDIDATES[0], CALLS, False)}
    assert ("build", CANDIDATES[1]) not in measurer.log


def test_what_a_check_does_not_tell_is_timed_in_turns_before_it_ships(device, clock):
    measurer = ReplayMeasurer(outcomes(*[7.0] * 8), call_s=0.02)
    hasty = tune_all([Subgraph(scale(64))], device, measurer, budget_s=0.06)
    assert hasty == {}, "the default stays: a factor of 10/7 in a few calls proves nothing"
    record = tune_all([Subgraph(scale(64))], device, measurer, budget_s=0.08)[scale(64).key]
    assert (record.candidate, record.confirmed, record.complete) == (CANDIDATES[0], PAIRS, False)
    slower = ReplayMeasurer(outcomes(*[11.0] * 8), call_s=0.02)
    record = tune_all([Subgraph(scale(64))], device, slower, budget_s=0.08)[scale(64).key]
    assert (record.candidate, record.confirmed) == (DEFAULT, PAIRS)


def test_what_was_checked_and_left_the_first_behind_ships_though_time_is_up(workload, device, clock):
    measurer = ReplayMeasurer(outcomes(4.0, 3.9, 2.0, *[5.0] * 5, default=50.0), call_s=0.02)
    record = search(workload, device, measurer, budget_s=0.19)
    assert measurer.log[-1] == ("check", CANDIDATES[2]), "it was not timed"
    assert (record.candidate, record.confirmed, record.complete) == (CANDIDATES[2], CALLS, False)


def test_time_goes_where_most_is_expected(device, clock):
    """Two workloads of a kind, of which the model runs one a thousand times as often: it is finished first."""
    often, seldom = scale(64), scale(65)
    measurer = ReplayMeasurer(outcomes(*[2.0] * 8), call_s=0.02)
    tune_all([Subgraph(seldom), Subgraph(often, uses=1000)], device, measurer, budget_s=0.6, database=None)
    first = ["build", "build", "check"]
    assert [what for what, _ in measurer.log[:8]] == [*first, *first, "time", "time"]
    after_first = measurer.workloads[8:]
    seldom_again = after_first.index(seldom.key)
    assert set(after_first[:seldom_again]) == {often.key}
    assert ("compare", CANDIDATES[0]) in measurer.log[8 : 8 + seldom_again], "it is finished"


def test_the_order_of_arrival_does_not_matter(device):
    """The same outcomes with other latencies of the measurer itself: the same calls and records."""
    subgraphs = [Subgraph(scale(2**i), uses=i) for i in range(4, 9)]
    quick, slow = (ReplayMeasurer(outcomes(6.0, 2.0, 3.0, 4.0), call_s=s) for s in (0.0, 0.001))
    assert tune_all(subgraphs, device, quick, budget_s=3600) == tune_all(subgraphs, device, slow, budget_s=3600)
    assert quick.log == slow.log


def test_progress_tells_where_the_run_stands(device):
    seen = []
    measurer = ReplayMeasurer(outcomes(4.0, 2.0))
    tune_all([Subgraph(scale(n)) for n in (8, 16)], device, measurer, progress=seen.append)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert [p.share for p in seen] == sorted(p.share for p in seen)
    assert 0 < seen[-1].share <= 1
    assert {p.total for p in seen} == {2}
    assert seen[0].best_s == math.inf
    assert seen[-1].best_s == 2.0
    assert math.isinf(seen[0].eta_s)
    assert math.isfinite(seen[-1].eta_s)


def test_the_budget_is_kept_and_what_it_cuts_off_is_missing(device, database, clock):
    subgraphs = [Subgraph(scale(2**i)) for i in range(4, 12)]
    begin = clock.monotonic()
    measurer = ReplayMeasurer(outcomes(*[2.0] * 8), call_s=0.02)
    records = tune_all(subgraphs, device, measurer, budget_s=0.3, database=database)
    assert clock.monotonic() - begin < 0.4
    assert 0 < len(records) < 8
    assert max(s.workload.nbytes for s in subgraphs) == max(
        database.workload(key).nbytes for key in records
    )  # the largest stake came first


@pytest.mark.parametrize("budget_s", [None, 3600])
def test_building_beside_the_clock_decides_the_same(device, clock, budget_s):
    subgraphs = [Subgraph(scale(2**i), uses=i) for i in range(4, 12)]
    times = outcomes(4.0, WRONG, 2.0, 3.0, Failure(FailureKind.INVALID, "no"), 5.0, 6.0, 7.0)
    plain = tune_all(subgraphs, device, ReplayMeasurer(times, call_s=0.02), budget_s=budget_s)
    beside = tune_all(subgraphs, with_overlap(device), ReplayMeasurer(times, call_s=0.02), budget_s=budget_s)
    assert {key: (r.candidate, r.tried, r.complete) for key, r in beside.items()} == {
        key: (r.candidate, r.tried, r.complete) for key, r in plain.items()
    }
    assert len(plain) == 8


def test_while_first_candidates_are_checked_the_next_of_whose_turn_comes_are_built(device):
    """Where timing leaves the cores free."""
    works = [scale(n) for n in (1 << 20, 1 << 18, 1 << 16, 1 << 14)]
    seen = []

    class Noting(ReplaySession):
        def prefetch(self, candidates):
            seen.extend((self._key, c) for c in candidates)

        def check(self, candidate, patience_s=math.inf):
            seen.append((self._key, "check"))
            return super().check(candidate, patience_s)

    class Measurer(ReplayMeasurer):
        def session(self, workload, device, deadline=math.inf):
            return nullcontext(Noting(self, workload, self._outcomes))

    def fetched_before(which, on, **limits):
        seen.clear()
        tune_all([Subgraph(work) for work in works], on, Measurer(outcomes(*[2.0] * 8)), **limits)
        check = seen.index((works[which].key, "check"))
        return {key for key, what in seen[:check] if what == CANDIDATES[1]}

    everything = {work.key for work in works}
    assert fetched_before(0, with_overlap(device)) == everything, "they are built in any case"
    assert fetched_before(-1, with_overlap(device), budget_s=3600) == {work.key for work in works[:3]}
    assert fetched_before(-1, device) == set()


def test_while_some_are_timed_the_next_candidates_of_others_are_built(device):
    """Where builds disturb nothing: else each workload goes all its way before the fourth after it begins."""
    works = [scale(64 + i) for i in range(7)]
    seen = []

    class Noting(ReplaySession):
        def prefetch(self, candidates):
            seen.extend((self._key, "ask", candidate) for candidate in candidates)

        def time(self, candidate, seconds, stop_above_s):
            seen.append((self._key, "time", candidate))
            return super().time(candidate, seconds, stop_above_s)

    class Measurer(ReplayMeasurer):
        def session(self, workload, device, deadline=math.inf):
            return nullcontext(Noting(self, workload, self._outcomes))

    def between(on):
        """What is timed of others after the build of the first workload's last candidate was asked for."""
        seen.clear()
        tune_all([Subgraph(work) for work in works], on, Measurer(outcomes(*[2.0] * 8)))
        first = works[0].key
        last = next(c for key, what, c in reversed(seen) if (key, what) == (first, "ask"))
        asked = seen.index((first, "ask", last))
        timed = seen.index((first, "time", last))
        return {key for key, what, _ in seen[asked:timed] if what == "time"} - {first}

    assert len(between(with_overlap(device))) >= 4
    assert between(device) <= {work.key for work in works[:3]}


def test_what_cannot_win_any_more_is_not_tuned_to_the_end(device, clock):
    """Of two alternatives, one is not begun, and the other ends after the first look."""
    own, never, seldom = scale(64), scale(65), scale(66)
    asked = []

    def worth(seen):
        asked.append(seen)
        return {seldom.key} if seldom.key not in seen.seconds else set()

    measurer = ReplayMeasurer(outcomes(*[2.0] * 8), call_s=0.02)
    wanted = Search(topk=8, candidates=policy)
    found = tune(
        [Subgraph(own)], device, wanted, measurer=measurer, later=[Subgraph(never), Subgraph(seldom)], worth=worth
    )
    assert found[own.key].complete
    assert asked[0].settled == {own.key}
    assert never.key not in found
    assert not found[seldom.key].complete
    assert set(found.reasons()) == {never.key, seldom.key}
    assert len(found.outcomes[seldom.key]) < 8


def test_a_rival_joins_when_all_have_their_first_candidate_and_time_is_short(device, clock):
    """Else a short budget is spent before it has its turn, and what it would have outrun ships."""
    own, rival, late = scale(64), scale(65), scale(66)

    def found_with(budget_s):
        return tune(
            [Subgraph(own)], device, Search(topk=8, candidates=policy, budget_s=budget_s),
            measurer=ReplayMeasurer(outcomes(*[2.0] * 8), call_s=0.02), rivals=[Subgraph(rival)],
            later=[Subgraph(late)], worth=lambda seen: {rival.key, late.key},
        )  # fmt: skip

    short, whole = found_with(0.2), found_with(None)
    assert set(short) == {own.key, rival.key}
    assert not short[own.key].complete
    assert set(whole) == {own.key, rival.key, late.key}
    assert all(record.complete for record in whole.values())


def test_a_rival_that_is_outrun_is_given_up(device, clock):
    own, rival = scale(64), scale(65)
    measurer = ReplayMeasurer(outcomes(*[2.0] * 8), call_s=0.02)
    wanted = Search(topk=8, candidates=policy, budget_s=3600)
    found = tune(
        [Subgraph(own)], device, wanted, measurer=measurer, rivals=[Subgraph(rival)],
        worth=lambda seen: set() if rival.key in seen.seconds else {rival.key},
    )  # fmt: skip
    assert found[own.key].complete
    assert not found[rival.key].complete
    assert set(found.reasons()) == {rival.key}


def test_a_rebuild_gives_up_what_the_compile_gave_up(device, clock, database):
    """By a look that no record confirms, which the database has kept."""
    own, rival = scale(64), scale(65)
    measurer = ReplayMeasurer(outcomes(*[2.0] * 8), call_s=0.02)

    def found_with(search):
        return tune(
            [Subgraph(own)], device, search, database=database, measurer=measurer, rivals=[Subgraph(rival)],
            worth=lambda seen: set() if rival.key in seen.seconds else {rival.key},
        )  # fmt: skip

    compiled = found_with(Search(topk=8, candidates=policy, budget_s=3600))
    rebuilt = found_with(Search(topk=8, candidates=policy, budget_s=0.0))
    assert set(compiled.reasons()) == set(rebuilt.reasons()) == {rival.key}
    assert compiled.reasons() == rebuilt.reasons()


def test_ctrl_c_keeps_what_was_tuned(device, database):
    subgraphs = [Subgraph(scale(64)), Subgraph(scale(4096))]

    def interrupt(progress):
        if progress.done == 1 and progress.tried > 3:
            raise KeyboardInterrupt

    measurer = ReplayMeasurer(outcomes(*[2.0] * 8))
    records = tune_all(subgraphs, device, measurer, database=database, progress=interrupt)
    assert records.interrupted
    finished, begun = (records[subgraphs[i].workload.key] for i in (1, 0))
    assert finished.complete
    assert (begun.complete, begun.confirmed) == (False, CALLS)
    again = ReplayMeasurer(outcomes(*[2.0] * 8))
    records = tune_all(subgraphs, device, again, database=database)
    assert all(record.complete for record in records.values())
    assert sum(c == DEFAULT for what, c in again.log if what == "build") == 1  # only the one cut off


def test_a_workload_without_a_working_default_does_not_stop_the_others(device):
    class OneBroken(ReplayMeasurer):
        def session(self, workload, device, deadline=math.inf):
            broken = {c: Failure(FailureKind.BUILD, "no") for c in self._outcomes}
            return nullcontext(ReplaySession(self, workload, broken if workload.key == bad.key else self._outcomes))

    bad, good = scale(4096), scale(64)
    records = tune_all([Subgraph(bad), Subgraph(good)], device, OneBroken(outcomes(*[2.0] * 8)))
    assert set(records) == {good.key}
    assert "cannot be built" in records.failures[bad.key]


def test_where_the_first_fails_its_check_the_next_are_built_meanwhile(device):
    """Twenty that fail one after the other were twenty builds one after the other."""
    fetched = []

    class Noting(ReplaySession):
        def prefetch(self, candidates):
            fetched.append(tuple(candidates))

    class Measurer(ReplayMeasurer):
        def session(self, workload, device, deadline=math.inf):
            return nullcontext(Noting(self, workload, self._outcomes))

    work = scale(64)
    records = tune_all([Subgraph(work)], device, Measurer(outcomes(WRONG, WRONG, 2.0, 3.0, 4.0, 5.0)))
    assert records[work.key].candidate == CANDIDATES[2]
    assert CANDIDATES[1:5] in fetched
    assert CANDIDATES[2:6] in fetched


def test_a_symbolic_workload_is_left_to_its_default(device):
    n = tirx.Var("n", "int64")
    a = te.placeholder((n, 8), "float32", name="a")
    symbolic = Workload.of(te.create_prim_func([a, te.compute((n, 8), lambda i, j: a[i, j] * 2)]), 1)
    good = scale(64)
    records = tune_all([Subgraph(symbolic), Subgraph(good)], device, ReplayMeasurer(outcomes(2.0)))
    assert set(records) == {good.key}
    assert records.failures == {symbolic.key: "it has a symbolic dim"}


def test_what_comes_later_takes_what_is_left(device, database):
    """However much time is at stake in it."""
    order = []
    small, large = scale(64), scale(1 << 20)

    def noting(workload, device, topk):
        order.append(workload.key)
        return CANDIDATES[:topk]

    options = {"topk": 4, "candidates": noting, "database": database}
    measurer = ReplayMeasurer(outcomes(2.0, 3.0, 4.0, 5.0))
    records = tune_all([Subgraph(small)], device, measurer, [Subgraph(large), Subgraph(small)], **options)
    assert order == [small.key, large.key]
    assert set(records) == {small.key, large.key}
    again = ReplayMeasurer({DEFAULT: 1.0})
    assert tune_all([Subgraph(small)], device, again, [Subgraph(large)], **options) == records
    assert again.log == []


@pytest.mark.usefixtures("clock")
def test_later_work_does_not_shorten_the_first(device):
    slow = ReplayMeasurer(outcomes(*range(2, 10)), call_s=0.02)
    huge = [Subgraph(scale((1 << 20) + i)) for i in range(4)]
    records = tune_all([Subgraph(scale(64))], device, slow, huge, budget_s=1.5)
    assert records[scale(64).key].complete


def test_after_a_family_has_changed_its_candidates_are_tried_anew_and_no_others(device, database):
    """Of the others those that came near the winner are timed beside the new ones, which want to be compared."""
    mine, theirs = CANDIDATES[:4], tuple(Candidate.make("theirs", i=i) for i in range(3))
    table = {DEFAULT: 10.0, **dict(zip((*mine, *theirs), (2.0, 2.1, 5.0, WRONG, 4.0, 3.0, 6.0), strict=True))}
    ask = {"topk": 7, "candidates": lambda *_: (*mine, *theirs), "database": database}
    workload, target = scale(64), with_versions(device, t=1, theirs=1)
    first = tune_all([Subgraph(workload)], target, ReplayMeasurer(table), **ask)[workload.key]
    assert first.complete
    target = with_versions(device, t=1, theirs=2)
    again = ReplayMeasurer({**table, theirs[1]: 1.0})
    record = tune_all([Subgraph(workload)], target, again, **ask)[workload.key]
    built = {candidate for what, candidate in again.log if what == "build"}
    assert built == {DEFAULT, *mine[:2], *theirs}
    assert (record.candidate, record.tried, record.failed, record.complete) == (theirs[1], 7, 1, True)
    unused = ReplayMeasurer({DEFAULT: 1.0})
    assert tune_all([Subgraph(workload)], target, unused, **ask) == {workload.key: record}
    assert unused.log == []


def test_while_the_first_is_built_the_next_are_built_beside_it(device):
    """Where builds disturb nothing: one workload alone left all builders but two idle."""
    fetched = []

    class Noting(ReplaySession):
        def prefetch(self, candidates):
            fetched.extend(candidates)

        def build(self, candidates, deadline):
            fetched.append("wait")
            return super().build(candidates, deadline)

    class Measurer(ReplayMeasurer):
        def session(self, workload, device, deadline=math.inf):
            return nullcontext(Noting(self, workload, self._outcomes))

    tune_all([Subgraph(scale(64))], with_overlap(device), Measurer(outcomes(*[2.0] * 8)))
    assert CANDIDATES[1] in fetched[: fetched.index("wait")]


def test_others_join_when_builders_would_wait_for_work():
    def may(*steps, is_hurried=False):
        return may_join([SimpleNamespace(step=step) for step in steps], is_hurried)

    many = [Step.WAVE] * 4
    assert not may(*many)
    assert may(*many, is_hurried=True)
    assert may(*many[:3], Step.FINISH, Step.DONE)
    assert may()
    assert not may(Step.SETTLE, Step.DONE)
    assert not may(Step.FIRST, is_hurried=True)
