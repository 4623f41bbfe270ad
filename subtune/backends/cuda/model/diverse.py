"""Few candidates out of many, best first, that do not all test the same hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from subtune.core.candidate import Candidate


def diverse(
    found: Sequence[Candidate], count: int, tile: Sequence[str], body: Sequence[str], per_tile: int = 3
) -> list[Candidate]:
    """The `count` fastest: no more than `per_tile` with equal knobs `tile`, two with equal knobs `body`.

    Neighbours share the model's error: twenty of one tile would be one guess, not twenty.
    """
    taken: list[Candidate] = []
    tiles: dict[tuple[object, ...], int] = {}
    bodies: dict[tuple[object, ...], int] = {}
    for candidate in sorted(found, key=lambda c: (c.predicted_s, c.family, c.knobs)):
        a, b = (tuple(candidate[name] for name in names) for names in (tile, body))
        if tiles.get(a, 0) >= per_tile or bodies.get(b, 0) >= 2:
            continue
        tiles[a] = tiles.get(a, 0) + 1
        bodies[b] = bodies.get(b, 0) + 1
        taken.append(candidate)
        if len(taken) == count:
            break
    return taken
