"""Op-level against subgraph-level tuning on a small model: what the report holds, and that it is about this model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.progress import Progress
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.measure import LocalMeasurer
from subtune.pipeline import prepare
from subtune.report.comparison import ComparisonReport
from subtune.tuning import compare
from subtune.tuning.compare import compare_model
from subtune.tuning.op_level import anchor_alone
from subtune.tuning.ranking import NOT_RANKED
from subtune.tuning.records import Records
from subtune.tuning.search import Search, tune


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gelu-free and small: relu(conv(x)), its row of 8 * 14 * 14 numbers @ w + b, and the sum of the result.

    Two subgraphs with an epilogue, a reduction without one.
    """
    rng = np.random.default_rng(0)
    weights = {"k": (8, 3, 3, 3), "c": (8,), "w": (8 * 14 * 14, 16), "b": (16,)}
    nodes = [
        helper.make_node("Conv", ["x", "k", "c"], ["conv"]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Flatten", ["relu"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["s"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "both",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 16, 16])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 16]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
        ],
        [
            numpy_helper.from_array(0.1 * rng.standard_normal(shape, dtype=np.float32), name)
            for name, shape in weights.items()
        ],
    )
    path = tmp_path_factory.mktemp("compare") / "both.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def compared(
    model: Path, workers: LocalMeasurer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ComparisonReport, Path]:
    database = tmp_path_factory.mktemp("database") / "t.db"
    return compare_model(model, topk=3, threads=2, database=database, measurer=workers), database


def test_every_subgraph_with_an_epilogue_is_compared(compared: tuple[ComparisonReport, Path], model: Path) -> None:
    report, _ = compared
    anchors = {s.name: s.anchor for s in prepare(model).subgraphs}
    assert {anchors[row.name] for row in report.rows} >= {"nn.conv2d", "matmul"}
    assert "sum" not in {anchors[row.name] for row in report.rows}
    for row in report.rows:
        assert row.uses == 1
        assert row.note == ""
        assert row.op_s > 0
        assert row.subgraph_s > 0
        if row.op_winner == row.subgraph_winner:
            assert row.op_s == row.subgraph_s
    assert report.left_out == ()
    assert {anchors[one.name]: one.why for one in report.without_op} == {
        "sum": "no epilogue: the op is the subgraph", "permute_dims": "0 reductions: no single anchor op",
    }  # fmt: skip
    assert report.op_model_s > 0
    assert report.subgraph_model_s > 0


def test_both_winners_come_from_the_database(compared: tuple[ComparisonReport, Path], model: Path) -> None:
    report, path = compared
    own = {s.workload.key: s.name for s in prepare(model).subgraphs}
    with Database(path) as database:
        records = database.list_records()
    winners = {own[r.workload_key]: str(r.candidate) for r in records if r.workload_key in own}
    alone = {s.name: anchor_alone(s.workload) for s in prepare(model).subgraphs}
    of_ops = {r.workload_key: str(r.candidate) for r in records if r.workload_key not in own}
    assert len(records) == len(own) + len(report.rows), "the ops are workloads of their own"
    for row in report.rows:
        assert row.subgraph_winner == winners[row.name]
        op = alone[row.name]
        assert isinstance(op, Workload)
        assert row.op_winner == of_ops.get(op.key, str(DEFAULT))


def test_json_and_text_say_the_same(compared: tuple[ComparisonReport, Path]) -> None:
    report, _ = compared
    data = json.loads(report.to_json())
    assert set(data) >= {"rows", "left_out", "without_op", "op_model_s", "subgraph_model_s", "summary"}
    assert [row["name"] for row in data["rows"]] == [row.name for row in report.rows]
    assert [row["has_changed"] for row in data["rows"]] == [row.has_changed for row in report.rows]
    text = str(report)
    assert all(row.name in text and row.subgraph_winner in text for row in report.rows)
    changed = sum(row.has_changed for row in report.rows)
    assert f"{changed} of {len(report.rows)} subgraphs with an epilogue have another winner than their op" in text
    assert f"ratio {report.op_model_s / report.subgraph_model_s:.3f}" in text


