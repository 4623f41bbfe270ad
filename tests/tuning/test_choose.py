"""Which alternative is taken, by given measurements: exact, and in doubt the partition's own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.graph import Alternative, Alternatives, Group, LoweredAlternative, LoweredRegion
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.core.record import Record
from subtune.report.compile_report import SHOWN_ALTERNATIVES, CompileReport, choices_text
from subtune.tuning.alternatives import Plan
from subtune.tuning.choose import MIN_GAIN, Choice, choose, chosen_alternatives, fastest_foreseen, foreseen_as_fast
from subtune.tuning.prospects import OUTRUN
from subtune.tuning.records import Records


def lowered(name: str, *keys: str, refusal: str = "") -> LoweredAlternative:
    groups = tuple(Group(f"g_{key}", key, (), (), (key,), (), (), ()) for key in keys)
    return LoweredAlternative(Alternative(name, f"why {name}", groups), () if refusal else keys, refusal)


def region(name: str, *alternatives: LoweredAlternative) -> LoweredRegion:
    return LoweredRegion(name, alternatives)


FUSED = lowered("as partitioned", "ab")
SPLIT = lowered("split", "a", "b")


def records(**seconds: float) -> dict[str, Record]:
    return {
        key: Record(key, "device", DEFAULT, (t := Timing(s, s, 0.0, 9)), t, 1.0, "hash", 20, 1, 0, True)
        for key, s in seconds.items()
    }


def decide(found: LoweredRegion, reasons: dict[str, str] | None = None, **seconds: float) -> Choice:
    (choice,) = choose(Alternatives((found,), ()), records(**seconds), reasons)
    return choice


def test_the_faster_way_is_taken() -> None:
    slow = decide(region("r", FUSED, SPLIT), ab=10.0, a=3.0, b=2.0)
    assert (slow.chosen.name, slow.gain) == ("split", 2.0)
    assert [one.seconds for one in slow.alternatives] == [10.0, 5.0]
    fast = decide(region("r", FUSED, SPLIT), ab=4.0, a=3.0, b=2.0)
    assert (fast.chosen.name, fast.gain) == ("as partitioned", 1.0)


def test_ties_and_differences_within_the_noise_stay_with_the_partition() -> None:
    for own, other in ((5.0, 5.0), (5.0, 5.0 / (MIN_GAIN - 0.001))):
        assert decide(region("r", FUSED, SPLIT), ab=own, a=other / 2, b=other / 2).taken == 0
    assert decide(region("r", FUSED, SPLIT), ab=5.0, a=0.0, b=5.0 / (MIN_GAIN + 0.001)).taken == 1


def test_the_partitions_own_that_was_given_up_is_not_shipped() -> None:
    """It would ship with its default schedule, however fast it was expected to be."""
    (choice,) = choose(
        Alternatives((region("r", FUSED, SPLIT),), ()), records(a=3.0, b=2.0), {"ab": OUTRUN}, expected={"ab": 1.0}
    )
    assert choice.chosen.name == "split"
    (choice,) = choose(Alternatives((region("r", FUSED, SPLIT),), ()), records(a=3.0, b=2.0), expected={"ab": 1.0})
    assert choice.chosen.name == "as partitioned", "there was no time: it may well be faster, untuned"


def test_what_lies_between_kernels_counts_and_fewer_kernels_need_no_margin() -> None:
    apart = region("r", lowered("as partitioned", "a", "b", "c"), FUSED)
    seconds = {"a": 3.0, "b": 2.0, "c": 1.0}

    def taken(between_s: float, fused: float) -> Choice:
        return choose(Alternatives((apart,), ()), records(ab=fused, **seconds), between_s=between_s)[0]

    assert taken(0.0, 6.1).taken == 0
    assert taken(0.0, 5.99).taken == 1
    assert taken(0.5, 6.9).chosen.seconds == 6.9
    assert taken(0.5, 7.1).chosen.seconds == 7.0
    split = region("r", FUSED, SPLIT)
    assert choose(Alternatives((split,), ()), records(ab=5.5, a=3.0, b=2.0), between_s=0.5)[0].taken == 0


def test_of_several_faster_ways_the_fastest_and_of_equal_ones_the_first() -> None:
    found = region("r", FUSED, SPLIT, lowered("x", "x"), lowered("y", "y"))
    assert decide(found, ab=10.0, a=3.0, b=3.0, x=4.0, y=5.0).chosen.name == "x"
    assert decide(found, ab=10.0, a=3.0, b=3.0, x=6.0, y=6.0).chosen.name == "split"


def test_what_there_was_no_time_for_gives_way_to_what_was_measured() -> None:
    found = region("r", SPLIT, FUSED)

    def taken(**expected: float) -> int:
        return choose(Alternatives((found,), ()), records(ab=5.0, a=1.0), expected=expected)[0].taken

    assert taken(a=1.0, b=3.0) == 1
    assert taken(a=1.0, b=2.0) == 0, "clearly slower than what is expected of the partition's own"
    assert taken(a=9.0, b=2.0) == 0, "of what was measured, not what was expected before"
    assert taken(a=1.0) == 1, "nothing but the default schedule"


def test_what_was_seen_counts_as_a_rebuild_will_find_it() -> None:
    others = Alternatives((region("r", SPLIT, FUSED),), ())
    found = Records()
    found.update(records(ab=5.0, a=1.0))
    planned = Plan((), (), (), {"a": 1.0, "b": 3.0})
    assert planned.choices(others, found)[0].taken == 1
    found.outcomes["b"] = {
        Candidate("x"): Timing(2.5, 2.0, 0.0, 9),
        Candidate("y"): Timing(4.0, 4.0, 0.0, 9),
        Candidate("z"): Failure(FailureKind.TIMEOUT, ""),
    }
    assert planned.choices(others, found)[0].taken == 0


def test_the_favourite_is_clearly_faster_by_what_is_expected() -> None:
    found = region("r", SPLIT, FUSED, lowered("x", "x"))
    assert fastest_foreseen(found, {"a": 3.0, "b": 3.0, "ab": 4.0, "x": 3.9}) == 2
    assert fastest_foreseen(found, {"a": 3.0, "b": 3.0, "ab": 4.1}) == 0
    assert fastest_foreseen(found, {"a": 2.0, "b": 2.0, "ab": 4.0}, between_s=2.0) == 1
    assert fastest_foreseen(found, {"a": 3.0, "ab": 4.0}) == 1
    assert fastest_foreseen(found, {}) == 0


def test_a_way_that_was_not_measured_to_its_end_is_not_taken_and_says_why() -> None:
    choice = decide(region("r", FUSED, SPLIT), {"b": "it crashed"}, ab=10.0, a=1.0)
    assert choice.taken == 0
    assert choice.alternatives[1].seconds == 0.0
    assert choice.alternatives[1].note == "g_b: it crashed"
    assert decide(region("r", FUSED, SPLIT), ab=10.0, a=1.0).alternatives[1].note == "g_b: not tuned"


def test_a_way_that_cannot_be_lowered_is_data() -> None:
    choice = decide(
        region("r", FUSED, lowered("split", "a", "b", refusal="no loops"), lowered("x", "x")), ab=9.0, x=2.0
    )
    assert choice.alternatives[1].note == "no loops"
    assert choice.chosen.name == "x"


def test_without_measurements_of_its_own_the_partition_stays() -> None:
    assert decide(region("r", FUSED, SPLIT), a=1.0, b=1.0).taken == 0
    assert decide(region("r", FUSED, SPLIT)).taken == 0


def test_regions_with_the_same_workloads_choose_the_same() -> None:
    alike = Alternatives((region("r", FUSED, SPLIT), region("s", FUSED, SPLIT), region("t", FUSED)), ())
    choices = choose(alike, records(ab=10.0, a=1.0, b=1.0))
    assert [(choice.regions, choice.uses, choice.taken) for choice in choices] == [(("r", "s"), 2, 1), (("t",), 1, 0)]
    assert chosen_alternatives(alike, choices) == (SPLIT.alternative, SPLIT.alternative)


@pytest.fixture
def report() -> CompileReport:
    choices = choose(
        Alternatives((region("r", FUSED, SPLIT, lowered("x", "x")), region("s", FUSED, SPLIT, lowered("x", "x"))), ()),
        records(ab=10e-6, a=1e-6, b=3e-6),
    )
    return CompileReport("m.subtune", (), {"tune": 1.0}, "", False, choices=choices)


def test_the_report_shows_every_way_and_what_it_saved(report: CompileReport) -> None:
    text = str(report)
    assert "regions with alternatives: 2; another than the partition's is taken in 2, which saves 12.0 us" in text
    assert "at r, and 1 more alike" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["as", "partitioned", "10.0", "us", "1", "kernel"] in lines
    assert [">", "split", "4.0", "us", "2", "kernels", "2.50x"] in lines
    assert ["x", "-", "1", "kernel", "(g_x:", "not", "tuned)"] in lines
    (found,) = json.loads(report.to_json())["regions"]
    assert found["taken"] == 1
    assert found["gain"] == pytest.approx(2.5)
    assert found["regions"] == ["r", "s"]
    assert [one["seconds"] for one in found["alternatives"]] == [10e-6, 4e-6, 0.0]


def test_a_model_without_regions_has_no_such_section(report: CompileReport) -> None:
    assert "regions" not in str(replace(report, choices=()))
    assert json.loads(replace(report, choices=()).to_json())["regions"] == []


def test_of_many_ways_the_own_the_taken_and_the_fastest_are_shown() -> None:
    others = [lowered(f"w{i:02d}", f"k{i}") for i in range(20)]
    seconds: dict[str, Any] = {f"k{i}": 20.0 - i for i in range(19)}
    choice = decide(region("r", FUSED, *others), ab=30.0, **seconds)
    text = "\n".join(choices_text([choice], why=True))
    assert "as partitioned" in text
    assert "> w18" in text
    assert "w00" not in text
    assert "why w18" in text
    assert f"and {21 - SHOWN_ALTERNATIVES} more alternatives" in text


def test_what_is_expected_to_be_as_fast_is_a_rival() -> None:
    found = region("r", FUSED, SPLIT)
    assert foreseen_as_fast(found, {"ab": 5.0, "a": 3.0, "b": 2.0}) == (SPLIT,)
    assert foreseen_as_fast(found, {"ab": 5.0, "a": 3.0, "b": 2.0}, between_s=0.1) == ()
    assert foreseen_as_fast(found, {"ab": 5.0, "a": 3.0, "b": 2.1}) == ()
    assert foreseen_as_fast(found, {"a": 3.0}) == (), "nobody predicted it"
