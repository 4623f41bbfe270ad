"""The coverage suite: what is drawn, that both dialects say the same, that no case ends the run, what is reported."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest

from subtune.bench.coverage import suite
from subtune.bench.coverage.arrays import draw
from subtune.bench.coverage.case import Case
from subtune.bench.coverage.grammar import FAMILIES, body, cases
from subtune.bench.coverage.lane import Lane
from subtune.bench.coverage.onnx_dialect import Given, OnnxDialect
from subtune.bench.coverage.report import (
    CoverageReport,
    CoverageRow,
    bins,
    coverage_chart,
    coverage_json,
    coverage_table,
    summary,
)  # fmt: skip
from subtune.bench.coverage.work import work_of
from subtune.bench.job import Job
from subtune.bench.markdown import SECTIONS
from subtune.bench.race import Pace
from subtune.bench.stored import Provenance, StoredRun
from subtune.bench.suite import Settings
from subtune.cli import main
from subtune.database import Database

SQUARE = {"size": (9, 7), "kernel": (3, 3), "stride": (2, 1), "pad": (1, 1), "dilation": (1, 1), "batch": 2}
CONV = {**SQUARE, "cin": 6, "cout": 4, "layout": "last", "transposed": False, "bias": True, "groups": 2}
UP = {**CONV, "transposed": True, "layout": "first", "stride": (2, 2), "output_pad": (1, 1)}
HEADS = {"batch": 2, "heads": 6, "groups": 2, "head": 8}
CELL = {"tokens": 3, "batch": 2, "features": 5, "hidden": 4}
LINEAR = {"batch": 0, "m": 5, "n": 4, "k": 3, "layout": "nt", "bias": True}
SMALL = (
    ("linear", LINEAR, ("gelu", "residual")),
    ("linear", {**LINEAR, "layout": "nn", "batch": 2}, ("gelu-tanh", "scale")),
    ("matmul-batched", {"batch": (2, 3), "m": 4, "n": 5, "k": 6, "layout": "nt"}, ("silu",)),
    ("conv-grouped", CONV, ("hardswish", "residual")),
    ("conv-transposed", UP, ("relu6",)),
    ("avg-pool", {**SQUARE, "kind": "avg", "cin": 3, "layout": "last"}, ()),
    ("max-pool", {**SQUARE, "kind": "max", "cin": 3, "layout": "first"}, ()),
    ("attention-causal", {**HEADS, "groups": 6, "rows": 5, "keys": 5, "mask": "causal"}, ()),
    ("attention-gqa", {**HEADS, "rows": 3, "keys": 7, "mask": "causal"}, ()),
    ("attention-masked", {**HEADS, "rows": 4, "keys": 9, "mask": "keys"}, ()),
    ("rms-norm", {"shape": (3, 4, 10)}, ()),
    ("layer-norm", {"shape": (3, 10)}, ()),
    ("group-norm", {"shape": (2, 6, 5, 4), "groups": 3}, ()),
    ("instance-norm", {"shape": (2, 6, 5, 4), "groups": 6}, ()),
    ("batch-norm", {"shape": (2, 6, 5)}, ()),
    ("softmax", {"shape": (3, 4, 5), "axis": 1, "log": True}, ()),
    ("reduce", {"kind": "l2", "shape": (3, 4, 5), "axes": (0, 2)}, ()),
    ("reduce", {"kind": "prod", "shape": (3, 4, 5), "axes": (0, 2)}, ()),
    ("top-k", {"shape": (7, 9), "axis": 0, "count": 3}, ()),
    ("sort", {"shape": (3, 9), "axis": 1, "count": 9}, ()),
    ("cumsum", {"shape": (3, 9), "axis": 0}, ()),
    ("pad", {"shape": (1, 2, 6, 5), "before": (0, 0, 1, 2), "after": (0, 0, 3, 0), "mode": "reflect"}, ()),
    ("pad", {"shape": (1, 2, 6, 5), "before": (0, 0, 1, 2), "after": (0, 0, 3, 0), "mode": "edge"}, ()),
    ("resize", {"shape": (1, 2, 6, 5), "scale": 3, "mode": "linear"}, ()),
    ("resize", {"shape": (1, 2, 6, 5), "scale": 2, "mode": "nearest"}, ()),
    ("slice", {"shape": (4, 9), "axis": 1, "begin": 1, "end": 8, "step": 3}, ()),
    ("gather", {"shape": (9, 4), "axis": 1, "count": 6, "constant": True}, ()),
    ("gather-elements", {"shape": (5, 4), "axis": 0, "count": 3}, ()),
    ("scatter-elements", {"shape": (5, 4), "axis": 1, "count": 3}, ()),
    ("where", {"shape": (5, 4), "condition": "rows"}, ()),
    ("chain", {"shape": (5, 4), "ops": ("mul", "elu", "max"), "operands": ("last", "whole")}, ()),
    *((kind.lower(), {**CELL, "kind": kind}, ()) for kind in ("LSTM", "GRU", "RNN")),
)  # fmt: skip


def of(family: str, sizes: dict, epilogue: tuple[str, ...] = ()) -> Case:
    """The case with the shape of its output, where an epilogue wants to know it."""
    case = Case(0, 0, family, sizes, "float32", epilogue)
    if epilogue:
        bare = OnnxDialect("float32")
        skeleton = bare.model(body(bare, replace(case, epilogue=())), None)
        dims = skeleton.graph.output[0].type.tensor_type.shape.dim
        case = replace(case, out=tuple(dim.dim_value for dim in dims))
    return case


class TestGrammar:
    def test_a_shorter_run_is_a_prefix_and_seeds_differ(self):
        drawn = list(cases(3, 80, is_gpu=False))
        assert drawn[:20] == list(cases(3, 20, is_gpu=False))
        assert [case.sizes for case in drawn[:20]] != [case.sizes for case in cases(4, 20, is_gpu=False)]
        assert len({case.name for case in drawn}) == 80

    @pytest.mark.parametrize("is_gpu", [False, True])
    def test_every_family_comes_before_any_comes_twice(self, is_gpu):
        drawn = list(cases(1, len(FAMILIES), is_gpu))
        assert {case.family for case in drawn} == set(FAMILIES)
        assert {case.dtype for case in drawn} >= {"float32", "float16"}
        assert all(Case.from_json(case.to_json()) == case for case in drawn)

    def test_work_is_counted(self):
        dialect = OnnxDialect("float16")
        sizes = {"batch": 0, "m": 5, "n": 7, "k": 3, "layout": "nn", "bias": False}
        work = work_of(dialect.model(body(dialect, Case(0, 0, "linear", sizes, "float16")), None))
        assert (work.flops, work.nbytes, work.smallest) == (2 * 5 * 7 * 3, 2 * (15 + 21 + 35), 5)

    def test_values_are_what_they_are_said_to_be(self):
        case = Case(0, 0, "sort", {}, "float16")
        kinds = ("distinct:1", "permuted:9:1", "index:4", "mask")
        halves = draw(case, [Given(kind, (3, 5), kind, "float16" if kind[0] in "dm" else "int64") for kind in kinds])
        assert all(len(set(row)) == 5 for row in (*halves[0].tolist(), *halves[1].tolist()))
        assert halves[1].max() < 9
        assert set(halves[2].ravel()) <= {0, 1, 2, 3}
        assert set(halves[3].ravel()) <= {0.0, -10000.0}


@pytest.mark.parametrize(
    ("family", "sizes", "epilogue"), SMALL, ids=lambda value: value if isinstance(value, str) else ""
)
def test_both_dialects_say_the_same(family, sizes, epilogue, tmp_path):
    """The ONNX model as ONNX Runtime runs it, and the PyTorch function in float64."""
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    from subtune.bench.coverage.case import CASE_SUFFIX
    from subtune.bench.coverage.torch_dialect import reference

    case, dialect = of(family, sizes, epilogue), OnnxDialect("float32")
    model = dialect.model(body(dialect, case), draw(case, dialect.weights))
    onnx.checker.check_model(model)
    path = tmp_path / "case.onnx"
    onnx.save(model, path)
    path.with_suffix(CASE_SUFFIX).write_text(case.to_json())
    arrays = draw(case, dialect.inputs)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    got = session.run(None, {given.name: array for given, array in zip(dialect.inputs, arrays, strict=True)})
    for ours, theirs in zip(got, reference(str(path), arrays, "cpu", 1), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_cases_that_fail_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is timed, one whose model nobody can read: the suite goes on after it."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    drawn = [of("linear", LINEAR), replace(of("linear", {**LINEAR, "n": 6}), index=1)]
    monkeypatch.setattr(suite, "cases", lambda seed, count, is_gpu: islice(drawn, count))
    files = suite.written

    def damaged(case: Case, folder: Path, device: object) -> object:
        found = files(case, folder, device)
        if case.index == 1:
            found.model.write_bytes(b"no model")
        return found

    monkeypatch.setattr(suite, "written", damaged)
    with Database(tmp_path / "t.db") as database:
        options = (("threads", 1), ("topk", 1), ("budget_s", 20.0))
        settings = Settings(database, ("onnxruntime",), options, Pace(1, 0.001, 60.0))
        kept: list[CoverageReport] = []
        report = suite.run_coverage(0, 2, settings, kept.append)
    first, second = report.rows
    assert (first.outcome, first.best) == ("timed", "onnxruntime"), first.why
    assert 0 < first.error < 1e-5
    assert second.outcome in ("refused", "crash")
    assert [len(one.rows) for one in kept] == [1, 2]
    assert not report.is_interrupted


def test_processes_outlive_the_threads_that_load_side_by_side():
    """Linux ends a process that asked to die with its parent as soon as the *thread* is gone that started it."""
    lane = Lane(60.0, side_by_side=True)
    try:
        loaded = lane.load([Job(name, "nowhere", 1) for name in ("nobody", "nothing")])
        assert set(loaded.reasons) == {"nobody", "nothing"}
        time.sleep(0.1)
        assert all(lane.is_alive(name) for name in loaded.reasons)
    finally:
        lane.close()


def report_of(ratios: list[float]) -> CoverageReport:
    rows = [
        CoverageRow(f"case {i}", "linear", "float32", "timed", "", 1e-4, "torch", ratio * 1e-4, ratio, 5e-5)
        for i, ratio in enumerate(ratios)
    ]
    rows.append(CoverageRow("tiny", "linear", "float32", "timed", best="torch", best_s=1e-6, ratio=0.01))
    rows.append(CoverageRow("bad", "sort", "float16", "wrong", "relative error 1.0", untuned=("x",)))
    return CoverageReport(7, "cpu", "d", 2, ("torch",), tuple(rows))


def test_what_the_bars_are_about() -> None:
    found = summary(report_of([2.0, 0.6, 1.2]))
    assert (found.counting, found.median, found.least, found.below) == (3, 1.2, 0.6, 1)
    assert (found.failed, found.untuned, found.defaults) == (1, 1, 0)
    assert dict(bins([0.05, 1.0, 9.0]))["under 0.1"] == 1
    assert sum(count for _, count in bins([0.05, 1.0, 9.0])) == 3


def test_the_report_as_text_json_and_chart() -> None:
    report = report_of([2.0, 0.6, 1.2])
    text = coverage_table(report)
    assert "0.60  100.0 us, torch 60.0  case 1" in text
    assert "wrong: bad: relative error 1.0" in text
    assert json.loads(coverage_json(report))["summary"]["below"] == 1
    ET.fromstring(coverage_chart("t", "s", summary(report).bins))


def test_a_stored_run_becomes_a_section() -> None:
    run = json.loads(coverage_json(report_of([2.0, 0.6, 1.2])))
    section = SECTIONS["coverage"](StoredRun("coverage", "coverage", Provenance("m", "2026-11-24", "", ()), run))
    assert "| case 1 | 100.0 | torch | 60.0 | 0.60 |" in section.text
    assert "the median is 1.20 and the least 0.60; 1 are under 0.8" in section.text
    assert "- wrong: bad" in section.text
    assert "Coverage on a CPU, seed 7" in section.heading


def test_the_command_line_refuses_what_there_is_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["bench", "--suite", "coverage", "--against", "tensorflow", "--db", str(tmp_path / "t.db")]
    assert main(arguments) == 2
    assert "unknown framework tensorflow" in capsys.readouterr().err
