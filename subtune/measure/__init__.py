"""Builds, checks and times candidates in isolated worker processes.

In: a workload, a device, candidates. Out: a `Timing` or a `Failure` for each; no candidate can break the caller.
"""

from subtune.core.measurement import Built, Comparison
from subtune.measure.halving import halve
from subtune.measure.local import LocalMeasurer, given_or_local
from subtune.measure.protocol import Measurer, Session
from subtune.measure.replay import ReplayMeasurer

__all__ = ["Built", "Comparison", "LocalMeasurer", "Measurer", "ReplayMeasurer", "Session", "given_or_local", "halve"]
