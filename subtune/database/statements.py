"""What is asked of a database and done to it, as data; and the only place where that becomes SQL, in two dialects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from subtune.database.tables import TABLES, WORKLOADS, Column, Kind, Table

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on a column. `begins` and `contains` compare text letter by letter: nothing is a wildcard."""

    column: str
    relation: Literal["equals", "begins", "contains", "below"]
    value: object


def equal(**values: object) -> tuple[Where, ...]:
    """Conditions that columns have these values."""
    return tuple(Where(column, "equals", value) for column, value in values.items())


@dataclass(frozen=True, slots=True)
class Select:
    """Rows for which every condition of `where` holds. `order`: columns, and terms that all dialects know."""

    table: Table
    columns: tuple[str, ...]
    where: tuple[Where, ...] = ()
    order: tuple[str, ...] = ()
    is_distinct: bool = False


class Conflict(Enum):
    """Which row stays where one with the same key is there."""

    NEW = auto()
    OLD = auto()
    BETTER = auto()
    """By the table's `rank`."""


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows of all the table's columns."""

    table: Table
    rows: Sequence[Row]
    conflict: Conflict = Conflict.NEW


@dataclass(frozen=True, slots=True)
class Update:
    """One column's value, in all rows for which every condition holds."""

    table: Table
    column: str
    value: object
    where: tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Rows for which every condition holds."""

    table: Table
    where: tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class DeleteUnused:
    """Workloads of which no other table has a row."""


Change = Insert | Update | Delete | DeleteUnused


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of database writes SQL.

    Args:
        types: of columns. Text has to be ordered by its code points, a real number has 64 bits.
        parameter: the mark in place of a value.
        position: the function (text, part) -> where the part begins, from 1 on; 0 where it is not in the text.
        schema: what stands in front of a table's name.
        digest: the function whose value stands for a long text in a key; "" where there is no need.
    """

    types: dict[Kind, str]
    parameter: str
    position: str
    schema: str = ""
    digest: str = ""

    def create(self, table: Table) -> str:
        columns = [*map(self.definition, table.columns)]
        for name, in_key in zip(table.key, self._key(table), strict=True):
            if name != in_key:
                columns.append(f"{in_key} TEXT GENERATED ALWAYS AS ({self.digest}({name})) STORED")
        key = f"PRIMARY KEY ({', '.join(self._key(table))})"
        return f"CREATE TABLE IF NOT EXISTS {self._name(table)} ({', '.join([*columns, key])})"

    def definition(self, column: Column) -> str:
        required = "" if column.is_optional else " NOT NULL"
        default = f" DEFAULT '{column.default}'" if column.default else ""
        return f"{column.name} {self.types[column.kind]}{required}{default}"

    def select(self, select: Select) -> tuple[str, Row]:
        distinct = "DISTINCT " if select.is_distinct else ""
        order = f" ORDER BY {', '.join(select.order)}" if select.order else ""
        text = f"SELECT {distinct}{', '.join(select.columns)} FROM {self._name(select.table)}"
        return text + self._where(select.where) + order, _values(select.where)

    def change(self, change: Change) -> tuple[str, Sequence[Row]]:
        """A statement, and the values of each of its runs."""
        match change:
            case Insert(table, rows, conflict):
                return self._insert(table, conflict), rows
            case Update(table, column, value, where):
                text = f"UPDATE {self._name(table)} SET {column} = {self.parameter}{self._where(where)}"
                return text, [(value, *_values(where))]
            case Delete(table, where):
                return f"DELETE FROM {self._name(table)}{self._where(where)}", [_values(where)]
            case DeleteUnused():
                used = " UNION ".join(f"SELECT key FROM {self._name(t)}" for t in TABLES if t is not WORKLOADS)
                return f"DELETE FROM {self._name(WORKLOADS)} WHERE key NOT IN ({used})", [()]

    def _insert(self, table: Table, conflict: Conflict) -> str:
        marks = ", ".join([self.parameter] * len(table.columns))
        text = f"INSERT INTO {self._name(table)} AS here ({', '.join(table.names)}) VALUES ({marks})"
        text += f" ON CONFLICT ({', '.join(self._key(table))})"
        if conflict is Conflict.OLD:
            return f"{text} DO NOTHING"
        text += f" DO UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in table.names if n not in table.key)}"
        if conflict is Conflict.NEW:
            return text
        return f"{text} WHERE ({_ranked(table, 'excluded')}) > ({_ranked(table, 'here')})"

    def _where(self, where: tuple[Where, ...]) -> str:
        return " WHERE " + " AND ".join(map(self._condition, where)) if where else ""

    def _condition(self, where: Where) -> str:
        position = f"{self.position}({where.column}, {self.parameter})"
        return {
            "equals": f"{where.column} = {self.parameter}",
            "begins": f"{position} = 1",
            "contains": f"{position} > 0",
            "below": f"{where.column} < {self.parameter}",
        }[where.relation]

    def _key(self, table: Table) -> list[str]:
        is_long = {column.name: column.kind == "long text" for column in table.columns}
        return [f"{name}_{self.digest}" if self.digest and is_long[name] else name for name in table.key]

    def _name(self, table: Table) -> str:
        return self.schema + table.name


def _values(where: tuple[Where, ...]) -> Row:
    return tuple(one.value for one in where)


def _ranked(table: Table, row: str) -> str:
    """The columns of a row in the order in which they decide which of two rows counts."""
    columns = {column.name: column for column in table.columns}
    order = [*table.rank, *(name for name in columns if name not in (*table.rank, *table.key))]
    # A comparison with NULL is neither true nor false. No time and no count is below zero.
    return ", ".join(f"COALESCE({row}.{n}, -1)" if columns[n].is_optional else f"{row}.{n}" for n in order)


SQLITE = Dialect(
    {"text": "TEXT", "long text": "TEXT", "bytes": "BLOB", "integer": "INTEGER", "real": "REAL"},
    parameter="?",
    position="instr",
)
_TEXT = 'TEXT COLLATE "C"'
POSTGRESQL = Dialect(
    {"text": _TEXT, "long text": _TEXT, "bytes": "BYTEA", "integer": "BIGINT", "real": "DOUBLE PRECISION"},
    parameter="%s",
    position="strpos",
    schema="subtune.",
    digest="md5",  # what is in an index has at most 2.7 KB
)
