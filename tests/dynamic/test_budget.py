"""A budget of seconds and the subgraphs of a dynamic model: each has its part of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from subtune.core.domain import Domain, Symbol
from subtune.dynamic import joint
from subtune.dynamic.joint import Joint
from subtune.dynamic.tune import Prospect
from subtune.dynamic.workbench import Workbench
from subtune.options import Options
from tests.dynamic.test_cuda_kernels import DEVICE, of_rows

COUNTS = {"large": 16.0, "small": 4.0, "also small": 4.0}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(joint, "time", clock)
    return clock


def joint_with(budget_s: float | None) -> Joint:
    domain: Any = Domain((Symbol.uniform("n", (1, 2)),))
    nobody: Any = None
    return Joint(COUNTS, domain, nobody, nobody, nobody, Options(budget_s=budget_s))


def most(joint: Joint, name: str) -> float:
    seen: list[Workbench] = []
    joint.begin(name, seen.append)
    return seen[0].most


def test_parts_are_as_the_roots_of_what_they_count(clock):
    tuning = joint_with(16.0)
    assert [most(tuning, name) for name in COUNTS] == [16, 8, 8]  # of 0.5 s each


def test_what_is_left_is_shared_out_by_what_kernels_took(clock):
    tuning = joint_with(16.0)

    def tune(workbench: Workbench) -> str:
        for done in range(1, 5):
            clock.now += 1.0
            workbench.tell(done, 4, math.inf)
        return "found"

    nothing: Any = None
    assert tuning.served("large", nothing, tune, tune) == "found"
    assert [most(tuning, name) for name in ("small", "also small")] == [6, 6]  # 12 s are left, a kernel takes one
    clock.now += 11.0
    assert most(tuning, "small") == 2


def test_without_a_budget_there_is_time_for_all(clock):
    assert most(joint_with(None), "small") == math.inf


@pytest.mark.parametrize("few", [2, 5])
def test_so_many_new_kernels_are_tried(few):
    workload, domain = of_rows("float16"), Domain((Symbol.uniform("seq", tuple(range(1, 201))),))
    nobody: Any = None

    def tried(most: float) -> Any:
        (first, *_) = Prospect(workload, domain, False, True, 8, DEVICE)._choices(Workbench(nobody, most=most))
        return first

    assert len(tried(few)) == few < len(tried(math.inf))
