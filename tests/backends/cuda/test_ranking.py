"""Which candidates of several implementations are tried."""

from __future__ import annotations

from subtune.backends.cuda.ranking import rank
from subtune.core.candidate import Candidate


def made(family: str, *microseconds: float) -> list[Candidate]:
    return [Candidate.make(family, us * 1e-6, number=i) for i, us in enumerate(microseconds)]


def test_who_has_hope_has_a_share() -> None:
    found = rank([*made("fast", *range(10, 30)), *made("near", 24, 25, 26), *made("slow", 90)], 10)
    assert len(found) == 10
    assert [candidate.family for candidate in found].count("near") == 2
    assert found[0] == made("fast", 10)[0]


def test_the_second_implementation_has_a_place_without_hope() -> None:
    """All of the first may fail, and the default schedule be slower still."""
    found = rank([*made("fast", *range(10, 30)), *made("slow", 400, 500), *made("slower", 900)], 10)
    assert [candidate.family for candidate in found] == ["fast"] * 9 + ["slow"]
    assert rank([*made("fast", 10, 11), *made("slow", 400)], 1)[0].family == "fast"
