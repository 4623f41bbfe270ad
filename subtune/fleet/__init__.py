"""Many models for many targets, tuned as one run.

In: a TOML file. Out: an artifact of every model for every target. For each target the subgraphs of all models are tuned
in one search, equal ones once.
"""

from subtune.fleet.described import Fleet, FleetModel, FleetTarget, read_fleet
from subtune.fleet.run import FleetReport, tune_fleet

__all__ = ["Fleet", "FleetModel", "FleetReport", "FleetTarget", "read_fleet", "tune_fleet"]
