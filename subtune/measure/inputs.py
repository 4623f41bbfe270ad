"""The inputs a kernel is judged on: seeded random ones, positive ones, adversarial ones, and some that are no numbers.

Each set keeps the arguments legal for the workload: an integer that indexes another array stays in range, a
divisor is not zero, and a float that is cast to an integer stays small (the cast is undefined beyond its range).
A constant that indexes another array ascends in the first set, by which kernels are timed: tables of a model say where
the pixels of a resized image come from, and what is read in no order takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from subtune.core.workload import Arg, Workload
from subtune.measure.guarded import elements, numpy_dtype
from subtune.measure.hazards import SETS, Hazards

BLOCK = 1_000_003
"""Random elements of a large argument, repeated: a prime, so that no two rows or columns are alike."""

_LARGE_CONSTANT_BYTES = 16 << 20
"""Constants above this are the same in all sets: packing a candidate's copy of each would cost seconds."""
_CONSTANTS: WeakValueDictionary[tuple[Any, ...], np.ndarray] = WeakValueDictionary()
"""Those in use: the instances of a dynamic workload have the same weights."""
_WITH_INFINITY = ("float16", "bfloat16", "float32", "float64")
_MOST_SLOW = 256
"""Places of an array that take part in turn where denormals are among the values."""
_SPECIAL_FRACTION = 1 / 16
"""Of the elements of an adversarial array, the share replaced by special values."""


def make_inputs(workload: Workload, name: str, dangers: Hazards) -> list[np.ndarray]:
    """The arguments of set `name` in the workload's order, outputs left out; equal in every process."""
    count = sum(not arg.is_output for arg in workload.args)
    return [make_input(workload, index, name, dangers) for index in range(count)]


def make_sets(workload: Workload, dangers: Hazards, limit: int | None = None) -> list[list[np.ndarray]]:
    """The arguments of every set that says something; what is the same in several sets is one array."""
    count = sum(not arg.is_output for arg in workload.args)
    made: dict[tuple[str, int], np.ndarray] = {}
    for name in dangers.sets:
        for index in range(count):
            key = (_kind(workload.args[index], name), index)
            if key not in made:
                made[key] = make_input(workload, index, name, dangers, limit)
    return [[made[_kind(workload.args[i], name), i] for i in range(count)] for name in dangers.sets]


