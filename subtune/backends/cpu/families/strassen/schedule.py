"""Strassen's matrix product: seven products of blocks where the definition has eight.

    V   for every product its sum of blocks of A:  [rows / s, 7^levels, k / s]
    G   the products, as one GEMM each on packed sums of blocks of B:  [rows / s, 7^levels, n / s]
    Y   every block of C as its sum of products, and the epilogue on it, before the store

    order "n":  V (parallel over rows);  for n tile (parallel):  for product:  for m tile:  micro-kernel;  then Y
    order "tn": for thread (parallel):  V;  for n tile of its own:  for product:  for m tile:  micro-kernel;  then Y
    order "m":  for rows (parallel):  V;  for n tile:  for product:  for m tile:  micro-kernel;  then Y
    order "tm": as "m", every thread's share of the rows

The blocks of A are its rows by their remainder (row i of block x is row `s i + x`) and the halves of k; those of C its
rows likewise and every second vector of columns, so that a tile of Y is contiguous in all of them. The sums of blocks
of B are made once, at compile time. The rounding error grows by a small factor (relative to the largest element of C,
measured for k = 768: 1.5e-6 against 6e-7), so `--exact` forbids it.
Sources: Strassen, "Gaussian Elimination is not Optimal", 1969; Huang et al., "Strassen's Algorithm Reloaded" (SC'16),
for sums inside the packing and the micro-kernel's neighbourhood; error: Higham, "Accuracy and Stability", 23.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, te, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.backends.algorithms.strassen import PRODUCTS, finished, is_written_in_order, signed_sum, terms, unfold
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.strassen.candidates import Knobs, obstacle, padded_rows
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.loops.prefetch import MicroKernel, prefetch_panels
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.axes import Axis
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.choices import choose, fold_choices
from subtune.tir.expressions import loads
from subtune.tir.substitute import substitute
from subtune.tir.tile import place_in_registers

_OUT = "strassen_out"


@dataclass(frozen=True, slots=True)
class StrassenWeights:
    """Constant B as sums of blocks, in panels of `width` columns: `[n / s / width * 7^levels, taps..., k / s, width]`.

    `order` brings B's dims to `[taps..., k, n]`; `lanes` columns go to one block, the next `lanes` to the next. With
    `is_by_product` all panels of a product lie together, otherwise all products of a panel.
    """

    levels: int
    width: int
    lanes: int
    order: tuple[int, ...]
    extents: tuple[int, ...]
    """Of B's dims in that order."""
    is_by_product: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        *taps, k, n = self.extents
        s = 2**self.levels
        return (n // s // self.width * PRODUCTS**self.levels, *taps, k // s, self.width)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        *taps, k, n = self.extents
        s, products = 2**self.levels, PRODUCTS**self.levels
        panels, vectors, t = n // s // self.width, self.width // self.lanes, prod(taps)
        b = array.transpose(self.order).reshape(t, s, k // s, panels, vectors, s, self.lanes)
        out = np.empty((products, panels, t, k // s, vectors, self.lanes), np.float32)
        out = out if self.is_by_product else out.reshape(panels, products, *out.shape[2:]).swapaxes(0, 1)
        for p, row in enumerate(terms(self.levels).b):
            total = sum(sign * b[:, i, :, :, :, j].astype(np.float64) for (i, j), sign in row)
            out[p] = total.transpose(2, 0, 1, 3, 4)  # type: ignore[union-attr]
        out = out if self.is_by_product else out.swapaxes(0, 1)
        return out.reshape(self.shape)


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    levels, mr, nr, mb = knobs.levels, knobs.mr, knobs.nr, knobs.mb
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    lanes, s = problem.device.lanes(), 2**levels
    if reason := obstacle(info, problem, levels):
        return NotApplicable(reason)
    if nr % lanes or info.n.extent % (nr * s):
        return NotApplicable(f"{info.n.extent} columns are no multiple of {s} blocks of nr={nr}, vectors of {lanes}")
    if mb % mr or mr == 1:
        return NotApplicable(f"mb={mb} is no multiple of mr={mr}, or that not above 1")
    if knobs.order == "tn" and info.n.extent // s // nr % problem.device.threads:
        return NotApplicable(f"{info.n.extent // s // nr} tiles of columns are not shared out evenly")
    height = prod(axis.extent for axis in info.of_role("m"))
    rows = padded_rows(height, levels, mb)
    if not is_written_in_order(sch, stages):
        return NotApplicable("the output is not written in the anchor's order")
    pads = tuple(sch.get(pad).name_hint for pad in stages.producers)
    order, extents = _b_order(info)
    weights = StrassenWeights(levels, knobs.panel or nr, lanes, order, extents, bool(knobs.panel))
    func = _rewrite(sch, stages, info, weights, rows, knobs.rows or height)
    rewritten = Schedule(func)
    try:
        _schedule(rewritten, pads, knobs, problem.device)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    scheduled = fold_choices(rewritten.mod["main"], ("strassen_v", "strassen_y"))
    if knobs.prefetch:
        depth = 3 if knobs.order == "n" else 4
        ahead = info.n.extent // s // knobs.panel if knobs.panel else 1  # the next product's
        kernel = MicroKernel(
            "strassen_g_update", depth, 1, len(_reduced(info)), knobs.passes, nr // weights.width, ahead
        )
        scheduled = prefetch_panels(scheduled, scheduled.params[info.b.param], kernel)
    return Kernel(scheduled, ((info.b.param, weights),))


def _b_order(info: Contraction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims of B as [taps..., k, n], and their extents."""
    dims = tuple(info.b.axes.index(axis.index) for axis in (*info.of_role("k"), info.n))
    return dims, (*(axis.extent for axis in _reduced(info)), info.n.extent)


def _reduced(info: Contraction) -> tuple[Axis, ...]:
    """The k axes without those of one element, but with the last one."""
    *taps, last = info.of_role("k")
    return (*(axis for axis in taps if axis.extent > 1), last)


def _dims(*extents: int) -> list[Any]:
    return [_int(extent) for extent in extents]


def _rewrite(sch: Schedule, stages: Stages, info: Contraction, weights: StrassenWeights, rows: int, given: int) -> Any:
    """The workload with its contraction computed by Strassen's algorithm, its weights already summed.

    Args:
        rows: of a block of A.
        given: rows of A that count.
    """
    lanes, width = weights.lanes, weights.width
    s, products = 2**weights.levels, PRODUCTS**weights.levels
    table = terms(weights.levels)
    func = sch.mod["main"]
    anchor = sch.get(stages.anchors[0])
    source = anchor.reads[info.a.read].source
    m_axes, k_axes = info.of_role("m"), _reduced(info)
    n = info.n.extent
    depth = k_axes[-1].extent // s
    taps = [axis.extent for axis in k_axes[:-1]]
    (load,) = (found for found in loads(anchor.body.value) if found.source.same_as(source))

    data = te.placeholder([_int(d) for d in source.shape], str(source.dtype), name="data")
    u = te.placeholder(_dims(*weights.shape), "float32", name="u")

    def a(row: Any, tap: tuple[Any, ...], k: Any) -> Any:
        position = {axis.index: _int(0) for axis in info.of_role("k")}
        position |= {axis.index: v for axis, v in zip(m_axes, unfold(row, m_axes), strict=True)}
        position |= {axis.index: v for axis, v in zip(k_axes, (*tap, k), strict=True)}
        values = {anchor.iter_vars[index].var: v for index, v in position.items()}
        return data[tuple(substitute(index, values) for index in load.indices)]

    def v_of(m: Any, p: Any, *position: Any) -> Any:
        *tap, k = position
        sums = [
            signed_sum([(sign, a(_clamp(m * s + i, given), tuple(tap), k + j * depth)) for (i, j), sign in row])
            for row in table.a
        ]
        return choose((p,), [((q,), total) for q, total in enumerate(sums)])

    v = te.compute(_dims(rows, products, *taps, depth), v_of, name="strassen_v")

    def panel_of(p: Any, o: Any) -> Any:
        return p * (n // s // width) + o // width if weights.is_by_product else o // width * products + p

    reduced = [te.reduce_axis((_dims(0)[0], _dims(extent)[0]), f"k{i}") for i, extent in enumerate([*taps, depth])]
    g = te.compute(
        _dims(rows, products, n // s),
        lambda m, p, o: te.sum(v[(m, p, *reduced)] * u[(panel_of(p, o), *reduced, o % width)], axis=reduced),
        name="strassen_g",
    )
    blocks = [(i, j) for i in range(s) for j in range(s)]

    def y_of(x: Any, z: Any, m: Any, o: Any, lane: Any) -> Any:
        values = [
            ((i, j), signed_sum([(sign, g[m, p, o * lanes + lane]) for p, sign in table.c[i][j]])) for i, j in blocks
        ]
        return choose((x, z), values)

    y = te.compute(_dims(s, s, rows, n // s // lanes, lanes), y_of, name="strassen_y")

    inner = te.create_prim_func([data, u, y])
    return _graft(func, inner, sch, stages, info, source, given)


def _int(dim: Any) -> Any:
    return tirx.const(int(dim), "int64")


def _clamp(row: Any, height: int) -> Any:
    """Blocks may have more rows than A has: computed from its last one, and never read."""
    return tirx.min(row, _int(height - 1))


def _graft(
    func: PrimFunc, inner: PrimFunc, sch: Schedule, stages: Stages, info: Contraction, source: Any, given: int
) -> PrimFunc:
    """Put the stages of `inner(data, u, y)` in the anchor's place, and the output's over rows and columns last."""
    data, u, y = inner.params
    blocks = tirx.decl_buffer(y.shape, y.dtype, "strassen_y")
    root = substitute(inner.body, {data: source, y: blocks}).block
    anchor = sch.get(stages.anchors[0])
    output = sch.get(stages.outputs[0]) if stages.outputs else anchor
    replaced = {output.name_hint: [], anchor.name_hint: list(root.body.seq)}
    merged: list[Any] = []
    for stage in root_stages(func):
        merged += replaced.get(stage_block(stage).name_hint, [stage])
    merged.append(_output_stage(output, anchor.writes[0].source, blocks, info, given))
    params = list(func.params)
    params[info.b.param] = u
    buffers = [*func.body.block.alloc_buffers, *root.alloc_buffers, blocks]
    return with_stages(func, merged, buffers, params)


def _output_stage(block: Any, result: Any, y: Any, info: Contraction, given: int) -> Any:
    """The epilogue, or the bare result, over rows and columns; what it took of the anchor comes from `y`.

    Of other inputs, too, no row is read behind those that are `given`.
    """
    s, lanes = int(y.shape[0]), int(y.shape[-1])
    m_axes = info.of_role("m")
    row, column = tirx.Var("row", "int64"), tirx.Var("column", "int64")
    taken = tirx.BufferLoad(
        y, [row % s, column // lanes % s, row // s, column // (lanes * s), column % lanes]
    )  # fmt: skip
    spatial = [iv.var for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
    position = dict(zip(spatial, [*unfold(row, m_axes), column], strict=True))
    indices = [substitute(index, position) for index in block.body.indices]
    height, rows = prod(axis.extent for axis in m_axes), int(y.shape[2])
    read = row if given == height else _clamp(row, given)
    value = finished(block, result, taken, dict(zip(spatial, [*unfold(read, m_axes), column], strict=True)))
    is_padded = rows > -(-height // s)
    extents = (rows * s if is_padded else height, info.n.extent)
    iter_vars = [
        tirx.IterVar(ir.Range(_int(0), _int(extent)), var, tirx.IterVar.DataPar)
        for var, extent in zip((row, column), extents, strict=True)
    ]
    stage = nest(_OUT, iter_vars, {}, tirx.BufferStore(block.body.buffer, value, indices), None)
    return _guarded(stage, row < _int(height)) if is_padded else stage


def _guarded(stage: Any, condition: Any) -> Any:
    """`stage` that stores only where `condition` holds.

    No predicate of the block: the schedule would infer from it that less than whole tiles are needed.
    """

    def guard(realize: Any) -> Any:
        block = realize.block
        body = tirx.IfThenElse(condition, block.body, None)
        held = SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, body)
        return SBlockRealize(realize.iter_values, realize.predicate, held)

    return tvm_ffi.structural_map(stage, (SBlockRealize, guard))


def _schedule(sch: Schedule, pads: tuple[str, ...], knobs: Knobs, device: CPUModel) -> None:
    block, s, lanes = sch.get_sblock, 2**knobs.levels, device.lanes()
    mr, nr = knobs.mr, knobs.nr
    for pad in pads:
        sch.compute_inline(block(pad))
    copy = sch.cache_write(block("strassen_g"), 0, "local")

    rows, columns = sch.get_loops(block(_OUT))
    m, x = sch.split(rows, [None, s])
    panel, vector, z, lane = sch.split(columns, [None, nr // lanes, s, lanes])
    if knobs.order == "m":
        shared, m = sch.split(m, [None, knobs.mb])
    elif knobs.order == "tm":
        shared, m = sch.split(m, [device.threads, None])
    elif knobs.order == "tn":
        shared, panel = sch.split(panel, [device.threads, None])
    else:
        shared = panel
    sch.reorder(*dict.fromkeys((shared, panel)), m, vector, x, z, lane)
    sch.parallel(shared)
    sch.vectorize(lane)
    sch.unroll(x)
    sch.unroll(z)
    place_in_registers(sch, block("strassen_y"), vector)

    sch.compute_at(copy, panel)
    r, p, c = sch.get_loops(copy)[-3:]
    ro, ri = sch.split(r, [None, mr])
    cv, ci = sch.split(c, [None, lanes])
    sch.reorder(p, ro, ri, cv, ci)
    sch.vectorize(ci)
    sch.unroll(cv)
    sch.unroll(ri)
    gemm = block("strassen_g")
    sch.compute_at(gemm, ro)
    reduced = sum(int(iv.iter_type) == tirx.IterVar.CommReduce for iv in sch.get(gemm).iter_vars)
    r, c, *k = sch.get_loops(gemm)[-2 - reduced :]
    cv, ci = sch.split(c, [None, lanes])
    sch.reorder(*k, r, cv, ci)
    sch.vectorize(ci)
    sch.unroll(cv)
    sch.unroll(r)

    stage = block("strassen_v")
    if knobs.order != "n":
        sch.compute_at(stage, shared)
    m, p, *taps, depth = sch.get_loops(stage)[-2 - reduced :]
    ko, ki = sch.split(depth, [None, lanes])
    sch.reorder(m, *taps, ko, p, ki)
    sch.vectorize(ki)
    sch.unroll(p)
    if knobs.order == "n":
        sch.parallel(m)
    # rows and products an odd number of lines apart: they would share a few sets of L1 otherwise
    sch.storage_align(stage, 0, 1, 2 * lanes, lanes)
    sch.decompose_reduction(gemm, k[0])
