"""The tables of a tuning database, described once for every kind of database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FORMAT = 3
"""Of what is below. One more with every change: a database of a newer format is refused. Files of older formats are
brought up to date; on a server there is none yet, as the first was 3."""

Kind = Literal["text", "long text", "bytes", "integer", "real"]
"""A long text may be too long for an index, as that of a schedule that MetaSchedule traced."""


@dataclass(frozen=True, slots=True)
class Column:
    """`default` is the value of rows that are older than the column; "" where there are none."""

    name: str
    kind: Kind
    is_optional: bool = False
    default: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of which no two have the same `key`.

    Of two such rows in different databases the one counts that is greater in the columns of `rank`, the first of them
    first, and after those in all others (NULL being below everything): whoever compares them finds the same one.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rank: tuple[str, ...] = ("at",)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def _columns(kind: Kind, names: str, is_optional: bool = False) -> tuple[Column, ...]:
    return tuple(Column(name, kind, is_optional) for name in names.split())


WORKLOADS = Table(
    "workloads",
    (
        *_columns("text", "key"),
        *_columns("bytes", "func"),
        *_columns("integer", "num_outputs"),
        *_columns("real", "at"),
    ),
    ("key",),
)
MEASUREMENTS = Table(
    "measurements",
    (
        *_columns("text", "key device versions"),
        *_columns("long text", "candidate"),
        *_columns("real", "predicted_s"),
        *_columns("text", "kind message"),
        *_columns("real", "median_s min_s spread", is_optional=True),
        *_columns("integer", "samples", is_optional=True),
        *_columns("real", "build_s at"),
    ),
    ("key", "device", "versions", "candidate"),
)
WINNERS = Table(
    "winners",
    (
        *_columns("text", "key device versions"),
        *_columns("long text", "candidate"),
        *_columns("real", "predicted_s median_s min_s spread"),
        *_columns("integer", "samples"),
        *_columns("real", "default_median_s default_min_s default_spread"),
        *_columns("integer", "default_samples"),
        *_columns("real", "gain"),
        *_columns("text", "func_hash"),
        *_columns("integer", "topk tried failed complete"),
        *_columns("real", "at"),
        Column("confirmed", "text", default="pairs"),
        Column("families", "text", default="{}"),
    ),
    ("key", "device", "versions"),
    ("complete", "topk", "at"),
)
SUGGESTIONS = Table(
    "suggestions",
    (*_columns("text", "key"), *_columns("long text", "candidate"), *_columns("real", "median_s at")),
    ("key", "candidate"),
)
INSTANCES = Table(
    "instances",
    (
        *_columns("text", "key device versions"),
        *_columns("long text", "candidate"),
        *_columns("text", "extents kind message"),
        *_columns("real", "median_s", is_optional=True),
        *_columns("integer", "is_timed"),
        *_columns("text", "built"),
        *_columns("real", "at"),
    ),
    ("key", "device", "versions", "candidate", "extents"),
)
TABLES = (WORKLOADS, MEASUREMENTS, WINNERS, SUGGESTIONS, INSTANCES)
"""The first column of each is the workload's key."""
