"""Numbers that are those of tiles at odd extents alone are told by what the kernel divides elsewhere."""

from __future__ import annotations

import pytest

from subtune.core.dims import parse
from subtune.dynamic.rounded import with_tiles
from subtune.dynamic.template import Template

ODD = [{"rows": rows} for rows in (3, 5, 9, 11, 27)]


def told(number: str, *others: str) -> str:
    holes = dict(enumerate(map(parse, (number, *others))))
    return str(with_tiles(Template((), 0, holes), ODD).holes[0])


@pytest.mark.parametrize(
    ("number", "expected"),
    [("6*rows + 6", "12*ceil(rows/2)"), ("rows + 1", "2*ceil(rows/2)"), ("6*rows + 7", "6*rows + 7"), ("6*rows",) * 2],
)
def test_a_multiple_of_a_number_of_tiles(number: str, expected: str) -> None:
    assert told(number, "4*rows", "ceil(rows/2)") == expected


def test_without_such_tiles_it_stays() -> None:
    assert told("6*rows + 6", "4*rows", "ceil(rows/4)") == "6*rows + 6"
    assert told("6*rows + 6", "3*ceil(rows/2)") == "6*rows + 6", "a kernel divides by nothing there"
