"""What the report of a compile says beside its figures."""

from __future__ import annotations

import json

import pytest

from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import DEFAULT
from subtune.core.graph import InFloats
from subtune.report.compile_report import CompileReport, SubgraphRow


def row(name: str, tuned_s: float, bound_s: float, uses: int = 1) -> SubgraphRow:
    return SubgraphRow(name, uses, "default", tuned_s, tuned_s, 1, 0, bound_s=bound_s)


def test_it_warns_of_what_is_far_from_its_roofline() -> None:
    rows = (
        row("far", 6e-3, 1e-3),
        row("near", 4e-3, 1e-3),
        row("far, of no weight", 1e-4, 1e-6),
        row("short", 15e-6, 1e-7, uses=200),
        row("unknown", 2e-3, 0.0),
    )
    report = CompileReport("m", rows, {}, "", False)
    assert [found.name for found in report.far] == ["far"]
    assert "warning: far takes 6 times its roofline, 40% of the time" in str(report)
    assert str(report).count("warning") == 1


def test_it_warns_of_defaults_and_of_failures() -> None:
    rows = (
        SubgraphRow("tried in vain", 1, str(DEFAULT), 4e-3, 4e-3, tried=5, failed=1),
        SubgraphRow("mostly failed", 1, "contraction(mr=4)", 4e-3, 4e-3, tried=5, failed=3),
        SubgraphRow("half failed", 1, "contraction(mr=4)", 4e-3, 4e-3, tried=6, failed=3),
        SubgraphRow("of no weight", 1, str(DEFAULT), 4e-5, 4e-5, tried=5, failed=5),
        SubgraphRow("nothing to try", 1, str(DEFAULT), 4e-3, 4e-3, tried=0, failed=0),
    )
    report = CompileReport("m", rows, {}, "", False)
    assert [found.name for found in report.doubtful] == ["tried in vain", "mostly failed"]
    assert "warning: tried in vain ships default(); of 5 candidates 1 failed" in str(report)


def test_it_says_what_stays_in_floats() -> None:
    """The text has one line for each reason; the JSON has every operator."""
    left = [InFloats(f"MatMul_{i}", "matmul", "its first operand is not quantised") for i in range(5)]
    left += [InFloats("Add_1", "add", "its result is returned in floats")]
    report = CompileReport("m", (), {}, "", False, in_floats=tuple(left))
    lines = [line for line in str(report).splitlines() if line.startswith("in floats")]
    assert lines == [
        "in floats: 5 matmul (MatMul_0, MatMul_1, MatMul_2 and 2 more): its first operand is not quantised",
        "in floats: 1 add (Add_1): its result is returned in floats",
    ]
    found = json.loads(report.to_json())["in_floats"]
    assert len(found) == 6
    assert found[5] == {"name": "Add_1", "op": "add", "reason": "its result is returned in floats"}


def test_the_roofline_knows_the_types() -> None:
    model = CUDA("A100")
    assert model.peak_flops("float32") == model.fma_flops()
    assert model.peak_flops("float16") == pytest.approx(model.mma_flops("float16"))
