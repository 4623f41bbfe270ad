"""Measuring on the nodes of a Ray cluster.

In: an address and what is compiled for. Out: a `Fleet`, from which a `LocalMeasurer` has its workers. On every node a
`Station` owns ordinary worker processes; only `on_ray` knows of Ray, which is loaded when a cluster is asked for.
"""

from subtune.cluster.fleet import Fleet
from subtune.cluster.joining import joined

__all__ = ["Fleet", "joined"]
