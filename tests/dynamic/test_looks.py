"""Which times of a kernel at an instance are not believed at once."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import Any

import pytest

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import Candidate
from subtune.core.dispatch import Extents
from subtune.core.measurement import Comparison, Failure, FailureKind, Timing
from subtune.dynamic.measure import Measurement, _Looks
from subtune.dynamic.measured import Measured
from subtune.dynamic.timing import in_turns, timed
from subtune.dynamic.workbench import Workbench
from subtune.measure.messages import Library
from tests.backends.workloads import dense
from tests.dynamic.flat_kernels import of_rows

ONE = Candidate("it")


def looks(seconds: dict[Extents, float], in_line: bool = True, fresh: tuple[Extents, ...] = ((16,),)) -> _Looks:
    nothing: Any = None
    found = Measured(seconds={ONE: seconds})
    return _Looks(found, nothing, nothing, {ONE: ()}, in_line, True, {at: {ONE} for at in fresh})


@pytest.mark.parametrize(("taken", "is_doubtful"), [(4e-6, False), (4.4e-6, False), (5e-6, True), (40e-6, True)])
def test_what_took_longer_than_its_neighbours_say(taken, is_doubtful):
    """In steps of four times the rows, time doubles."""
    known = {(4,): 2e-6, (16,): taken, (64,): 8e-6}
    assert looks(known).doubtful() == ({(16,): [ONE]} if is_doubtful else {})
    assert not looks(known, fresh=()).doubtful(), "what is remembered is not timed again"
    assert not looks(known, in_line=False).doubtful()


def test_the_ends_have_one_neighbour():
    assert not looks({(1,): 9e-6, (16,): 9e-6}, fresh=((1,), (16,))).doubtful()


def test_who_is_the_fastest_is_looked_at_where_there_is_more() -> None:
    """Who was proposed for few rows may be the fastest at more of them than it was measured at."""
    small, large, slow = (Candidate(name) for name in ("small", "large", "slow"))
    nothing: Any = None
    of = {small: {(2,): 1e-6}, large: {(2,): 1.05e-6, (5,): 2e-6}, slow: {(2,): 1.5e-6}}
    found = Measured(seconds=of)
    one = _Looks(found, nothing, nothing, {small: ((2,),), large: (), slow: ((2,),)}, True, True)
    assert one.upward((2,), (5,)) == [small]
    found.failures[small] = Failure(FailureKind.INVALID, "wrong at 3")
    assert one.upward((2,), (5,)) == []


def test_a_clock_that_changes_does_not_choose() -> None:
    """The second one is a tenth slower, whoever was timed while the clock was high."""
    first, second, broken = (Candidate(name) for name in ("first", "second", "broken"))
    clocks = iter([1.0, 1.0, 1.0, 1.3, 1.3, 1.3, 1.3, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])

    def time(one: Candidate) -> Timing | Failure:
        clock = next(clocks)
        if one == broken:
            return Failure(FailureKind.TIMEOUT, "it took too long")
        seconds = {first: 1e-6, second: 1.1e-6}[one] / clock
        return Timing(seconds, seconds, 0.0, 1)

    got = in_turns({first: 1.2e-6, second: 0.95e-6, broken: 1.3e-6}, time)
    assert got == pytest.approx({first: 0.95e-6, second: 0.95 * 1.1e-6, broken: 0.95 * 1.3e-6})


def test_instances_are_gone_through_upward(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the least to the greatest, each beside the next larger one; those that are only checked are left out."""
    pairs: list[tuple[Extents, Extents]] = []

    def upward(_looks: _Looks, low: Extents, high: Extents) -> list[Candidate]:
        pairs.append((low, high))
        return []

    monkeypatch.setattr(_Looks, "upward", upward)
    workload = of_rows(lambda rows: dense(rows, 32, 16))
    device = as_device(CPU("x86-64-v3", threads=1))
    nobody: Any = None
    recall = Workbench(nobody, None, lambda *_: None, is_recall=True)
    with closing(Measurement(workload, {ONE: ()}, [(1,), (20,), (5,)], [(7,)], False, device, recall)) as measurement:
        measurement.result()
    assert pairs == [((1,), (5,)), ((5,), (20,))]


def test_in_haste_each_is_looked_at_once() -> None:
    class Session:
        def __init__(self) -> None:
            self.looked: list[Candidate] = []

        def lend(self, *_: Any) -> None: ...

        def check(self, one: Candidate, _: float) -> Comparison:
            timing = Timing(1e-6, 1e-6, 0.0, 1)
            return Comparison(timing, timing, 1.0, 0.1)

        def silence(self) -> Any:
            return nullcontext()

        def time(self, one: Candidate, *_: Any) -> Timing:
            self.looked.append(one)
            return Timing(2e-6, 2e-6, 0.0, 1)

    libraries = {Candidate(name): Library(name, "", (), 0.0, (1,)) for name in ("a", "b", "c")}
    hasty, thorough = Session(), Session()
    for session, in_haste in ((hasty, True), (thorough, False)):
        found = timed((7,), session, libraries, True, (), {}, in_haste)  # type: ignore[arg-type]
        assert found == dict.fromkeys(libraries, 2e-6)
    assert hasty.looked == list(libraries)
    assert len(thorough.looked) > len(libraries)
