"""Offsets in the arena: nothing that lives at the same time overlaps, and little is wasted."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from subtune.passes.arena import ALIGNMENT, Arena, Lifetime, place


def check(tensors: list[Lifetime], arena: Arena) -> None:
    assert len(arena.offsets) == len(tensors)
    assert all(offset >= 0 and offset % ALIGNMENT == 0 for offset in arena.offsets)
    assert all(o + t.nbytes <= arena.nbytes for o, t in zip(arena.offsets, tensors, strict=True))
    placed = zip(tensors, arena.offsets, strict=True)
    for (a, at), (b, bt) in combinations(placed, 2):
        if a.first <= b.last and b.first <= a.last:
            assert at + a.nbytes <= bt or bt + b.nbytes <= at, f"{a} at {at} and {b} at {bt}"


def test_nothing_and_empty_tensors() -> None:
    assert place([]) == Arena((), 0, 0)
    tensors = [Lifetime(0, 0, 1), Lifetime(0, 0, 3), Lifetime(64, 1, 2)]
    arena = place(tensors)
    check(tensors, arena)
    assert arena.nbytes == arena.bound == 64


def test_a_chain_needs_the_two_largest_neighbours() -> None:
    tensors = [Lifetime(size, step, step + 1) for step, size in enumerate([640, 128, 1280, 64, 192])]
    arena = place(tensors)
    check(tensors, arena)
    assert arena.nbytes == arena.bound == 128 + 1280


def test_a_residual_stays_while_the_branch_runs() -> None:
    tensors = [Lifetime(1000, 0, 3), Lifetime(500, 1, 2), Lifetime(500, 2, 3), Lifetime(1000, 3, 4)]
    arena = place(tensors)
    check(tensors, arena)
    assert arena.bound == 1024 + 512 + 1024
    assert arena.nbytes == arena.bound


@pytest.mark.parametrize("seed", range(8))
def test_random_lifetimes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    firsts = rng.integers(0, 60, 120)
    tensors = [
        Lifetime(int(size), int(first), int(first + length))
        for size, first, length in zip(rng.integers(1, 5000, 120), firsts, rng.geometric(0.2, 120), strict=True)
    ]
    arena = place(tensors)
    check(tensors, arena)
    assert arena.bound <= arena.nbytes <= 1.15 * arena.bound
    assert place(tensors) == arena
