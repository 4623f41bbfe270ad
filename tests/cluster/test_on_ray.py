"""Stations on a real Ray whose nodes are processes of this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import subtune
from subtune.cli import main
from subtune.cluster.joining import joined
from subtune.core.errors import ClusterError
from subtune.core.progress import Progress
from subtune.database import Database
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from subtune.models import reduced
from subtune.options import Options
from subtune.pipeline import prepare
from subtune.tuning.search import Search, Single, tune
from tests.cluster.ray_nodes import Nodes, nodes

pytest.importorskip("ray", reason="needs Ray: pip install 'subtune[ray]'")  # 240 MB, so no part of the extra `test`


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(2) as found:
        yield found


@pytest.mark.slow
def test_a_model_compiled_over_two_nodes(cluster, small_model, reference, tmp_path):
    database = tmp_path / "tuned.db"
    options = {"database": database, "topk": 3, "threads": 1}
    report = compile_model(str(small_model), tmp_path / "there.subtune", cluster=cluster.address, **options)
    assert "agrees with" in report.verified
    x = np.random.default_rng(0).standard_normal((4, 32)).astype("float32")
    for name, result in subtune.load(report.path).run({"x": x}).items():
        np.testing.assert_allclose(result, reference(x)[name], rtol=1e-4, atol=1e-5)
    with Database(database) as store:
        records = store.list_records()
    assert records
    assert all(record.complete for record in records)
    again = compile_model(str(small_model), tmp_path / "here.subtune", tune=False, **options)
    assert [row.candidate for row in again.rows] == [row.candidate for row in report.rows]


@pytest.mark.slow
def test_nodes_and_stations_that_are_killed(cluster, tmp_path):
    """The device's station first, then its whole node: the run ends with all records, as one without losses."""
    workloads = [subgraph.workload for subgraph in prepare(reduced("mlp")).subgraphs]
    losses: list[str] = []

    with (
        joined(Options(cluster=cluster.address, threads=1)) as stations,
        LocalMeasurer(supply=stations) as measurer,
        Database(tmp_path / "tuned.db") as database,
    ):
        (runner,) = stations._runners
        assert len({member.node.id for member in stations._members.values()}) == 2

        def lose(_: Progress) -> None:
            if len(losses) < 2 and runner.seat is not None:
                (node,) = (id for id, member in stations._members.items() if member.link is runner.seat.link)
                (cluster.kill if losses else cluster.kill_station)(node)
                losses.append(node)

        singles, search = [Single(one) for one in workloads], Search(topk=4)
        found = tune(singles, stations.device, search, database=database, measurer=measurer, progress=lose)
    assert len(losses) == 2
    assert found.keys() == {one.key for one in workloads}
    assert all(record.complete for record in found.values())
    assert not found.failures
    cluster.add()


def test_an_address_that_is_none():
    with (
        pytest.raises(ClusterError, match="'somewhere' is no address: give auto, host:port, or ray://host:port"),
        joined(Options(cluster="somewhere")),
    ):
        pass


def test_the_cluster_that_was_started_last_is_gone(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:9 cannot be reached"), joined(Options(cluster="auto")):
        pass


def test_where_nobody_listens(small_model, tmp_path, capsys):
    command = ["compile", str(small_model), "-o", str(tmp_path / "a.subtune"), "--cluster", "127.0.0.1:9"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.startswith("subtune: error: the cluster at 127.0.0.1:9 cannot be reached: ")
    assert said.count("\n") == 1


def test_ray_is_loaded_for_a_cluster_only(small_model, tmp_path):
    code = (
        "import sys; from subtune.cli import main; "
        "assert main(['compile', *sys.argv[1:], '--no-tune']) == 0; assert 'ray' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(small_model), "-o", str(tmp_path / "a.subtune")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
