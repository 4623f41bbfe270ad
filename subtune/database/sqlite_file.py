"""A database in a file: SQLite, its locks, and what to do with a file that is damaged."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from subtune.core.errors import DatabaseError
from subtune.database.connection import BUSY_S, StorageError, check_format
from subtune.database.salvage import move_aside, readable_rows
from subtune.database.statements import SQLITE, Change, Select
from subtune.database.tables import FORMAT, TABLES

_log = logging.getLogger(__name__)


class SqliteConnection:
    """A `Connection` to a file, or to what is in memory. `handle` is the driver's own."""

    def __init__(self, handle: sqlite3.Connection, name: str, is_writable: bool = True, identity: object = None):
        self.handle, self.name, self.is_writable, self.identity = handle, name, is_writable, identity

    def read(self, select: Select) -> list[tuple]:
        with _explained_faults():
            return self.handle.execute(*SQLITE.select(select)).fetchall()

    def write(self, changes: Sequence[Change]) -> list[int]:
        with _explained_faults(), transaction(self.handle):
            return [self.handle.executemany(*SQLITE.change(change)).rowcount for change in changes]

    def compact(self) -> None:
        with contextlib.suppress(sqlite3.OperationalError):  # another process reads: the space is reused later
            self.handle.execute("VACUUM")

    def close(self) -> None:
        self.handle.close()


def connect(path: Path) -> SqliteConnection:
    """The database in `path`, made if missing.

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
    aside = move_aside(path, damage)
    try:
        opened = _open(path)
    except sqlite3.DatabaseError as e:
        raise _explained(path, e) from e
    kept = sum(_carry_over(*rows, opened.handle) for rows in readable_rows(aside)) if aside else 0
    if kept:
        _log.warning("%d rows of the damaged tuning database were saved", kept)
    return opened


def in_memory() -> SqliteConnection:
    """A database that ends with the process."""
    handle = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _bring_up_to_date(handle)
    return SqliteConnection(handle, "in memory")


def snapshot(path: Path) -> SqliteConnection:
    """What the database in `path` holds now, in memory and in today's format; the file is read, and never made.

    Raises:
        DatabaseError: there is none, it is damaged, or it is of a newer format.
    """
    if not path.is_file():
        raise DatabaseError(f"there is no database {path}; name the file of one")
    place = path.stat()
    handle = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        _copy_to(handle, path)
        if "measurements" not in {name for (name,) in handle.execute("SELECT name FROM sqlite_master")}:
            raise DatabaseError(f"{path} is no tuning database; name the file of one")
        check_format(str(path), _format_of(handle))
        _check_pages(handle)
        with transaction(handle):
            _bring_up_to_date(handle)
    except BaseException as e:
        handle.close()
        if not isinstance(e, sqlite3.DatabaseError):
            raise
        if "not a database" in str(e):
            raise DatabaseError(f"{path} is no tuning database; name the file of one") from e
        if _is_damage(e):
            raise DatabaseError(
                f"the database {path} is damaged ({e}); `subtune db list --db {path}` saves what can still be read"
            ) from e
        raise _explained(path, e) from e
    return SqliteConnection(handle, str(path), is_writable=False, identity=(place.st_dev, place.st_ino))


@contextlib.contextmanager
def transaction(handle: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. The write lock is taken at the start: two writers wait, neither fails half-way."""
    handle.execute("BEGIN IMMEDIATE")
    try:
        yield
        handle.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back by itself when the disk is full
            handle.execute("ROLLBACK")
        raise


def _open(path: Path) -> SqliteConnection:
    if "\0" in str(path):
        raise DatabaseError(f"cannot open the database {str(path)!r}: no name has a zero byte; name another with --db")
    is_new = not path.exists() or path.stat().st_size == 0
    is_writable = os.access(path.parent if is_new else path, os.W_OK) and os.access(path.parent, os.W_OK)
    if not is_writable and is_new:
        raise DatabaseError(f"the database {path} cannot be made: its directory is read-only; name another with --db")
    # A reader of a WAL database needs its -shm file; `immutable` does without, as nobody here can write it.
    handle = _connected(path, "" if is_writable else "?immutable=1")
    try:
        if is_writable:
            handle.execute("PRAGMA journal_mode=WAL")
            handle.execute("PRAGMA synchronous=NORMAL")
        if not is_new:
            _check_pages(handle)
        version = _format_of(handle)
        check_format(str(path), version)
        if is_writable:
            with transaction(handle):
                _bring_up_to_date(handle)
        else:
            if 0 < version < FORMAT:
                raise DatabaseError(
                    f"the database {path} has the older format {version} and is read-only, so that it cannot be "
                    "brought up to date; make it writable, or name another with --db"
                )
            for table in TABLES:
                handle.execute(f"SELECT 1 FROM {table.name} LIMIT 1")
        place = path.stat()
    except BaseException:
        handle.close()
        raise
    return SqliteConnection(handle, str(path), is_writable, (place.st_dev, place.st_ino))


def _connected(path: Path, options: str) -> sqlite3.Connection:
    uri = Path(os.path.realpath(path)).as_uri() + options
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _copy_to(handle: sqlite3.Connection, path: Path) -> None:
    """All pages of the file. Only one that has a journal is shared with who writes it: that leaves files beside it."""
    journal = path.with_name(f"{path.name}-wal")
    is_shared = journal.exists()
    with contextlib.closing(_connected(path, "?mode=ro" if is_shared else "?immutable=1")) as source:
        source.backup(handle)
    if not is_shared and journal.exists():  # somebody has begun to write it meanwhile
        _copy_to(handle, path)


def _check_pages(handle: sqlite3.Connection) -> None:
    (found,) = handle.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(f"malformed: {found}")


def _format_of(handle: sqlite3.Connection) -> int:
    (version,) = handle.execute("PRAGMA user_version").fetchone()
    return int(version)


def _bring_up_to_date(handle: sqlite3.Connection) -> None:
    """Add tables and columns that are missing. Rows of older formats have other versions than any of today: they are
    kept and not found.
    """
    for table in TABLES:
        handle.execute(SQLITE.create(table))
        present = {row[1] for row in handle.execute(f"PRAGMA table_info({table.name})")}
        for column in table.columns:
            if column.name not in present:
                handle.execute(f"ALTER TABLE {table.name} ADD COLUMN {SQLITE.definition(column)}")
    handle.execute(f"PRAGMA user_version={FORMAT}")


def _carry_over(table: str, rows: list[tuple], handle: sqlite3.Connection) -> int:
    """How many of the rows were not there yet; none is taken where one cannot be."""
    before = handle.total_changes
    with contextlib.suppress(sqlite3.Error), transaction(handle):
        for row in rows:
            handle.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    return handle.total_changes - before


@contextlib.contextmanager
def _explained_faults() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as e:
        raise StorageError(str(e)) from e


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    text = str(error)
    return "malformed" in text or "not a database" in text or "file is encrypted" in text


def _explained(path: Path, error: sqlite3.DatabaseError) -> DatabaseError:
    if "locked" in str(error) or "busy" in str(error):
        return DatabaseError(
            f"the database {path} stays locked by another process ({error}); wait for it, or name another with --db"
        )
    return DatabaseError(f"cannot open the database {path}: {error}; name another with --db")
