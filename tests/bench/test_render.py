"""Benchmark runs as data, and the documentation that is made of them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from pathlib import Path

import pytest

from subtune.bench.artifact_race import BenchReport
from subtune.bench.charts import Bar, Line, bar_chart, line_chart
from subtune.bench.gpu_rows import Published
from subtune.bench.gpu_table import gpu_json
from subtune.bench.markdown import SECTIONS, TOGETHER, readme_table
from subtune.bench.ops_table import ops_json
from subtune.bench.quality import Quality
from subtune.bench.race import BenchRow, Race
from subtune.bench.render import BEGIN, CLUSTER, END, FLEETS, render, rendered
from subtune.bench.stored import Provenance, StoredRun, StoredRunError, read_run, stamped
from subtune.bench.suite_budget import BudgetReport, BudgetRow, Point, budget_json, budget_table
from subtune.bench.suite_cpu import CpuReport, ModelRow
from subtune.bench.suite_gpu import GpuReport, GpuRow
from subtune.bench.suite_levels import LevelReport, LevelRow, levels_json
from subtune.bench.suite_ops import OpRow, OpsReport
from subtune.bench.table import cpu_json
from subtune.report.comparison import ComparedSubgraph
from subtune.tuning.roofline import Placed, Position

ROOT = Path(__file__).resolve().parents[2]
QUALITY = Quality(2, 30, 0.75, 0.7, (0.05, 0.0, 0.0), (0.06, 0.01, 0.0))
NONE = Quality(0, 0, 0.0, 0.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def peer(name: str, ms: float, ratio: float, max_rel: float = 1e-6) -> BenchRow:
    return BenchRow(name, ms * 1e-3, ms * 1e-3, ratio, 100, 150_000_000, max_rel=max_rel)


def cpu_report() -> CpuReport:
    race = BenchReport(
        "a", 2, "d", (peer("subtune", 4.0, 1.0), peer("onnxruntime", 6.0, 1.5), peer("torch-compile", 2.0, 0.5, 0.9)),
        (("openvino-f32", "not installed"),), 0.5,
    )  # fmt: skip
    rows = (
        ModelRow("alpha", bar=1.25, best="onnxruntime", ratio=1.5, tune_s=12.0, tried=40, report=race),
        ModelRow("beta", failure="not compiled: no such model"),
    )
    return CpuReport("f32", 2, "d", ("onnxruntime", "openvino-f32", "torch-compile"), rows, QUALITY)


def stored(text: str) -> StoredRun:
    data = json.loads(stamped(text))
    run = data.pop("run")
    origin = Provenance(run["machine"], run["date"], run["commit"], tuple(run["versions"].items()))
    return StoredRun("name", data["suite"], origin, data)


def gpu_report() -> GpuReport:
    published = Published("A100", "dlight", 2e-3, 1e-3)
    row = GpuRow("gemm", published, 1.0, best_s=1e-4, first_s=1.1e-4, default_s=3e-4, library_s=1.2e-4, tune_s=3.0)
    return GpuReport("fastdlight", "d", (row, GpuRow("none", None, 1.0, failure="no kernel")), QUALITY)


def ops_report() -> OpsReport:
    race = Race((peer("subtune", 1.0, 1.0), peer("onnxruntime", 2.0, 2.0)), (), 0.0)
    row = OpRow("conv-3", limit="fma", kernel_s=9e-4, share=0.8, kernel_share=0.9, best="onnxruntime", ratio=2.0,
                verdict="yes", race=race)  # fmt: skip
    return OpsReport(2, "d", ("onnxruntime",), (row,), NONE, 1e11)


def levels_report() -> LevelReport:
    placed = Placed(Position(8, 4, 1e9, 1e9), 1e-5)
    compared = ComparedSubgraph("s", 1, "a()", "b()", 2e-5, 1e-5, note="", faster="", op_placed=placed, placed=placed)
    return LevelReport("d", (LevelRow("int8", compared=compared), LevelRow("other", failure="not tuned")))


def test_a_run_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(stamped(cpu_json(cpu_report())))
    run = read_run(path)
    assert (run.name, run.suite) == ("cpu", "cpu")
    assert len(run.run.date.split("-")) == 3
    assert {"python", "subtune", "apache-tvm"} <= set(dict(run.run.versions))
    assert "cores" in run.run.machine


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"suite": "cpu"}', '{"suite": "cpu", "run": {"machine": "m"}}'])
def test_what_is_no_run_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(text)
    with pytest.raises(StoredRunError, match="is no stored benchmark run"):
        read_run(path)


def test_cpu() -> None:
    section = SECTIONS["cpu"](stored(cpu_json(cpu_report())))
    assert "| alpha | 4 | 1.50 |  | 0.50 (other outputs) | 1.25 |" in section.text
    assert "| alpha | 12 | 40 | 0 | 150 | 150 |  | 150 |" in section.text
    assert "- beta: not compiled: no such model" in section.text
    assert "- alpha: OpenVINO not timed: not installed" in section.text
    assert "do not trust this row" in section.text
    assert "rank correlation 0.75" in section.text
    assert "alpha" in section.chart
    assert "torch.compile" not in section.chart, "what computes something else is no peer"


def test_readme_has_the_best_peer_only() -> None:
    assert readme_table(stored(cpu_json(cpu_report()))).splitlines()[2:] == ["| alpha | 4 | ONNX Runtime | 1.50 |"]


def test_gpu() -> None:
    section = SECTIONS["fastdlight"](stored(gpu_json(gpu_report())))
    assert "| gemm | 100.0 | 3.00 | 1.20 | 2.00 (dlight) | 1.00 | 1.10 | 3.0 |" in section.text
    assert "- none: no kernel" in section.text


def test_levels() -> None:
    section = SECTIONS["op-vs-subgraph"](stored(levels_json(levels_report())))
    assert "| int8 | 20.0 | 10.0 | 2.00 |" in section.text
    assert "- other: not tuned" in section.text
    assert "Geometric mean of the gains: 2.00." in section.text


def test_one_model() -> None:
    report = cpu_report().rows[0].report
    assert report is not None
    section = SECTIONS["model"](stored(report.to_json()))
    assert "| ONNX Runtime | 6 | 1.50 | 150 | 1e-06 |" in section.text


def test_operators() -> None:
    section = SECTIONS["cpu-ops"](stored(ops_json(ops_report())))
    assert "| conv | 1 | 2.00 | 2.00 | 90% | 1 of 1 |" in section.text
    assert "| conv-3 | 1000.0 | 900.0 | 2.00 | fma | 80% | yes |" in section.text


def test_budgets() -> None:
    points = (
        Point(5.0, 4.9, 0.1, 0.1, 4, 2, 3),
        Point(20.0, 15.0, 0.0125, 0.8, 4, 0, 9),
        Point(None, 60.0, 0.01, 1.0, 4, 0, 80),
    )
    report = BudgetReport(2, "cpu", (BudgetRow("m", points), BudgetRow("n", failure="it fails")))
    section = TOGETHER["budget"]([stored(budget_json(report))])
    assert section.text.splitlines()[-5:] == [
        "| m | 5 | 4.9 | 100 | 10% | 2 of 4 | 3 |",
        "| m | 20 | 15.0 | 12.5 | 80% | 0 of 4 | 9 |",
        "| m | none | 60.0 | 10 | 100% | 0 of 4 | 80 |",
        "",
        "- n: it fails",
    ]
    assert section.chart.count("<circle") == 3  # two points, and the legend
    assert "unlimited" in budget_table(report)


def test_onnx() -> None:
    counts = {"pass": 8, "refused": 2, "wrong": 0, "crash": 0}
    runs = [stored(json.dumps({"suite": "onnx", "plain": plain, "counts": counts})) for plain in (True, False)]
    rows = TOGETHER["onnx"](runs).text.splitlines()[-2:]
    assert rows == ["| subtune | 10 | 8 | 2 | 0 | 0 |", "| TVM alone | 10 | 8 | 2 | 0 | 0 |"]


def test_charts_are_svg() -> None:
    bars = bar_chart("a < b", "s", [Bar("x", 0.5, (("p", 0.5), ("q", 3.25))), Bar("y", 12.0)])
    lines = line_chart("t", "s", "x", [Line("one", ((5.0, 0.5), (10.0, 1.0))), Line("two", ((5.0, 1.0),))])
    for chart in (bars, lines):
        ET.fromstring(chart)
        assert "prefers-color-scheme: dark" in chart


def test_render_writes_everything(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "docs" / "charts").mkdir(parents=True)
    (tmp_path / "docs" / "charts" / "old.svg").write_text("<svg/>")
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / "benchmarks" / "cpu.json").write_text(stamped(cpu_json(cpu_report())))
    (tmp_path / "benchmarks" / "gpu.json").write_text(stamped(gpu_json(gpu_report())))
    render(tmp_path)
    assert sorted(p.name for p in (tmp_path / "docs" / "charts").iterdir()) == ["cpu.svg", "gpu.svg"]
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith(f"before\n{BEGIN}\n| model")
    assert readme.endswith(f"{END}\nafter\n")
    assert "old" not in readme
    assert all((tmp_path / name).read_text() == text for name, text in rendered(tmp_path).items())


def fleet_report(devices: tuple[int, ...], tune_s: float = 100.0) -> str:
    def row(count: int, side_by_side: bool, counts_cpu: bool) -> dict:
        return {
            "devices": count, "side_by_side": side_by_side, "counts_cpu": counts_cpu, "seconds": tune_s + 40.0,
            "tune_s": tune_s, "measured_s": 50.0, "built_s": 80.0, "builders": 4, "workloads": 10, "candidates": 200,
            "calls": 300, "writes": 50, "writer_s": 0.1, "cpu_s": 60.0, "idle": 0.5, "idle_builders": 0.8,
        }  # fmt: skip

    rows = [row(n, *kind) for kind in ((False, True), (True, True), (False, False)) for n in devices]
    about = {"targets": ["a", "b"], "models": 3, "workloads": 10, "prepare_s": 10.0, "artifacts_s": 30.0}
    compared = {"recorded_s": 80.0, "simulated_s": 79.0, "sample": 60}
    return json.dumps({"suite": "fleet", **about, **compared, "rows": rows})


def test_a_simulated_fleet_is_on_its_own_page(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}\n")
    (tmp_path / CLUSTER).write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / "benchmarks" / "cpu.json").write_text(stamped(cpu_json(cpu_report())))
    for name in FLEETS:
        with pytest.raises(StoredRunError, match=f"{name}.json is missing") if name != FLEETS[0] else nullcontext():
            render(tmp_path)
        text = fleet_report((512,), 254.0) if name == "fleet-all-asked" else fleet_report((1, 512))
        (tmp_path / "benchmarks" / f"{name}.json").write_text(stamped(text))
    render(tmp_path)
    page = (tmp_path / CLUSTER).read_text()
    assert page.startswith(f"before\n{BEGIN}\n\n![")
    assert page.endswith(f"{END}\nafter\n")
    assert "| 512 | 2.3 | 1.7 | 360 | 7200 | 50.0% | 80.0% | 0.5 | 0.1% | 20% | 100.0 |" in page
    assert "tuning took 254 s" in page
    assert "something: 100 s" in page
    ET.fromstring((tmp_path / "docs/charts/fleet.svg").read_text())
    assert "fleet" not in (tmp_path / "docs/performance.md").read_text()


def test_a_readme_without_markers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "README.md").write_text("nothing")
    (tmp_path / "benchmarks" / "cpu.json").write_text(stamped(cpu_json(cpu_report())))
    with pytest.raises(StoredRunError, match="markers"):
        render(tmp_path)


def test_the_documents_are_what_the_runs_make() -> None:
    """A figure that is in no stored run is in no document."""
    texts = rendered(ROOT)
    stale = [name for name, text in texts.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    charts = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "charts").glob("*.svg")}
    assert not stale, "run `python -m subtune.bench.render`"
    assert charts == {name for name in texts if name.endswith(".svg")}
