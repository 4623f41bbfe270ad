"""The tuning database, a SQLite file or on a PostgreSQL server: every candidate's outcome, every workload's winner.

`Database` reads, writes and merges it; `exchange` speaks MetaSchedule's JSON format.
"""

from subtune.database.exchange import MetaScheduleWriter, export_metaschedule, import_metaschedule
from subtune.database.merge import Merged
from subtune.database.opened import opened
from subtune.database.places import default_path
from subtune.database.store import Database

__all__ = [
    "Database",
    "Merged",
    "MetaScheduleWriter",
    "default_path",
    "export_metaschedule",
    "import_metaschedule",
    "opened",
]
