"""A tracker that lends devices, several at once; and a network that is cut while they are measured on."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tvm import rpc

from subtune import load
from subtune.backends import as_device
from subtune.backends.cpu.lowering.ring import beginning, write
from subtune.core.errors import SubtuneError, TargetError
from subtune.driver import compile_model
from subtune.models import reduced
from subtune.runtime.remote import Remote, devices_of
from tests.measure.rpc_server import rpc_server, tracker, unsteady_network
from tests.measure.unsteady_network import SPARED_BYTES

DEVICES = 2
KEY = "board"


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Remote, list[Path]]]:
    """A tracker with devices of one key, and what each of them prints."""
    folder = tmp_path_factory.mktemp("tracker")
    with ExitStack() as served:
        port = served.enter_context(tracker(folder / "tracker.txt"))
        logs = [folder / f"{number}.txt" for number in range(DEVICES)]
        for log in logs:
            served.enter_context(rpc_server(log, 1, ["--tracker", f"127.0.0.1:{port}", "--key", KEY]))
        remote = Remote("127.0.0.1", port, KEY)
        while not is_registered(remote):
            time.sleep(0.05)
        yield remote, logs


def is_registered(remote: Remote) -> bool:
    try:
        return devices_of(remote) == DEVICES
    except SubtuneError:
        return False


def test_a_tracker_says_what_it_has(lent):
    remote, _ = lent
    assert devices_of(remote) == DEVICES
    assert devices_of(Remote("127.0.0.1", 1)) == 1, "a server is one, and is not asked"
    with pytest.raises(SubtuneError, match="has no 'phone'; it has: board"):
        devices_of(Remote(remote.host, remote.port, "phone"))
    with pytest.raises(SubtuneError, match="cannot be reached"):
        devices_of(Remote("127.0.0.1", 1, KEY))


def test_a_tracker_that_lends_devices_in_the_open_net(monkeypatch):
    """It stands here itself, and so has an address that is none."""
    servers = [
        {"key": "server:board", "addr": ["127.0.0.1", 9090]},
        {"key": "server:board", "addr": ["8.8.4.4", 9090]},
        {"key": "server:phone", "addr": ["there.is.no.such.host.invalid", 9090]},
    ]

    class Tracker:
        def summary(self):
            return {"server_info": servers, "queue_info": {"board": {"free": 2}}}

    monkeypatch.setattr(rpc, "connect_tracker", lambda host, port: Tracker())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        board = Remote("127.0.0.1", listener.getsockname()[1], "board")
        with pytest.raises(TargetError, match=r"its device 8\.8\.4\.4 is a public address"):
            devices_of(board)
        assert devices_of(board, insecure=True) == 2
        assert devices_of(Remote(board.host, board.port, "phone")) == 1


def test_all_devices_of_a_key_measure(lent, tmp_path):
    remote, logs = lent
    before = [log.read_text().count("connected from") for log in logs]
    database = tmp_path / "t.db"
    report = compile_model(
        reduced("squeezenet"), tmp_path / "m.subtune", remote=str(remote), threads=1, topk=2, database=database
    )
    assert report.verified
    assert not report.failures
    assert all(row.tuned_s > 0 for row in report.rows)
    assert all(log.read_text().count("connected from") > count for log, count in zip(logs, before, strict=True))


def test_what_is_not_spared_does_no_harm(device, tmp_path):
    """The library that keeps the server, and a page or two that are sent round it."""
    write(beginning(), as_device(device).model, tmp_path / "begin.so")
    assert (tmp_path / "begin.so").stat().st_size + 4096 < SPARED_BYTES


def test_a_network_that_is_cut_loses_nothing(tmp_path):
    """At ten moments, whatever is under way."""
    log = tmp_path / "network.txt"
    with rpc_server(tmp_path / "log.txt", 1) as server, unsteady_network(server, log, cuts=10, seed=7) as port:
        report = compile_model(
            reduced("mlp"),
            tmp_path / "m.subtune",
            remote=f"127.0.0.1:{port}",
            threads=1,
            topk=4,
            database=tmp_path / "t.db",
        )
    assert log.read_text().count("cut after") >= 3
    assert report.verified
    assert not report.failures
    assert all(row.tuned_s > 0 for row in report.rows)
    assert load(report.path).inputs
