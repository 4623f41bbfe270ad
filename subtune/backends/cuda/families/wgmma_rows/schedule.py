"""A product with numbers of its rows, in one kernel: `wgmma`'s, with warps that compute them (`values`, `store`)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.schedule import Product, WgmmaKnobs, product_of
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.store_copies import product_alone, with_copies
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma_rows.store import RowStore, moments_obstacle
from subtune.backends.cuda.families.wgmma_rows.values import RowValues, shared_bytes
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.row_product import RowProduct


def tiling_obstacle(pattern: RowProduct, tiling: Tiling, device: CUDAModel, stored: str, fetched: int) -> str:
    """Why rows of a tile cannot have numbers; "" where they can. `stored`, `fetched`: as of `Tiling.obstacle`."""
    is_plain = len(tiling.rows) == 1 and not tiling.swapped and not tiling.promote
    if not is_plain or max(tiling.split, tiling.boxes, tiling.taps) > 1:
        return "tiles whose rows are no neighbours, or multiplied in parts"
    own = shared_bytes(tiling, len(pattern.numbers)) if pattern.numbers else 0
    limits = device.shared_per_block_bytes - own, device.shared_per_sm_bytes - own * tiling.blocks_per_sm
    return tiling.obstacle(stored, *limits, fetched)


def schedule(problem: Problem[CUDAModel], knobs: WgmmaKnobs) -> Kernel | NotApplicable:
    found = row_kernel(product_alone(problem), knobs.tiling)
    if isinstance(found, NotApplicable):
        return found
    product, store, rows, own = found
    copied = with_copies(problem, store, own)
    if isinstance(copied, NotApplicable):
        return copied
    copies, params = copied
    return product.kernel(params, replace(store, copies=copies), rows)


def row_kernel(
    problem: Problem[CUDAModel], tiling: Tiling
) -> tuple[Product, RowStore, RowValues | None, tuple[Any, ...]] | NotApplicable:
    """The product, how its tiles are stored, what computes its rows' numbers, and the kernel's parameters."""
    pattern = problem.pattern
    if not isinstance(pattern, RowProduct):
        return NotApplicable("no product with numbers of its rows")
    product = product_of(problem, pattern.front, tiling, tuple(place for place, _ in pattern.numbers))
    if isinstance(product, NotApplicable):
        return product
    view, store = product.walk.view, product.store
    if view.batch or len(view.rows) != 1:
        return NotApplicable("rows that are no rows of a matrix")
    if why := tiling_obstacle(pattern, tiling, problem.device, store.dtype, len(store.fetched)):
        return NotApplicable(why)
    own = list(product.buffers.values())
    outputs = sum(arg.is_output for arg in problem.workload.args)
    inputs = own[: len(pattern.params) - outputs]
    moments = [T.buffer(tuple(int(d) for d in p.shape), "float32", align=16, buffer_name=p.name)
               for p in pattern.params[len(inputs) + 1 :]]  # fmt: skip
    params = (*inputs, own[-1], *moments)
    if moments and (why := moments_obstacle(store)):
        return NotApplicable(why)
    given = {f.name: getattr(store, f.name) for f in fields(Store)}
    means, squares = moments or (None, None)
    row_store = RowStore(**given, numbers=product.numbers, means=means, squares=squares)
    if not pattern.numbers:
        return product, row_store, None, params
    buffers = dict(zip(pattern.params, params, strict=True))
    return product, row_store, RowValues(pattern, product.walk, buffers), params
