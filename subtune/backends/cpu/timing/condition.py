"""What rounding may change where sums cancel: how far a result goes when its inputs are changed by a few last places.

One number that a million others cancel to has no neighbours whose magnitude would tell what its error is relative to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEW_RESULTS = 64
"""Of more, some will not cancel."""
_STEPS = 8
"""Of the type's precision, up or down."""


def nudged(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays with every floating-point element a little larger or smaller."""
    rng = np.random.default_rng(0)
    return [_nudged(array, rng) if _step(array) else array for array in arrays]


def scales_of(results: Sequence[np.ndarray], references: Sequence[np.ndarray], step: float) -> list[float]:
    """For each result what its error is relative to: its change by inputs nudged by `step`, as if by all of them."""
    scales = []
    for changed, reference in zip(results, references, strict=True):
        if changed.dtype.kind in "iub":
            scales.append(0.0)
            continue
        with np.errstate(all="ignore"):
            away = np.abs(np.atleast_1d(changed.astype(np.float64) - reference.astype(np.float64)))
        scales.append(float(away[np.isfinite(away)].max(initial=0.0)) / step)
    return scales


def step_of(arrays: Sequence[np.ndarray]) -> float:
    """By what part `nudged` changes elements, the largest of all arrays; 0.0 where it changes none."""
    return max(map(_step, arrays), default=0.0)


def _step(array: np.ndarray) -> float:
    return _STEPS * float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0


def _nudged(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    signs = rng.choice(np.array([-1.0, 1.0], np.float32), array.shape)
    with np.errstate(all="ignore"):
        return (array * (1.0 + _step(array) * signs)).astype(array.dtype)
