"""What is remembered between compiles, and how: candidates with their outcomes, winners, suggestions."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType

from subtune.core.candidate import Candidate
from subtune.core.errors import DatabaseError
from subtune.core.measurement import DETERMINISTIC, Failure, Measurement, Timing
from subtune.core.record import Record
from subtune.core.versions import Scope, Versions
from subtune.core.workload import Workload
from subtune.database import instances, rows
from subtune.database.connection import StorageError
from subtune.database.merge import Merged, merge
from subtune.database.places import connect, connect_source, place_of
from subtune.database.salvage import is_whole
from subtune.database.sqlite_file import in_memory
from subtune.database.statements import (
    Change,
    Conflict,
    Delete,
    DeleteUnused,
    Insert,
    Row,
    Select,
    Update,
    Where,
    equal,
)
from subtune.database.tables import INSTANCES, MEASUREMENTS, SUGGESTIONS, WINNERS, WORKLOADS, Table

_log = logging.getLogger(__name__)


class Database:
    """A file, or a database on a server, safe under concurrent processes and under a kill at any moment.

    Every method is one short transaction, or a few. Threads may share an open database. When it cannot be used any more
    (disk full, locked for long, server gone) a warning is logged once and this process goes on in memory: the compile
    is not lost.

    Attributes:
        path: where it is, as `Database` takes it. A URL may hold a password.
        name: the same for messages, without.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Open or make the database at `path`: a file (default: `default_path()`), or `postgresql://USER@HOST/NAME`.

        Raises:
            DatabaseError: it cannot be opened at all; the text says why and what to do.
        """
        self.path = place_of(path)
        self._connection = connect(self.path)
        self.name = self._connection.name
        self._memory = in_memory()
        self._lock = threading.RLock()
        self._is_readable = True
        self._is_writable = self._connection.is_writable
        self._has_unsaved = not self._is_writable
        self._has_warned = False
        if not self._is_writable:
            _log.warning("the tuning database %s is read-only: what is tuned now is not kept", self.name)

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()
        self._memory.close()

    # -- what the tuner asks ------------------------------------------------------------------------------

    def lookup(self, workload: Workload, scope: Scope) -> Record | None:
        """The winner of `workload` in `scope`; incomplete where a family has changed since, other than the winner's.

        A stored workload that has the same key but is another function counts as not found.
        """
        where = equal(key=workload.key, device=scope.device, versions=scope.versions.base)
        found = self.read(Select(WINNERS, ("families", *rows.RECORD), where))
        if not found or not self._is_same(workload):
            return None
        record, families = rows.record_of(found[0][1:]), json.loads(found[0][0])
        if not _holds(record, scope.versions.base, families, scope.versions):
            return None
        return replace(record, complete=False) if scope.versions.differs(families) else record

    def outcomes(self, workload: Workload, scope: Scope) -> dict[Candidate, Timing | Failure]:
        """What is known of candidates whose family is what it was: times, and failures that are not the machine's."""
        found = {m.candidate: m.outcome for m in self.measurements(workload.key, scope)}
        return {c: o for c, o in found.items() if isinstance(o, Timing) or o.kind in DETERMINISTIC}

    def least_s(self, workload: Workload, scope: Scope) -> float:
        """Seconds: those of the record, else the least that any candidate took; 0.0 where nothing was timed."""
        if record := self.lookup(workload, scope):
            return record.timing.min_s
        outcomes = self.outcomes(workload, scope).values()
        return min((outcome.min_s for outcome in outcomes if isinstance(outcome, Timing)), default=0.0)

    def suggestions(self, workload: Workload) -> tuple[Candidate, ...]:
        """Candidates that were imported for `workload`, said to be fastest first; nothing about them was checked."""
        found = self.read(Select(SUGGESTIONS, ("candidate",), equal(key=workload.key), order=("median_s", "candidate")))
        return tuple(dict.fromkeys(Candidate.from_json(text) for (text,) in found))

    # -- what the tuner reports ---------------------------------------------------------------------------

    def add_measurements(self, workload: Workload, scope: Scope, measurements: Iterable[Measurement]) -> None:
        self.add_rows(workload, MEASUREMENTS, [rows.measurement_row(workload, scope, one) for one in measurements])

    def add_record(self, workload: Workload, record: Record, versions: Versions) -> None:
        """Store the winner, in place of an earlier one."""
        self.add_rows(workload, WINNERS, [rows.record_row(record, versions)])

    def add_rows(self, workload: Workload, table: Table, given: Sequence[Row]) -> None:
        """Store rows of a table of this room, in the place of earlier ones."""
        self._write([_known(workload), Insert(table, given)])

    def add_suggestion(self, workload: Workload, candidate: Candidate, median_s: float) -> None:
        """An imported candidate: the next compile tries it first, even where it had already decided."""
        row = (workload.key, candidate.to_json(), median_s, time.time())
        again = Update(WINNERS, "complete", 0, equal(key=workload.key))
        self._write([_known(workload), Insert(SUGGESTIONS, [row]), again])

    # -- what the user asks -------------------------------------------------------------------------------

    def list_records(
        self, key: str = "", device: str = "", versions: Collection[Versions] | None = None
    ) -> tuple[Record, ...]:
        """Winners whose workload key begins with `key` and whose device contains `device`, newest first.

        Args:
            versions: only records that hold under one of these, the newest of each workload and device; None: all.
        """
        where = (Where("key", "begins", key), Where("device", "contains", device))
        order = ("at DESC", "key")
        stored = self.read(Select(WINNERS, ("versions", "families", *rows.RECORD), where, order))
        found = [(rows.record_of(row[2:]), row[0], json.loads(row[1])) for row in stored]
        if versions is None:
            return tuple(record for record, *_ in found)
        valid = [r for r, base, families in found if any(_holds(r, base, families, one) for one in versions)]
        newest = {(record.workload_key, record.device): record for record in reversed(valid)}
        return tuple(reversed(newest.values()))

    def show(
        self, key: str, versions: Collection[Versions] | None = None
    ) -> tuple[Workload, tuple[Record, ...], tuple[Measurement, ...]]:
        """The workload whose key begins with `key`, its winners and every candidate tried, fastest first.

        Raises:
            DatabaseError: no workload, or several, have such a key.
        """
        found = sorted({one for (one,) in self.read(Select(WORKLOADS, ("key",), (Where("key", "begins", key),)))})
        if len(found) != 1:
            what = f"{len(found)} workloads have" if found else "no workload has"
            raise DatabaseError(f"{what} a key beginning with {key!r} in {self.name}; `subtune db list` shows the keys")
        workload = self.workload(found[0])
        assert workload is not None
        order = ("median_s IS NULL", "median_s", "candidate")
        stored = self.read(Select(MEASUREMENTS, ("versions", *rows.MEASUREMENT), equal(key=found[0]), order))
        tried = [rows.measurement_of(row[1:]) for row in stored if versions is None or _is_current(row[0], versions)]
        return workload, self.list_records(found[0], versions=versions), tuple(tried)

    def measurements(self, key: str, scope: Scope) -> tuple[Measurement, ...]:
        """Every candidate of the workload `key` that was tried in `scope`."""
        return tuple(measurement for _, measurement in self.dated_measurements(key, scope))

    def dated_measurements(self, key: str, scope: Scope) -> tuple[tuple[float, Measurement], ...]:
        """As `measurements`, each with the time at which it was stored, in seconds since 1970."""
        where = equal(key=key, device=scope.device)
        stored = self.read(Select(MEASUREMENTS, ("versions", "at", *rows.MEASUREMENT), where))
        return tuple((row[1], rows.measurement_of(row[2:])) for row in stored if _is_current(row[0], [scope.versions]))

    def workload(self, key: str) -> Workload | None:
        found = self.read(Select(WORKLOADS, ("func", "num_outputs"), equal(key=key)))
        if not found:
            return None
        from subtune.tir.saved import read_workload  # with TVM, which most of a database does without

        return read_workload(zlib.decompress(found[0][0]).decode(), found[0][1])

    def gc(self, *, older_than_s: float | None = None, versions: Collection[Versions] | None = None) -> int:
        """Delete what does not hold under one of `versions`, and what is older than `older_than_s` seconds.

        Returns how many rows went.
        """
        changes: list[Change] = [] if versions is None else self._outdated(versions)
        for table in (MEASUREMENTS, WINNERS, SUGGESTIONS, INSTANCES):
            if older_than_s is not None:
                changes.append(Delete(table, (Where("at", "below", time.time() - older_than_s),)))
        deleted = self._write([*changes, DeleteUnused()])
        with self._lock:
            self._connection.compact()
        return deleted

    def _outdated(self, versions: Collection[Versions]) -> list[Change]:
        changes: list[Change] = []
        for table, is_current in ((MEASUREMENTS, _is_current), (INSTANCES, instances.is_current)):
            for (found,) in self.read(Select(table, ("versions",), is_distinct=True)):
                if not is_current(found, versions):
                    changes.append(Delete(table, equal(versions=found)))
        for base, families, *row in self.read(Select(WINNERS, ("versions", "families", *rows.RECORD))):
            record = rows.record_of(tuple(row))
            if not any(_holds(record, base, json.loads(families), one) for one in versions):
                where = equal(key=record.workload_key, device=record.device, versions=base)
                changes.append(Delete(WINNERS, where))
        return changes

    def merge(self, *sources: str | os.PathLike[str]) -> tuple[Merged, ...]:
        """Carry over all rows of other databases, which are not changed; `Table.rank` says which of two rows counts.

        Raises:
            DatabaseError: a source is missing, damaged, of a newer format or this very database; or one cannot be read
                to its end, or this one not be written: what came over before stays.
        """
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(connect_source(place_of(source)))) for source in sources]
            for source in opened:
                if source.identity == self._connection.identity:
                    raise DatabaseError(f"{source.name} cannot be merged into itself; name another database")
            done = []
            for source in opened:
                try:
                    done.append(merge(source, self._write_or_raise))
                except StorageError as e:
                    raise DatabaseError(f"the database {source.name} cannot be read ({e}); merge it again") from e
            return tuple(done)

    # -- reading and writing ------------------------------------------------------------------------------

    def _is_same(self, workload: Workload) -> bool:
        from tvm_ffi import structural_equal

        stored = self.workload(workload.key)
        return stored is not None and bool(structural_equal(stored.func, workload.func))

    def read(self, select: Select) -> list[tuple]:
        """Rows written in memory first, then the database's undamaged ones: who takes the first takes the newest."""
        with self._lock:
            found = self._memory.read(select) if self._has_unsaved else []
            if self._is_readable:
                try:
                    found += [row for row in self._connection.read(select) if all(map(is_whole, row))]
                except StorageError as e:
                    self._is_readable = False
                    self._go_on_in_memory("read", e)
            return found

    def _write(self, changes: Sequence[Change]) -> int:
        """How many rows of the database have changed; those in memory do not count."""
        with self._lock:
            if self._is_writable:
                try:
                    return sum(self._connection.write(changes))
                except StorageError as e:
                    self._go_on_in_memory("written", e)
            self._memory.write(changes)
            return 0

    def _write_or_raise(self, changes: Sequence[Change]) -> list[int]:
        with self._lock:
            if not self._is_writable:
                raise DatabaseError(f"the database {self.name} cannot be written; name another with --db")
            try:
                return self._connection.write(changes)
            except StorageError as e:
                raise DatabaseError(f"the database {self.name} cannot be written ({e}); merge again when it can") from e

    def _go_on_in_memory(self, verb: str, error: StorageError) -> None:
        self._is_writable = False
        self._has_unsaved = True
        if not self._has_warned:
            text = "the tuning database %s cannot be %s (%s): what is tuned from here on is not kept"
            _log.warning(text, self.name, verb, error)
        self._has_warned = True


def _is_current(found: str, versions: Collection[Versions]) -> bool:
    """Whether a measurement's versions are among those of today."""
    family = found.rpartition("/")[2].rpartition("-")[0]
    return any(found == one.of(family) for one in versions)


def _holds(record: Record, base: str, families: Mapping[str, int], versions: Versions) -> bool:
    """Whether a winner with these versions, of all families and of what they share, is one under `versions`."""
    name = record.candidate.family
    return base == versions.base and families.get(name, 0) == versions.version(name)


def _known(workload: Workload) -> Insert:
    return Insert(WORKLOADS, [rows.workload_row(workload)], Conflict.OLD)
