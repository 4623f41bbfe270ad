"""Several models and targets in one run: shared work is done once, and every artifact is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import subtune
from subtune.cli import main
from subtune.core.progress import Progress
from subtune.database import Database
from subtune.fleet import read_fleet, tune_fleet
from subtune.fleet.pooled import pooled
from subtune.options import Options
from subtune.tuning.prospects import Seen
from subtune.workplace import workplace


@pytest.fixture
def described(tmp_path, small_model):
    """Two models that are one, of different priorities, and a third with a workload of its own."""
    shutil.copy(small_model, tmp_path / "a.onnx")
    shutil.copy(small_model, tmp_path / "b.onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [64, 64]) for name in "xy")
    node = onnx.helper.make_node("MatMul", ["x", "x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "square", [x], [y])), tmp_path / "c.onnx")
    path = tmp_path / "fleet.toml"
    path.write_text(
        'database = "own.db"\noutput = "out"\ntopk = 2\n'
        '[[model]]\npath = "a.onnx"\npriority = 3\n[[model]]\npath = "b.onnx"\n[[model]]\npath = "c.onnx"\n'
        "[[target]]\nthreads = 1\n"
    )
    return path


def test_equal_workloads_are_tuned_once_and_count_by_priority(described):
    fleet = read_fleet(described)
    options = Options(threads=1)
    with workplace(options) as place, Database(fleet.database) as database:
        (pool,) = pooled(fleet, place.device, options, database)
    first = pool.part("first")
    uses: dict[str, list[int]] = {}
    for one in first:
        uses.setdefault(one.workload.key, []).append(one.uses)
    shared = {key for key, count in pool.users.items() if count == 2}
    assert all(len(uses[key]) == 2 and uses[key][0] == 3 * uses[key][1] for key in shared)
    assert len(uses) == len(shared) + 1
    assert pool.worth(Seen()) == pool.plans[0].prospects.worth_tuning(Seen()) | pool.plans[2].prospects.worth_tuning(
        Seen()
    )


def test_all_artifacts_are_written_and_the_next_run_has_nothing_to_do(described, workers, reference, capsys):
    assert main(["tune-fleet", str(described), "--dry-run", "--json"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["targets"]
    assert planned["known"] == 0 < planned["shared"] == planned["workloads"] - 1
    assert not (described.parent / "out").exists()

    fleet, told = read_fleet(described), []
    report = tune_fleet(fleet, measurer=workers, tell=told.append)
    (done,) = report.targets
    assert (report.failed, report.is_interrupted, done.tuned) == (0, False, planned["workloads"])
    assert [Path(row.artifact).name for row in done.rows] == ["a.subtune", "b.subtune", "c.subtune"]
    assert len(told) == 4
    x = np.random.default_rng(0).standard_normal((4, 32)).astype("float32")
    for name in "ab":
        for key, result in subtune.load(described.parent / f"out/{name}.subtune").run({"x": x}).items():
            np.testing.assert_allclose(result, reference(x)[key], rtol=1e-4, atol=1e-5)

    assert main(["tune-fleet", str(described), "--dry-run"]) == 0
    assert f"{planned['workloads']} tuned before" in capsys.readouterr().out


def test_ctrl_c_keeps_what_was_tuned_and_writes_this_targets_artifacts(described, workers):
    described.write_text(described.read_text() + '[[target]]\nthreads = 1\nname = "second"\n')

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    report = tune_fleet(read_fleet(described), measurer=workers, progress=stop)
    assert report.is_interrupted
    (only,) = report.targets
    assert all(row.report is not None for row in only.rows)


def test_a_model_that_cannot_be_read_is_told_before_anything_is_tuned(described, capsys):
    (described.parent / "c.onnx").write_bytes(b"no model")
    assert main(["tune-fleet", str(described)]) == 2
    said = capsys.readouterr().err
    assert "c.onnx" in said
    assert said.count("\n") == 1


def test_a_target_that_is_not_here_gets_what_is_predicted(described, workers):
    described.write_text(described.read_text().replace("threads = 1", 'target = "znver5"\nthreads = 1'))
    report = tune_fleet(read_fleet(described), measurer=workers)
    assert report.failed == 0
