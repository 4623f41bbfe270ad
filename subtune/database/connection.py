"""Opening the file: schema, locks, and what to do with one that is damaged."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from subtune.core.errors import DatabaseError
from subtune.core.scratch import temporary

_log = logging.getLogger(__name__)

BUSY_S = 10.0
"""How long a statement waits for another process's transaction; those last milliseconds."""
_FORMAT = 3
_MAX_SALVAGE_BYTES = 1 << 30

_SCHEMA = """
CREATE TABLE IF NOT EXISTS workloads (
    key TEXT PRIMARY KEY, func BLOB NOT NULL, num_outputs INTEGER NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS measurements (
    key TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, candidate TEXT NOT NULL,
    predicted_s REAL NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL,
    median_s REAL, min_s REAL, spread REAL, samples INTEGER, build_s REAL NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (key, device, versions, candidate)
);
CREATE TABLE IF NOT EXISTS winners (
    key TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, candidate TEXT NOT NULL,
    predicted_s REAL NOT NULL,
    median_s REAL NOT NULL, min_s REAL NOT NULL, spread REAL NOT NULL, samples INTEGER NOT NULL,
    default_median_s REAL NOT NULL, default_min_s REAL NOT NULL,
    default_spread REAL NOT NULL, default_samples INTEGER NOT NULL,
    gain REAL NOT NULL, func_hash TEXT NOT NULL, topk INTEGER NOT NULL,
    tried INTEGER NOT NULL, failed INTEGER NOT NULL, complete INTEGER NOT NULL, at REAL NOT NULL,
    confirmed TEXT NOT NULL DEFAULT 'pairs', families TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (key, device, versions)
);
CREATE TABLE IF NOT EXISTS suggestions (
    key TEXT NOT NULL, candidate TEXT NOT NULL, median_s REAL NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (key, candidate)
);
CREATE TABLE IF NOT EXISTS instances (
    key TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, candidate TEXT NOT NULL, extents TEXT NOT NULL,
    kind TEXT NOT NULL, message TEXT NOT NULL, median_s REAL, is_timed INTEGER NOT NULL, built TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (key, device, versions, candidate, extents)
);
"""
# What a file of an older format lacks. Its rows have other versions than any of today: they are kept and not found.
_ADDED = {
    "winners": {"confirmed": "TEXT NOT NULL DEFAULT 'pairs'", "families": "TEXT NOT NULL DEFAULT '{}'"},
}
TABLES = ("workloads", "measurements", "winners", "suggestions", "instances")


