"""Reductions of any axes, and norms of ragged rows, as the family `partials` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.workloads import build, layer_norm, max_pool

Run = Callable[[Workload, Kernel | None], np.ndarray]


def reduction(kind: str, shape: Sequence[int], axes: Sequence[int], scale: float = 1.0) -> Workload:
    def body(emit: Any, x: Any) -> Any:
        return getattr(op, kind)(emit(op.multiply(x, relax.const(scale))) if scale != 1.0 else x, axis=list(axes))

    return build(body, [shape])


def instance_norm(shape: Sequence[int], activation: str = "") -> Workload:
    """As the importer makes it: group norm with a group for each channel."""

    def body(emit: Any, x: Any, g: Any, b: Any) -> Any:
        y = op.nn.group_norm(x, g, b, shape[1], 1, list(range(2, len(shape))))
        return getattr(op.nn, activation)(emit(y)) if activation else y

    return build(body, [shape], [shape[1:2], shape[1:2]])


def group_norm(shape: Sequence[int], groups: int, activation: str = "") -> Workload:
    def body(emit: Any, x: Any, g: Any, b: Any) -> Any:
        y = op.nn.group_norm(x, g, b, groups, 1, list(range(2, len(shape))))
        return getattr(op.nn, activation)(emit(y)) if activation else y

    return build(body, [shape], [shape[1:2], shape[1:2]])


def rms_norm(rows: int, length: int) -> Workload:
    def body(emit: Any, x: Any, g: Any) -> Any:
        return op.nn.rms_norm(x, g, [-1], 1e-6)

    return build(body, [(rows, length)], [(length,)])


REDUCTIONS = {
    "the whole tensor": lambda: reduction("sum", (37, 53), (0, 1)),
    "the whole tensor, shorter than a vector": lambda: reduction("sum", (3, 5), (0, 1)),
    "a product": lambda: reduction("prod", (9, 11), (0, 1), 1.5),
    "all but the outermost axis": lambda: reduction("mean", (5, 13, 29), (1, 2)),
    "rows, for few threads": lambda: reduction("max", (3, 2, 7, 31), (2, 3)),
    "long rows inside and outside": lambda: reduction("sum", (6, 5, 139), (0, 2)),
    "short rows inside and outside": lambda: reduction("min", (19, 23, 7), (0, 2)),
    "every other axis": lambda: reduction("mean", (4, 17, 6, 11), (1, 3)),
    "every other axis, the innermost kept": lambda: reduction("max", (9, 6, 5, 35), (0, 2)),
    "the outermost axis": lambda: reduction("sum", (41, 83), (0,), 0.5),
    "the middle": lambda: reduction("sum", (3, 33, 70), (1,)),
    "unit axes": lambda: reduction("sum", (1, 37, 1, 19), (1, 2, 3)),
}
NORMS = {
    "instance norm": lambda: instance_norm((2, 5, 9, 11)),
    "instance norm, one axis, SiLU": lambda: instance_norm((1, 6, 61), "silu"),
    "group norm": lambda: group_norm((1, 12, 7, 9), 4),
    "group norm, two images, GELU": lambda: group_norm((2, 6, 5, 31), 2, "gelu"),
    "layer norm": lambda: layer_norm(7, 109),
    "RMS norm, weights that could be rows' own": lambda: rms_norm(8, 5 * 8),
    "RMS norm, as many weights as rows": lambda: rms_norm(41, 41),
}


def proposed(workload: Workload, device: CPUModel) -> list[Candidate]:
    return [c for c in backends.candidates(workload, device, topk=200) if c.family == "partials"]


@pytest.mark.parametrize("case", [*REDUCTIONS, *NORMS])
@pytest.mark.grid
def test_candidates_are_right(case: str, run: Run, device: CPUModel) -> None:
    workload = {**REDUCTIONS, **NORMS}[case]()
    expected = run(workload, None)
    found = proposed(workload, device)
    assert found, "no candidates"
    for candidate in found[::3] if len(found) > 6 else found:
        kernel = backends.schedule(workload, candidate, device)
        assert not isinstance(kernel, NotApplicable), f"{candidate}: {kernel.reason}"
        np.testing.assert_allclose(run(workload, kernel), expected, rtol=2e-5, atol=2e-5, err_msg=str(candidate))


@pytest.mark.parametrize("threads", [1, 3, 64])
@pytest.mark.parametrize("case", ["the whole tensor", "short rows inside and outside", "every other axis"])
def test_pieces_for_any_number_of_threads(case: str, threads: int, run: Run, device: CPUModel) -> None:
    workload, other = REDUCTIONS[case](), replace(device, threads=threads)
    for candidate in proposed(workload, other)[:4]:
        kernel = backends.schedule(workload, candidate, other)
        assert not isinstance(kernel, NotApplicable), f"{candidate}: {kernel.reason}"
        np.testing.assert_allclose(run(workload, kernel), run(workload, None), rtol=2e-5, err_msg=str(candidate))


@pytest.mark.parametrize("case", NORMS)
def test_norms_are_also_computed_row_by_row(case: str, device: CPUModel) -> None:
    workload = NORMS[case]()
    whole = [candidate for candidate in proposed(workload, device) if candidate.get("whole")]
    assert whole
    assert not isinstance(backends.schedule(workload, whole[0], device), NotApplicable)


def test_windows_that_overlap_are_none(device: CPUModel) -> None:
    assert not proposed(max_pool(13, 32), device)


def test_windows_of_single_elements_are_left_to_other_families(device: CPUModel) -> None:
    workload = build(lambda emit, x: op.nn.avg_pool2d(x, (1, 1), layout="NHWC"), [(1, 6, 6, 256)])
    found = backends.candidates(workload, device, 8)
    assert found
    assert "partials" not in {one.family for one in found}


@pytest.mark.parametrize(
    ("knobs", "reason"), [({"unroll": 1, "tile": 3}, "no table"), ({"unroll": 1, "whole": True, "tile": 1}, "no rows")]
)
def test_knobs_of_another_layout_are_refused(knobs: dict[str, Any], reason: str, device: CPUModel) -> None:
    workload = REDUCTIONS["the whole tensor" if "whole" not in knobs else "the outermost axis"]()
    kernel = backends.schedule(workload, Candidate.make("partials", **knobs), device)
    assert isinstance(kernel, NotApplicable)
    assert reason in kernel.reason
