"""A grouped convolution on a GPU: the products of `algorithms.grouped`, scheduled as any other batch of products."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from subtune.backends.algorithms.grouped import Merged, merged
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.mma.schedule import MmaKnobs
from subtune.backends.cuda.families.mma.schedule import schedule as of_mma
from subtune.backends.cuda.families.simt.schedule import schedule as of_simt
from subtune.backends.cuda.model.core_tiles import SimtTile
from subtune.core.kernel import Kernel, NotApplicable


@dataclass(frozen=True, slots=True)
class MmaGroups(MmaKnobs):
    """`merge` groups are one product, of `depth` channels with zeros behind them, where it is not 0."""

    merge: int = 1
    depth: int = 0


@dataclass(frozen=True, slots=True)
class SimtGroups(SimtTile):
    """`merge` groups are one product."""

    merge: int = 1


def schedule_mma(problem: Problem[CUDAModel], knobs: MmaGroups) -> Kernel | NotApplicable:
    product = merged(problem.workload, knobs.merge, knobs.depth)
    if isinstance(product, NotApplicable):
        return product
    tile = MmaKnobs(**{field.name: getattr(knobs, field.name) for field in fields(MmaKnobs)})
    return _packed(product, of_mma(replace(problem, workload=product.workload), tile))


def schedule_simt(problem: Problem[CUDAModel], knobs: SimtGroups) -> Kernel | NotApplicable:
    product = merged(problem.workload, knobs.merge)
    if isinstance(product, NotApplicable):
        return product
    tile = SimtTile(**{field.name: getattr(knobs, field.name) for field in fields(SimtTile)})
    return _packed(product, of_simt(replace(problem, workload=product.workload), tile))


def _packed(product: Merged, kernel: Kernel | NotApplicable) -> Kernel | NotApplicable:
    """The products' kernel as the convolution's, its weights made block-diagonal."""
    if isinstance(kernel, NotApplicable):
        return kernel
    if kernel.packings:
        return NotApplicable("weights that are packed twice")
    packings = ((product.param, product.diagonal),) if product.diagonal is not None else ()
    return Kernel(kernel.func, packings)
