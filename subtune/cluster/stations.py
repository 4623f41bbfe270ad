"""All stations of a cluster: who is there, who builds, who measures, and who takes the place of one that is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import subtune
from subtune.backends.base import Device
from subtune.cluster.devices import places_for
from subtune.cluster.facts import Asked, Facts, Node
from subtune.cluster.proxies import Link, Seat, StationBuilder, StationRunner
from subtune.core.errors import ClusterError, DevicesLost, SubtuneError
from subtune.measure.lost import HostLost
from subtune.measure.pool import Builders
from subtune.measure.runner import Runner
from subtune.measure.site import Site
from subtune.measure.supply import kept_bytes

_log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""So long a run without a device waits for one to come back."""
_GATHER_S = 120.0
"""So long the first node may take that has room."""
_LATE_S = 10.0
"""So long others may take after the first: whoever is later builds, and takes the place of what is lost."""
_LOOK_S = 0.5
_MOST_LOSSES = 5
"""Of stations on a node that stays: it is short of memory, perhaps."""


class Cluster(Protocol):
    @property
    def name(self) -> str: ...

    def nodes(self) -> Sequence[Node]:
        """Those that are alive and have room for work."""
        ...

    def station(self, node: Node) -> Link:
        """Begin to start a station there, for which the node is reserved; returns at once."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Member:
    node: Node
    link: Link
    facts: Facts | None = None
    is_open: bool = False


class Stations:
    """A `measure.supply.Supply`. `asked` says what the nodes are asked for; `choose` which of their devices it is."""

    def __init__(self, cluster: Cluster, asked: Asked, choose: Callable[[Sequence[Facts]], Device]) -> None:
        self._cluster, self._asked = cluster, asked
        self._lock = threading.RLock()
        self._members: dict[str, _Member] = {}
        self._refused: dict[str, str] = {}
        self._losses: Counter[str] = Counter()
        self._runners: list[StationRunner] = []
        self._builders: Builders | None = None
        self._gone_since = 0.0
        self._admissions: list[threading.Thread] = []
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        try:
            self.device = choose(self._gather())
            self._furnish()
        except BaseException:
            self.close()
            raise

    # -- as a Supply

    @property
    def sites(self) -> Sequence[Site]:
        return [runner.site for runner in self._runners]

    @property
    def kept_bytes(self) -> int:
        return kept_bytes()

    def is_there(self, site: int) -> bool:
        """See `Measurer`."""
        if self._runners[site].seat is not None:
            return True
        with self._lock:
            if (lost := self._lost()) is not None:
                raise lost
        return False

    def workers(self, device: Device) -> tuple[Builders, Sequence[Runner]]:
        assert self._builders is not None
        return self._builders, self._runners

    def interrupt(self) -> None:
        if self._builders is not None:
            self._builders.interrupt()
        for runner in self._runners:
            runner.interrupt()

    def close(self) -> None:
        """All stations end. Again it does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._watcher.join()  # it starts no station any more
        with self._lock:
            links = [member.link for member in self._members.values()]
        for link in links:
            link.end()
        for admission in self._admissions:
            admission.join()  # nobody asks a cluster that was left
        if self._builders is not None:
            self._builders.close()
        self._cluster.close()

    def __str__(self) -> str:
        return f"the cluster at {self._cluster.name}"

    # -- who is there

    def _gather(self) -> list[Facts]:
        """Of the nodes that were there in time.

        Raises ClusterError: none was.
        """
        begin, first = time.monotonic(), 0.0
        while time.monotonic() - begin < _GATHER_S:
            with self._lock:
                found = [member.facts for member in self._members.values() if member.facts is not None]
                awaited = [node for node in self._cluster.nodes() if node.id not in self._refused]
                refused = list(self._refused.values())
            if found and len(found) >= len(awaited):
                return found
            first = first or (time.monotonic() if found else 0.0)
            if found and time.monotonic() - first > _LATE_S:
                return found
            if refused and not awaited:
                raise ClusterError(f"no node of {self} can be used: {refused[0]}")
            time.sleep(_LOOK_S / 10)
        raise ClusterError(
            f"no node of {self} was free within {_GATHER_S:.0f} s: each is reserved whole, so other work must end "
            "first, and a node needs CPUs of its own (`ray start --num-cpus`)"
        )

    def _furnish(self) -> None:
        """Builders and as many runners as there are devices."""
        with self._lock:
            self._builders = Builders((), self.device.backend.measuring.grace_s)
            known = [member for member in self._members.values() if member.facts is not None]
            found = {
                k: place for one in known if one.facts for k, (_, place) in places_for(self.device, one.facts).items()
            }
            self._runners = [StationRunner(site, number, self.is_there) for number, site in enumerate(found.values())]
        for member in known:
            self._open(member)
        if not any(runner.seat for runner in self._runners):
            raise ClusterError(f"no node of {self} can be used: {'; '.join(self._refused.values()) or 'all were lost'}")

    def _watch(self) -> None:
        """In a thread: nodes that are new get a station, those that are gone lose theirs."""
        while not self._closed.is_set():
            try:
                self._meet({node.id: node for node in self._cluster.nodes()})
            except Exception as e:  # the cluster's own head may be away for a while
                _log.warning("%s does not say which nodes it has: %s", self, e)
            with self._lock:
                self._assign()
                lost = self._lost()
            if lost is not None and self._builders is not None:
                self._builders.interrupt(lost)
            self._closed.wait(_LOOK_S)

    def _meet(self, nodes: Mapping[str, Node]) -> None:
        for id, member in list(self._members.items()):
            if id not in nodes or member.link.is_ended:
                self._lose(member)
        for id in [id for id in nodes if id not in self._members and id not in self._refused]:
            member = _Member(nodes[id], self._cluster.station(nodes[id]))
            with self._lock:
                self._members[id] = member
            self._admissions.append(threading.Thread(target=self._admit, args=(member,), daemon=True))
            self._admissions[-1].start()

    def _admit(self, member: _Member) -> None:
        """In a thread of its own, which waits until the node has room."""
        try:
            facts: Facts = member.link.call("facts", self._asked, title="what is here")
            if facts.version != subtune.__version__:
                self._refuse(member, f"it has subtune {facts.version}, and the driver {subtune.__version__}")
                return
            with self._lock:
                member.facts = facts
                is_late = self._builders is not None
            if is_late:
                self._open(member)
        except HostLost:
            pass  # the watcher sees it, too
        except Exception as e:
            self._refuse(member, str(e))

    def _open(self, member: _Member) -> None:
        facts, device = member.facts, self.device
        assert facts is not None
        assert self._builders is not None
        if facts.triple != device.model.host.triple:
            self._refuse(member, f"it is a {facts.triple}, and does not link for {device.model.host.triple}")
            return
        places = tuple(place for _, place in places_for(device, facts).values())
        try:
            count = member.link.call(
                "open", device, member.node.cpus, places, device.backend.versions(), title=f"for {device.model.name}"
            )
        except HostLost:
            return
        except SubtuneError as e:
            self._refuse(member, str(e))
            return
        with self._lock:
            member.is_open = True
            self._builders.join([StationBuilder(member.link, facts.host, number) for number in range(count)])
            self._assign()
        _log.info(
            "%s: node %s builds with %d processes, and measures on %d devices",
            self,
            member.node.address,
            count,
            len(places),
        )

    def _refuse(self, member: _Member, why: str) -> None:
        said = f"node {member.node.address} is not used: {why}"
        _log.warning("%s", said)
        with self._lock:
            self._refused[member.node.id] = said
            self._members.pop(member.node.id, None)
        member.link.end()

    def _lose(self, member: _Member) -> None:
        member.link.end()
        self._losses[member.node.id] += 1
        if self._losses[member.node.id] == _MOST_LOSSES:
            self._refuse(member, f"its station was lost {_MOST_LOSSES} times")
        with self._lock:
            self._members.pop(member.node.id, None)
            for runner in self._runners:
                if runner.seat is not None and runner.seat.link is member.link:
                    runner.seat = None
        _log.warning("%s: node %s, or its station, is lost", self, member.node.address)

    def _assign(self) -> None:
        """Devices nobody uses take the places of those that are lost."""
        taken = {runner.seat.key for runner in self._runners if runner.seat is not None}
        free = [
            Seat(member.link, member.facts.host, number, key)
            for member in self._members.values()
            if member.is_open and member.facts is not None and not member.link.is_ended
            for key, (number, _) in places_for(self.device, member.facts).items()
        ]
        for runner in self._runners:
            seat = next((one for one in free if one.key not in taken), None)
            if runner.seat is None and seat is not None:
                runner.seat = seat
                taken.add(seat.key)
        is_any = any(runner.seat is not None for runner in self._runners)
        self._gone_since = 0.0 if is_any else self._gone_since or time.monotonic()

    def _lost(self) -> DevicesLost | None:
        if not self._runners or not self._gone_since or time.monotonic() - self._gone_since < PATIENCE_S:
            return None
        return DevicesLost(
            f"{self} has no device of target {self.device.model.name} any more, and none came back within "
            f"{PATIENCE_S:.0f} s: what was tuned is in the database, and the same command goes on from there"
        )
