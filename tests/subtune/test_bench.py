"""Benchmarks: rows, ratios, and frameworks that do not start. No assertion about how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from subtune.bench import BenchError, BenchReport, BenchRow, Job, Worker, bench
from subtune.errors import ArtifactError

INPUTS = (("x", (4, 32), "float32"),)


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
        assert 0 < row.min_s <= row.median_s < 60
        assert row.samples >= 6
        assert row.peak_rss_bytes > 10e6
    assert [row["framework"] for row in json.loads(report.to_json())["rows"]] == ["subtune", "onnxruntime", "default"]


def test_a_framework_that_fails_is_reported_and_the_others_timed(small_artifact, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    report = bench(small_artifact, model=broken, against=("onnxruntime",), threads=1, rounds=1, round_s=0.01)
    assert [row.framework for row in report.rows] == ["subtune"]
    assert [name for name, _ in report.failures] == ["onnxruntime"]
    assert "not timed" in str(report)


def test_refuses_what_it_cannot_do(small_artifact, tmp_path):
    with pytest.raises(BenchError, match="unknown framework torch; known are onnxruntime, default"):
        bench(small_artifact, model="m.onnx", against=("torch",))
    with pytest.raises(BenchError, match="only with its model file"):
        bench(small_artifact)
    with pytest.raises(ArtifactError, match="there is no artifact"):
        bench(tmp_path / "none.subtune", against=())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_an_idle_worker_is_stopped(small_artifact):
    with Worker(Job("subtune", str(small_artifact), 1, INPUTS), 60) as worker:
        pid = worker._process.pid
        timed = worker.time(2, 1, 60)
        assert len(timed.seconds) == 2
        assert timed.wall_s >= sum(timed.seconds)
        assert timed.peak_rss_bytes > 0
        for _ in range(100):
            if state(pid) == "T":
                break
            time.sleep(0.05)
        assert state(pid) == "T"
    assert not os.path.exists(f"/proc/{pid}")


def test_a_worker_that_dies_says_so(small_artifact):
    with Worker(Job("subtune", str(small_artifact), 1, INPUTS), 60) as worker:
        worker._process.kill()
        with pytest.raises(BenchError, match="subtune: its process died"):
            worker.time(1, 0, 60)


def test_table():
    rows = (BenchRow("subtune", 2e-3, 1e-3, 1.0, 9, 50_000_000), BenchRow("onnxruntime", 4e-3, 3e-3, 2.0, 9, 8_000_000))
    table = str(BenchReport("m", 2, "cpu/x", rows, (("default", "boom"),))).splitlines()
    assert table[0] == "m, 2 threads, cpu/x"
    assert table[3].split() == ["onnxruntime", "4.000", "3.000", "2.00", "8"]
    assert table[4].split() == ["default", "not", "timed:", "boom"]
    assert "do not trust" not in "".join(table)
    assert "kept 1.5 cores busy" in str(BenchReport("m", 2, "cpu/x", rows, (), 1.5))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends the workers of a killed parent")
def test_workers_do_not_outlive_a_killed_parent(small_artifact):
    code = (
        "import sys, time\nfrom subtune.bench import Job, Worker\n"
        "worker = Worker(Job('subtune', sys.argv[1], 1, (('x', (4, 32), 'float32'),)), 60)\n"
        "print(worker._process.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(small_artifact)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    for _ in range(100):
        if state(pid) in ("gone", "Z"):
            break
        time.sleep(0.05)
    assert state(pid) in ("gone", "Z")
