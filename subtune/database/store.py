"""What is remembered between compiles, and how: candidates with their outcomes, winners, suggestions."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from subtune.core.candidate import Candidate
from subtune.core.errors import DatabaseError
from subtune.core.measurement import DETERMINISTIC, Failure, FailureKind, Measurement, Timing
from subtune.core.record import Record
from subtune.core.versions import Scope, Versions
from subtune.core.workload import Workload
from subtune.database import instances
from subtune.database.connection import connect, in_memory, is_whole, transaction

_log = logging.getLogger(__name__)

_Statement = tuple[str, tuple[object, ...]]


def default_path() -> Path:
    """`tuning.db` in the user's cache directory for subtune."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("subtune")) / "tuning.db"


class Database:
    """One file, safe under concurrent processes and under a kill at any moment.

    Every method is one short transaction. When the file cannot be written any more (disk full, read-only,
    locked for long) a warning is logged once and this process goes on in memory: the compile is not lost.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Open or make the file at `path` (default: `default_path()`).

        Raises:
            DatabaseError: it cannot be opened at all; the text says why and what to do.
        """
        self.path = Path(path) if path is not None else default_path()
        self._file, self._is_writable = connect(self.path)
        self._memory = in_memory()
        self._is_readable = True
        self._has_unsaved = False
        if not self._is_writable:
            self._has_unsaved = True
            _log.warning("the tuning database %s is read-only: what is tuned now is not kept", self.path)

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._memory.close()

    # -- what the tuner asks ------------------------------------------------------------------------------

    def lookup(self, workload: Workload, scope: Scope) -> Record | None:
        """The winner of `workload` in `scope`; incomplete where a family has changed since, other than the winner's.

        A stored workload that has the same key but is another function counts as not found.
        """
        rows = self.read(
            f"SELECT families, {_RECORD_COLUMNS} FROM winners WHERE key = ? AND device = ? AND versions = ?",
            (workload.key, scope.device, scope.versions.base),
        )
        if not rows or not self._is_same(workload):
            return None
        record, families = _record(rows[0][1:]), json.loads(rows[0][0])
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
        rows = self.read(
            "SELECT candidate FROM suggestions WHERE key = ? ORDER BY median_s, candidate", (workload.key,)
        )
        return tuple(dict.fromkeys(Candidate.from_json(text) for (text,) in rows))

    # -- what the tuner reports ---------------------------------------------------------------------------

    def add_measurements(self, workload: Workload, scope: Scope, measurements: Iterable[Measurement]) -> None:
        statements = [_insert_workload(workload)]
        for measurement in measurements:
            candidate, outcome = measurement.candidate, measurement.outcome
            columns: tuple[object, ...] = (
                (str(outcome.kind), outcome.message, None, None, None, None)
                if isinstance(outcome, Failure)
                else ("", "", outcome.median_s, outcome.min_s, outcome.spread, outcome.samples)
            )
            version = scope.versions.of(candidate.family)
            row = (workload.key, scope.device, version, candidate.to_json(), candidate.predicted_s, *columns)
            statements.append(_insert("measurements", (*row, measurement.build_s, time.time())))
        self._write(statements)

    def add_record(self, workload: Workload, record: Record, versions: Versions) -> None:
        """Store the winner, in place of an earlier one."""
        timing, default = record.timing, record.default_timing
        row = (
            record.workload_key, record.device, versions.base, record.candidate.to_json(), record.candidate.predicted_s,
            timing.median_s, timing.min_s, timing.spread, timing.samples,
            default.median_s, default.min_s, default.spread, default.samples,
            record.gain, record.func_hash, record.topk, record.tried, record.failed, int(record.complete), time.time(),
            record.confirmed, json.dumps(dict(versions.families), sort_keys=True),
        )  # fmt: skip
        self._write([_insert_workload(workload), _insert("winners", row)])

    def add_rows(self, workload: Workload, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Store rows of a table of this room, in the place of earlier ones."""
        self._write([_insert_workload(workload), *(_insert(table, row) for row in rows)])

    def add_suggestion(self, workload: Workload, candidate: Candidate, median_s: float) -> None:
        """An imported candidate: the next compile tries it first, even where it had already decided."""
        self._write(
            [
                _insert_workload(workload),
                _insert("suggestions", (workload.key, candidate.to_json(), median_s, time.time())),
                ("UPDATE winners SET complete = 0 WHERE key = ?", (workload.key,)),
            ]
        )

    # -- what the user asks -------------------------------------------------------------------------------

    def list_records(
        self, key: str = "", device: str = "", versions: Collection[Versions] | None = None
    ) -> tuple[Record, ...]:
        """Winners whose workload key begins with `key` and whose device contains `device`, newest first.

        Args:
            versions: only records that hold under one of these, the newest of each workload and device; None: all.
        """
        rows = self.read(
            f"SELECT versions, families, {_RECORD_COLUMNS} FROM winners "
            "WHERE substr(key, 1, ?) = ? AND instr(device, ?) > 0 ORDER BY at DESC, key",
            (len(key), key, device),
        )
        found = [(_record(row[2:]), row[0], json.loads(row[1])) for row in rows]
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
        found = [row[0] for row in self.read("SELECT key FROM workloads WHERE substr(key, 1, ?) = ?", (len(key), key))]
        found = sorted(set(found))
        if len(found) != 1:
            what = f"{len(found)} workloads have" if found else "no workload has"
            raise DatabaseError(f"{what} a key beginning with {key!r} in {self.path}; `subtune db list` shows the keys")
        workload = self.workload(found[0])
        assert workload is not None
        rows = self.read(
            f"SELECT versions, {_MEASUREMENT_COLUMNS} FROM measurements WHERE key = ? "
            "ORDER BY median_s IS NULL, median_s, candidate",
            (found[0],),
        )
        tried = tuple(_measurement(row[1:]) for row in rows if versions is None or _is_current(row[0], versions))
        return workload, self.list_records(found[0], versions=versions), tried

    def measurements(self, key: str, scope: Scope) -> tuple[Measurement, ...]:
        """Every candidate of the workload `key` that was tried in `scope`."""
        return tuple(measurement for _, measurement in self.dated_measurements(key, scope))

    def dated_measurements(self, key: str, scope: Scope) -> tuple[tuple[float, Measurement], ...]:
        """As `measurements`, each with the time at which it was stored, in seconds since 1970."""
        rows = self.read(
            f"SELECT versions, at, {_MEASUREMENT_COLUMNS} FROM measurements WHERE key = ? AND device = ?",
            (key, scope.device),
        )
        return tuple((row[1], _measurement(row[2:])) for row in rows if _is_current(row[0], [scope.versions]))

    def workload(self, key: str) -> Workload | None:
        rows = self.read("SELECT func, num_outputs FROM workloads WHERE key = ?", (key,))
        if not rows:
            return None
        from subtune.tir.saved import read_workload  # with TVM, which most of a database does without

        return read_workload(zlib.decompress(rows[0][0]).decode(), rows[0][1])

    def gc(self, *, older_than_s: float | None = None, versions: Collection[Versions] | None = None) -> int:
        """Delete what does not hold under one of `versions`, and what is older than `older_than_s` seconds.

        Returns how many rows went.
        """
        before = self._file.total_changes
        statements: list[_Statement] = []
        if versions is not None:
            for (found,) in self.read("SELECT DISTINCT versions FROM measurements", ()):
                if not _is_current(found, versions):
                    statements.append(("DELETE FROM measurements WHERE versions = ?", (found,)))
            for (found,) in self.read("SELECT DISTINCT versions FROM instances", ()):
                if not instances.is_current(found, versions):
                    statements.append(("DELETE FROM instances WHERE versions = ?", (found,)))
            for base, families, *row in self.read(f"SELECT versions, families, {_RECORD_COLUMNS} FROM winners", ()):
                if not any(_holds(_record(tuple(row)), base, json.loads(families), one) for one in versions):
                    where = "WHERE key = ? AND device = ? AND versions = ?"
                    statements.append((f"DELETE FROM winners {where}", (row[0], row[1], base)))
        for table in ("measurements", "winners", "suggestions", "instances"):
            if older_than_s is not None:
                statements.append((f"DELETE FROM {table} WHERE at < ?", (time.time() - older_than_s,)))
        statements.append(
            (
                "DELETE FROM workloads WHERE key NOT IN (SELECT key FROM measurements UNION "
                "SELECT key FROM winners UNION SELECT key FROM suggestions UNION SELECT key FROM instances)",
                (),
            )
        )
        self._write(statements)
        deleted = self._file.total_changes - before
        with contextlib.suppress(sqlite3.OperationalError):  # another process reads: the space is reused later
            self._file.execute("VACUUM")
        return deleted

    # -- reading and writing ------------------------------------------------------------------------------

    def _is_same(self, workload: Workload) -> bool:
        from tvm_ffi import structural_equal

        stored = self.workload(workload.key)
        return stored is not None and bool(structural_equal(stored.func, workload.func))

    def read(self, statement: str, parameters: tuple[object, ...]) -> list[tuple]:
        """Rows written in memory first, then the file's undamaged ones: who takes the first takes the newest."""
        rows: list[tuple] = self._memory.execute(statement, parameters).fetchall() if self._has_unsaved else []
        if self._is_readable:
            try:
                found = self._file.execute(statement, parameters)
                rows += [row for row in found if all(map(is_whole, row))]
            except sqlite3.DatabaseError as e:
                self._is_readable = False
                self._go_on_in_memory("read", e)
        return rows

    def _write(self, statements: list[_Statement]) -> None:
        if self._is_writable:
            try:
                _execute(self._file, statements)
                return
            except sqlite3.DatabaseError as e:
                self._go_on_in_memory("written", e)
        _execute(self._memory, statements)

    def _go_on_in_memory(self, verb: str, error: sqlite3.DatabaseError) -> None:
        self._is_writable = False
        self._has_unsaved = True
        _log.warning(
            "the tuning database %s cannot be %s (%s): what is tuned from here on is not kept", self.path, verb, error
        )


def _execute(connection: sqlite3.Connection, statements: list[_Statement]) -> None:
    with transaction(connection):
        for statement, parameters in statements:
            connection.execute(statement, parameters)


def _is_current(found: str, versions: Collection[Versions]) -> bool:
    """Whether a measurement's versions are among those of today."""
    family = found.rpartition("/")[2].rpartition("-")[0]
    return any(found == one.of(family) for one in versions)


def _holds(record: Record, base: str, families: Mapping[str, int], versions: Versions) -> bool:
    """Whether a winner with these versions, of all families and of what they share, is one under `versions`."""
    name = record.candidate.family
    return base == versions.base and families.get(name, 0) == versions.version(name)


def _insert(table: str, row: tuple[object, ...]) -> _Statement:
    return f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row


def _insert_workload(workload: Workload) -> _Statement:
    func = zlib.compress(workload.to_json().encode(), 6)
    return "INSERT OR IGNORE INTO workloads VALUES (?, ?, ?, ?)", (
        workload.key, func, workload.num_outputs, time.time(),
    )  # fmt: skip


_MEASUREMENT_COLUMNS = "candidate, predicted_s, kind, message, median_s, min_s, spread, samples, build_s"
_RECORD_COLUMNS = (
    "key, device, candidate, predicted_s, median_s, min_s, spread, samples, "
    "default_median_s, default_min_s, default_spread, default_samples, gain, func_hash, topk, tried, failed, complete, "
    "confirmed"
)


def _record(row: tuple) -> Record:
    key, device, candidate, predicted_s, *rest = row
    gain, func_hash, topk, tried, failed, complete, confirmed = rest[8:]
    return Record(
        key, device, _candidate(candidate, predicted_s), Timing(*rest[:4]), Timing(*rest[4:8]),
        gain, func_hash, topk, tried, failed, bool(complete), confirmed,
    )  # fmt: skip


def _measurement(row: tuple) -> Measurement:
    candidate, predicted_s, kind, message, median_s, min_s, spread, samples, build_s = row
    outcome = Failure(FailureKind(kind), message) if kind else Timing(median_s, min_s, spread, samples)
    return Measurement(_candidate(candidate, predicted_s), outcome, build_s)


def _candidate(text: str, predicted_s: float) -> Candidate:
    candidate = Candidate.from_json(text)
    return Candidate(candidate.family, candidate.knobs, predicted_s)