def connect(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection to the database in `path`, made if missing; and whether it can be written.

    A damaged file is moved aside, what can still be read of it is carried over.

    Raises:
        DatabaseError: the file or its directory cannot be used at all, or stays locked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = path.is_dir()
    except OSError as e:
        raise DatabaseError(f"cannot use the database {path}: {e.strerror or e}; name another with --db") from e
    if is_folder:
        raise DatabaseError(f"the database {path} is a directory; name a file with --db")
    try:
        return _open(path)
    except sqlite3.DatabaseError as e:
        if not _is_damage(e):
            raise _explained(path, e) from e
        damage = e
    aside = _move_aside(path, damage)
    try:
        connection, writable = _open(path)
    except sqlite3.DatabaseError as e:
        raise _explained(path, e) from e
    if aside is not None:
        _salvage(aside, connection)
    return connection, writable


def in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(_SCHEMA)
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing. The write lock is taken at the start: two writers wait, neither fails half-way."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back by itself when the disk is full
            connection.execute("ROLLBACK")
        raise


def _open(path: Path) -> tuple[sqlite3.Connection, bool]:
    if "\0" in str(path):
        raise DatabaseError(f"cannot open the database {str(path)!r}: no name has a zero byte; name another with --db")
    is_new = not path.exists() or path.stat().st_size == 0
    writable = os.access(path.parent if is_new else path, os.W_OK) and os.access(path.parent, os.W_OK)
    if not writable and is_new:
        raise DatabaseError(f"the database {path} cannot be made: its directory is read-only; name another with --db")
    # A reader of a WAL database needs its -shm file; `immutable` does without, as nobody here can write it.
    uri = Path(os.path.realpath(path)).as_uri() + ("" if writable else "?immutable=1")
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        if writable:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
        if not is_new:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {found}")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > _FORMAT:
            raise DatabaseError(
                f"the database {path} has format {version}, this subtune reads up to {_FORMAT}; "
                f"use a newer subtune, or another file with --db"
            )
        if writable:
            with transaction(connection):
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    connection.execute(statement)
                _add_columns(connection)
                connection.execute(f"PRAGMA user_version={_FORMAT}")
        else:
            if 0 < version < _FORMAT:
                raise DatabaseError(
                    f"the database {path} has the older format {version} and is read-only, so that it cannot be "
                    "brought up to date; make it writable, or name another with --db"
                )
            for table in TABLES:
                connection.execute(f"SELECT 1 FROM {table} LIMIT 1")
    except BaseException:
        connection.close()
        raise
    return connection, writable


def _add_columns(connection: sqlite3.Connection) -> None:
    for table, columns in _ADDED.items():
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for name, kind in columns.items():
            if name not in present:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    text = str(error)
    return "malformed" in text or "not a database" in text or "file is encrypted" in text


def _explained(path: Path, error: sqlite3.DatabaseError) -> DatabaseError:
    if "locked" in str(error) or "busy" in str(error):
        return DatabaseError(
            f"the database {path} stays locked by another process ({error}); wait for it, or name another with --db"
        )
    return DatabaseError(f"cannot open the database {path}: {error}; name another with --db")


def _move_aside(path: Path, damage: Exception) -> Path | None:
    """Rename the damaged file, and its journal with it; None when another process has just done so."""
    aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise DatabaseError(f"the database {path} is damaged ({damage}) and cannot be moved aside: {e}") from e
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(OSError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    _log.warning("the tuning database %s is damaged (%s): moved to %s, a new one is made", path, damage, aside.name)
    return aside


def _salvage(aside: Path, connection: sqlite3.Connection) -> None:
    """Copy every row of the damaged file that can still be read, from both ends of each table."""
    kept = 0
    with contextlib.suppress(sqlite3.Error, OSError), temporary() as directory:
        copy = directory / "copy.db"
        _copy_in_full_length(aside, copy)
        with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as old:
            for table in TABLES:
                columns = ", ".join(row[1] for row in old.execute(f"PRAGMA table_info({table})"))
                for order in ("ASC", "DESC"):
                    rows = _readable_rows(old, f"SELECT {columns} FROM {table} ORDER BY rowid {order}")
                    kept += _carry_over(rows, f"{table} ({columns})", connection)
    if kept:
        _log.warning("%d rows of the damaged tuning database were saved", kept)


def _copy_in_full_length(source: Path, copy: Path) -> None:
    """SQLite reads nothing of a file shorter than its header says: the lost end is filled with zeros."""
    shutil.copyfile(source, copy)
    with contextlib.suppress(FileNotFoundError):  # what was committed last may be in the journal only
        shutil.copyfile(f"{source}-wal", f"{copy}-wal")
    with copy.open("r+b") as file:
        header = file.read(100)
        if len(header) == 100 and header.startswith(b"SQLite format 3"):
            page_bytes = int.from_bytes(header[16:18], "big")
            page_bytes = 65536 if page_bytes == 1 else page_bytes
            full = page_bytes * int.from_bytes(header[28:32], "big")
            if copy.stat().st_size < full <= _MAX_SALVAGE_BYTES:
                file.truncate(full)


def _readable_rows(old: sqlite3.Connection, statement: str) -> list[tuple]:
    """Rows up to the first damaged page, but those whose text ended on one."""
    rows = []
    with contextlib.suppress(sqlite3.Error):
        for row in old.execute(statement):
            if all(map(is_whole, row)):
                rows.append(row)
    return rows


def is_whole(value: object) -> bool:
    """Whether a row's value survived damage: compressed bytes unpack, text has no zeros, JSON in it parses."""
    try:
        if isinstance(value, bytes):
            zlib.decompress(value)
        elif isinstance(value, str) and value[:1] in ("{", "["):
            json.loads(value)
    except (zlib.error, ValueError):
        return False
    return not isinstance(value, str) or "\0" not in value


def _carry_over(rows: list[tuple], table: str, connection: sqlite3.Connection) -> int:
    before = connection.total_changes
    with contextlib.suppress(sqlite3.Error), transaction(connection):
        for row in rows:
            connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    return connection.total_changes - before
