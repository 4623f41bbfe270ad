"""The values of a case's inputs and weights, the same in every process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from subtune.bench.coverage.case import Case
from subtune.bench.coverage.onnx_dialect import Given

_MASKED = -10000.0
"""What is added to the scores of a key that is not to be seen; float16 holds it."""
_KEPT = 0.7


def draw(case: Case, given: Sequence[Given]) -> list[np.ndarray]:
    """An array for each, seeded by the case's place and the name."""
    return [_values(np.random.default_rng(zlib.crc32(f"{case.seed}/{case.index}/{g.name}".encode())), g) for g in given]


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _values(rng: np.random.Generator, given: Given) -> np.ndarray:
    kind, *numbers = given.kind.split(":")
    shape, dtype = given.shape, numpy_dtype(given.dtype)
    if kind == "index":
        return rng.integers(0, int(numbers[0]), shape, dtype)
    if kind == "permuted":  # distinct along the axis
        bound, axis = map(int, numbers)
        whole = np.broadcast_to(_along(np.arange(bound), axis, len(shape)), (*shape[:axis], bound, *shape[axis + 1 :]))
        return np.ascontiguousarray(np.take(rng.permuted(whole, axis=axis), np.arange(shape[axis]), axis), dtype)
    if kind == "distinct":
        axis = int(numbers[0])
        return rng.permuted(np.broadcast_to(_along(_distinct(shape[axis], dtype), axis, len(shape)), shape), axis=axis)
    if kind in ("bool", "mask"):
        kept = rng.random(shape, np.float32) < _KEPT
        return kept if kind == "bool" else np.where(kept, 0.0, _MASKED).astype(dtype)
    if kind in ("positive", "near-one"):
        width = 0.5 if kind == "positive" else 0.02
        return (rng.random(shape, np.float32) * (2 * width) + (1 - width)).astype(dtype)
    assert kind == "normal", f"no values of kind {kind}"
    array = rng.standard_normal(shape, np.float32)
    if numbers:
        array *= np.float32(numbers[0])
    return array.astype(dtype)


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _distinct(count: int, dtype: np.dtype) -> np.ndarray:
    """So many different values; of a half type every finite positive one in turn, which are 30000."""
    if dtype.itemsize == 4:
        return np.linspace(-1.0, 1.0, count, dtype=dtype)
    largest = int(np.array(ml_dtypes.finfo(dtype).max, dtype).view(np.uint16))
    assert count <= largest, f"{dtype} has no {count} different values"
    return (np.arange(count) * (largest // count)).astype(np.uint16).view(dtype)
