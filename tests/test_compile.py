"""The pipeline as a function call: its promises, its options, and that it refuses a model that is wrong."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import subtune
from subtune import backends, models
from subtune import runtime as runtimes
from subtune.backends import as_device, device_of
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError, TargetError, VerificationError
from subtune.core.measurement import FailureKind
from subtune.core.progress import Progress
from subtune.database import Database
from subtune.driver import compile_model
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.measure import LocalMeasurer
from subtune.pipeline import prepare
from subtune.tuning import winners
from subtune.tuning.search import Search
from subtune.tuning.winners import schedule_kernels
from subtune.verification.verify import output_error
from tests.measure.patient import PatientMeasurer

"""The module: the package's attribute of that name is the function."""


@pytest.fixture(scope="module")
def tuned(small_model: Path, workers: LocalMeasurer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a full database of the small model, `t.db`, and the artifact, `m.subtune`."""
    folder = tmp_path_factory.mktemp("tuned")
    compile_model(small_model, folder / "m.subtune", topk=2, threads=2, database=folder / "t.db", measurer=workers)
    return folder


def agrees(path: Path, model: Path) -> bool:
    artifact = subtune.load(path, check=True)
    x = np.random.default_rng(3).standard_normal((4, 32), dtype=np.float32)
    reference = onnxruntime_reference(str(model))
    assert reference is not None
    got, expected = artifact.run({"x": x}), reference({"x": x})
    return all(output_error(name, got[name], expected[name]).is_within for name in expected)


# -- promises ----------------------------------------------------------------------------------------------


def test_when_the_budget_is_spent_nothing_more_begins(
    tmp_path: Path, workers: LocalMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hour has passed as soon as one candidate was checked: no other subgraph's turn comes any more."""
    seen: list[Progress] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + (7200.0 if any(p.tried for p in seen) else 0.0)

    for module in ("subtune.tuning.search", "subtune.measure.halving", "subtune.measure.session"):
        monkeypatch.setattr(f"{module}.time", Clock)
    report = compile_model(
        models.reduced("mobilenet_v2"), tmp_path / "m.subtune", budget_s=3600, topk=8, verify=False, threads=2,
        database=tmp_path / "t.db", measurer=workers, progress=seen.append,
    )  # fmt: skip
    assert not report.failures
    assert sum(bool(row.tuned_s) for row in report.rows) <= 1  # a check beside builds proves only a factor of two
    assert len({p.workload_key for p in seen}) == 1
    assert {(p.done, p.tried) for p in seen} == {(0, 0), (0, 1)}
    assert all(p.tried <= p.candidates for p in seen)
    assert 0 <= seen[-1].eta_s < math.inf


def test_a_full_database_is_all_that_a_second_compile_needs(tuned: Path, small_model: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    options: dict[str, Any] = {"topk": 2, "threads": 2, "database": tuned / "t.db", "progress": seen.append}
    again = compile_model(small_model, tmp_path / "again.subtune", **options)
    kept = compile_model(small_model, tmp_path / "kept.subtune", tune=False, **options)
    assert not seen
    assert again.rows == kept.rows
    assert all(row.tuned_s for row in again.rows)
    first = subtune.load(tuned / "m.subtune").manifest
    for name in ("again", "kept"):
        manifest = subtune.load(tmp_path / f"{name}.subtune").manifest
        assert manifest.subgraphs == first.subgraphs
        assert all(s.measured_hash == s.linked_hash != "" for s in manifest.subgraphs)


def test_without_tuning_and_with_an_empty_database_all_is_default(small_model: Path, tmp_path: Path) -> None:
    report = compile_model(small_model, tmp_path / "m.subtune", tune=False, database=tmp_path / "t.db")
    assert {row.candidate for row in report.rows} == {str(DEFAULT)}
    assert not any(row.tuned_s for row in report.rows)
    assert agrees(tmp_path / "m.subtune", small_model)
    with Database(tmp_path / "t.db") as database:
        assert not database.list_records()


def test_the_python_api_tunes_and_loads(small_model: Path, tmp_path: Path) -> None:
    artifact = subtune.compile(str(small_model), tune=False, database=tmp_path / "t.db")
    assert [spec.name for spec in artifact.outputs] == ["y", "s"]
    assert artifact.run({"x": np.zeros((4, 32), "float32")})["s"].shape == (4,)
    named = subtune.compile(small_model, output=tmp_path / "n.subtune", tune=False, database=tmp_path / "t.db")
    assert named.path == tmp_path / "n.subtune"


def test_the_python_api_takes_budgets_as_text(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SubtuneError, match="budget: 'soon' is not a duration"):
        subtune.compile(small_model, budget="soon", tune=False)
    given: list[float | None] = []

    def searched(topk: int, budget_s: float | None, transfer: bool) -> Search:
        given.append(budget_s)
        return Search(topk, 0.0, transfer=transfer)

    monkeypatch.setattr("subtune.driver.Search", searched)
    for budget in ("2m", 1.5, None):
        subtune.compile(small_model, budget=budget, database=tmp_path / "t.db")
    assert given == [120.0, 1.5, None]


def test_an_artifact_that_was_replaced_runs_its_own_code(small_model: Path, tmp_path: Path) -> None:
    """Though the older one, of another model, is loaded from the same path and still in use."""
    path = tmp_path / "m.subtune"
    x = np.random.default_rng(0).standard_normal((4, 32), dtype=np.float32)
    compile_model(small_model, path, tune=False, database=tmp_path / "t.db")
    older = subtune.load(path)
    before = older.run({"x": x})
    compile_model(_with_maximum(small_model), path, tune=False, database=tmp_path / "t.db")
    newer = subtune.load(path)
    np.testing.assert_array_equal(newer.run({"x": x})["s"], before["y"].max(1))
    np.testing.assert_array_equal(older.run({"x": x})["s"], before["s"])


# -- options -----------------------------------------------------------------------------------------------


def test_one_candidate_on_one_thread(small_model: Path, workers: LocalMeasurer, tmp_path: Path) -> None:
    report = compile_model(
        small_model, tmp_path / "m.subtune", topk=1, threads=1, database=tmp_path / "t.db", measurer=workers
    )
    assert all(row.tried <= 1 for row in report.rows)
    manifest = subtune.load(tmp_path / "m.subtune").manifest
    assert manifest.threads == 1
    assert manifest.device.endswith("/t1")
    assert agrees(tmp_path / "m.subtune", small_model)


def test_a_device_file_overrides_the_machine(small_model: Path, workers: LocalMeasurer, tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    file.write_text(json.dumps({"l2_bytes": 256 * 1024, "vector_bytes": 16, "threads": 2}))
    options: dict[str, Any] = {"topk": 1, "database": tmp_path / "t.db", "measurer": workers, "device_file": file}
    compile_model(small_model, tmp_path / "m.subtune", **options)
    device = subtune.load(tmp_path / "m.subtune").manifest.device
    assert "/128b/" in device
    assert "-256K-" in device
    assert device.endswith("/t2")
    compile_model(small_model, tmp_path / "m.subtune", threads=1, tune=False, **options)
    assert subtune.load(tmp_path / "m.subtune").manifest.threads == 1, "--threads is more special than the file"
    assert agrees(tmp_path / "m.subtune", small_model)


@pytest.mark.parametrize("content", [None, "", "[]", '{"l9_bytes": 1}', '{"threads": 0}', '{"l2_bytes": "big"}'])
def test_a_bad_device_file_is_refused(small_model: Path, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "device.json").write_text(content)
    with pytest.raises(TargetError, match="device description"):
        compile_model(small_model, tmp_path / "m.subtune", device_file=tmp_path / "device.json")
    assert not (tmp_path / "m.subtune").exists()


def test_an_extension_this_processor_lacks_is_refused_where_kernels_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "missing_features", lambda features: ("amx-tile",))
    with pytest.raises(TargetError, match="lacks amx-tile"):
        device_of()


# -- verification ------------------------------------------------------------------------------------------


def _with_maximum(path: Path) -> onnx.ModelProto:
    """The small model with row maxima in place of its row sums."""
    model = onnx.load(path)
    next(node for node in model.graph.node if node.op_type == "ReduceSum").op_type = "ReduceMax"
    return model


@pytest.fixture
def wrong_kernel(small_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model's row sums are compiled to row maxima: a kernel with the same signature."""
    maximum = next(s for s in prepare(_with_maximum(small_model)).subgraphs if "max" in s.anchor)

    def schedule(subgraphs: Any, chosen: Any, device: Any) -> Any:
        kernels = schedule_kernels(subgraphs, chosen, device)
        bad = schedule_kernels([maximum], {}, device)[maximum.name]
        return kernels | {s.name: bad for s in subgraphs if s.anchor == "sum"}

    monkeypatch.setattr(winners, "schedule_kernels", schedule)


@pytest.mark.usefixtures("wrong_kernel")
def test_a_wrong_model_is_refused_and_the_older_artifact_stays(small_model: Path, tuned: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(tuned / "m.subtune", tmp_path / "m.subtune"))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(VerificationError, match="disagrees with ONNX Runtime: s: max abs error"):
        compile_model(small_model, path, tune=False, database=tmp_path / "t.db")
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    with pytest.raises(VerificationError):
        compile_model(small_model, tmp_path / "new.subtune", tune=False, database=tmp_path / "t.db")
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.startswith("t.db")) == ["m.subtune"]
    compile_model(small_model, tmp_path / "new.subtune", tune=False, verify=False, database=tmp_path / "t.db")
    assert not agrees(tmp_path / "new.subtune", small_model), "verification is what refused it"


def test_without_onnx_runtime_the_untuned_build_is_the_reference(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    report = compile_model(small_model, tmp_path / "m.subtune", tune=False, database=tmp_path / "t.db")
    assert "agrees with the untuned build" in report.verified
    request.getfixturevalue("wrong_kernel")
    with pytest.raises(VerificationError, match="disagrees with the untuned build"):
        compile_model(small_model, tmp_path / "m.subtune", tune=False, database=tmp_path / "t.db")


# -- what goes wrong on the way ----------------------------------------------------------------------------


def test_candidates_that_break_do_not_stop_the_compile(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = {
        "segfault": FailureKind.CRASH,
        "abort": FailureKind.CRASH,
        "hang": FailureKind.TIMEOUT,
        "explodes": FailureKind.INVALID,
        "unknown": FailureKind.INVALID,
    }
    monkeypatch.setattr(backends, "candidates", lambda workload, device, topk: tuple(Candidate(n) for n in evil))
    here = str(Path(__file__).resolve().parent / "measure")
    with PatientMeasurer(builders=2, schedule="bad_schedules:schedule", search_path=[here]) as broken:
        report = compile_model(
            small_model, tmp_path / "m.subtune", threads=2, database=tmp_path / "t.db", measurer=broken
        )
    assert not report.failures
    assert {row.candidate for row in report.rows} == {str(DEFAULT)}
    assert all(row.tuned_s and row.tried == row.failed == len(evil) for row in report.rows)
    assert agrees(tmp_path / "m.subtune", small_model)
    with Database(tmp_path / "t.db") as database:
        for record in database.list_records():
            found = {m.candidate.family: m.outcome.kind for m in database.show(record.workload_key)[2]}
            assert found == evil


def test_a_default_that_cannot_be_built_leaves_the_subgraph_untuned(small_model: Path, tmp_path: Path) -> None:
    """The workers cannot work at all; the model still ships, with default schedules, and the report says why."""
    with LocalMeasurer(builders=1, schedule="no_such_module:schedule") as broken:
        report = compile_model(
            small_model, tmp_path / "m.subtune", topk=1, threads=2, database=tmp_path / "t.db", measurer=broken
        )
    assert len(report.failures) == 2
    assert all("no_such_module" in reason for _, reason in report.failures)
    assert "not tuned" in str(report)
    assert agrees(tmp_path / "m.subtune", small_model)


def test_a_record_of_another_kernel_is_not_shipped_as_measured(
    small_model: Path, tuned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a template changed and nobody raised the templates' version."""
    shutil.copy(tuned / "t.db", tmp_path / "t.db")
    workloads = {s.workload.key: s.workload for s in prepare(small_model).subgraphs}
    with Database(tmp_path / "t.db") as database:
        first, second = database.list_records()
        versions = as_device(device_of(threads=2)).backend.versions()
        database.add_record(workloads[first.workload_key], replace(first, func_hash="0" * 16), versions)
        gone = replace(second, candidate=Candidate.make("contraction", mr=0))
        database.add_record(workloads[second.workload_key], gone, versions)
    report = compile_model(small_model, tmp_path / "m.subtune", tune=False, threads=2, database=tmp_path / "t.db")
    assert {row.candidate for row in report.rows} == {str(DEFAULT)}
    assert all(s.measured_hash == "" for s in subtune.load(tmp_path / "m.subtune").manifest.subgraphs)
    assert "another kernel" in caplog.text
    assert agrees(tmp_path / "m.subtune", small_model)


def test_ctrl_c_in_the_callback_still_writes(small_model: Path, workers: LocalMeasurer, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done == 1:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"topk": 1, "threads": 2, "database": tmp_path / "t.db", "measurer": workers}
    report = compile_model(small_model, tmp_path / "m.subtune", progress=interrupt, **options)
    assert report.is_interrupted
    assert "interrupted" in str(report)
    assert json.loads(report.to_json())["is_interrupted"] is True
    with Database(tmp_path / "t.db") as store:  # others may have a record of a few calls, which is not complete
        (finished,) = (record for record in store.list_records() if record.complete)
    (row,) = (row for row in report.rows if row.tuned_s == finished.timing.median_s)
    assert agrees(tmp_path / "m.subtune", small_model)
    resumed = compile_model(small_model, tmp_path / "m.subtune", **options)
    assert all(row.tuned_s for row in resumed.rows)
    assert row in resumed.rows


def test_a_machine_without_room_for_temporary_files(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(SubtuneError, match="temporary"):
        compile_model(small_model, tmp_path / "m.subtune", threads=2, database=tmp_path / "t.db")


def test_a_policy_that_fails_costs_a_subgraph_its_tuning(
    small_model: Path, workers: LocalMeasurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backends.candidates

    def partial(workload: Any, device: Any, topk: int = 20) -> Any:
        if len(workload.args) == 2:  # the row sums
            raise IndexError("a case it does not foresee")
        return real(workload, device, topk)

    monkeypatch.setattr(backends, "candidates", partial)
    options: dict[str, Any] = {"topk": 1, "threads": 2, "database": tmp_path / "t.db", "measurer": workers}
    report = compile_model(small_model, tmp_path / "m.subtune", **options)
    ((_, reason),) = report.failures
    assert "IndexError: a case it does not foresee" in reason
    assert sum(bool(row.tuned_s) for row in report.rows) == 1
    assert agrees(tmp_path / "m.subtune", small_model)


def test_a_reduction_to_a_scalar(workers: LocalMeasurer, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 32] x) => (float s) { s = ReduceSum<keepdims = 0>(x) }'
    )
    options: dict[str, Any] = {"topk": 2, "threads": 2, "database": tmp_path / "t.db", "measurer": workers}
    report = compile_model(model, tmp_path / "m.subtune", **options)
    assert not report.failures
    assert "agrees with ONNX Runtime" in report.verified


def test_a_model_that_only_we_can_run_is_compared_with_the_untuned_build(tmp_path: Path) -> None:
    """ONNX Runtime makes a session of a float64 LSTM and fails when it runs."""
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    weights = [("w", (1, 16, 3)), ("r", (1, 16, 4))]
    node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)
    graph = onnx.helper.make_graph(
        [node],
        "lstm",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, [2, 1, 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, [2, 1, 1, 4])],
        [onnx.numpy_helper.from_array(rng.standard_normal(shape), name) for name, shape in weights],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    report = compile_model(model, tmp_path / "m.subtune", tune=False)
    assert "agrees with the untuned build, as ONNX Runtime cannot run the model (" in report.verified
