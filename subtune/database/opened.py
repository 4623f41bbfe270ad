"""A database that was given open, or the file that was named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from subtune.database.store import Database


@contextmanager
def opened(database: Database | str | Path | None) -> Iterator[Database]:
    """The database to use, None being the user's own; one that was given open stays open."""
    if isinstance(database, Database):
        yield database
        return
    with Database(database) as store:
        yield store
