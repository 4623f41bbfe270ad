"""The tuning database: one SQLite file with every candidate's outcome and every workload's winner.

`Database` reads and writes it; `exchange` speaks MetaSchedule's JSON format.
"""

from subtune.database.exchange import MetaScheduleWriter, export_metaschedule, import_metaschedule
from subtune.database.opened import opened
from subtune.database.places import default_path
from subtune.database.store import Database

__all__ = ["Database", "MetaScheduleWriter", "default_path", "export_metaschedule", "import_metaschedule", "opened"]
