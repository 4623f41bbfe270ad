"""A real Ray cluster on this machine: a head without CPUs of its own, and nodes that are processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
"""So that a dead node is noticed within seconds."""
_OBJECTS_BYTES = 80 << 20
"""The least that Ray takes."""


class Nodes:
    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address
        self._nodes: list[Any] = []

    def add(self, cpus: int = 1) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=cpus, object_store_memory=_OBJECTS_BYTES))

    def kill(self, node_id: str) -> None:
        """Its raylet, with -9: what it started ends by itself."""
        node = next(one for one in self._nodes if one.node_id == node_id)
        os.kill(_raylet(node).pid, signal.SIGKILL)
        self._nodes.remove(node)

    def kill_station(self, node_id: str) -> None:
        """The process of the actor there, with -9."""
        node = next(one for one in self._nodes if one.node_id == node_id)
        titles = {one: " ".join(one.cmdline()) for one in _raylet(node).children()}
        found = [one for one, title in titles.items() if title.startswith("ray::") and "IDLE" not in title]
        assert found, titles.values()
        for one in found:
            one.send_signal(signal.SIGKILL)

    def end(self) -> None:
        for node in (*self._nodes, self._cluster.head_node):
            node.kill_all_processes(check_alive=False, allow_graceful=False)


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _OBJECTS_BYTES, "_system_config": QUICK}
    found = Nodes(Cluster(initialize_head=True, head_node_args=head))
    try:
        for _ in range(count):
            found.add()
        yield found
    finally:
        found.end()


def _raylet(node: Any) -> psutil.Process:
    (raylet,) = node.all_processes["raylet"]
    return psutil.Process(raylet.process.pid)
