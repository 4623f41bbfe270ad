"""A model at several instances of its symbols, and what they have in common: subgraph by subgraph, call by call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm

from subtune.core.dims import Dim, quotient
from subtune.core.domain import Domain
from subtune.core.errors import ModelError, UnsupportedOpsError
from subtune.core.kernel import NotApplicable
from subtune.core.tensor_spec import TensorSpec
from subtune.core.workload import Workload
from subtune.dynamic.alike import are_alike
from subtune.dynamic.constants import Corner, constants_of, corner, read_as_variables
from subtune.dynamic.fit import NO_STEPS, Fitter
from subtune.dynamic.merged_rows import with_merged_rows
from subtune.dynamic.points import last_multiples, points_beyond, sample_points, sums_of
from subtune.dynamic.told_apart import calls, pairs, told_apart
from subtune.dynamic.varying import Made, made_of_shape
from subtune.dynamic.windows import Windows
from subtune.dynamic.workload import DIVISORS, DynamicWorkload, dynamic_workload
from subtune.passes.pad_attention import NO_LENGTHS, Lengths, softmax_shapes
from subtune.pipeline import Prepared

_OF_ANY_SHAPE = ("relax.call_tir", "relax.reshape")
"""Calls of kernels, and what is no work."""


@dataclass(frozen=True)
class DynamicModel:
    """`greatest` is the largest instance: memory and constants are laid out for it. `workloads` are the subgraphs', by
    name; `inputs` and `outputs` have the domain's symbols in their shapes.
    """

    domain: Domain
    greatest: Prepared
    workloads: Mapping[str, DynamicWorkload]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: Mapping[str, int]
    """Numbers that divide what some symbols are declared to be, where these are counted in them."""
    made: Mapping[int, Made]
    """What computes constants of other values at other instances, by their number (`with_corners`)."""


@dataclass(frozen=True, slots=True)
class _Instance:
    """What is kept of an instance: no weights."""

    names: tuple[str, ...]
    workloads: Mapping[str, Workload]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: tuple[tuple[str, str], ...]
    """Those that no kernel of ours computes, with the types of what they read and make."""
    calls: tuple[str, ...]
    """Names of the functions that are called, one after the other."""

    def told_apart(self, finest: _Instance) -> _Instance:
        """With the names of an instance that has no fewer subgraphs; itself where that is not possible."""
        found = pairs(self.calls, finest.calls)
        if found is None or any(found.get(name) not in self.workloads for name in finest.names):
            return self
        workloads = {name: self.workloads[found[name]] for name in finest.names}
        return replace(self, names=finest.names, workloads=workloads, calls=finest.calls)


def dynamic_model(domain: Domain, prepare: Callable[[Mapping[str, int], Lengths], Prepared]) -> DynamicModel:
    """Import a model at the points, and generalise.

    Where that cannot be done for any size, it is for multiples, if all declared ones are: a half of a height is a whole
    number where the height is one of 32, 64, 96, ….

    Args:
        prepare: the model at one instance, with the attentions of these lengths padded.

    Raises:
        UnsupportedOpsError: instances differ by more than extents.
    """
    steps = {one.name: one.step for one in domain.symbols if one.step > 1}
    try:
        return _model_of(domain, prepare, NO_STEPS)
    except ModelError as e:
        if not steps:
            if _is_same_beyond(domain, prepare):
                return _model_of(domain, prepare, NO_STEPS, is_beyond=True)
            raise
        # what is no polynomial of any height may be one of every 32nd
        try:
            return _model_of(domain, prepare, steps)
        except ModelError as of_steps:
            raise (e if isinstance(e, UnsupportedOpsError) else of_steps) from None


def _is_same_beyond(domain: Domain, prepare: Callable[[Mapping[str, int], Lengths], Prepared]) -> bool:
    """Whether points beyond the greatest instance say of the model what those of the domain do.

    At few rows subgraphs may have other forms than at many.
    """
    beyond = points_beyond(domain)
    if not beyond:
        return False
    points = [*sample_points(domain), *beyond]
    imported = [prepare(point, NO_LENGTHS).imported for point in points]
    sums = sums_of([(*one.inputs, *one.outputs) for one in imported], points)
    return are_alike([one.mod for one in imported], points, sums)


def _model_of(
    domain: Domain,
    prepare: Callable[[Mapping[str, int], Lengths], Prepared],
    steps: Mapping[str, int],
    is_beyond: bool = False,
) -> DynamicModel:
    """As `dynamic_model`, of multiples of `steps`, or from points beyond the greatest instance."""
    first = points_beyond(domain)[:2] if is_beyond else sample_points(domain, (), steps)[:2]
    unpadded = [prepare(point, NO_LENGTHS) for point in first]
    lengths = _lengths(*(softmax_shapes(one.normalized) for one in unpadded))
    sums = sums_of([(*one.imported.inputs, *one.imported.outputs) for one in unpadded], first)
    del unpadded
    points = points_beyond(domain, sums) if is_beyond else sample_points(domain, sums, steps)
    greatest = prepare(domain.greatest, lengths)
    instances, constants, others = [_instance(greatest)], _constants(greatest), []
    for point in points:
        prepared = prepare(point, lengths)
        instances.append(_instance(prepared))
        own = _constants(prepared)
        if len(own) != len(constants):
            raise _others(point, domain.greatest)
        others.append(_without_copies(own, constants))
    finest = max(instances, key=lambda one: len(one.names))
    greatest = told_apart(greatest, finest.calls, finest.names)
    instances = [one.told_apart(finest) for one in instances]
    windows = Windows(lambda point: _constants(prepare(point, lengths)), points, domain, sums, steps)
    made = _made(constants, others, points, domain, sums, steps, windows)
    points = [domain.greatest, *points]
    of_greatest = instances[0]
    for instance, point in zip(instances, points, strict=True):
        if instance.names != of_greatest.names:
            raise _others(point, points[0])
        if instance.operators != of_greatest.operators:
            names = ", ".join(sorted({name for name, _ in {*instance.operators} ^ {*of_greatest.operators}}))
            raise UnsupportedOpsError(
                f"The model has operators that TVM runs its own way, for one shape alone ({names}): give every "
                "dimension that they see a value with --shape."
            )

    def of_all(name: str, variables: Collection[int] = ()) -> DynamicWorkload | NotApplicable:
        # where an extent ends with a tile, nothing is padded, and the largest may do so
        at_points = [instance.workloads[name].without_constants(variables) for instance in instances[1:]]
        return dynamic_workload(at_points, points[1:], domain.greatest, sums, steps, domain.least)

    workloads = _workloads(of_greatest, of_all, greatest.mod, made)
    if not lengths:  # else extents are padded, up to multiples
        _check_rounding(workloads, _instance(prepare(last_multiples(domain), lengths)), last_multiples(domain))
    fitters = [Fitter(points, DIVISORS), *([Fitter(points, DIVISORS, (), steps)] if steps else [])]
    inputs = _symbolic([instance.inputs for instance in instances], fitters)
    outputs = _symbolic([instance.outputs for instance in instances], fitters)
    return DynamicModel(domain, greatest, workloads, inputs, outputs, steps, made)


def _workloads(
    greatest: _Instance,
    of_all: Callable[..., DynamicWorkload | NotApplicable],
    mod: tvm.IRModule,
    made: Mapping[int, Made],
) -> dict[str, DynamicWorkload]:
    """Every subgraph's, by its name; what `with_corners` will have written in a run is no constant of theirs.

    Args:
        of_all: what a subgraph's workloads at all points have in common, and these without some of their constants.

    Raises:
        UnsupportedOpsError: they differ by more than extents.
    """

    def found(name: str, variables: Collection[int] = ()) -> DynamicWorkload:
        one = of_all(name, variables)
        if isinstance(one, NotApplicable):
            raise UnsupportedOpsError(f"The subgraph {name} cannot be compiled for many shapes at once: {one.reason}.")
        return one

    workloads = {name: found(name) for name in greatest.names}
    for name, read in read_as_variables(mod, {name: one.shapes for name, one in workloads.items()}, made).items():
        written = [i for i, arg in enumerate(greatest.workloads[name].args) if arg.is_constant and i in read]
        if written:
            workloads[name] = found(name, written)
    return workloads


def _others(point: Mapping[str, int], greatest: Mapping[str, int]) -> UnsupportedOpsError:
    return UnsupportedOpsError(
        f"The model has other subgraphs at {_said(point)} than at {_said(greatest)}: it cannot be compiled for many "
        "shapes at once; give every dimension a value with --shape."
    )


def _check_rounding(workloads: Mapping[str, DynamicWorkload], instance: _Instance, point: Mapping[str, int]) -> None:
    """Raises UnsupportedOpsError: a size that is a quotient is another one where nothing is rounded."""
    for name, one in workloads.items():
        own = instance.workloads.get(name)
        if own is None or not any(quotient(part) for dim in one.template.holes.values() for part in _parts(dim)):
            continue
        sizes = [tuple(dim.at(point) for dim in shape) for shape in one.shapes]
        if sizes != [arg.shape for arg in own.args]:
            raise UnsupportedOpsError(
                f"The subgraph {name} cannot be compiled for many shapes at once: its sizes at {_said(point)} are "
                "rounded otherwise than at others, and are no polynomials of the symbols."
            )


def _parts(dim: Dim) -> list[str]:
    return [name for monomial, _ in dim.terms for name in monomial]


def _lengths(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> Lengths:
    """Which axes of the softmaxes are of different lengths at two points."""
    if len(one) != len(other):
        return NO_LENGTHS
    differ = {i: (a[-2] != b[-2], a[-1] != b[-1]) for i, (a, b) in enumerate(zip(one, other, strict=True))}
    return {i: lengths for i, lengths in differ.items() if any(lengths)}


def corner_workloads(
    corners: Mapping[str, Corner], domain: Domain, steps: Mapping[str, int] = NO_STEPS
) -> dict[str, DynamicWorkload]:
    """The copies that `with_corners` has put into a module."""
    points = sample_points(domain, (), steps)
    made = {}
    for name, (whole, dims, dtype) in corners.items():
        copies = [corner([dim.at(point) for dim in whole], [dim.at(point) for dim in dims], dtype) for point in points]
        one = dynamic_workload(copies, points, domain.greatest, (), steps)
        assert not isinstance(one, NotApplicable), one.reason
        made[name] = one
    return made


def _symbolic(specs: Sequence[Sequence[TensorSpec]], fitters: Sequence[Fitter]) -> tuple[TensorSpec, ...]:
    """The same tensors of all instances as one each, by the first of `fitters` that finds a dim."""
    made = []
    for of_instances in zip(*specs, strict=True):
        first = of_instances[0]
        shape: list[int | str] = []
        for sizes in zip(*(spec.sizes for spec in of_instances), strict=True):
            dim = next((dim for one in fitters if (dim := one.fit(sizes)) is not None), None)
            if dim is None:
                raise UnsupportedOpsError(
                    f"The size of {first.name!r} is no polynomial of the symbols: {', '.join(map(str, sizes))}."
                )
            shape.append(str(dim) if dim.constant is None else dim.constant)
        made.append(TensorSpec(first.name, tuple(shape), first.dtype))
    return tuple(made)


def _instance(prepared: Prepared) -> _Instance:
    names = tuple(subgraph.name for subgraph in prepared.subgraphs)
    workloads = {subgraph.name: with_merged_rows(subgraph.workload) for subgraph in prepared.subgraphs}
    inputs, outputs = tuple(prepared.imported.inputs), tuple(prepared.imported.outputs)
    return _Instance(names, workloads, inputs, outputs, _operators(prepared), tuple(calls(prepared.mod)))


def _operators(prepared: Prepared) -> tuple[tuple[str, str], ...]:
    values = [binding.value for block in prepared.mod["main"].body.blocks for binding in block.bindings]
    return tuple(
        (value.op.name, ", ".join(str(one.ty) for one in (*value.args, value)))
        for value in values
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name not in _OF_ANY_SHAPE
    )


def _constants(prepared: Prepared) -> list[np.ndarray]:
    """Of all calls, in order."""
    calls = [binding.value for block in prepared.mod["main"].body.blocks for binding in block.bindings]
    return [array for call in calls for _, array in constants_of(call)]


def _without_copies(constants: Sequence[np.ndarray], known: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same arrays; those that are equal to known ones are these: weights are in memory once."""
    return [old if np.array_equal(new, old) else new for new, old in zip(constants, known, strict=True)]


