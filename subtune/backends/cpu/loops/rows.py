"""The loops of a stage that is computed element by element, where its columns are vectors."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.tir.tile import extent_of


def in_rows(sch: Schedule, block: Any, lanes: int) -> NotApplicable | None:
    """Rows in parallel, columns as vectors."""
    *rows, columns = sch.get_loops(block)
    if not rows or extent_of(sch, columns) % lanes:
        return NotApplicable("no vectors of columns")
    _, vector = sch.split(columns, [None, lanes])
    sch.vectorize(vector)
    sch.parallel(sch.fuse(*rows))
    return None
