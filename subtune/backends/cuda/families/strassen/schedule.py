"""Strassen's matrix product on CUDA cores, float32: seven products of blocks where the definition has eight.

    V   for every product its sum of blocks of A:  [7^levels, rows / s, k / s];   U  of B, as it lies in memory
    M   7^levels products, one batched GEMM (`simt`)
    out = epilogue(every block of C as its sum of products)

Four kernels, one after another; the transforms move bytes and little else. Blocks are the halves (quarters, ...) of the
rows, columns and k: s = 2^levels of each. V, U and M are taken from memory while they run. The rounding error grows by
a small factor (see `templates.strassen`), so `--exact` forbids it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import ir, te, tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.algorithms.strassen import (
    block_products,
    dense_obstacle,
    finished,
    is_written_in_order,
    signed_sum,
    terms,
    unfold,
)
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.simt.schedule import schedule as multiply
from subtune.backends.cuda.model.core_tiles import VECTOR, SimtTile
from subtune.backends.cuda.source.emit import const
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored
from subtune.tir.blocks import nest, root_stages, with_stages
from subtune.tir.choices import choose, fold_choices
from subtune.tir.substitute import substitute

_THREADS = 256
_V, _U, _OUT = "strassen_v", "strassen_u", "strassen_out"


@dataclass(frozen=True, slots=True)
class StrassenKnobs:
    """`levels` of the algorithm, and the tile of its products."""

    levels: int
    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int
    copy: str
    raster: int = 1

    @property
    def tile(self) -> SimtTile:
        return SimtTile(*(getattr(self, name) for name in SimtTile.__slots__))


def schedule(problem: Problem[CUDAModel], knobs: StrassenKnobs) -> Kernel | NotApplicable:
    if problem.numerics.exact:
        return NotApplicable("Strassen's algorithm rounds otherwise than the model says")
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    levels = knobs.levels
    if reason := dense_obstacle(info, levels, VECTOR):
        return NotApplicable(reason)
    if stages.producers or not is_written_in_order(sch, stages):
        return NotApplicable("an operand is computed before it is read, or the output not written in order")
    rows, k = (prod(axis.extent for axis in info.of_role(role)) for role in ("m", "k"))
    product = block_products(levels, rows, info.n.extent, k, info.b.axes[-1] == info.n.index)
    multiplied = multiply(replace(problem, workload=product), knobs.tile)
    if isinstance(multiplied, NotApplicable):
        return multiplied
    whole = Schedule(_whole(sch, stages, info, levels, multiplied.func))
    try:
        for name in (_V, _U, _OUT):
            _bind(whole, name)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    return Kernel(fold_choices(whole.mod["main"], (_V, _U, _OUT)))


def _whole(sch: Schedule, stages: Stages, info: Contraction, levels: int, product: Any) -> Any:
    """The workload as four stages, that of the products scheduled."""
    func = sch.mod["main"]
    anchor = sch.get(stages.anchors[0])
    v, u, m = product.params
    sums = root_stages(_sums(func.params[info.a.param], func.params[info.b.param], info, levels, v, u))
    root = product.body.block
    inner = root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]
    output = sch.get(stages.outputs[0]) if stages.outputs else anchor
    last = _output(output, anchor.writes[0].source, m, info, levels)
    return with_stages(func, [*sums, *inner, last], [v, u, m, *root.alloc_buffers])


def _sums(a: Any, b: Any, info: Contraction, levels: int, v: Any, u: Any) -> Any:
    """A PrimFunc of the two stages that add up blocks of A and of B."""
    table, m_axes = terms(levels), info.of_role("m")
    data = te.placeholder(list(a.shape), "float32", name="data")
    weights = te.placeholder(list(b.shape), "float32", name="weights")
    _, rows, depth = v.shape
    _, *of_b = u.shape
    is_nn = info.b.axes[-1] == info.n.index

    def sum_a(row: Any, r: Any, c: Any) -> Any:
        return signed_sum([(sign, data[(*unfold(r + i * rows, m_axes), c + j * depth)]) for (i, j), sign in row])

    def sum_b(row: Any, r: Any, c: Any) -> Any:
        places = [((i, j) if is_nn else (j, i), sign) for (i, j), sign in row]
        return signed_sum([(sign, weights[r + i * of_b[0], c + j * of_b[1]]) for (i, j), sign in places])

    def stage(name: str, shape: Any, rows_of: Any, total: Any) -> Any:
        return te.compute(
            list(shape), lambda p, r, c: choose((p,), [((q,), total(row, r, c)) for q, row in enumerate(rows_of)]), name
        )

    func = te.create_prim_func([data, weights, stage(_V, v.shape, table.a, sum_a), stage(_U, u.shape, table.b, sum_b)])
    return func.with_body(substitute(func.body, dict(zip(func.params, (a, b, v, u), strict=True))))


def _output(block: Any, result: Any, m: Any, info: Contraction, levels: int) -> Any:
    """The epilogue, or the bare result, block by block of C; what it takes of the anchor is a sum of products."""
    s, m_axes = 2**levels, info.of_role("m")
    _, rows, columns = m.shape
    x, z, r, c = (tirx.Var(name, "int64") for name in "xzrc")
    spatial = [iv.var for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
    position = dict(zip(spatial, [*unfold(x * rows + r, m_axes), z * columns + c], strict=True))
    totals = {
        (i, j): signed_sum([(sign, tirx.BufferLoad(m, [const(p), r, c])) for p, sign in terms(levels).c[i][j]])
        for i in range(s)
        for j in range(s)
    }
    value = choose((x, z), [(place, finished(block, result, total, position)) for place, total in totals.items()])
    iter_vars = [
        tirx.IterVar(ir.Range(const(0), const(int(extent))), var, tirx.IterVar.DataPar)
        for var, extent in zip((x, z, r, c), (s, s, rows, columns), strict=True)
    ]
    indices = [substitute(index, position) for index in block.body.indices]
    return nest(_OUT, iter_vars, {}, tirx.BufferStore(block.body.buffer, value, indices), None)


def _bind(sch: Schedule, name: str) -> None:
    """A thread has a vector of columns of all the blocks: their loops, the outer ones, are unrolled."""
    *blocks, row, column = sch.get_loops(sch.get_sblock(name))
    across, lane = sch.split(column, [None, VECTOR])
    sch.reorder(row, across, *blocks, lane)
    grid, thread = sch.split(sch.fuse(row, across), [None, _THREADS])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    for loop in blocks:
        sch.unroll(loop)
    sch.vectorize(lane)
