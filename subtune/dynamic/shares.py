"""Between how many threads a kernel of dynamic shapes can be shared: its parallel loop, in the tiles that vary."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc

from subtune.tir.substitute import substitute
from subtune.tir.walk import found

_TILES = (7, 11, 5, 13)
"""Of one extent after the other; some extents have a tile more at the second look."""
_MANY = 5040
"""Which most numbers of tiles divide that one iteration may take."""


def iterations_per_tile(func: PrimFunc, granules: Sequence[int], knows_extents: bool) -> float:
    """How many iterations the parallel loop of a kernel has for one tile of all varying extents together.

    A whole number; or of a single extent 1/n, where an iteration takes n tiles, and the last one the rest. 0 where
    their number is the same at all extents, or grows otherwise: then every thread goes through all tiles, and there is
    no last round in which some threads have nothing to do. Of several loops the last is meant: those before it prepare
    what it takes.

    Args:
        func: its leading parameters are the numbers of tiles, and with `knows_extents` the extents.
        granules: elements of a tile along each extent.
    """
    loops = [loop for loop in found(func.body, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
    if not loops or not granules or len(granules) > len(_TILES):
        return 0.0

    def iterations(tiles: Sequence[int]) -> int:
        extents = [count * granule for count, granule in zip(tiles, granules, strict=True)]
        numbers = [*tiles, *(extents if knows_extents else [])]
        return _value(loops[-1].extent, dict(zip(func.params, numbers, strict=False)))

    first = _TILES[: len(granules)]
    points = [first, [count + 1 for count in first]]
    (each, *others) = {iterations(tiles) / prod(tiles) for tiles in points}
    if each == int(each) and not others:
        return float(each)
    if len(granules) == 1 and (together := _MANY // max(iterations([_MANY]), 1)) > 1:
        points += [[together + 1], [_MANY]]
        if all(iterations(tiles) == ceil(tiles[0] / together) for tiles in points):
            return 1 / together
    return 0.0


def _value(expr: Any, numbers: dict[Any, int]) -> int:
    """0 where it depends on something else."""
    values = {var: tirx.const(number, "int64") for var, number in numbers.items()}
    simple = Analyzer().simplify(substitute(expr, values))
    return int(simple) if isinstance(simple, tirx.IntImm) else 0
