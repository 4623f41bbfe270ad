"""What is remembered between compiles, and how: candidates with their outcomes, winners, suggestions."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType

from subtune import __version__
from subtune.core.candidate import Candidate
from subtune.core.errors import DatabaseError
from subtune.core.measurement import Failure, FailureKind, Measurement, Timing
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database.connection import connect, in_memory, transaction

_log = logging.getLogger(__name__)

_DETERMINISTIC = (FailureKind.INVALID, FailureKind.BUILD, FailureKind.LAUNCH, FailureKind.WRONG_RESULT)
"""Failures that come again; crashes, time limits and memory may have been the machine's."""

_Statement = tuple[str, tuple[object, ...]]


def default_path() -> Path:
    """`tuning.db` in the user's cache directory for subtune."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("subtune")) / "tuning.db"


@lru_cache
def versions() -> str:
    """Of all that decides what a candidate's name means and how fast it is: a change of one starts afresh."""
    try:
        tvm_version = version("apache-tvm")
    except PackageNotFoundError:  # TVM built from source, found by its path
        import tvm

        tvm_version = tvm.__version__
    from subtune.backends.cpu import scheduling

    return f"tvm-{tvm_version}/subtune-{__version__}/templates-{scheduling.VERSION}"


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

    def lookup(self, workload: Workload, device: str) -> Record | None:
        """The winner of `workload` on `device` (a fingerprint) under the present versions.

        A stored workload that has the same key but is another function counts as not found.
        """
        where = "WHERE key = ? AND device = ? AND versions = ?"
        rows = self._read(f"SELECT {_RECORD_COLUMNS} FROM winners {where}", (workload.key, device, versions()))
        if not rows or not self._is_same(workload):
            return None
        return _record(rows[0])

    def known_failures(self, workload: Workload, device: str) -> dict[Candidate, Failure]:
        """Candidates that failed before, for a reason that is not the machine's."""
        rows = self._read(
            "SELECT candidate, kind, message FROM measurements WHERE key = ? AND device = ? AND versions = ?",
            (workload.key, device, versions()),
        )
        return {
            Candidate.from_json(text): Failure(FailureKind(kind), message)
            for text, kind, message in rows
            if kind in {str(k) for k in _DETERMINISTIC}
        }

    def suggestions(self, workload: Workload) -> tuple[Candidate, ...]:
        """Candidates that were imported for `workload`, said to be fastest first; nothing about them was checked."""
        rows = self._read(
            "SELECT candidate FROM suggestions WHERE key = ? ORDER BY median_s, candidate", (workload.key,)
        )
        return tuple(dict.fromkeys(Candidate.from_json(text) for (text,) in rows))

    # -- what the tuner reports ---------------------------------------------------------------------------

    def add_measurements(self, workload: Workload, device: str, measurements: Iterable[Measurement]) -> None:
        statements = [_insert_workload(workload)]
        for measurement in measurements:
            outcome = measurement.outcome
            columns: tuple[object, ...] = (
                (str(outcome.kind), outcome.message, None, None, None, None)
                if isinstance(outcome, Failure)
                else ("", "", outcome.median_s, outcome.min_s, outcome.spread, outcome.samples)
            )
            candidate = measurement.candidate
            row = (workload.key, device, versions(), candidate.to_json(), candidate.predicted_s, *columns)
            statements.append(_insert("measurements", (*row, measurement.build_s, time.time())))
        self._write(statements)

    def add_record(self, workload: Workload, record: Record) -> None:
        """Store the winner, in place of an earlier one."""
        timing, default = record.timing, record.default_timing
        row = (
            record.workload_key, record.device, versions(), record.candidate.to_json(), record.candidate.predicted_s,
            timing.median_s, timing.min_s, timing.spread, timing.samples,
            default.median_s, default.min_s, default.spread, default.samples,
            record.gain, record.func_hash, record.topk, record.tried, record.failed, int(record.complete), time.time(),
        )  # fmt: skip
        self._write([_insert_workload(workload), _insert("winners", row)])

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

    def list_records(self, key: str = "", device: str = "", all_versions: bool = False) -> tuple[Record, ...]:
        """Winners whose workload key begins with `key` and whose device contains `device`, newest first."""
        rows = self._read(
            f"SELECT {_RECORD_COLUMNS} FROM winners WHERE substr(key, 1, ?) = ? AND instr(device, ?) > 0 "
            "AND (? OR versions = ?) ORDER BY at DESC, key",
            (len(key), key, device, all_versions, versions()),
        )
        if all_versions:
            return tuple(_record(row) for row in rows)
        newest = {(row[0], row[1]): row for row in reversed(rows)}
        return tuple(_record(row) for row in reversed(newest.values()))

    def show(self, key: str) -> tuple[Workload, tuple[Record, ...], tuple[Measurement, ...]]:
        """The workload whose key begins with `key`, its winners and every candidate tried, fastest first.

        Raises:
            DatabaseError: no workload, or several, have such a key.
        """
        found = [row[0] for row in self._read("SELECT key FROM workloads WHERE substr(key, 1, ?) = ?", (len(key), key))]
        found = sorted(set(found))
        if len(found) != 1:
            what = f"{len(found)} workloads have" if found else "no workload has"
            raise DatabaseError(f"{what} a key beginning with {key!r} in {self.path}; `subtune db list` shows the keys")
        workload = self.workload(found[0])
        assert workload is not None
        rows = self._read(
            f"SELECT {_MEASUREMENT_COLUMNS} FROM measurements WHERE key = ? AND versions = ? "
            "ORDER BY median_s IS NULL, median_s, candidate",
            (found[0], versions()),
        )
        return workload, self.list_records(found[0]), tuple(_measurement(row) for row in rows)

    def measurements(self, key: str, device: str) -> tuple[Measurement, ...]:
        """Every candidate of the workload `key` that was tried on `device` under the present versions."""
        rows = self._read(
            f"SELECT {_MEASUREMENT_COLUMNS} FROM measurements WHERE key = ? AND device = ? AND versions = ?",
            (key, device, versions()),
        )
        return tuple(_measurement(row) for row in rows)

    def workload(self, key: str) -> Workload | None:
        rows = self._read("SELECT func, num_outputs FROM workloads WHERE key = ?", (key,))
        if not rows:
            return None
        return Workload.from_json(zlib.decompress(rows[0][0]).decode(), rows[0][1])

    def gc(self, *, older_than_s: float | None = None, other_versions: bool = True) -> int:
        """Delete what other versions measured, and what is older than `older_than_s` seconds; the rows deleted."""
        before = self._file.total_changes
        statements: list[_Statement] = []
        for table in ("measurements", "winners"):
            if other_versions:
                statements.append((f"DELETE FROM {table} WHERE versions != ?", (versions(),)))
        for table in ("measurements", "winners", "suggestions"):
            if older_than_s is not None:
                statements.append((f"DELETE FROM {table} WHERE at < ?", (time.time() - older_than_s,)))
        statements.append(
            (
                "DELETE FROM workloads WHERE key NOT IN (SELECT key FROM measurements UNION "
                "SELECT key FROM winners UNION SELECT key FROM suggestions)",
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

    def _read(self, statement: str, parameters: tuple[object, ...]) -> list[tuple]:
        """Rows written in memory first, then those of the file: who takes the first takes the newest."""
        rows: list[tuple] = self._memory.execute(statement, parameters).fetchall() if self._has_unsaved else []
        if self._is_readable:
            try:
                rows += self._file.execute(statement, parameters).fetchall()
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
    "default_median_s, default_min_s, default_spread, default_samples, gain, func_hash, topk, tried, failed, complete"
)


def _record(row: tuple) -> Record:
    key, device, candidate, predicted_s, *rest = row
    gain, func_hash, topk, tried, failed, complete = rest[8:]
    return Record(
        key, device, _candidate(candidate, predicted_s), Timing(*rest[:4]), Timing(*rest[4:8]),
        gain, func_hash, topk, tried, failed, bool(complete),
    )  # fmt: skip


def _measurement(row: tuple) -> Measurement:
    candidate, predicted_s, kind, message, median_s, min_s, spread, samples, build_s = row
    outcome = Failure(FailureKind(kind), message) if kind else Timing(median_s, min_s, spread, samples)
    return Measurement(_candidate(candidate, predicted_s), outcome, build_s)


def _candidate(text: str, predicted_s: float) -> Candidate:
    candidate = Candidate.from_json(text)
    return Candidate(candidate.family, candidate.knobs, predicted_s)
