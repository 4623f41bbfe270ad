"""Planes put side by side are recognised, and the ends of their rows set apart."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.side_by_side import planes_of
from tests.backends import workloads

SHAPE = (2, 3, 8, 20)


def turned(left: int, right: int, order: tuple[int, ...] = (0, 2, 3, 1)) -> Workload:
    def body(emit: Any, x: Any) -> Any:
        if left or right:
            x = emit(op.nn.pad(x, [0, 0, 0, 0, 1, 1, left, right], "constant", 5.0))
        return op.permute_dims(x, order)

    return workloads.build(body, [SHAPE])


@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 0), (0, 2), (1, 4)])
def test_the_ends_of_rows_are_set_apart(left: int, right: int) -> None:
    found = planes_of(turned(left, right))
    assert not isinstance(found, NotApplicable)
    planes = found[2]
    assert (planes.width, planes.channels) == (20 + left + right, 3)
    assert (planes.begin, planes.end) == (left, left + 20)
    assert len(planes.of_planes) == 1
    *_, w, _ = planes.axes
    asked = str(planes.value)
    assert ("if_then_else" in asked) == bool(left or right), "rows above and below are asked for yet"
    assert str(w.name) in asked
    assert asked.count("<") < str(planes.anywhere).count("<") or not left + right


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (workloads.build(lambda _, x: op.nn.relu(x), [(1, 12, 16, 3)]), "does not lie along"),
        (turned(0, 0, (0, 1, 3, 2)), "few channels"),
        (workloads.softmax(4, 3), "not an elementwise workload"),
    ],
)
def test_others_are_not(workload: Workload, reason: str) -> None:
    found = planes_of(workload)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason
