"""A database on a PostgreSQL server, through SQLAlchemy: many machines read and write it at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import sqlalchemy
from sqlalchemy import URL, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from subtune.core.errors import DatabaseError
from subtune.database.connection import BUSY_S, StorageError, check_format
from subtune.database.statements import POSTGRESQL, Change, Row, Select
from subtune.database.tables import FORMAT, TABLES

RETRY_S = 1.0
"""Between a connection that was lost and the next."""
_PARAMETERS = {
    "application_name": "subtune",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    # A server that has gone without a word is noticed within a minute, not after the system's hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Of libpq; those that a URL gives go before them."""
# The write lock, taken at the start as in a file: two writers wait, neither fails half-way. None waits for ever, and a
# machine that falls asleep with the lock loses it before the others give up.
_LOCK = (
    f"SELECT set_config('lock_timeout', '{int(BUSY_S * 1000)}', true), "
    f"set_config('idle_in_transaction_session_timeout', '{int(BUSY_S * 500)}', true), pg_advisory_xact_lock(7563106)"
)
_PRIVILEGES = " AND ".join(
    f"has_table_privilege('{POSTGRESQL.schema}{table.name}', '{privilege}')"
    for table in TABLES
    for privilege in ("INSERT", "UPDATE")
)
_ABOUT = (
    f"SELECT version, NOT current_setting('transaction_read_only')::boolean AND {_PRIVILEGES}, "
    f"pg_postmaster_start_time()::text, (SELECT oid FROM pg_database WHERE datname = current_database())::bigint "
    f"FROM {POSTGRESQL.schema}format"
)

T = TypeVar("T")


class ServerConnection:
    """A `Connection` to a server. One that is lost is made again, once."""

    def __init__(self, engine: Engine, name: str, is_writable: bool, identity: object):
        self.name, self.is_writable, self.identity = name, is_writable, identity
        self._engine = engine
        # A statement alone is a transaction: a read need not begin and end one, which takes three times as long.
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT")

    def read(self, select: Select) -> list[tuple]:
        def work() -> list[tuple]:
            with self._reader.connect() as connection:
                return [tuple(row) for row in connection.exec_driver_sql(*POSTGRESQL.select(select))]

        return self._done(work)

    def write(self, changes: Sequence[Change]) -> list[int]:
        def work() -> list[int]:
            with self._engine.begin() as connection:
                connection.exec_driver_sql(_LOCK)
                return [_changed(connection, *POSTGRESQL.change(change)) for change in changes]

        return self._done(work)

    def compact(self) -> None:
        """The server does so by itself."""

    def close(self) -> None:
        self._engine.dispose()

    def _done(self, work: Callable[[], T]) -> T:
        """What was done before the connection was lost may be done again: the rows are the same."""
        try:
            try:
                return work()
            except DBAPIError as e:
                if not e.connection_invalidated:
                    raise
            time.sleep(RETRY_S)
            return work()
        except SQLAlchemyError as e:
            raise StorageError(_reason(e)) from e


def connect(text: str, is_source: bool = False) -> ServerConnection:
    """The database at a URL; its tables are made if they are missing, unless it is a source, which is not changed.

    Raises:
        DatabaseError: it cannot be reached, refuses its user, or has a newer format; the text has no password.
    """
    url = _url(text)
    name = _name(url)
    engine = sqlalchemy.create_engine(
        url.update_query_dict({key: value for key, value in _PARAMETERS.items() if key not in url.query}),
        pool_size=1,
        max_overflow=0,
        use_native_hstore=False,
        isolation_level="READ COMMITTED",  # who waited for the lock sees what was written meanwhile
    )
    try:
        with engine.connect() as connection:
            is_there = connection.exec_driver_sql(f"SELECT to_regclass('{POSTGRESQL.schema}format')").scalar()
        if not is_there and is_source:
            raise DatabaseError(f"the database {name} holds nothing of subtune's; give the URL of one that does")
        if not is_there:
            _create(engine)
        with engine.connect() as connection:
            version, is_writable, *identity = connection.exec_driver_sql(_ABOUT).one()
        check_format(name, version)
    except BaseException as e:
        engine.dispose()
        if not isinstance(e, SQLAlchemyError):
            raise
        raise _explained(name, _reason(e)) from e
    return ServerConnection(engine, name, is_writable, tuple(identity))


def _create(engine: Engine) -> None:
    """The tables, in a schema of their own, which an administrator may have made."""
    schema = POSTGRESQL.schema.rstrip(".")
    with engine.begin() as connection:
        connection.exec_driver_sql(_LOCK)
        if not connection.exec_driver_sql(f"SELECT to_regnamespace('{schema}')").scalar():
            connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
        for table in TABLES:
            connection.exec_driver_sql(POSTGRESQL.create(table))
        connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {schema}.format (version BIGINT NOT NULL)")
        empty = f"NOT EXISTS (SELECT FROM {schema}.format)"  # who waited for the lock finds everything there
        connection.exec_driver_sql(f"INSERT INTO {schema}.format SELECT {FORMAT} WHERE {empty}")


def _changed(connection: sqlalchemy.Connection, statement: str, rows: Sequence[Row]) -> int:
    if not rows:
        return 0
    return connection.exec_driver_sql(statement, [tuple(map(_storable, row)) for row in rows]).rowcount


def _storable(value: object) -> object:
    """PostgreSQL's text has no zero byte; what a process that crashed has printed may have."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _url(text: str) -> URL:
    """Raises DatabaseError. Nothing of the text is repeated: what is not understood may be a part of a password."""
    try:
        url = sqlalchemy.make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or "@" in (url.host or ""):
        raise DatabaseError(
            "the database's URL is none: write postgresql://USER@HOST:PORT/NAME, and in a password %40 for @"
        ) from None
    return url.set(drivername="postgresql+psycopg")


def _name(url: URL) -> str:
    """Without the password, which may be among the options, too."""
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{url.host or ''}{port}/{url.database or ''}"


def _reason(error: SQLAlchemyError) -> str:
    """The driver's first line. SQLAlchemy's own text has the statement and its values behind it."""
    text = str(error.orig if isinstance(error, DBAPIError) else error)
    return text.strip().partition("\n")[0].removeprefix("connection failed: ")


def _explained(name: str, reason: str) -> DatabaseError:
    if "password" in reason:
        remedy = "give the user's password, best in ~/.pgpass"
    elif re.search('database ".*" does not exist', reason):
        remedy = "make it with createdb, or look at the URL"
    elif "permission denied" in reason:
        remedy = "let the database's owner open it once, and grant this user its tables"
    else:
        remedy = "look at the URL and whether the server runs, or name another database with --db"
    return DatabaseError(f"cannot open the database {name} ({reason}): {remedy}")
