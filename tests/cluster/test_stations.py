"""Who builds and measures on a cluster, and that nothing is lost with a node."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from subtune.backends import device_of
from subtune.cluster import stations as the_stations
from subtune.cluster.facts import Asked, Facts
from subtune.cluster.joining import stations_of
from subtune.cluster.stations import Stations
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import ClusterError, DevicesLost, TargetError
from subtune.core.measurement import Built, Comparison, Timing
from subtune.core.progress import Progress
from subtune.database import Database
from subtune.measure import LocalMeasurer
from subtune.measure.session import LocalSession
from subtune.models import reduced
from subtune.options import Options
from subtune.pipeline import prepare
from subtune.tuning.search import Search, Single, tune
from tests.cluster.threads import OnHost, ThreadCluster

OPTIONS = Options(threads=1)
GOOD = [Candidate("vector"), Candidate("packed")]


@pytest.fixture(autouse=True)
def schedules(monkeypatch: pytest.MonkeyPatch, doubles: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", doubles.DIRECTORY)


@contextmanager
def measuring(cluster: ThreadCluster) -> Iterator[tuple[LocalMeasurer, Stations]]:
    stations = stations_of(cluster, OPTIONS)
    with LocalMeasurer(schedule="doubles:schedule", supply=stations) as measurer:
        yield measurer, stations
    assert cluster.is_closed


@contextmanager
def opened(cluster: ThreadCluster, doubles: Any) -> Iterator[tuple[LocalMeasurer, Stations, LocalSession]]:
    with measuring(cluster) as (measurer, stations), measurer.session(doubles.workload(), stations.device) as session:
        yield measurer, stations, session


def jobs(cluster: ThreadCluster) -> dict[str, set[str]]:
    return {link.address: set(link.station.jobs) for link in cluster.links.values()}


def until(holds: Any) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_all_nodes_build_and_each_site_measures(doubles):
    cluster = ThreadCluster(2)
    with opened(cluster, doubles) as (measurer, stations, session):
        assert measurer.sites == 2
        assert stations.device.fingerprint() == device_of(threads=1).fingerprint()
        built = session.build([DEFAULT, *GOOD, Candidate("slow")], math.inf)
        assert all(isinstance(one, Built) for one in built.values())
        assert isinstance(session.check(GOOD[0]), Comparison)
        session.move(1)  # which has not built all of them
        for candidate in GOOD:
            assert isinstance(session.time(candidate, 0.01, math.inf), Timing)
        assert isinstance(session.compare(GOOD[0], 0.02, GOOD[1]), Comparison)
    assert jobs(cluster) == {"node0": {"build", "run"}, "node1": {"build", "run"}}


def test_nodes_of_one_machine_are_one_device(doubles):
    cluster = ThreadCluster(2, host=lambda _: "one")
    with opened(cluster, doubles) as (measurer, stations, session):
        assert measurer.sites == 1
        (runner,) = stations._runners
        assert runner.host == "one"
        cluster.go(int(runner.seat.link.address[-1]))  # the other node has the same processor
        until(lambda: runner.seat is not None and not runner.seat.link.is_ended)
        session.build([DEFAULT, GOOD[0]], math.inf)
        assert isinstance(session.time(GOOD[0], 0.01, math.inf), Timing)


def test_a_node_that_is_lost_while_it_builds_and_measures(doubles):
    """Its builds are done by the other one, and so is the measurement that was under way."""

    class Dying(OnHost):
        def build(self, number: int, ticket: int, *given: Any) -> tuple[Any, dict[str, bytes]]:
            if self.host == "1":
                self.jobs.append("build")
                cluster.go(1)
                threading.Event().wait(0.1)
            return super().build(number, ticket, *given)

    cluster = ThreadCluster(2, make=Dying)
    with opened(cluster, doubles) as (measurer, _, session):
        session.move(1)
        built = session.build([DEFAULT, *GOOD, Candidate("slow")], math.inf)
        assert all(isinstance(one, Built) for one in built.values())
        assert isinstance(session.time(GOOD[0], 0.01, math.inf), Timing)
        until(lambda: not measurer.is_there(1))
        assert measurer.is_there(0)
        cluster.come(1)  # its processes begin anew
        until(lambda: measurer.is_there(1))


def test_where_no_device_is_left(doubles, monkeypatch):
    monkeypatch.setattr(the_stations, "PATIENCE_S", 0.5)
    cluster = ThreadCluster(1)
    with opened(cluster, doubles) as (_, _, session):
        session.build([DEFAULT, GOOD[0]], math.inf)
        cluster.go(0)
        with pytest.raises(DevicesLost, match="what was tuned is in the database"):
            session.time(GOOD[0], 0.01, math.inf)
        with pytest.raises(DevicesLost):
            session.build([GOOD[1]], math.inf)


def test_where_the_only_device_comes_back_in_time(doubles):
    cluster = ThreadCluster(1)
    with opened(cluster, doubles) as (_, _, session):
        session.build([DEFAULT, GOOD[0]], math.inf)
        cluster.go(0)
        cluster.come(0)
        assert isinstance(session.time(GOOD[0], 0.01, math.inf), Timing)
        assert isinstance(session.build([GOOD[1]], math.inf)[GOOD[1]], Built)


def test_what_ends_every_node_is_to_blame(doubles):
    class Dying(OnHost):
        def run(self, number: int, *given: Any) -> Any:
            cluster.go(0)
            cluster.come(0)
            threading.Event().wait(0.1)
            return super().run(number, *given)

    cluster = ThreadCluster(1, make=Dying)
    with opened(cluster, doubles) as (_, _, session):
        session.build([DEFAULT, GOOD[0]], math.inf)
        assert "was lost; 3 times" in session.time(GOOD[0], 0.01, math.inf).message


def test_ctrl_c_ends_what_a_station_does(doubles):
    cluster = ThreadCluster(1)
    with opened(cluster, doubles) as (measurer, _, session):
        session.build([DEFAULT, Candidate("slow")], math.inf)
        threading.Timer(0.1, measurer.interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            session.time(Candidate("slow"), 1000.0, math.inf)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"version": "0.0"},
            "cluster at threads can be used: node node0 is not used: it has subtune 0.0",
        ),
        ({"triple": "riscv64-linux"}, "it is a riscv64-linux, and does not link for"),
    ],
)
def test_nodes_that_are_refused(changes, said):
    class Other(OnHost):
        def facts(self, asked: Asked) -> Facts:
            return replace(super().facts(asked), **changes)

    with pytest.raises(ClusterError, match=said):
        stations_of(ThreadCluster(1, make=Other), OPTIONS)


def test_a_cluster_without_room(monkeypatch):
    monkeypatch.setattr(the_stations, "_GATHER_S", 0.2)
    with pytest.raises(ClusterError, match="no node of the cluster at threads was free"):
        stations_of(ThreadCluster(0), OPTIONS)


def test_a_target_that_no_node_has():
    with pytest.raises(TargetError, match="no node of the cluster at threads has a device of target cortex-a76: "):
        stations_of(ThreadCluster(1), Options(target="cortex-a76"))


def test_a_search_over_two_devices_of_which_one_is_lost(tmp_path):
    workloads = [subgraph.workload for subgraph in prepare(reduced("mlp")).subgraphs]
    cluster = ThreadCluster(2)
    stations = stations_of(cluster, OPTIONS)
    told = []

    def lose(_: Progress) -> None:
        told.append(len(told))
        if len(told) == 5:
            cluster.go(0)

    with LocalMeasurer(supply=stations) as measurer, Database(tmp_path / "tuned.db") as database:
        singles, search = [Single(one) for one in workloads], Search(topk=4)
        found = tune(singles, stations.device, search, database=database, measurer=measurer, progress=lose)
    assert found.keys() == {one.key for one in workloads}
    assert all(record.complete for record in found.values())
    assert not found.failures
    assert "run" in jobs(cluster)["node1"]
