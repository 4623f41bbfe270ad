"""The suite of layers on small ones: what is compiled, raced, compared, written down. Nothing about how fast it is."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from subtune.bench.dietcode.cases import CASES, Conv, Dense, LayerCase
from subtune.bench.dietcode.report import DietcodeReport, LayerRow, Point, dietcode_json, dietcode_table
from subtune.bench.dietcode.section import dietcode_section
from subtune.bench.dietcode.suite import run_dietcode
from subtune.bench.job import Job
from subtune.bench.peers_cpu import PEERS
from subtune.bench.race import BenchRow, Pace, Race
from subtune.bench.stored import Provenance, StoredRun
from subtune.bench.suite import Settings
from subtune.cli import main
from subtune.database import Database
from subtune.driver import compile_model

DENSE = LayerCase("dense", Dense(16, 32, 2, gelu=True, residual=True), 3, (1, 3))
CONV = LayerCase("conv", Conv(8, 4, 8, 3, stride=2, residual=True), 3, (1, 3))
KINDS = pytest.mark.parametrize("case", [DENSE, CONV], ids=lambda case: case.name)


def outputs(model: onnx.ModelProto, arrays: list[np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {f"x{index}": array for index, array in enumerate(arrays)})[0]
    return found


class TestCases:
    @KINDS
    def test_one_model_of_all_shapes_is_that_of_each(self, case):
        whole = case.model(True)
        onnx.checker.check_model(whole, full_check=True)
        dims = [value.type.tensor_type.shape.dim[case.layer.axis].dim_param for value in whole.graph.input]
        assert dims == [case.symbol] * 2
        assert whole.graph.output[0].type.tensor_type.shape.dim[case.layer.axis].dim_param == case.symbol
        for value in (1, 3):
            arrays = case.arrays(True, value)
            found = outputs(whole, arrays)
            assert found.shape[case.layer.axis] == value
            # ONNX Runtime takes other kernels where it knows all sizes
            np.testing.assert_allclose(found, outputs(case.model(True, value), arrays), rtol=1e-4, atol=1e-5)

    @KINDS
    def test_pytorch_computes_the_same(self, case, tmp_path):
        torch = pytest.importorskip("torch")
        from subtune.bench.torch_source import is_converted, prepared

        path = tmp_path / "layer.onnx"
        onnx.save(case.model(True), path)
        arrays = case.arrays(True, 3)
        job = Job("torch", str(path), 1, names=("x0", "x1"))
        assert not is_converted(job)
        module, tensors, _ = prepared(job, dict(zip(job.names, arrays, strict=True)), "cpu")
        with torch.inference_mode():
            found = module(*tensors).contiguous().numpy()
        np.testing.assert_allclose(found, outputs(case.model(True), arrays), rtol=1e-4, atol=1e-5)

    def test_names_are_unique_and_documents_cases_are_there(self):
        names = [case.name for case in CASES]
        assert len(set(names)) == len(names)
        assert {case.layer.cin for case in CASES if isinstance(case.layer, Dense)} == {768, 3072}
        assert {case.most for case in CASES} == {8, 128}
        assert all(case.measured[-1] == case.most for case in CASES)

    def test_buckets_are_powers_of_two_and_hold_everything(self):
        case = replace(DENSE, most=100, measured=(1, 100))
        assert case.buckets == (1, 2, 4, 8, 16, 32, 64, 128)
        assert [case.bucket(value) for value in (1, 3, 64, 65, 100)] == [1, 4, 64, 128, 128]


@KINDS
def test_a_bucket_gives_what_belongs_to_the_inputs(case, tmp_path):
    compile_model(case.model(True, 4), tmp_path / "four.subtune", tune=False, verify=False, threads=1)
    arrays = case.arrays(True, 3)
    job = Job("buckets", str(tmp_path / "four.subtune"), 1, names=("x0", "x1"))
    peer = PEERS.loaders["buckets"](job, dict(zip(job.names, arrays, strict=True)))
    expected = outputs(case.model(True, 3), arrays)
    for _ in range(2):
        (found,) = peer.outputs(peer.call())
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_layer_compiled_and_raced(tmp_path):
    with Database(tmp_path / "tuning.db") as database:
        settings = Settings(database, ("onnxruntime",), (("threads", 1), ("topk", 1)), Pace(2, 0.001))
        kept: list[DietcodeReport] = []
        report = run_dietcode([replace(DENSE, measured=(1, 2, 3))], settings, kept.append)
    (row,) = report.rows
    assert row.failure == ""
    assert [point.value for point in row.points] == [1, 2, 3]
    for point in row.points:
        names = [one.framework for one in point.race.rows]
        assert names == ["subtune", "static", "buckets", "one-kernel", "onnxruntime"]
        assert all(one.max_rel < 1e-4 for one in point.race.rows)
    assert row.kernels
    assert row.one_bytes <= row.code_bytes < row.static_bytes
    assert min(row.tune_s, row.static_s, row.buckets_s) > 0
    assert kept == [report]
    assert json.loads(dietcode_json(report))["rows"][0]["points"][1]["rows"][0]["framework"] == "subtune"


def test_a_layer_that_fails_is_a_row(tmp_path):
    broken = replace(DENSE, layer=replace(DENSE.layer, cout=0))
    with Database(tmp_path / "tuning.db") as database:
        report = run_dietcode([broken], Settings(database, ("none",), (("threads", 1),)))
    assert report.rows[0].failure
    assert f"dense: {report.rows[0].failure}" in dietcode_table(report)


def framework(name: str, ratio: float, max_rel: float = 0.0, ours_ms: float = 1.0) -> BenchRow:
    seconds = 1e-3 * ours_ms * ratio
    return BenchRow(name, seconds, seconds, ratio, 10, 0, max_rel=max_rel)


def report_of(static: float, *, one: float = 1.2, error: float = 0.0) -> DietcodeReport:
    rows = (framework("subtune", 1), framework("static", static), framework("buckets", 1.5))
    race = Race((*rows, framework("one-kernel", one), framework("torch", 3, error)), (("onnxruntime", "gone"),), 0.0)
    row = LayerRow(
        "layer", "seq", 5, (Point(1, race), Point(5, race)), kernels=("a", "b"), code_bytes=3000, tune_s=1.0,
        static_s=20.0, buckets_s=5.0,
    )  # fmt: skip
    return DietcodeReport(2, "d", ("onnxruntime", "torch"), (row, LayerRow("none", failure="no kernel")))


class TestReport:
    def test_bars(self):
        (row, none) = report_of(1.0).rows
        assert (row.verdict, none.verdict) == ("yes", "-")
        assert row.worst_regret == 0
        assert row.all_static_s == 50
        assert report_of(0.9).rows[0].verdict == "worst, mean"
        assert report_of(0.97).rows[0].verdict == "mean"
        assert report_of(1.0, one=1.02).rows[0].verdict == "one kernel"
        assert replace(row, tune_s=11.0).verdict == "time"

    def test_the_mean_is_over_all_shapes(self):
        points = []
        for value, ms in ((1, 1.0), (5, 5.0)):
            rows = (framework("subtune", 1, ours_ms=ms), framework("static", 2, ours_ms=ms))
            points.append(Point(value, Race(rows, (), 0.0)))
        row = LayerRow("layer", "seq", 5, tuple(points))
        assert row.mean_s("subtune") == pytest.approx(3e-3)
        assert row.mean_s("static") == pytest.approx(6e-3)
        assert row.mean_ratio("torch") == 0

    def test_what_computes_something_else_has_no_ratio(self):
        text = dietcode_table(report_of(1.0, error=0.5))
        assert "layer: torch gives other outputs" in text
        assert "layer: onnxruntime not available: gone" in text
        assert "3.00" not in text
        assert "3.00" in dietcode_table(report_of(1.0))

    def test_section_and_chart(self):
        data = json.loads(dietcode_json(report_of(0.9)))
        run = StoredRun("dietcode", data["suite"], Provenance("m", "2026-11-28", "c", ()), data)
        section = dietcode_section(run)
        assert "| layer | 1000 | 0.90 | 1.50 | 1.20 |  | 3.00 | +11.1% |" in section.text
        assert "| layer | 1 | 50 | 5 | 2 | 3 | 0 | 0 |" in section.text
        assert "- none: no kernel" in section.text
        root = ET.fromstring(section.chart)
        lines = [one for one in root.iter() if one.tag.endswith("polyline")]
        assert len(lines) == 5
        assert "static tuning" in section.chart


@pytest.mark.parametrize(
    ("options", "message"),
    [("--models nosuch", "suite dietcode has no 'nosuch'"), ("--against tensorflow", "unknown framework tensorflow")],
)
def test_mistakes(options: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "--suite", "dietcode", *options.split(), "--db", str(tmp_path / "t.db")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
