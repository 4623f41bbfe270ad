"""Where a database is: in a file, or on a server, by its URL."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import ModuleType

from subtune.core.errors import DatabaseError
from subtune.database import sqlite_file
from subtune.database.connection import Connection

Place = Path | str
"""A file, or the URL of a database on a server; that may hold a password, and is not for messages."""

_URL = re.compile(r"(\w+)(\+\w+)?://")


def default_path() -> Path:
    """`tuning.db` in the user's cache directory for subtune."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("subtune")) / "tuning.db"


def place_of(given: str | os.PathLike[str] | None) -> Place:
    """What a user gave, None being `default_path()`.

    Raises:
        DatabaseError: it is the URL of something else.
    """
    if given is None:
        return default_path()
    if not (url := _URL.match(os.fspath(given))):
        return Path(given)
    if url[1] not in ("postgresql", "postgres"):
        raise DatabaseError(f"no database is at {url[0]}…: name a file, or write postgresql://USER@HOST:PORT/NAME")
    return os.fspath(given)


def connect(place: Place) -> Connection:
    """The database at `place`, made if missing.

    Raises:
        DatabaseError: it cannot be used; the text says why and what to do.
    """
    return sqlite_file.connect(place) if isinstance(place, Path) else _server().connect(place)


def connect_source(place: Place) -> Connection:
    """The database at `place` to read from: it is neither made nor changed.

    Raises:
        DatabaseError: there is none, or none that can be read; the text says why.
    """
    return sqlite_file.snapshot(place) if isinstance(place, Path) else _server().connect(place, is_source=True)


def _server() -> ModuleType:
    """Imported when it is asked for: SQLAlchemy takes as long to load as the rest of a quick command."""
    try:
        import psycopg  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ImportError as e:
        raise DatabaseError(
            "a database on a server needs SQLAlchemy and psycopg: pip install 'subtune[postgres]', "
            "or name a file with --db"
        ) from e
    from subtune.database import server

    return server
