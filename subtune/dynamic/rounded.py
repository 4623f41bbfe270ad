"""Numbers of tiles that look like something else at the samples.

At odd extents `12*ceil(rows/2)` is `6*rows + 6`, which goes too far at even ones. What a kernel divides its rows by
elsewhere tells them apart: a loop over so many tiles takes its index apart by the number of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from subtune.core.dims import Dim
from subtune.dynamic.template import Template


def with_tiles(template: Template, points: Sequence[Mapping[str, int]]) -> Template:
    """The template, in which a sum is a multiple of a number of tiles where it is that at all `points`, and where such
    a number stands elsewhere in the kernel."""
    tiles = {dim: tuple(map(dim.at, points)) for dim in template.holes.values() if _is_quotient(dim)}
    holes = {at: _multiple(dim, tuple(map(dim.at, points)), tiles) for at, dim in template.holes.items()}
    return replace(template, holes=holes)


def _is_quotient(dim: Dim) -> bool:
    return len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1 and dim.has_quotient


def _multiple(dim: Dim, values: tuple[int, ...], tiles: Mapping[Dim, tuple[int, ...]]) -> Dim:
    if len(dim.terms) == 1 or () not in dict(dim.terms) or dim.has_quotient:
        return dim
    for other, counts in tiles.items():
        times = values[0] // counts[0] if counts[0] else 0
        if times > 1 and all(times * count == value for count, value in zip(counts, values, strict=True)):
            return other * times
    return dim
