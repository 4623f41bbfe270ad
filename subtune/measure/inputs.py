"""The inputs a kernel is judged on: seeded random ones, positive ones, adversarial ones, and some that are no numbers.

Each set keeps the arguments legal for the workload: an integer that indexes another array stays in range, a
divisor is not zero, and a float that is cast to an integer stays small (the cast is undefined beyond its range).
A constant that indexes another array ascends in the first set, by which kernels are timed: tables of a model say where
the pixels of a resized image come from, and what is read in no order takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from subtune.core.numerics import HALVES
from subtune.core.workload import Arg, Workload
from subtune.measure.degrees import degree
from subtune.measure.guarded import elements, numpy_dtype
from subtune.measure.sums import adds_squared_differences, adds_up_sums, is_sum_of_products, summands

SETS = ("random", "positive", "adversarial", "special")
"""`positive` exists for workloads that are NaN on most random inputs: roots, logarithms, variances. `special` are the
random ones with NaN and infinities among them; the constants are the same."""

BLOCK = 1_000_003
"""Random elements of a large argument, repeated: a prime, so that no two rows or columns are alike."""

_LARGE_CONSTANT_BYTES = 16 << 20
"""Constants above this are the same in all sets: packing a candidate's copy of each would cost seconds."""
_WITH_INFINITY = ("float16", "bfloat16", "float32", "float64")
_SATURATING = frozenset({"erf", "exp", "exp2", "sigmoid", "tanh"})
"""Functions that go to zero somewhere, or to what cancels."""
_BOUNDED = frozenset({"sigmoid", "tanh"})
_ROOTS = frozenset({"rsqrt", "sqrt"})
_FEW_RESULTS = 16  # all of which may happen to cancel
_ROUNDED = frozenset({"nearbyint", "reinterpret"})
_EXACT = _ROUNDED | {"subtune_fma", "if_then_else", "likely"}
"""What gives the same bits in every schedule."""
_SPECIAL_FRACTION = 1 / 16
"""Of the elements of an adversarial array, the share replaced by special values."""


