"""Constants that are triangles are told from others, and computed where they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.extract import extract
from subtune.passes.masks import Triangle, triangle_of
from tests.passes.test_outline import F32, check_same, module

_INF = np.inf


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.tri(5, dtype=bool), Triangle((5, 5), 0, 1.0, 0.0)),
        (np.triu(np.full((1, 1, 4, 7), -_INF, "float32"), 1), Triangle((4, 7), 0, 0.0, -_INF)),
        (np.triu(np.full((2, 4, 7), -1e4, "float16"), 4), Triangle((4, 7), 3, 0.0, -1e4)),
        (np.tri(3, 6, 2, dtype="float32"), Triangle((3, 6), 2, 1.0, 0.0)),
        (np.triu(np.ones((4, 4), bool), 1), Triangle((4, 4), 0, 0.0, 1.0)),
    ],
)
def test_triangles(array: np.ndarray, found: Triangle) -> None:
    assert triangle_of(array) == found


@pytest.mark.parametrize(
    "array",
    [
        np.ones((4, 4), bool),
        np.zeros((4, 4), "float32"),
        np.eye(4, dtype="float32"),
        np.tri(4, dtype="int64"),
        np.arange(16, dtype="float32").reshape(4, 4),
        np.stack([np.tri(4, dtype=bool), np.tri(4, k=1, dtype=bool)]),
        np.tri(1, 8, dtype=bool),
        np.full((3, 3), np.nan, "float32"),
        np.tri(4, k=-1, dtype=bool),
    ],
)
def test_no_triangles(array: np.ndarray) -> None:
    assert triangle_of(array) is None


def _arguments(mod: Any) -> list[int]:
    return [len(subgraph.workload.args) for subgraph in extract(mod)]


@pytest.mark.parametrize("hidden", [-1e9, -_INF])
def test_an_added_mask_is_computed(hidden: float) -> None:
    mask = relax.const(np.triu(np.full((1, 1, 6, 6), hidden, F32), 1))
    mod = check_same(module(lambda emit, x: op.nn.softmax(emit(op.add(x, mask))), ((2, 3, 6, 6), F32)))
    assert _arguments(mod) == [2]


def test_a_condition_is_computed() -> None:
    mask = relax.const(np.tri(6, dtype=bool))
    mod = check_same(
        module(lambda emit, x: op.nn.softmax(emit(op.where(mask, x, relax.const(-1e9)))), ((3, 6, 6), F32))
    )
    assert _arguments(mod) == [2]


def test_a_mask_that_spreads_what_it_masks_stays() -> None:
    """One row for all: the triangle has more elements than what it is added to."""
    mask = relax.const(np.tri(6, dtype=F32))
    mod = check_same(module(lambda emit, x: op.add(x, mask), ((1, 6), F32)))
    assert _arguments(mod) == [3]
