"""A product whose rows are normalised, in one kernel: `wgmma`'s, whose tiles are as wide as the result.

What a norm adds up over a row is added up in registers (`store`). The product is neither written nor read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.schedule import Product, product_of
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma_normed.store import NormedStore, normed_store
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.normed import Normed


@dataclass(frozen=True, slots=True)
class NormedKnobs:
    """Of a `Tiling`: `rows` of a tile, which has all columns."""

    rows: int
    stages: int
    consumers: int

    def tiling(self, columns: int) -> Tiling:
        """Of a result with so many columns."""
        return Tiling((self.rows,), columns, self.stages, self.consumers)


def schedule(problem: Problem[CUDAModel], knobs: NormedKnobs) -> Kernel | NotApplicable:
    found = normed_product(problem, knobs)
    if isinstance(found, NotApplicable):
        return found
    product, store, buffers = found
    return product.kernel(tuple(buffers.values()), store)


def normed_product(
    problem: Problem[CUDAModel], knobs: NormedKnobs
) -> tuple[Product, NormedStore, dict[Any, Any]] | NotApplicable:
    """The product, how its rows are stored, and the kernel's buffers for the workload's parameters."""
    pattern = problem.pattern
    if not isinstance(pattern, Normed):
        return NotApplicable("no norm of a product's rows")
    params = pattern.params
    product = product_of(problem, pattern.front, knobs.tiling(pattern.columns))
    if isinstance(product, NotApplicable):
        return product
    *inputs, _ = product.buffers.values()  # the front's are the workload's own, and its result
    buffers = dict(zip(params[: len(inputs)], inputs, strict=True))
    for param in params[len(inputs) :]:
        shape = tuple(int(d) for d in param.shape)
        buffers[param] = T.buffer(shape, str(param.dtype), align=16, buffer_name=param.name)
    between = next((buffers[p] for p in params[len(inputs) :] if not p.same_as(pattern.out)), None)
    store = normed_store(product.store, pattern, buffers, between)
    return store if isinstance(store, NotApplicable) else (product, store, buffers)
