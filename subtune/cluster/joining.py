"""From the user's options to a stations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from subtune.backends import device_of
from subtune.backends.base import Device
from subtune.cluster.devices import device_among, overridden
from subtune.cluster.facts import Asked, Facts
from subtune.cluster.stations import Cluster, Stations
from subtune.core.errors import TargetError
from subtune.options import Options


@contextmanager
def joined(options: Options) -> Iterator[Stations | None]:
    """The stations of the user's `cluster`, until the end of the `with`; None where no cluster is asked for.

    Raises:
        ClusterError: it cannot be reached, or no node of it can be used.
        TargetError: none of its nodes has such a device.
    """
    if not options.cluster:
        yield None
        return
    if options.remote or options.devices:
        other = "--remote" if options.remote else "--devices"
        raise TargetError(f"--cluster names the devices of all of its nodes, {other} others: name one of them")
    from subtune.cluster.on_ray import connected  # loads Ray

    stations = stations_of(connected(options.cluster), options)
    try:
        yield stations
    finally:
        stations.close()


def stations_of(cluster: Cluster, options: Options) -> Stations:
    """The stations of `cluster` for the user's target."""
    where = f"the cluster at {cluster.name}"

    def choose(found: Sequence[Facts]) -> Device:
        def own() -> Device:
            return device_of(options.target, options.threads, None, options.numerics)

        return device_among(found, options.target, own, where)

    stations = Stations(cluster, Asked(options.target, options.threads, options.numerics), choose)
    stations.device = overridden(stations.device, options.device_file, options.threads)
    return stations
