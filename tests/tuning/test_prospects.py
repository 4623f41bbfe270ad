"""Which alternatives are still worth tuning, by given predictions and measurements."""

from __future__ import annotations

from subtune.core.graph import Alternative, Group, LoweredAlternative, LoweredRegion
from subtune.tuning.prospects import Prospects, Seen


def lowered(*keys: str) -> LoweredAlternative:
    groups = tuple(Group(f"g_{key}", key, (), (), (key,), (), (), ()) for key in keys)
    return LoweredAlternative(Alternative("+".join(keys), "why", groups), keys)


FUSED, SPLIT = lowered("ab"), lowered("a", "b")


def worth(seen: Seen, between_s: float = 0.0, **expected: float) -> frozenset[str]:
    return Prospects((LoweredRegion("r", (FUSED, SPLIT)),), expected, between_s).worth_tuning(seen)


def settled(**seconds: float) -> Seen:
    return Seen(seconds, seconds.keys())


def test_before_anything_is_measured_all_are() -> None:
    assert worth(Seen(), ab=1.0, a=9.0, b=9.0) == {"ab", "a", "b"}


def test_what_is_foreseen_to_be_far_slower_is_not() -> None:
    assert worth(settled(ab=10.0), ab=10.0, a=9.0, b=9.0) == set()
    assert worth(settled(ab=10.0), ab=10.0, a=8.0, b=8.0) == {"a", "b"}  # a prediction may be wrong by as much
    assert worth(settled(ab=10.0), between_s=1.0, ab=10.0, a=8.0, b=8.0) == set()


def test_predictions_that_were_too_long_are_taken_for_shorter() -> None:
    assert worth(settled(ab=10.0), ab=20.0, a=9.0, b=9.0) == {"a", "b"}


def test_first_candidates_say_more_than_predictions_and_ends_say_all() -> None:
    first = Seen({"ab": 10.0, "a": 6.0, "b": 6.0}, {"ab"})
    assert worth(first, ab=10.0, a=1.0, b=1.0) == {"a", "b"}
    slower = Seen({"ab": 10.0, "a": 7.0, "b": 6.0}, {"ab"})
    assert worth(slower, ab=10.0, a=1.0, b=1.0) == set()
    assert worth(settled(ab=10.0, a=6.0, b=6.0), ab=10.0, a=1.0, b=1.0) == set()


def test_the_partitions_own_kernel_is_not_tuned_where_another_way_is_faster() -> None:
    assert worth(settled(a=1.0, b=1.0), ab=10.0, a=1.0, b=1.0) == set()


def test_what_nothing_schedules_or_has_failed_takes_the_others_of_its_way_with_it() -> None:
    assert worth(settled(ab=10.0), ab=10.0, a=1.0) == set()
    assert worth(settled(ab=10.0, b=float("inf")), ab=10.0, a=1.0, b=1.0) == set()


def test_a_workload_of_two_regions_is_worth_it_when_one_of_them_says_so() -> None:
    regions = (LoweredRegion("r", (FUSED, SPLIT)), LoweredRegion("s", (lowered("cd"), lowered("a", "d"))))
    found = Prospects(regions, {"ab": 1.0, "a": 5.0, "b": 5.0, "cd": 9.0, "d": 1.0})
    assert found.worth_tuning(settled(ab=1.0, cd=9.0)) == {"a", "d"}
