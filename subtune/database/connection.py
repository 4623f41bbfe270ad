"""What the store needs of a database, whichever kind it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from subtune.core.errors import DatabaseError
from subtune.database.statements import Change, Select
from subtune.database.tables import FORMAT

BUSY_S = 10.0
"""How long a transaction waits for another process's; those last milliseconds."""


class StorageError(Exception):
    """A database does not do what it is asked, for the reason that is the text: a full disk, a lost connection."""


class Connection(Protocol):
    """An open database. Every method is one transaction, and is called by one thread at a time.

    Attributes:
        name: as messages call it: no password is in it.
        is_writable: False where nothing can be stored.
        identity: two connections to one database have the same.
    """

    name: str
    is_writable: bool
    identity: object

    def read(self, select: Select) -> list[tuple]:
        """Raises StorageError."""
        ...

    def write(self, changes: Sequence[Change]) -> list[int]:
        """All changes or none. Returns how many rows each has changed.

        Raises:
            StorageError: none was made.
        """
        ...

    def compact(self) -> None:
        """Give back the room of deleted rows, where that is worth asking for."""
        ...

    def close(self) -> None: ...


def check_format(name: str, found: int) -> None:
    """Raise DatabaseError where the database `name` has a newer format than is known here."""
    if found > FORMAT:
        raise DatabaseError(
            f"the database {name} has format {found}, this subtune reads up to {FORMAT}; "
            f"use a newer subtune, or name another with --db"
        )
