"""Which kernels are shipped: by time, by regret, and by what their weights take."""

from __future__ import annotations

import math

import pytest

from subtune.core.candidate import Candidate
from subtune.core.dispatch import choose
from subtune.core.domain import Domain, Symbol
from subtune.core.kernel import Packing
from subtune.dynamic.choose import Chosen, Tuned, chosen
from subtune.dynamic.measured import Measured
from subtune.measure.messages import Library
from tests.backends.workloads import dense
from tests.dynamic.flat_kernels import of_rows

ROWS = (1, 4, 16, 64)
DOMAIN = Domain((Symbol.uniform("seq", tuple(range(1, 65))),))
WEIGHTS = 32 * 64 * 4
"""Bytes of the dense layer's weights; its bias is not packed."""


def layer(**seconds: tuple[float, ...]) -> Tuned:
    """Kernels with seconds for an element at `ROWS`; a name's first letter says their layout, `p` packs nothing, and
    others pack each row of weights so many times over: `b` twice, `c` three times."""
    found = Measured()
    for name, each in seconds.items():
        candidate = Candidate(name)
        times = " abc".index(name[0]) if name[0] in "abc" else 0
        packings = ((1, Packing(((32, times), (64,)), (1, 0, 2))),) if times else ()
        found.libraries[candidate] = Library(name, name, packings, 0.0, (1,))
        found.seconds[candidate] = {(rows,): one * rows for rows, one in zip(ROWS, each, strict=True)}
    return Tuned(of_rows(lambda rows: dense(rows, 64, 32)), found, 1)


def names(one: Chosen) -> set[str]:
    return {str(candidate).split("(")[0] for candidate in one.candidates}


def run(tuned: dict[str, Tuned], spare: float, regret: float = 0.03) -> dict[str, Chosen]:
    return chosen(tuned, DOMAIN, regret, 16, spare)


FEW_THEN_MANY = {"a": (1e-6, 1e-6, 2e-6, 2e-6), "b": (1.5e-6, 1.5e-6, 1e-6, 1e-6)}
"""`a` is for few rows, and `b`, whose weights take twice as many bytes, for many."""


@pytest.mark.parametrize(
    ("spare", "expected"),
    [(0, {"a"}), (WEIGHTS, {"b"}), (2 * WEIGHTS, {"a", "b"}), (math.inf, {"a", "b"})],
)
def test_layouts_are_kept_beside_each_other_while_they_fit(spare, expected):
    one = run({"it": layer(**FEW_THEN_MANY)}, spare)["it"]
    assert names(one) == expected
    if len(expected) == 2:
        assert [str(one.candidates[choose(one.tree, (rows,))]).split("(")[0] for rows in (1, 64)] == ["a", "b"]


def test_a_layout_that_saves_little_is_left_out():
    near = {"a": (1e-6,) * 4, "b": (0.995e-6,) * 4}
    assert names(run({"it": layer(**near)}, math.inf)["it"]) == {"a"}


def test_a_layout_that_keeps_within_the_regret_is_worth_its_bytes():
    """It saves next to nothing on the mean, whose time is that of many rows, and two thirds at the fewest."""
    few = {"a": (3e-6, 1e-6, 1e-6, 1e-6), "b": (1e-6, 1.2e-6, 1.2e-6, 1.2e-6)}
    assert names(run({"it": layer(**few)}, math.inf)["it"]) == {"a", "b"}
    assert names(run({"it": layer(**few)}, math.inf, regret=3)["it"]) == {"a"}


def test_what_saves_most_on_the_mean_does_not_take_the_place_of_what_keeps_within_the_regret():
    """Few rows are few of the instances, and their time is little of the sum of times. There, `b` takes four times."""
    few = {"a": (1e-6, 1e-6, 1.2e-6, 1.2e-6), "b": (4e-6, 4e-6, 1e-6, 1e-6)}
    one = run({"it": layer(**few)}, WEIGHTS)["it"]
    assert names(one) == {"a"}
    assert 0.2 <= one.worst_regret <= 0.25, "against `b`, which is not there"
    assert names(run({"it": layer(**few)}, WEIGHTS, regret=4)["it"]) == {"b"}
    assert names(run({"it": layer(**few)}, 2 * WEIGHTS)["it"]) == {"a", "b"}


def test_the_regret_is_of_the_whole_model():
    """What a small workload loses at few rows is next to nothing beside the others: mean time decides."""
    few = {"a": (1e-6, 1e-6, 1.2e-6, 1.2e-6), "b": (4e-6, 4e-6, 1e-6, 1e-6)}
    found = run({"it": layer(**few), "much": layer(a=(3e-4,) * 4)}, 2 * WEIGHTS, regret=0.05)
    assert names(found["it"]) == {"a", "b"}
    assert names(run({"it": layer(**few), "much": layer(a=(3e-4,) * 4)}, WEIGHTS, regret=0.05)["it"]) == {"b"}


def test_where_one_kernel_is_allowed_it_serves_all():
    """Those of the smaller layout serve some rows each."""
    tuned = layer(a_few=(1e-6,) * 4, a_many=(1e-6,) * 4, b=(2e-6,) * 4)
    found = tuned.found
    found.ends = ((64,), (1,))
    for name, right in (("a_few", ROWS[:2]), ("a_many", ROWS[1:]), ("b", ROWS)):
        found.right[Candidate(name)] = [(rows,) for rows in reversed(right)]
    assert names(chosen({"it": tuned}, DOMAIN, 0.05, 1, math.inf)["it"]) == {"b"}


def test_bytes_go_where_they_save_most():
    slow = {name: tuple(10 * one for one in each) for name, each in FEW_THEN_MANY.items()}
    found = run({"fast": layer(**FEW_THEN_MANY), "slow": layer(**slow)}, WEIGHTS)
    assert names(found["slow"]) == {"b"}
    assert names(found["fast"]) == {"a"}


def test_a_layout_gives_way_to_a_larger_one_that_saves_more():
    """For a byte it saves more, and then too few bytes are left."""
    tuned = {"small": layer(a=(1e-6,) * 4, b=(0.7e-6,) * 4), "large": layer(a=(5e-6,) * 4, c=(4.5e-6,) * 4)}
    assert [names(one) for one in run(tuned, 2 * WEIGHTS).values()] == [{"a"}, {"c"}]
    assert [names(one) for one in run(tuned, 3 * WEIGHTS).values()] == [{"b"}, {"c"}]


def test_bytes_that_are_left_go_to_shapes_that_are_few():
    """At few rows `b` saves a little of the mean. The worst shape is another one, for which `c` does not fit."""
    rare = {"a": (1e-6, 1.5e-6, 1e-6, 1e-6), "b": (1.5e-6, 1e-6, 1.3e-6, 1.3e-6)}
    worst = {"a": (1e-6, 1e-6, 1e-6, 3e-6), "c": (9e-6, 9e-6, 9e-6, 1e-6)}
    found = run({"rare": layer(**rare), "worst": layer(**worst)}, 2.5 * WEIGHTS)
    assert names(found["worst"]) == {"a"}
    assert names(found["rare"]) == {"a", "b"}


def test_what_has_no_smaller_layout_exceeds_the_limit():
    assert names(run({"it": layer(c=(1e-6,) * 4)}, 0)["it"]) == {"c"}


def test_one_layout_of_several_kernels():
    found = run({"it": layer(a_low=(1e-6, 1e-6, 2e-6, 2e-6), a_high=(2e-6, 2e-6, 1e-6, 1e-6))}, 0)["it"]
    assert names(found) == {"a_low", "a_high"}
    assert found.worst_regret <= 0.03
