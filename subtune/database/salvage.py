"""What can still be read of a damaged SQLite file."""

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
from subtune.database.tables import TABLES

_log = logging.getLogger(__name__)

_MAX_SALVAGE_BYTES = 1 << 30


def move_aside(path: Path, damage: Exception) -> Path | None:
    """Rename the damaged file, and its journal with it; None when another process has just done so.

    Raises:
        DatabaseError: it cannot be renamed.
    """
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


def readable_rows(aside: Path) -> Iterator[tuple[str, list[tuple]]]:
    """Every row of the damaged file that can still be read, from both ends of each table.

    Yields `table (column, ...)`, which may lack columns that the table has today, and rows.
    """
    with contextlib.suppress(sqlite3.Error, OSError), temporary() as directory:
        copy = directory / "copy.db"
        _copy_in_full_length(aside, copy)
        with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as old:
            for table in TABLES:
                columns = ", ".join(row[1] for row in old.execute(f"PRAGMA table_info({table.name})"))
                for order in ("ASC", "DESC"):
                    statement = f"SELECT {columns} FROM {table.name} ORDER BY rowid {order}"
                    yield f"{table.name} ({columns})", _until_damage(old, statement)


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


def _until_damage(old: sqlite3.Connection, statement: str) -> list[tuple]:
    """Rows up to the first damaged page, but those whose text ended on one."""
    rows = []
    with contextlib.suppress(sqlite3.Error):
        for row in old.execute(statement):
            if all(map(is_whole, row)):
                rows.append(row)
    return rows
