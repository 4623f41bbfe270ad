"""What a compiled model is compared with: the same model, run by somebody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
"""Inputs by name -> outputs by name. Raises CannotRun where the runtime fails on the model."""


class CannotRun(Exception):
    """A reference runtime took the model and fails to run it; the text is its own, on one line."""


class Reference(Protocol):
    """Another runtime that can run an imported model. What it needs of the model it has; nothing is started yet."""

    @property
    def name(self) -> str: ...

    @property
    def is_installed(self) -> bool: ...

    def limits(self) -> Mapping[str, int]:
        """Exclusive upper bounds of integer inputs that index a table."""
        ...

    def start(self, threads: int) -> Run | None:
        """None where it does not take this model."""
        ...

    def as_written(self, threads: int) -> Run | None:
        """The same, operator by operator; None where nothing is quantised, or there is no other way.

        To run a quantised model fast, a runtime rewrites it, and rounds less often or otherwise than the model says.
        """
        ...

    def moved(self, threads: int, variation: int) -> Run | None:
        """The same, each weight of rank 2 or more, or each scale of what is quantised, moved as `by_an_ulp` says.

        Other constants of a lower rank may be sizes.
        """
        ...


def by_a_part(array: np.ndarray, variation: int, part: float) -> np.ndarray:
    """Each number becomes larger or smaller by `part` of itself, at random; an odd `variation` reverses the even one
    before it.

    >>> by_a_part(np.float32([1, 0]), 0, 0.5), by_a_part(np.float32([1, 0]), 1, 0.5)
    (array([0.5, 0. ], dtype=float32), array([1.5, 0. ], dtype=float32))
    """
    is_up = (np.random.default_rng(variation // 2).random(array.shape) < 0.5) ^ bool(variation % 2)
    return np.asarray(array * np.where(is_up, 1.0 + part, 1.0 - part), array.dtype)


def by_an_ulp(array: np.ndarray, variation: int, times: int = 1) -> np.ndarray:
    """Each floating-point number becomes its next neighbour, up or down at random; an odd `variation` reverses the even
    one before it; `times` over. Zeros, and what has no finite neighbour, stay: a mask or a padding means exactly that.

    >>> by_an_ulp(np.float32([1, 0]), 0) - np.float32([1, 0])
    array([-5.9604645e-08,  0.0000000e+00], dtype=float32)
    >>> by_an_ulp(np.float32([1, 0]), 1) - np.float32([1, 0])
    array([1.1920929e-07, 0.0000000e+00], dtype=float32)
    """
    if not np.issubdtype(array.dtype, np.floating):
        return array
    is_up = (np.random.default_rng(variation // 2).random(array.shape) < 0.5) ^ bool(variation % 2)
    towards: Any = np.where(is_up, np.inf, -np.inf).astype(array.dtype)
    with np.errstate(over="ignore"):
        found = np.nextafter(array, towards)
        for _ in range(times - 1):
            found = np.nextafter(found, towards)
    stays = (array == 0) | ~np.isfinite(array) | ~np.isfinite(found)
    return np.where(stays, array, found)