@dataclass(frozen=True, slots=True)
class Hazards:
    """What the workload does with values that restricts which are legal.

    `index_extent`: for each parameter used as an index, the least extent of the dims it indexes; `divides`: by
    an integer that is no constant, so that zero would be a trap; `casts_to_int`: from floating point; `clips`: a
    float, from above, by a constant; `narrows`: to float16, from a wider type; `adds_products`: of floats, which
    Winograd and Strassen add up differently; `stores_integers`: places, or what was cast; `compares`: takes maxima or
    minima of floats that are no constants; `exponentiates`: a softmax of such sums may follow, or what never exceeds 1:
    both turn the rounding of a sum, however large, into a share of what they give; `normalizes`: subtracts means of
    such sums, it may be, when they have been rounded to halves; `multiplies`: all of a row, which over- and underflows
    in another order than another schedule; `saturates`: multiplies what a function gives by something else than that
    function's input, where the function is nearly zero or, in another approximation, zero: of infinity, that makes
    infinity or NaN; `factors`: of one number, where sums of products are among them; `cancels`: adds floats up to a few
    results, or two sums of products, one of which a file's half cannot hold though both together are small; `rounds`:
    to integers, of floats that were summed up or are functions: a last bit more or less may be a step.
    """

    index_extent: dict[int, int] = field(hash=False)
    divides: bool
    casts_to_int: bool
    clips: bool
    narrows: bool = False
    adds_products: bool = False
    stores_integers: bool = False
    compares: bool = False
    exponentiates: bool = False
    normalizes: bool = False
    multiplies: bool = False
    saturates: bool = False
    cancels: bool = False
    rounds: bool = False
    factors: int = 2

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets that say something: what NaN becomes as an integer is undefined; contractions and products of
        functions see no infinities, maxima no NaN, and both together neither (`_special`). Sums of positive numbers are
        nearly equal: less their mean, little is left of them but what rounding to halves did."""
        is_undefined = self.casts_to_int or self.stores_integers or self.divides or self.multiplies
        has_nothing = self.compares and (self.adds_products or self.saturates)
        left_out = {"special"} if is_undefined or has_nothing else set()
        if self.normalizes:
            left_out.add("positive")
        return tuple(name for name in SETS if name not in left_out)

    @property
    def nan_spreads(self) -> bool:
        """Whether a candidate may return NaN on special inputs where the default schedule has a number.

        Winograd's and Strassen's algorithms add neighbours, and take them away again.
        """
        return self.adds_products

    @property
    def is_moderate(self) -> bool:
        """Whether adversarial floats stay near one: clipped, or all of a few sums, or exponents.

        Of sums that cancel, what rounding leaves is else as large as all that is left to compare it with (of many sums
        some do not, and errors are compared with the largest). Of 1e5, what tensor cores leave out changes a weight by
        a hundredth; of 1e36, the order of a sum says who has all the weight, or which way a sigmoid goes.
        """
        return self.clips or self.cancels or self.exponentiates


def hazards(workload: Workload) -> Hazards:
    """Read from the TIR which parameters index others, and whether it divides, clips or casts floats to integers."""
    import tvm_ffi
    from tvm import ir, tirx

    from subtune.tir.expressions import function_name

    params = list(workload.func.params)
    divides = casts = clips = narrows = products = stores_integers = compares = False
    sums = multiplies = deviates = sums_floats = False
    called: set[str] = set()
    loads: list[Any] = []

    def visit(node: Any) -> None:
        nonlocal \
            divides, \
            casts, \
            clips, \
            narrows, \
            sums, \
            sums_floats, \
            products, \
            stores_integers, \
            compares, \
            multiplies, \
            deviates
        if isinstance(node, ir.TensorLoad):
            loads.append((node.source, node.indices))
        elif isinstance(node, tirx.BufferStore):
            loads.append((node.buffer, node.indices))
            sums, products = sums or bool(summands(node)), products or is_sum_of_products(node)
            sums_floats = sums_floats or (bool(summands(node)) and "float" in str(node.buffer.dtype))
            multiplies, deviates = multiplies or _multiplies(node), deviates or adds_squared_differences(node)
            stores_integers = stores_integers or "int" in str(node.buffer.dtype)
        elif isinstance(node, tirx.Div | tirx.Mod | tirx.FloorDiv | tirx.FloorMod):
            divides = divides or ("int" in str(node.ty) and not isinstance(node.b, tirx.IntImm))
        elif isinstance(node, tirx.Cast):
            casts = casts or ("int" in str(node.ty) and "float" in str(node.value.ty))
            narrows = narrows or (str(node.ty.dtype).startswith("float16") and "float32" in str(node.value.ty))
        elif isinstance(node, tirx.Min | tirx.Max):
            has_constant = isinstance(node.a, tirx.FloatImm) or isinstance(node.b, tirx.FloatImm)
            clips = clips or (has_constant and isinstance(node, tirx.Min))
            compares = compares or ("float" in str(node.ty) and not has_constant)
        elif isinstance(node, ir.Call):
            called.add(function_name(node))

    tvm_ffi.structural_walk(workload.func, visit)

    extents: dict[int, int] = {}
    for buffer, indices in loads:
        for dim, index in enumerate(indices):
            inner: list[Any] = []
            tvm_ffi.structural_walk(index, (ir.TensorLoad, inner.append))
            for load in inner:
                extent = getattr(buffer.shape[dim], "value", 1)
                # An index that was computed in an earlier block may come from any integer parameter.
                found = [i for i, param in enumerate(params) if param.same_as(load.source)]
                for i in found or [i for i, arg in enumerate(workload.args) if "int" in arg.dtype]:
                    extents[i] = min(extents.get(i, 2**31 - 1), int(extent))
    inputs = {arg.dtype for arg in workload.args if not arg.is_output}
    results = sum(prod(elements(arg.shape)) for arg in workload.args if arg.is_output)
    return Hazards(
        extents, divides, casts, clips, narrows, products, stores_integers, compares,
        exponentiates=products and (("exp" in called and compares) or not called.isdisjoint(_BOUNDED)),
        normalizes=products and (deviates or not called.isdisjoint(_ROOTS)) and not HALVES.isdisjoint(inputs),
        multiplies=multiplies, saturates=_saturates(workload),
        cancels=(sums and results <= _FEW_RESULTS) or (narrows and products and adds_up_sums(workload)),
        rounds=not called.isdisjoint(_ROUNDED) and (sums_floats or bool(called - _EXACT)),
        factors=max(2, degree(workload)) if products else 2,
    )  # fmt: skip


def _saturates(workload: Workload) -> bool:
    """Whether it calls such a function, multiplies, and reads more floats than the function's input."""
    import tvm_ffi
    from tvm import ir, tirx

    from subtune.tir.expressions import function_name

    if sum("float" in arg.dtype and not (arg.is_output or arg.is_constant) for arg in workload.args) < 2:
        return False
    found = set()

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Mul | tirx.Div):
            is_scaling = isinstance(node.a, tirx.FloatImm) or isinstance(node.b, tirx.FloatImm)
            if "float" in str(node.ty) and not is_scaling:
                found.add("product")
        elif function_name(node) in _SATURATING:
            found.add("function")

    tvm_ffi.structural_walk(workload.func, ((tirx.Mul, tirx.Div, ir.Call), visit))
    return len(found) == 2


def _multiplies(store: Any) -> bool:
    """x[..] = x[..] * a, of floats."""
    from tvm import tirx

    from subtune.tir.expressions import is_load_of

    is_product = isinstance(store.value, tirx.Mul) and "float" in str(store.value.ty)
    return is_product and any(is_load_of(side, store.buffer) for side in (store.value.a, store.value.b))


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
    return _array(arg, shape, kind, _generator(kind, index), dangers.index_extent.get(index), dangers)


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
        return _integers(shape, dtype, "random" if kind == "special" else kind, rng, dangers.divides)
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
    return _sprinkled(array, rng, specials)


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


def _sprinkled(array: np.ndarray, rng: np.random.Generator, values: Sequence[Any]) -> np.ndarray:
    """`array` with a share of its elements, the first and the last among them, replaced by `values` in turn."""
    flat = array.reshape(-1)
    if flat.size == 0:
        return array
    picked = np.unique(np.concatenate([[0, flat.size - 1], rng.integers(0, flat.size, _specials(flat.size))]))
    with np.errstate(over="ignore"):
        flat[picked] = np.resize(np.array(values).astype(array.dtype), picked.size)
    return flat.reshape(array.shape)


def _specials(size: int) -> int:
    return max(1, int(size * _SPECIAL_FRACTION))
