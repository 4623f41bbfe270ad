"""Which candidates are built first."""

from __future__ import annotations

from subtune.core.candidate import Candidate
from subtune.tuning.waves import in_turn


def made(family: str, tile: int, order: str, seconds: float) -> Candidate:
    return Candidate.make(family, seconds, tile=tile, order=order)


def tile_of(candidate: Candidate) -> object:
    return candidate.family, dict(candidate.knobs)["tile"]


GIVEN = [
    made("direct", 8, "m", 1.0),
    made("direct", 8, "n", 1.1),
    made("direct", 4, "m", 1.2),
    made("winograd", 2, "m", 1.3),
    made("fft", 2, "m", 3.0),
]


def test_the_best_of_every_family_comes_first_and_then_that_of_every_tile() -> None:
    assert in_turn(GIVEN, tile_of) == [GIVEN[0], GIVEN[3], GIVEN[2], GIVEN[4], GIVEN[1]]


def test_a_family_far_behind_waits_unless_families_are_compared_still_less_well() -> None:
    assert in_turn(GIVEN, tile_of, every_family=True) == [GIVEN[0], GIVEN[3], GIVEN[4], GIVEN[2], GIVEN[1]]