def repeated(block: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An argument of `shape` that begins with `block`, and goes on with it."""
    return block if block.shape == shape else np.resize(block, shape)


def make_input(workload: Workload, index: int, name: str, dangers: Hazards, limit: int | None = None) -> np.ndarray:
    """Argument `index` of set `name`; of one that is no constant and has more elements than `limit`, only so many."""
    arg = workload.args[index]
    kind, shape = _kind(arg, name), elements(arg.shape)
    if limit is not None and not arg.is_constant and prod(shape) > limit:
        return _block(arg.dtype, limit, kind, index, dangers)
    key = (arg.dtype, shape, kind, index, dangers)
    known = _CONSTANTS.get(key) if arg.is_constant else None
    if known is not None:
        return known
    # numpy gives a number, not an array, where there are no dims; of a number there is no weak reference
    made = np.asarray(_array(arg, shape, kind, _generator(kind, index), dangers.index_extent.get(index), dangers))
    if arg.is_constant:
        _CONSTANTS[key] = made
    return made


@lru_cache(maxsize=64)
def _block(dtype: str, limit: int, kind: str, index: int, dangers: Hazards) -> np.ndarray:
    """What large arguments of many workloads begin with."""
    arg = Arg("block", (limit,), dtype, False, False)
    array = _array(arg, (limit,), kind, _generator(kind, index), dangers.index_extent.get(index), dangers)
    array.flags.writeable = False
    return array


def _generator(kind: str, index: int) -> np.random.Generator:
    return np.random.default_rng([SETS.index(kind), index])


def _kind(arg: Arg, name: str) -> str:
    """The set whose values `arg` has in set `name`."""
    is_shared = arg.is_constant and (arg.nbytes > _LARGE_CONSTANT_BYTES or name == "special")
    return "random" if is_shared else name


def _array(
    arg: Arg, shape: tuple[int, ...], kind: str, rng: np.random.Generator, extent: int | None, dangers: Hazards
) -> np.ndarray:
    dtype = numpy_dtype(arg.dtype)
    if arg.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if extent is not None and "int" in arg.dtype:
        limit = min(extent, int(np.iinfo(dtype).max))
        array = rng.integers(0, limit, shape).astype(dtype)
        if arg.is_constant and kind == "random":
            return np.sort(array, axis=None).reshape(shape)
        return _sprinkled(array, rng, [0, limit - 1]) if kind == "adversarial" else array
    if "int" in arg.dtype:
        is_usual = kind == "special" or (kind == "adversarial" and dangers.widens)
        return _integers(shape, dtype, "random" if is_usual else kind, rng, dangers.divides)
    if kind == "special":
        return _special(_floats(shape, dtype, "random", rng, dangers), rng, dangers)
    return _floats(shape, dtype, kind, rng, dangers)


def _special(array: np.ndarray, rng: np.random.Generator, dangers: Hazards) -> np.ndarray:
    """`array` with NaN and infinities in it, where one of them leads to the same in every order of sums and maxima.

    Of contractions: two of NaN, or nothing else would be left, and no infinity, of which a transform makes NaN. Of a
    maximum: no NaN, which is the maximum by where it lies, and no infinity above, of which a softmax makes NaN. Of
    products of functions: no infinity.
    """
    if "special" not in dangers.sets or array.dtype.name not in _WITH_INFINITY or array.size == 0:
        return array
    if not dangers.adds_products:
        infinities = [] if dangers.saturates else [-np.inf, *([] if dangers.compares else [np.inf])]
        return _sprinkled(array, rng, [*infinities, -0.0, *([] if dangers.compares else [np.nan])])
    array.reshape(-1)[[0, array.size // 2]] = np.nan
    return array


def _integers(
    shape: tuple[int, ...], dtype: np.dtype, kind: str, rng: np.random.Generator, divides: bool
) -> np.ndarray:
    info = np.iinfo(dtype)
    low = max(int(info.min), -1000)
    if kind == "positive" or divides:
        return rng.integers(1, 100, shape).astype(dtype)
    if kind == "random":
        return rng.integers(low, min(int(info.max), 1000) + 1, shape).astype(dtype)
    if dtype.itemsize == 1:  # every value, the extremes often
        array = rng.integers(int(info.min), int(info.max) + 1, shape).astype(dtype)
    else:
        array = rng.integers(low, 1001, shape).astype(dtype)
    return _sprinkled(array, rng, [info.min, info.max, 0, 1, info.max - 1])


def _floats(
    shape: tuple[int, ...], dtype: np.dtype, kind: str, rng: np.random.Generator, dangers: Hazards
) -> np.ndarray:
    if kind == "random":
        return rng.standard_normal(shape, np.float32).astype(dtype)
    if kind == "positive":
        return (rng.random(shape, np.float32) * 0.9 + 0.1).astype(dtype)
    # What overflows in float16 is not compared: of wider inputs, only sums that cancel would be left.
    limits = _limits(np.dtype("float16") if dangers.narrows and dtype.itemsize > 2 else dtype, dangers.factors)
    # Magnitudes over many decades, whose products and sums over thousands of terms still fit.
    is_moderate = dangers.is_moderate
    decades = min(0.5 if is_moderate else 2.0 if dangers.casts_to_int else limits[2], limits[2])
    specials = [0.0, -0.0, limits[0], -limits[0], limits[1], -limits[1], 1.0, -1.0]
    if is_moderate:
        specials[4:6] = [8.0, -8.0]
    if dangers.multiplies:
        decades, specials = 0.02, [1.0, -1.0]
    if dangers.casts_to_int:
        specials = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 126.5, -127.5]
    array = (rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-decades, decades, shape)).astype(dtype)
    return _sprinkled(array, rng, specials, slow=[value for value in specials if 0 < abs(value) == limits[0]])


def _limits(dtype: np.dtype, factors: int) -> tuple[float, float, float]:
    """A denormal, a magnitude of which so many factors are still finite, and the decades either way around one.

    Where a sum of products, multiplied once more, overflows, the sums that are left to compare are those that happened
    to cancel: what rounding made of them. Of halves a third factor leaves enough.
    """
    return {
        "float64": (5e-324, 10 ** (300 / factors), 200 / factors),
        "float32": (1e-40, 10 ** (36 / factors), 24 / factors),
        "bfloat16": (1e-39, 10 ** (36 / factors), 24 / factors),
        "float16": (6e-8, 200.0, 1.5),
    }.get(dtype.name, (0.0, 8.0, 0.5))


def _sprinkled(
    array: np.ndarray, rng: np.random.Generator, values: Sequence[Any], slow: Sequence[Any] = ()
) -> np.ndarray:
    """`array` with a share of its elements, the first and the last among them, replaced by `values` in turn.

    Those that are `slow` are few: to an Intel, a denormal is worth a hundred other operands.
    """
    flat = array.reshape(-1)
    if flat.size == 0:
        return array
    picked = np.unique(np.concatenate([[0, flat.size - 1], rng.integers(0, flat.size, _specials(flat.size))]))
    with np.errstate(over="ignore"):
        flat[picked] = np.resize(np.array(values).astype(array.dtype), picked.size)
        if slow and picked.size > _MOST_SLOW:
            others = [value for value in values if value not in slow]
            at = rng.permutation(picked)[_MOST_SLOW:]
            flat[at] = np.resize(np.array(others).astype(array.dtype), at.size)
    return flat.reshape(array.shape)


def _specials(size: int) -> int:
    return max(1, int(size * _SPECIAL_FRACTION))
