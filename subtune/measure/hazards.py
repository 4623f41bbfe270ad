"""What a workload does with values, which restricts what it may be given and how its results are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from subtune.core.numerics import HALVES
from subtune.core.workload import Workload
from subtune.measure.degrees import degree
from subtune.measure.guarded import elements
from subtune.measure.sums import adds_squared_differences, adds_up_sums, is_sum_of_products, summands

SETS = ("random", "positive", "adversarial", "special")
"""`positive` exists for workloads that are NaN on most random inputs: roots, logarithms, variances. `special` are the
random ones with NaN and infinities among them; the constants are the same."""

_SATURATING = frozenset({"erf", "exp", "exp2", "sigmoid", "tanh"})
"""Functions that go to zero somewhere, or to what cancels."""
_BOUNDED = frozenset({"sigmoid", "tanh"})
_ROOTS = frozenset({"rsqrt", "sqrt"})
_FEW_RESULTS = 16  # all of which may happen to cancel
_ROUNDED = frozenset({"nearbyint", "reinterpret"})
_EXACT = _ROUNDED | {"subtune_fma", "subtune_quotient", "if_then_else", "likely"}
"""What gives the same bits in every schedule."""


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
    to integers, of floats that were summed up or are functions: a last bit more or less may be a step;
    `rounds_to_float8`: the same to floats of 8 bits, whose steps are shares of the number; `widens`: computed int32 to
    int64, where what did not fit is undefined: LLVM is told that nothing wraps round.
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
    rounds_to_float8: bool = False
    widens: bool = False
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

    seen: set[str] = set()
    called: set[str] = set()
    loads: list[Any] = []

    def note(**facts: bool) -> None:
        seen.update(name for name, is_so in facts.items() if is_so)

    def visit(node: Any) -> None:
        if isinstance(node, ir.TensorLoad):
            loads.append((node.source, node.indices))
        elif isinstance(node, tirx.BufferStore):
            loads.append((node.buffer, node.indices))
            dtype, sums = str(node.buffer.dtype), bool(summands(node))
            note(sums=sums, sums_floats=sums and "float" in dtype, adds_products=is_sum_of_products(node))
            note(multiplies=_multiplies(node), deviates=adds_squared_differences(node), stores_integers="int" in dtype)
        elif isinstance(node, tirx.Div | tirx.Mod | tirx.FloorDiv | tirx.FloorMod):
            note(divides="int" in str(node.ty) and not isinstance(node.b, tirx.IntImm))
        elif isinstance(node, tirx.Cast):
            note(casts_to_int="int" in str(node.ty) and "float" in str(node.value.ty))
            note(narrows=str(node.ty.dtype).startswith("float16") and "float32" in str(node.value.ty))
            note(widens=_widens(node, workload), rounds_to_float8=str(node.ty.dtype).startswith("float8"))
        elif isinstance(node, tirx.Min | tirx.Max):
            has_constant = isinstance(node.a, tirx.FloatImm) or isinstance(node.b, tirx.FloatImm)
            note(clips=has_constant and isinstance(node, tirx.Min))
            note(compares="float" in str(node.ty) and not has_constant)
        elif isinstance(node, ir.Call):
            called.add(function_name(node))

    tvm_ffi.structural_walk(workload.func, visit)

    inputs = {arg.dtype for arg in workload.args if not arg.is_output}
    results = sum(prod(elements(arg.shape)) for arg in workload.args if arg.is_output)
    products, compares = "adds_products" in seen, "compares" in seen
    return Hazards(
        _index_extents(workload, loads),
        exponentiates=products and (("exp" in called and compares) or not called.isdisjoint(_BOUNDED)),
        normalizes=products and ("deviates" in seen or not called.isdisjoint(_ROOTS)) and not HALVES.isdisjoint(inputs),
        saturates=_saturates(workload),
        cancels=("sums" in seen and results <= _FEW_RESULTS)
        or ("narrows" in seen and products and adds_up_sums(workload)),
        rounds=not called.isdisjoint(_ROUNDED) and ("sums_floats" in seen or bool(called - _EXACT)),
        factors=max(2, degree(workload)) if products else 2,
        **{name: name in seen for name in _SEEN},
    )


_SEEN = (
    "adds_products", "casts_to_int", "clips", "compares", "divides", "multiplies", "narrows", "rounds_to_float8",
    "stores_integers", "widens",
)  # fmt: skip
"""Fields that are true where one node says so."""


def _index_extents(workload: Workload, loads: list[Any]) -> dict[int, int]:
    """For each parameter used as an index, the least extent that it indexes; from buffers and where they are read."""
    import tvm_ffi
    from tvm import ir

    params, extents = list(workload.func.params), dict[int, int]()
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
    return extents


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


def _widens(cast: Any, workload: Workload) -> bool:
    """Whether it makes int64 of an int32 that is no input."""
    from tvm import ir

    if "int64" not in str(cast.ty) or "int32" not in str(cast.value.ty):
        return False
    params = workload.func.params
    return not (isinstance(cast.value, ir.TensorLoad) and any(one.same_as(cast.value.source) for one in params))


def _multiplies(store: Any) -> bool:
    """x[..] = x[..] * a, of floats."""
    from tvm import tirx

    from subtune.tir.expressions import is_load_of

    is_product = isinstance(store.value, tirx.Mul) and "float" in str(store.value.ty)
    return is_product and any(is_load_of(side, store.buffer) for side in (store.value.a, store.value.b))
