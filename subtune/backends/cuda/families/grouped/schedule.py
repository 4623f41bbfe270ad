"""A grouped convolution on a GPU: the products of `algorithms.grouped`, scheduled as any other batch of products."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from subtune.backends.algorithms.grouped import merged
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.mma.schedule import MmaKnobs
from subtune.backends.cuda.families.mma.schedule import schedule as of_mma
from subtune.backends.cuda.families.simt.schedule import schedule as of_simt
from subtune.backends.cuda.model.core_tiles import SimtTile
from subtune.core.kernel import Kernel, NotApplicable


@dataclass(frozen=True, slots=True)
class MmaGroups(MmaKnobs):
    """`merge` groups are one product."""

    merge: int = 1


@dataclass(frozen=True, slots=True)
class SimtGroups(SimtTile):
    """`merge` groups are one product."""

    merge: int = 1


def schedule_mma(problem: Problem[CUDAModel], knobs: MmaGroups) -> Kernel | NotApplicable:
    product = _product(problem, knobs.merge)
    if isinstance(product, NotApplicable):
        return product
    tile = MmaKnobs(**{field.name: getattr(knobs, field.name) for field in fields(MmaKnobs)})
    return _packed(problem, knobs.merge, of_mma(product, tile))


def schedule_simt(problem: Problem[CUDAModel], knobs: SimtGroups) -> Kernel | NotApplicable:
    product = _product(problem, knobs.merge)
    if isinstance(product, NotApplicable):
        return product
    tile = SimtTile(**{field.name: getattr(knobs, field.name) for field in fields(SimtTile)})
    return _packed(problem, knobs.merge, of_simt(product, tile))


def _product(problem: Problem[CUDAModel], merge: int) -> Problem[CUDAModel] | NotApplicable:
    found = merged(problem.workload, merge)
    return found if isinstance(found, NotApplicable) else replace(problem, workload=found.workload)


def _packed(problem: Problem[CUDAModel], merge: int, kernel: Kernel | NotApplicable) -> Kernel | NotApplicable:
    """The products' kernel as the convolution's, its weights made block-diagonal."""
    if isinstance(kernel, NotApplicable):
        return kernel
    found = merged(problem.workload, merge)
    assert not isinstance(found, NotApplicable)
    if kernel.packings:
        return NotApplicable("weights that are packed twice")
    packings = ((found.param, found.diagonal),) if found.diagonal is not None else ()
    return Kernel(kernel.func, packings)
