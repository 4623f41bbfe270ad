"""A cluster whose stations are threads of this process, and their worker processes real ones."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from subtune.cluster.facts import Asked, Facts, Node
from subtune.cluster.station import Station
from subtune.measure.lost import HostLost


class OnHost(Station):
    """A station that takes itself for one on a machine of its own."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.jobs: list[str] = []

    def facts(self, asked: Asked) -> Facts:
        return replace(super().facts(asked), host=self.host)

    def build(self, number: int, ticket: int, *given: Any) -> tuple[Any, dict[str, bytes]]:
        self.jobs.append("build")
        return super().build(number, ticket, *given)

    def run(self, number: int, *given: Any) -> Any:
        self.jobs.append("run")
        return super().run(number, *given)

    def close(self) -> None:
        for worker in (*self._builders, *self._runners):
            worker.close()
        if self._supply is not None:
            self._supply.close()
        self._scratch.remove()


class Link:
    def __init__(self, address: str, station: OnHost) -> None:
        self.address, self.station = address, station
        self.is_ended = False
        self._threads = ThreadPoolExecutor(8)

    def call(self, method: str, *given: Any, title: str = "", meanwhile: Callable[[], None] | None = None) -> Any:
        """What is said goes through pickle, as between machines."""
        if self.is_ended:
            raise HostLost(f"the node {self.address} was lost")
        told = pickle.loads(pickle.dumps(given))
        answer = self._threads.submit(getattr(self.station, method), *told)
        while not answer.done():
            if meanwhile is not None:
                meanwhile()
            if self.is_ended:
                raise HostLost(f"the node {self.address} was lost")
            time.sleep(0.01)
        return pickle.loads(pickle.dumps(answer.result()))

    def tell(self, method: str, *given: Any) -> None:
        if not self.is_ended:
            self._threads.submit(getattr(self.station, method), *given)

    def end(self) -> None:
        self.is_ended = True
        threading.Thread(target=self.station.close).start()


class ThreadCluster:
    """Nodes come and go as the test says. `host` is of a node by its number."""

    name = "threads"

    def __init__(self, count: int, host: Callable[[int], str] = str, make: Callable[[str], OnHost] = OnHost) -> None:
        self._host, self._make = host, make
        self._nodes: dict[str, Node] = {}
        self.links: dict[str, Link] = {}
        self.is_closed = False
        for number in range(count):
            self.come(number)

    def come(self, number: int) -> None:
        node = Node(f"{number}-{len(self.links)}", f"node{number}", 1, 0)
        self._nodes[node.id] = node

    def go(self, number: int) -> None:
        for id in [id for id, node in self._nodes.items() if node.address == f"node{number}"]:
            del self._nodes[id]
            self.links[id].is_ended = True

    def nodes(self) -> Sequence[Node]:
        return list(self._nodes.values())

    def station(self, node: Node) -> Link:
        station = self._make(self._host(int(node.address.removeprefix("node"))))
        self.links[node.id] = Link(node.address, station)
        return self.links[node.id]

    def close(self) -> None:
        self.is_closed = True
