"""In which portions the candidates of a workload are built, and which of them need not be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from subtune.core.candidate import Candidate
from subtune.core.measurement import Timing

TWO_WAVES = 8
"""So many candidates are built in waves, the later ones without those that the first show to be hopeless."""
_FIRST_WAVE = 2 / 5
_FIRST_BESIDE, _NEXT_BESIDE = 3 / 10, 1 / 5
"""The same where builds run beside measurements, so that waves leave no builder idle: then each may be smaller, and
what it shows saves more of the rest. Replayed on 416 kernels of GPT-2 and ResNet-18 on an H200: a seventh of the builds
less, and the networks 0.01 % slower."""
_COMPARED = 1.5
"""Times the least predicted seconds, up to which another implementation may be the fastest."""
_HOPE = 1.1
_HOPE_OF_TILE = 1.05
"""The same for candidates of a tile that was seen: of its error all is known but what the loops around it make."""


Tile = Callable[[Candidate], object]
"""What of a candidate is not the loops around its tile: `Backend.tile`."""


def in_turn(
    candidates: Sequence[Candidate], tile: Tile, every_family: bool = False, first: Sequence[Candidate] = ()
) -> list[Candidate]:
    """After `first` come the first of every implementation, of which the model compares two less well than two tiles;
    then the first of every tile: another tile tells more than other loops around the same.

    Args:
        first: those of `candidates` that won where workloads or devices were near.
        every_family: implementations that are far behind are no exception, and do not wait for their tiles' turn.
    """
    heads: dict[object, Candidate] = {}
    most_s = _COMPARED * min((candidate.predicted_s for candidate in candidates), default=0.0)
    for candidate in candidates:
        if every_family or candidate.predicted_s <= most_s:
            heads.setdefault((candidate.family, candidate.is_serial), candidate)
    tiles = {tile(candidate): candidate for candidate in heads.values()}
    for candidate in candidates:
        tiles.setdefault(tile(candidate), candidate)
    return list(dict.fromkeys([*first, *heads.values(), *tiles.values(), *candidates]))


def unconditional(count: int, cores: int, overlaps: bool) -> int:
    """How many of `count` candidates are built whatever the others take.

    Beside the default they are so many that no core is idle at the end, unless others are built there: `overlaps`.
    """
    if overlaps:
        return math.ceil(_FIRST_BESIDE * count)
    return math.ceil((1 + _FIRST_WAVE * count) / cores) * cores - 1


def later_wave(count: int, overlaps: bool) -> int:
    """How many of what is left of `count` candidates are built before the rest is judged again."""
    return math.ceil(_NEXT_BESIDE * count) if overlaps else count


def hopeful(seen: Mapping[Candidate, Timing], rest: Sequence[Candidate], tile: Tile) -> list[Candidate]:
    """Of `rest` what may still win, after a short measurement of those `seen`.

    The model's error is mostly a factor for each implementation, and more exactly for each tile. A tile's own is
    taken where it was seen; else what the better ones of its implementation have. Replayed on 3100 measured
    candidates of the zoo, that saves half of the builds, and the networks are 0.1 % slower.
    """
    if not seen or any(candidate.predicted_s <= 0 for candidate in (*seen, *rest)):
        return list(rest)
    fastest_s = min(timing.min_s for timing in seen.values())
    tiles: dict[object, float] = {}
    found: dict[object, list[float]] = {}
    for candidate, timing in seen.items():
        ratio = timing.min_s / candidate.predicted_s
        tiles[tile(candidate)] = min(ratio, tiles.get(tile(candidate), math.inf))
        found.setdefault((candidate.family, candidate.is_serial), []).append(ratio)
    factors = {kind: sorted(ratios)[len(ratios) // 4] for kind, ratios in found.items()}
    unseen = min(factors.values())

    def may_win(candidate: Candidate) -> bool:
        if tile(candidate) in tiles:
            return candidate.predicted_s * tiles[tile(candidate)] <= _HOPE_OF_TILE * fastest_s
        factor = factors.get((candidate.family, candidate.is_serial), unseen)
        return candidate.predicted_s * factor <= _HOPE * fastest_s

    return [candidate for candidate in rest if may_win(candidate)]
