"""A model at several instances of its symbols, and what they have in common: subgraph by subgraph, call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from subtune.core.domain import Domain
from subtune.core.errors import ModelError, UnsupportedOpsError
from subtune.core.kernel import NotApplicable
from subtune.core.tensor_spec import TensorSpec
from subtune.core.workload import Workload
from subtune.dynamic.constants import Corner, corner
from subtune.dynamic.fit import Fitter
from subtune.dynamic.workload import DIVISORS, DynamicWorkload, dynamic_workload
from subtune.passes.exprs import array_of
from subtune.passes.pad_attention import NO_LENGTHS, Lengths, softmax_shapes
from subtune.pipeline import Prepared

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109)
_LEAST = 3
"""A dim of one element is broadcast."""
_POINTS = 4
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


@dataclass(frozen=True, slots=True)
class _Instance:
    """What is kept of an instance: no weights."""

    names: tuple[str, ...]
    workloads: Mapping[str, Workload]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: tuple[tuple[str, str], ...]
    """Those that no kernel of ours computes, with the types of what they read and make."""


def sample_points(domain: Domain) -> list[dict[str, int]]:
    """Instances at which the model is compared with itself: odd, and primes as far as there are some.

    A symbol has another value at every point, and at a point no two have the same.
    """
    count = _POINTS + 2 * (len(domain.symbols) - 1)
    points: list[dict[str, int]] = [{} for _ in range(count)]
    for symbol in domain.symbols:
        most = symbol.values[-1]
        primes = [p for p in _PRIMES if p <= most][::-1]
        others = [n for n in range(most, _LEAST - 1, -1) if n % 2 and n not in primes] if most < _PRIMES[-1] else []
        left = [*primes[::2], *primes[1::2], *others, *(p for p in _PRIMES if p > most)]
        for point in points:
            value = next(one for one in left if one not in point.values())
            point[symbol.name] = value
            left.remove(value)
    return points


def dynamic_model(domain: Domain, prepare: Callable[[Mapping[str, int], Lengths], Prepared]) -> DynamicModel:
    """Import a model at the points, and generalise.

    Args:
        prepare: the model at one instance, with the attentions of these lengths padded.

    Raises:
        UnsupportedOpsError: instances differ by more than extents.
    """
    points = sample_points(domain)
    shapes = [softmax_shapes(prepare(point, NO_LENGTHS).normalized) for point in points[:2]]
    lengths = _lengths(*shapes)
    greatest = prepare(domain.greatest, lengths)
    constants = _constants(greatest)
    instances = [_instance(greatest)]
    for point in points:
        prepared = prepare(point, lengths)
        instances.append(_instance(prepared))
        _check_constants(constants, _constants(prepared), point)
    points = [domain.greatest, *points]
    first = instances[0]
    for instance, point in zip(instances, points, strict=True):
        if instance.names != first.names:
            raise UnsupportedOpsError(
                f"The model has other subgraphs at {_said(point)} than at {_said(points[0])}: it cannot be compiled "
                "for many shapes at once; give every dimension a value with --shape."
            )
        if instance.operators != first.operators:
            names = ", ".join(sorted({name for name, _ in {*instance.operators} ^ {*first.operators}}))
            raise UnsupportedOpsError(
                f"The model has operators that TVM runs its own way, for one shape alone ({names}): give every "
                "dimension that they see a value with --shape."
            )
    workloads = {}
    for name in first.names:  # where an extent ends with a tile, nothing is padded, and the largest may do so
        found = dynamic_workload([instance.workloads[name] for instance in instances[1:]], points[1:], domain.greatest)
        if isinstance(found, NotApplicable):
            raise UnsupportedOpsError(
                f"The subgraph {name} cannot be compiled for many shapes at once: {found.reason}."
            )
        workloads[name] = found
    fitter = Fitter(points, DIVISORS)
    inputs = _symbolic([instance.inputs for instance in instances], fitter)
    outputs = _symbolic([instance.outputs for instance in instances], fitter)
    return DynamicModel(domain, greatest, workloads, inputs, outputs)


def _lengths(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> Lengths:
    """Which axes of the softmaxes are of different lengths at two points."""
    if len(one) != len(other):
        return NO_LENGTHS
    differ = {i: (a[-2] != b[-2], a[-1] != b[-1]) for i, (a, b) in enumerate(zip(one, other, strict=True))}
    return {i: lengths for i, lengths in differ.items() if any(lengths)}


def corner_workloads(corners: Mapping[str, Corner], domain: Domain) -> dict[str, DynamicWorkload]:
    """The copies that `with_corners` has put into a module."""
    points = sample_points(domain)
    made = {}
    for name, (whole, dims, dtype) in corners.items():
        copies = [corner([dim.at(point) for dim in whole], [dim.at(point) for dim in dims], dtype) for point in points]
        one = dynamic_workload(copies, points, domain.greatest)
        assert not isinstance(one, NotApplicable), one.reason
        made[name] = one
    return made


def _symbolic(specs: Sequence[Sequence[TensorSpec]], fitter: Fitter) -> tuple[TensorSpec, ...]:
    """The same tensors of all instances as one each."""
    made = []
    for of_instances in zip(*specs, strict=True):
        first = of_instances[0]
        shape: list[int | str] = []
        for sizes in zip(*(spec.sizes for spec in of_instances), strict=True):
            dim = fitter.fit(sizes)
            if dim is None:
                raise UnsupportedOpsError(
                    f"The size of {first.name!r} is no polynomial of the symbols: {', '.join(map(str, sizes))}."
                )
            shape.append(str(dim) if dim.constant is None else dim.constant)
        made.append(TensorSpec(first.name, tuple(shape), first.dtype))
    return tuple(made)


def _instance(prepared: Prepared) -> _Instance:
    names = tuple(subgraph.name for subgraph in prepared.subgraphs)
    workloads = {subgraph.name: subgraph.workload for subgraph in prepared.subgraphs}
    inputs, outputs = tuple(prepared.imported.inputs), tuple(prepared.imported.outputs)
    return _Instance(names, workloads, inputs, outputs, _operators(prepared))


def _operators(prepared: Prepared) -> tuple[tuple[str, str], ...]:
    values = [binding.value for block in prepared.mod["main"].body.blocks for binding in block.bindings]
    return tuple(
        (value.op.name, ", ".join(str(one.ty) for one in (*value.args, value)))
        for value in values
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name not in _OF_ANY_SHAPE
    )


def _constants(prepared: Prepared) -> list[np.ndarray]:
    """Of all calls, in order."""
    found = []
    for block in prepared.mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, tvm.ir.Call) and len(value.args) > 1 and isinstance(value.args[1], relax.Tuple):
                arrays = [array_of(arg) for arg in value.args[1].fields if not isinstance(arg, relax.Var)]
                found += [array for array in arrays if array is not None]
    return found


def _check_constants(greatest: Sequence[np.ndarray], others: Sequence[np.ndarray], point: Mapping[str, int]) -> None:
    """Each of the others is the beginning of the greatest instance's."""
    same = len(greatest) == len(others)
    for whole, part in zip(greatest, others, strict=False):
        block = tuple(slice(0, min(pair)) for pair in zip(whole.shape, part.shape, strict=True))
        if not np.array_equal(whole[block], part[block]):
            raise ModelError(
                f"A constant of shape {list(whole.shape)} has other values at {_said(point)}: what the model computes "
                "of its shapes cannot be compiled for many of them at once."
            )
    assert same, "the instances' calls have other constants"


def _said(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items())
