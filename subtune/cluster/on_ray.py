"""Stations as actors of Ray: the only module that knows of it."""

from __future__ import annotations

import logging
import os
import re
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from subtune.cluster.facts import Node
from subtune.cluster.station import Station
from subtune.core.errors import ClusterError
from subtune.measure.lost import HostLost
from subtune.measure.supply import MAX_BUILDERS

try:
    import ray
    from ray import exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as e:
    raise ClusterError("--cluster needs Ray, and it is not installed: pip install 'subtune[ray]'") from e

_POLL_S = 0.1
"""How long a call waits before it looks whether anybody still wants its answer. An answer itself is not waited for."""
_REACH_S = 10.0
_SPARE_THREADS = 8
"""Of a station beside those of its builders and runners: for what is only told, and for who waits for its end."""
_MOST_DEVICES = 16


def connected(address: str) -> RayCluster:
    """The cluster at `address`: `auto`, `host:port`, or `ray://host:port` for a driver that is no node of it.

    Raises ClusterError: there is none.
    """
    if ray.is_initialized():  # by the caller, who also ends it
        return RayCluster(address, is_own=False)
    known = _last_started() if address == "auto" else address
    if found := re.fullmatch(r"(?:ray://)?(.+):(\d+)", known):
        _reach(known, found[1], int(found[2]))  # Ray itself tries for minutes, and then ends the process
    elif address != "auto":
        raise ClusterError(f"--cluster {address!r} is no address: give auto, host:port, or ray://host:port")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of what no station does
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.CRITICAL, namespace=f"subtune-{os.getpid()}"
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, ImportError, exceptions.RayError) as e:
        raise ClusterError(f"the cluster at {address} cannot be joined: {_first_sentence(e)}") from e
    return RayCluster(address, is_own=True)


def _last_started() -> str:
    """The cluster that Ray takes `auto` for; "" where it looks for one itself."""
    if given := os.environ.get("RAY_ADDRESS"):
        return given
    try:
        return (Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


def _reach(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host.strip("[]"), port), _REACH_S).close()
    except OSError as e:
        raise ClusterError(
            f"the cluster at {address} cannot be reached: {e.strerror or e}; `ray status` on its head says how it is"
        ) from e


def _first_sentence(error: BaseException) -> str:
    """Of what a Ray server reports with a traceback, the last line."""
    lines = str(error).strip().splitlines()
    text = lines[-1] if any("Traceback" in line for line in lines) else " ".join(" ".join(lines).split())
    return re.split(r"(?<=[a-z])\. ", text)[0][:300] or type(error).__name__


class RayCluster:
    """See `stations.Cluster`."""

    def __init__(self, name: str, is_own: bool) -> None:
        self.name, self._is_own = name, is_own

    def nodes(self) -> Sequence[Node]:
        found = [(one, one["Resources"]) for one in ray.nodes() if one["Alive"]]
        return [
            Node(one["NodeID"], one["NodeManagerAddress"], int(has["CPU"]), int(has.get("GPU", 0)))
            for one, has in found
            if has.get("CPU", 0) >= 1
        ]

    def station(self, node: Node) -> RayLink:
        # All CPUs and GPUs of its node are the station's: Ray puts no other work there as long as the run lasts, so
        # that nothing of Ray's disturbs what is timed. The run's own builders on a machine rest while one of its
        # devices is timed (`Builders.silence`), and on a device there is one measurement at a time (`StationRunner`).
        actor = (
            ray.remote(Station)
            .options(
                name=f"subtune station {node.address} {node.id[:8]}",
                num_cpus=node.cpus,
                num_gpus=node.gpus,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
                max_concurrency=min(node.cpus, MAX_BUILDERS) * 2 + min(node.gpus, _MOST_DEVICES) + _SPARE_THREADS,
                max_restarts=0,  # `Stations` makes a new one, which has to be told what is built for
            )
            .remote()
        )
        return RayLink(node.address, actor)

    def close(self) -> None:
        if self._is_own:
            ray.shutdown()


class RayLink:
    """See `proxies.Link`."""

    def __init__(self, address: str, actor: Any) -> None:
        self.address = address
        self._actor = actor
        self._has_ended = False
        self._end = actor.until_end.remote()

    @property
    def is_ended(self) -> bool:
        if not self._has_ended:
            self._has_ended = bool(ray.wait([self._end], timeout=0)[0])
        return self._has_ended

    def call(self, method: str, *given: Any, title: str = "", meanwhile: Callable[[], None] | None = None) -> Any:
        lost = HostLost(f"the node {self.address} was lost")
        if self._has_ended:
            raise lost
        name = f"{method}: {title}" if title else method
        try:
            answer = getattr(self._actor, method).options(name=name).remote(*given)
            while not ray.wait([answer], timeout=_POLL_S)[0]:
                if meanwhile is not None:
                    meanwhile()
                if self._has_ended:
                    raise lost
            return ray.get(answer)
        except exceptions.RayTaskError as e:
            raise e.cause from e
        except (exceptions.RayActorError, exceptions.RaySystemError, exceptions.ObjectLostError) as e:
            self._has_ended = True
            raise lost from e

    def tell(self, method: str, *given: Any) -> None:
        if not self._has_ended:
            with suppress(exceptions.RayError):
                getattr(self._actor, method).remote(*given)

    def end(self) -> None:
        self._has_ended = True
        with suppress(Exception):  # it may be gone, and so may its node, or Ray
            ray.kill(self._actor)
