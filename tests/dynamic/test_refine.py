"""Held-out instances: which are timed, with what, and when the choice is trusted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from subtune.core.candidate import Candidate
from subtune.core.domain import Domain, Symbol
from subtune.core.measurement import Failure, FailureKind
from subtune.dynamic.measured import Measured
from subtune.dynamic.refine import HeldOut
from subtune.measure.messages import Library
from tests.backends.workloads import dense
from tests.dynamic.flat_kernels import of_rows

DOMAIN = Domain((Symbol.uniform("seq", tuple(range(1, 257))),))
WORKLOAD = of_rows(lambda rows: dense(rows, 64, 32))
ROWS = (1, 16, 256)


def found(**rates: float) -> Measured:
    """Kernels with seconds for a row at `ROWS`."""
    made = Measured(ends=((256,), (1,)))
    for name, rate in rates.items():
        candidate = Candidate(name)
        made.libraries[candidate] = Library(name, name, (), 0.0, (1,))
        made.seconds[candidate] = {(rows,): rate * rows for rows in ROWS}
        made.right[candidate] = [(rows,) for rows in reversed(ROWS)]
    return made


def asked(held: HeldOut, made: Measured, seconds: Callable[[str, int], float]) -> list[int]:
    """The rows at which it wants kernels timed, which take `seconds`."""
    rows = []
    while more := held(made):
        at, kernels = more
        rows.append(at[0])
        for kernel in kernels:
            made.seconds[kernel][at] = seconds(kernel.family, at[0])
    return rows


def test_where_one_kernel_is_the_fastest_nothing_is_timed():
    made = found(fast=1e-6, slow=2e-6)
    assert asked(HeldOut(WORKLOAD, DOMAIN, {}), made, lambda name, rows: rows * 1e-6) == []


def test_three_right_choices_are_enough():
    made = found(fast=1e-6, near=1.03e-6)
    rows = asked(HeldOut(WORKLOAD, DOMAIN, {}), made, lambda name, rows: rows * {"fast": 1e-6, "near": 1.03e-6}[name])
    assert rows == [128, 64, 192]


def test_where_the_choice_is_wrong_more_is_timed():
    made = found(fast=1e-6, near=1.03e-6)
    rows = asked(HeldOut(WORKLOAD, DOMAIN, {}), made, lambda name, rows: rows * {"fast": 1.2e-6, "near": 1e-6}[name])
    assert len(rows) > 3
    assert not set(rows) & set(ROWS)


@pytest.mark.parametrize(
    ("right", "fails", "expected"),
    [
        ((256, 16, 1), False, (True, True, True)),
        ((16, 1), False, (True, True, False)),  # it was not measured at more rows
        ((256, 16), True, (False, True, True)),  # it is wrong for fewer
        ((16,), False, (False, True, False)),
    ],
)
def test_a_kernel_serves_what_lies_between_the_instances_where_it_is_right(right, fails, expected):
    made, candidate = found(one=1e-6), Candidate("one")
    made.right[candidate] = [(rows,) for rows in right]
    if fails:
        made.failures[candidate] = Failure(FailureKind.WRONG_RESULT, "off")
    assert tuple(made.serves(candidate, (rows,)) for rows in (2, 16, 300)) == expected


def test_where_a_kernel_was_proposed_it_is_timed_if_it_may_be_the_fastest():
    """Those of which that is likeliest, and four of them."""
    made = found(fast=1e-6, own=1.2e-6, slow=2e-6)
    own, slow = Candidate("own"), Candidate("slow")
    proposed = {(rows,): [own] for rows in (3, 5, 9, 23, 40, 90)} | {(6,): [slow], (16,): [own]}
    held = HeldOut(WORKLOAD, DOMAIN, proposed)
    looks = []
    while more := held(made):
        (rows,), kernels = more
        looks.append(rows)
        assert [one.family for one in kernels] == ["fast", "own"]
        for kernel in kernels:
            made.seconds[kernel][(rows,)] = {"fast": 1e-6, "own": 1.2e-6}[kernel.family] * rows
    assert len(looks) == 4
    assert set(looks) <= {3, 5, 9, 23, 40, 90}
