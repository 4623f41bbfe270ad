"""Elementwise subgraphs on a GPU: every thread makes `unroll` runs of `lanes` neighbouring elements, 16 bytes each.

    block: threads * unroll runs;  thread: loads of all its runs, then arithmetic, then 16-byte stores

Outputs of one shape are made together. Splits, concatenations, paddings and resizings are read below conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.source.emit import Code, const, prim_func
from subtune.backends.cuda.source.lanes import Lanes, Unsupported, decoded, not_applicable
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.stages import inline
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class ElementwiseKnobs:
    """`threads` of a block, `lanes` (elements of a run), `unroll` (runs of a thread)."""

    threads: int
    lanes: int
    unroll: int


def schedule(problem: Problem[CUDAModel], knobs: ElementwiseKnobs) -> Kernel | NotApplicable:
    sch = Schedule(problem.workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if stages.anchors or stages.producers:
        return NotApplicable("not an elementwise workload")
    by_shape: dict[tuple[int, ...], list[Any]] = {}
    for output in stages.outputs:
        block = sch.get(output)
        if not isinstance(block.body, tirx.BufferStore):
            return NotApplicable("a block stores more than one value")
        if not all(isinstance(iv.dom.extent, tirx.IntImm) for iv in block.iter_vars):
            return NotApplicable("symbolic extents")
        by_shape.setdefault(tuple(int(iv.dom.extent) for iv in block.iter_vars), []).append(block)
    try:
        values = _made_from_inputs([block for blocks in by_shape.values() for block in blocks])
        exact = problem.numerics.exact
        kernels = [
            _kernel([(block, values[block.name_hint]) for block in blocks], shape, knobs, exact)
            for shape, blocks in by_shape.items()
        ]
    except (Unsupported, ScheduleError) as e:
        return not_applicable(e)
    return Kernel(prim_func(sch.mod["main"], kernels))


def _made_from_inputs(blocks: list[Any]) -> dict[str, Any]:
    """What each block stores, by its name. One output that reads another computes it again: all loads come before the
    stores.
    """
    writers = {block.body.buffer: block for block in blocks}

    def recomputed(load: ir.TensorLoad) -> Any:
        if (writer := writers.get(load.source)) is None:
            return load
        axes = dict(zip(writer.body.indices, load.indices, strict=True))
        if any(iv.var not in axes for iv in writer.iter_vars):
            raise Unsupported("an output that is read is stored at computed indices")
        value = substitute(writer.body.value, axes)
        return tvm_ffi.structural_map(value, (ir.TensorLoad, recomputed))

    return {block.name_hint: tvm_ffi.structural_map(block.body.value, (ir.TensorLoad, recomputed)) for block in blocks}


def _kernel(blocks: list[tuple[Any, Any]], shape: tuple[int, ...], knobs: ElementwiseKnobs, exact: bool) -> Any:
    total, threads, lanes, unroll = prod(shape), knobs.threads, knobs.lanes, knobs.unroll
    while total % lanes:
        lanes //= 2
    runs = total // lanes
    threads = min(threads, -(-runs // 32) * 32)
    grid = -(-runs // (threads * unroll))
    code = Code(exact)
    bx, tx = code.thread("blockIdx.x", grid), code.thread("threadIdx.x", threads)
    starts, guards = [], []
    for u in range(unroll):
        run = (bx * unroll + u) * threads + tx
        guards.append(tirx.LT(run, const(runs)) if grid * threads * unroll > runs else None)
        starts.append(code.bind("run", run, runs) * lanes)
    lane = code.variable("lane", lanes)
    work = []
    for start, guard in zip(starts, guards, strict=True):
        reader = Lanes(code, lane, lanes)
        with code.when(guard):
            for block, value in blocks:
                indices = decoded(start + lane, shape, code.analyzer)
                axes = {iv.var: index for iv, index in zip(block.iter_vars, indices, strict=True)}
                work.append((reader, guard, block.body, axes, reader.compute(value, axes)))
    for reader, guard, store, axes, value in work:
        with code.when(guard):
            reader.write(store.buffer, [axes.get(index, index) for index in store.indices], value)
    return code.kernel()