def _made(
    greatest: Sequence[np.ndarray],
    others: Sequence[Sequence[np.ndarray]],
    points: Sequence[Mapping[str, int]],
    domain: Domain,
    sums: Sequence[Dim],
    steps: Mapping[str, int],
    windows: Windows,
) -> dict[int, Made]:
    """What computes the constants that are not the beginning of the greatest instance's, by their number.

    Args:
        others: at each of `points`.

    Raises:
        ModelError: no formula is known of one.
    """
    made: dict[int, Made] = {}
    varying: dict[int, list[np.ndarray]] = {}
    for number, whole in enumerate(greatest):
        arrays = [constants[number] for constants in others]
        differs = [point for point, part in zip(points, arrays, strict=True) if not _is_corner(part, whole)]
        if differs:
            found = next((made[of] for of, known in varying.items() if _are_equal(known, arrays)), None)
            if found is None:
                formula = made_of_shape(arrays, points, domain.greatest, sums, steps, domain.least)
                if formula is not None:
                    found = Made(formula)
                elif all(array.ndim == whole.ndim for array in arrays):
                    found = windows.of(arrays)
            if found is None:
                raise ModelError(
                    f"A constant of shape {list(whole.shape)} has other values at {_said(differs[0])}: what the model "
                    "computes of its shapes cannot be compiled for many of them at once."
                )
            made[number], varying[number] = found, arrays
    return made


def _are_equal(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def _is_corner(part: np.ndarray, whole: np.ndarray) -> bool:
    """Whether one is the beginning of the other, as far as both go."""
    if part.ndim != whole.ndim:
        return False
    block = tuple(slice(0, min(pair)) for pair in zip(whole.shape, part.shape, strict=True))
    return np.array_equal(whole[block], part[block])


def _said(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items())