def test_a_second_comparison_tunes_nothing(
    compared: tuple[ComparisonReport, Path], model: Path, workers: LocalMeasurer
) -> None:
    report, database = compared
    seen: list[Progress] = []
    again = compare_model(model, topk=3, threads=2, database=database, measurer=workers, progress=seen.append)
    assert all(one.candidates == 0 for one in seen), "it ranks, and that is all"
    names = [(row.name, row.op_winner, row.subgraph_winner) for row in report.rows]
    assert [(row.name, row.op_winner, row.subgraph_winner) for row in again.rows] == names


def test_ctrl_c_ends_it_and_keeps_what_was_tuned(model: Path, workers: LocalMeasurer, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done == 1:
            raise KeyboardInterrupt

    with Database(tmp_path / "t.db") as database:
        with pytest.raises(KeyboardInterrupt):
            compare_model(model, topk=1, threads=2, database=database, measurer=workers, progress=interrupt)
        assert [record.complete for record in database.list_records()].count(True) == 1


def test_without_time_nothing_is_compared(model: Path, tmp_path: Path) -> None:
    report = compare_model(model, topk=3, threads=2, budget_s=0.0, database=tmp_path / "t.db")
    assert report.rows == ()
    assert len(report.left_out) == 2
    assert {one.why for one in report.left_out} == {"the op was not tuned; the subgraph was not tuned"}
    assert report.op_model_s == report.subgraph_model_s == 0.0
    assert "nothing to compare" in str(report)
    assert "same" not in str(report)
    assert "ratio" not in str(report)
    assert [one["name"] for one in json.loads(report.to_json())["left_out"]] == [one.name for one in report.left_out]


@pytest.mark.parametrize(("side", "is_there", "why"), [
    (1, False, "the subgraph was not tuned"), (1, True, "the subgraph was tuned in part"),
    (0, False, "the op was not tuned"), (0, True, "the op was tuned in part"),
])  # fmt: skip
def test_what_one_side_did_not_finish_is_left_out_of_both_models(
    compared: tuple[ComparisonReport, Path],
    model: Path,
    workers: LocalMeasurer,
    monkeypatch: pytest.MonkeyPatch,
    side: int,
    is_there: bool,
    why: str,
) -> None:
    """Neither the table nor the two models that are timed know of it."""
    full, database = compared
    first = full.rows[0].name
    subgraph = next(s for s in prepare(model).subgraphs if s.name == first)
    alone = anchor_alone(subgraph.workload)
    assert isinstance(alone, Workload)
    lost = (alone, subgraph.workload)[side].key
    timed: list[tuple[Mapping[str, Candidate], ...]] = []

    def cut(subgraphs: Any, device: Any, search: Search, **options: Any) -> Records:
        records = tune(subgraphs, device, search, **options)
        if lost in records:
            record = records.pop(lost)
            records.update({lost: replace(record, complete=False)} if is_there else {})
        return records

    def end_to_end(prepared: Any, choices: Any, device: Any) -> tuple[float, float]:
        timed.append(choices)
        return 2.0, 1.0

    monkeypatch.setattr(compare, "tune", cut)
    monkeypatch.setattr(compare, "measured", lambda *_: NOT_RANKED)
    monkeypatch.setattr(compare, "_end_to_end", end_to_end)
    report = compare_model(model, topk=3, threads=2, database=database, measurer=workers)
    assert [row.name for row in report.rows] == [row.name for row in full.rows[1:]]
    assert [(one.name, one.uses) for one in report.left_out] == [(first, 1)]
    assert report.left_out[0].why.startswith(why)
    assert f"left out: {first}, 1 uses: {why}" in str(report)
    ((op, own),) = timed
    key = subgraph.workload.key
    assert op.get(key) == own.get(key)
