"""The rows of one database into another: what comes out does not depend on the order in which that is done."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from subtune.database.connection import Connection
from subtune.database.salvage import is_whole
from subtune.database.statements import Change, Conflict, Insert, Row, Select
from subtune.database.tables import TABLES

_BATCH = 500
"""Rows of a transaction, or all of one workload if they are more: other writers wait meanwhile."""


@dataclass(frozen=True, slots=True)
class Merged:
    """How many rows of a database came over, by table; and how many did not, as the target's are as good or better."""

    source: str
    taken: Mapping[str, int]
    kept: Mapping[str, int]


def merge(source: Connection, write: Callable[[Sequence[Change]], list[int]]) -> Merged:
    """Carry the rows of `source` over; of two rows with one key the one counts that is greater by `Table.rank`.

    Args:
        write: makes changes in the target, all or none, and returns how many rows each has changed.

    Raises:
        StorageError: the source cannot be read.
    """
    taken, kept = Counter[str](), Counter[str]()
    for batch in _batches(_by_workload(source)):
        changes = [Insert(table, batch[table.name], Conflict.BETTER) for table in TABLES]
        for change, count in zip(changes, write(changes), strict=True):
            taken[change.table.name] += count
            kept[change.table.name] += len(change.rows) - count
    return Merged(source.name, dict(taken), dict(kept))


_Rows = dict[str, list[Row]]
"""By table."""


def _by_workload(source: Connection) -> dict[str, _Rows]:
    """Rows that damage has left whole, by the workload's key."""
    found: dict[str, _Rows] = defaultdict(lambda: defaultdict(list))
    # Workloads last: one of which somebody has just begun to store measurements is there then.
    for table in reversed(TABLES):
        for row in source.read(Select(table, table.names)):
            if all(map(is_whole, row)):
                found[row[0]][table.name].append(row)
    return found


def _batches(by_workload: dict[str, _Rows]) -> Iterator[_Rows]:
    """A workload's rows stay together: nobody finds its measurements without it."""
    batch: _Rows = defaultdict(list)
    for _, tables in sorted(by_workload.items()):
        for name, rows in tables.items():
            batch[name] += rows
        if sum(map(len, batch.values())) >= _BATCH:
            yield batch
            batch = defaultdict(list)
    yield batch
