"""Measuring on the nodes of a Ray cluster.

In: an address and what is compiled for. Out: `Stations`, from which a `LocalMeasurer` has its workers. On every node a
`Station` owns ordinary worker processes. Only `on_ray` knows of Ray, which is loaded when a cluster is asked for.
"""

from subtune.cluster.joining import joined
from subtune.cluster.stations import Stations

__all__ = ["Stations", "joined"]
