"""Benchmarks of one artifact: rows, ratios, errors, and frameworks that do not start. Nothing about how fast it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from subtune.bench.artifact_race import BenchReport, bench
from subtune.bench.job import BenchError, Job
from subtune.bench.numpy_model import NumpyModel
from subtune.bench.peers_cpu import AGAINST
from subtune.bench.process import Worker
from subtune.bench.race import BenchRow, Pace, best_peer, race, write_inputs
from subtune.core.errors import ArtifactError


@pytest.fixture
def job(small_artifact, tmp_path):
    inputs = write_inputs(tmp_path / "in.npz", [np.ones((4, 32), "float32")])
    return Job("subtune", str(small_artifact), 1, inputs, ("x",), ("float32",), str(tmp_path / "out.npz"))


def wait_for_state(pid: int, *wanted: str) -> None:
    while state(pid) not in wanted:
        time.sleep(0.05)


def state(pid: int) -> str:
    """One letter as in ps; T is stopped, Z ended."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_rows_of_all_frameworks(small_artifact, small_model):
    pytest.importorskip("onnxruntime")
    report = bench(small_artifact, model=small_model, rounds=2, round_s=0.01)
    assert [row.framework for row in report.rows] == ["subtune", "onnxruntime", "default"]
    assert report.rows[0].ratio == 1.0
    assert report.failures == ()
    assert (report.name, report.threads) == ("small", 2)
    for row in report.rows:
        assert 0 < row.min_s <= row.median_s
        assert row.samples >= 6
        assert row.peak_rss_bytes > 10e6
        assert row.peak_rss_bytes >= row.before_bytes > 1e6
        assert row.max_rel < 1e-5
    assert [row["framework"] for row in json.loads(report.to_json())["rows"]] == ["subtune", "onnxruntime", "default"]


def test_another_output_is_seen(small_artifact, small_model, tmp_path):
    """A model with other weights: it is timed, marked, and no peer to be compared with."""
    model = onnx.load(small_model)
    for init in model.graph.initializer:
        init.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(init) + 1, init.name))
    path = tmp_path / "other.onnx"
    onnx.save(model, path)
    report = bench(small_artifact, model=path, against=("onnxruntime",), threads=1, rounds=1, round_s=0.01)
    assert report.rows[1].max_rel > 0.1
    assert not report.rows[1].agrees
    assert best_peer(report.rows, ("onnxruntime",)) is None
    assert "onnxruntime gives other outputs" in str(report)


