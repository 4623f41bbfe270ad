"""A model at several instances of its symbols, and what they have in common: subgraph by subgraph, call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from subtune.core.domain import Domain
from subtune.core.errors import ModelError, UnsupportedOpsError
from subtune.core.kernel import NotApplicable
from subtune.dynamic.template import Template
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload
from subtune.passes.exprs import array_of
from subtune.pipeline import Prepared

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109)
_LEAST = 3
"""A dim of one element is broadcast."""
_POINTS = 4


@dataclass(frozen=True, slots=True)
class Leftover:
    """A PrimFunc that no subgraph is: a sort, or what TVM legalised."""

    template: Template


@dataclass(frozen=True)
class DynamicModel:
    """`greatest` is the largest instance: memory and constants are laid out for it.

    `workloads` are the subgraphs' by name, `leftovers` the other calls' by the names of their PrimFuncs.
    """

    domain: Domain
    greatest: Prepared
    workloads: Mapping[str, DynamicWorkload]
    leftovers: Mapping[str, DynamicWorkload]


@dataclass(frozen=True, slots=True)
class _Instance:
    """What is kept of an instance: no weights but those that depend on symbols."""

    names: tuple[str, ...]
    workloads: Mapping[str, Any]
    calls: tuple[tuple[str, PrimFunc], ...]


def sample_points(domain: Domain) -> list[dict[str, int]]:
    """Instances at which the model is compared with itself: all different, and primes as far as there are some."""
    count = _POINTS + 2 * (len(domain.symbols) - 1)
    points: list[dict[str, int]] = [{} for _ in range(count)]
    used: set[int] = set()
    for symbol in sorted(domain.symbols, key=lambda one: one.values[-1]):
        most = symbol.values[-1]
        primes = [p for p in _PRIMES if p <= most]
        others = [n for n in range(most, _LEAST - 1, -1) if n not in primes] if most < _PRIMES[-1] else []
        beyond = [p for p in _PRIMES if p > most]
        free = [n for n in (*reversed(primes), *others, *beyond) if n not in used]
        for point, value in zip(points, free[:count], strict=True):
            point[symbol.name] = value
        used.update(free[:count])
    return points


def dynamic_model(
    domain: Domain, prepare: Callable[[Mapping[str, int]], Prepared], calls_of: Callable[[Any], tvm.IRModule]
) -> DynamicModel:
    """Import a model at the points, and generalise.

    Args:
        prepare: the model at one instance.
        calls_of: its module as calls of PrimFuncs (`pipeline.TO_CALLS`).

    Raises:
        UnsupportedOpsError: instances differ by more than extents.
    """
    points = sample_points(domain)
    greatest = prepare(domain.greatest)
    constants = _constants(greatest)
    instances = [_instance(greatest, calls_of)]
    for point in points:
        prepared = prepare(point)
        instances.append(_instance(prepared, calls_of))
        _check_constants(constants, _constants(prepared), point)
    points = [domain.greatest, *points]
    first = instances[0]
    for instance, point in zip(instances, points, strict=True):
        if instance.names != first.names or len(instance.calls) != len(first.calls):
            raise UnsupportedOpsError(
                f"The model has other subgraphs at {_said(point)} than at {_said(points[0])}: it cannot be compiled for "
                "many shapes at once; give every dimension a value with --shape."
            )
    workloads = {}
    for name in first.names:
        found = dynamic_workload([instance.workloads[name] for instance in instances], points)
        if isinstance(found, NotApplicable):
            raise UnsupportedOpsError(
                f"The subgraph {name} cannot be compiled for many shapes at once: {found.reason}."
            )
        workloads[name] = found
    return DynamicModel(domain, greatest, workloads, {})


def _instance(prepared: Prepared, calls_of: Callable[[Any], tvm.IRModule]) -> _Instance:
    names = tuple(subgraph.name for subgraph in prepared.subgraphs)
    workloads = {subgraph.name: subgraph.workload for subgraph in prepared.subgraphs}
    return _Instance(names, workloads, ())


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
