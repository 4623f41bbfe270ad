"""Concatenations and paddings in sections of rows: every length of a section, with and without an epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.workloads import build

Run = Callable[[Workload, Kernel | None], np.ndarray]


def concat(rows: int, *columns: int) -> Workload:
    return build(lambda emit, *x: op.concat(x, 1), [(rows, n) for n in columns])


def joined(axis: int, shape: tuple[int, ...], *extents: int) -> Workload:
    """Many inputs, joined along an axis behind which others lie."""
    shapes = [(*shape[:axis], n, *shape[axis + 1 :]) for n in extents]
    return build(lambda emit, *x: op.nn.relu(emit(op.concat(x, axis))), shapes)


def padded(mode: str, epilogue: bool) -> Workload:
    def body(emit: Any, x: Any) -> Any:
        y = op.nn.pad(x, (0, 0, 1, 2, 3, 2), pad_mode=mode)
        return op.nn.relu(emit(y)) if epilogue else y

    return build(body, [(3, 7, 37)])


CASES = {
    "concat": lambda: concat(6, 1, 23, 220, 160),
    "concat of whole vectors": lambda: concat(4, 32, 64),
    "concat of one row": lambda: concat(1, 5, 33),
    "concat of many along the first axis": lambda: joined(0, (1, 3, 19), *[1] * 32),
    "concat of many in the middle": lambda: joined(1, (18, 1, 3, 5), 1, 2, 7, 1, 4),
    "concat of many below few rows": lambda: joined(1, (2, 1, 3, 5), 1, 2, 7, 1, 4),
    "reflect": lambda: padded("reflect", False),
    "reflect and an epilogue": lambda: padded("reflect", True),
    "zeros": lambda: padded("constant", False),
}


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_it_is_right(case: str, serial: bool, run: Run, device: CPUModel) -> None:
    workload = CASES[case]()
    made = Candidate.make("elementwise", shape="sections", unroll=1, wide=False, serial=serial)
    kernel = backends.schedule(workload, made, device)
    if case.endswith("the first axis") and not serial:
        assert isinstance(kernel, NotApplicable), "too much code for a thread's function"
        return
    assert isinstance(kernel, Kernel), kernel
    assert np.array_equal(run(workload, kernel), run(workload, None))


@pytest.mark.parametrize("case", CASES)
def test_it_is_proposed(case: str, device: CPUModel) -> None:
    found = backends.candidates(CASES[case](), device, topk=20)
    assert any(c.get("shape") == "sections" for c in found)


def test_it_is_not_proposed_where_rows_are_all_alike(device: CPUModel) -> None:
    workload = build(lambda emit, x: op.nn.relu(x), [(4, 20)])
    assert all(c.get("shape") != "sections" for c in backends.candidates(workload, device, topk=20))
