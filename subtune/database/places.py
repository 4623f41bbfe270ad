"""Where a database is: a file, or a server by its URL."""

from __future__ import annotations

import os
from pathlib import Path

from subtune.database import sqlite_file
from subtune.database.connection import Connection

Place = Path | str
"""A file, or a URL."""


def default_path() -> Path:
    """`tuning.db` in the user's cache directory for subtune."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("subtune")) / "tuning.db"


def place_of(given: str | os.PathLike[str] | None) -> Place:
    """What a user gave, None being `default_path()`."""
    return default_path() if given is None else Path(given)


def connect(place: Place) -> Connection:
    """The database at `place`, made if missing.

    Raises:
        DatabaseError: it cannot be used; the text says why and what to do.
    """
    return sqlite_file.connect(Path(place))


def connect_source(place: Place) -> Connection:
    """The database at `place` to read from: it is neither made nor changed.

    Raises:
        DatabaseError: there is none, or none that can be read; the text says why.
    """
    return sqlite_file.snapshot(Path(place))
