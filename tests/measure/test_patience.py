"""What is timed on a machine that is slower than it was: waited for, and corrected where it stays so."""

from __future__ import annotations

import pytest

from subtune.core.measurement import Comparison, Timing
from subtune.measure import sentinel_base
from subtune.measure.sentinel_base import Patience


class Machine:
    """Whose fixed piece of work takes `slowdown` milliseconds."""

    def __init__(self) -> None:
        self.slowdown = 1.0

    def work(self) -> float:
        return self.slowdown * 1e-3


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def patience(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Patience:
    monkeypatch.setattr(sentinel_base, "_PATIENCE_S", 0.05)
    return Patience(machine.work)


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, 0.01, 5)


def test_a_machine_that_is_itself_is_taken_at_its_word(patience: Patience) -> None:
    assert patience.undisturbed(lambda: timing(3.0), Timing.on_a_machine) == timing(3.0)


def test_times_of_a_machine_that_stays_slow_are_divided_by_how_slow_it_is(machine: Machine, patience: Patience) -> None:
    machine.slowdown = 2.0
    assert patience.undisturbed(lambda: timing(3.0), Timing.on_a_machine) == timing(1.5)
    compared = Comparison(timing(3.0), timing(6.0), 2.0, 0.1)
    assert patience.undisturbed(lambda: compared, Comparison.on_a_machine) == Comparison(
        timing(1.5), timing(3.0), 2.0, 0.1
    )


def test_what_nobody_corrects_stays_as_it_was_seen(machine: Machine, patience: Patience) -> None:
    machine.slowdown = 2.0
    assert patience.undisturbed(lambda: timing(3.0)) == timing(3.0)


def test_a_machine_that_became_slow_meanwhile_is_not_corrected_for_that(machine: Machine, patience: Patience) -> None:
    """It may have been itself for most of the look."""

    def look() -> Timing:
        machine.slowdown = 2.0
        return timing(3.0)

    patience._left_s = 0.0
    assert patience.undisturbed(look, Timing.on_a_machine) == timing(3.0)


def test_a_machine_that_was_slow_before_is_waited_for(machine: Machine, patience: Patience) -> None:
    machine.slowdown = 2.0
    looks = 0

    def look() -> Timing:
        nonlocal looks
        looks += 1
        machine.slowdown = 1.0
        return timing(3.0 / looks)

    assert patience.undisturbed(look, Timing.on_a_machine).median_s == 3.0
