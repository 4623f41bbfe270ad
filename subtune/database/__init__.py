"""The tuning database: one SQLite file with every candidate's outcome and every workload's winner.

`Database` reads and writes it; `exchange` speaks MetaSchedule's JSON format.
"""

from subtune.database.exchange import export_metaschedule, import_metaschedule
from subtune.database.opened import opened
from subtune.database.store import Database, default_path, versions

__all__ = ["Database", "default_path", "export_metaschedule", "import_metaschedule", "opened", "versions"]