def test_a_framework_that_fails_is_reported_and_the_others_timed(small_artifact, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    report = bench(small_artifact, model=broken, against=("onnxruntime",), threads=1, rounds=1, round_s=0.01)
    assert [row.framework for row in report.rows] == ["subtune"]
    assert [name for name, _ in report.failures] == ["onnxruntime"]
    assert "not timed" in str(report)


def test_every_framework_answers_or_says_why_not(small_artifact, small_model):
    """Whatever is not installed, or has no function for an operator, is named with the reason."""
    report = bench(small_artifact, model=small_model, against=AGAINST, threads=1, rounds=1, round_s=0.001)
    answered = [row.framework for row in report.rows] + [name for name, _ in report.failures]
    assert sorted(answered) == sorted(("subtune", *AGAINST))
    assert all(reason for _, reason in report.failures)
    assert all(row.agrees for row in report.rows)


def test_refuses_what_it_cannot_do(small_artifact, tmp_path):
    with pytest.raises(BenchError, match="unknown framework tensorflow; known are onnxruntime, openvino-f32"):
        bench(small_artifact, model="m.onnx", against=("tensorflow",))
    with pytest.raises(BenchError, match="only with its model file"):
        bench(small_artifact)
    with pytest.raises(ArtifactError, match="there is no artifact"):
        bench(tmp_path / "none.subtune", against=())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_an_idle_worker_is_stopped(job):
    with Worker(job, 600) as worker:
        pid = worker._process.pid
        timed = worker.time(2, 1, 600)
        assert len(timed.seconds) == 2
        assert timed.wall_s >= sum(timed.seconds)
        assert timed.peak_rss_bytes > 0
        wait_for_state(pid, "T")
    assert not os.path.exists(f"/proc/{pid}")


def test_a_worker_that_dies_says_so(job):
    with Worker(job, 600) as worker:
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(BenchError, match="subtune: its process died"):
            worker.time(1, 0, 600)


def test_a_peer_that_dies_on_the_way_is_left_out(job, monkeypatch, tmp_path):
    """Killed after its first round: the race goes on, and says what happened."""
    turns = 0

    def dying(self, calls, warmup, timeout_s, original=Worker.time):
        nonlocal turns
        if self.framework == "default":
            turns += 1
            if turns == 3:
                os.kill(self._process.pid, signal.SIGKILL)
        return original(self, calls, warmup, timeout_s)

    monkeypatch.setattr(Worker, "time", dying)
    other = Job("default", job.path, 1)
    monkeypatch.setattr(Worker, "__init__", _as_subtune(Worker.__init__, job))
    result = race([job, other], Pace(3, 0.001))
    assert [row.framework for row in result.rows] == ["subtune"]
    assert result.rows[0].samples > 3
    ((name, reason),) = result.failures
    assert name == "default"
    assert "died" in reason


def _as_subtune(original, job):
    def init(self, given, timeout_s):
        original(self, job, timeout_s)
        self.job, self.framework = given, given.framework

    return init


def test_numpy_runs_what_it_has_functions_for(tmp_path):
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("Exp", ["c"], ["d"]),
        helper.make_node("Transpose", ["d"], ["e"], perm=[1, 0]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("a", [3, 4]), ("b", [4, 5]))]
    result = helper.make_tensor_value_info("e", TensorProto.FLOAT, [5, 3])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", values, [result])), path)
    rng = np.random.default_rng(0)
    a, b = rng.random((3, 4), "float32"), rng.random((4, 5), "float32")
    model = NumpyModel(str(path), {"a": a, "b": b})
    for _ in range(2):
        np.testing.assert_allclose(model.run()[0], np.exp(a @ b).T, rtol=1e-6)
    graph = helper.make_graph([helper.make_node("Erf", ["a"], ["e"])], "g", values[:1], [result])
    onnx.save(helper.make_model(graph), path)
    with pytest.raises(NotImplementedError, match="Erf"):
        NumpyModel(str(path), {"a": a})


def test_table():
    rows = (
        BenchRow("subtune", 2e-3, 1e-3, 1.0, 9, 50_000_000, 20_000_000),
        BenchRow("onnxruntime", 4e-3, 3e-3, 2.0, 9, 8_000_000, 7_000_000, max_rel=1e-6),
    )
    table = str(BenchReport("m", 2, "cpu/x", rows, (("default", "boom"),))).splitlines()
    assert table[0] == "m, 2 threads, cpu/x"
    assert table[3].split() == ["onnxruntime", "4.000", "3.000", "2.00", "8", "1.0", "1.0e-06"]
    assert table[4].split() == ["default", "not", "timed:", "boom"]
    assert "do not trust" not in "".join(table)
    assert "kept 1.5 cores busy" in str(BenchReport("m", 2, "cpu/x", rows, (), 1.5))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends the workers of a killed parent")
def test_workers_do_not_outlive_a_killed_parent(job):
    code = (
        "import sys, time\nfrom subtune.bench.job import Job\nfrom subtune.bench.process import Worker\n"
        "worker = Worker(Job.from_json(sys.argv[1]), 600)\n"
        "print(worker._process.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, job.to_json()], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for_state(pid, "gone", "Z")


def test_a_worker_imports_its_own_framework_only(tmp_path):
    """Loading the bench's own code brings neither TVM nor a framework: the memory figures would show it."""
    code = (
        "import sys, subtune.bench.worker; print([m for m in ('tvm', 'tvm_ffi', 'torch', 'onnx') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"
