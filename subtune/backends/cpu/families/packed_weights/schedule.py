"""The loops: threads share panels of columns, each of which reads its weights once, from the first block to the last.

scaled[m, k] = x[m, k] * 2^-p                            (p: where the field of weight k lies in its word)
sums[m, b] = sum of x[m, k] over block b                  (where blocks have zero points)
for panel (parallel):
  for block b:
    part[m, n] = 0
    for word of the block:  for field, vector of the panel, row m (unrolled):  part += scaled * float(field)
    total[m, n] += (part + (middle - zero[n, b]) * sums[m, b]) * scale[n, b]
  epilogue

That is `floats`. In `digits`, where x becomes integers, a part has three numbers, and a word two fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.backends.cpu.families.packed_weights import digits, floats
from subtune.backends.cpu.families.packed_weights.candidates import (
    Knobs,
    accepts,
    digits_obstacle,
    dot_of,
    has_nibble_table,
    rows_of_digits,
)
from subtune.backends.cpu.families.packed_weights.form import PART, Anchor, Form
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.loops.prefetch import L1, MicroKernel, ask, before_steps
from subtune.backends.cpu.math.byte_ops import with_byte_dot
from subtune.backends.cpu.math.nibble_ops import with_nibble_table
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.packed_product import packed_product
from subtune.patterns.stages import Stages, anchored
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.statements import integer
from subtune.tir.tile import vectorize_tile

_AHEAD_BYTES = 4096
_LINE = 16
"""Elements of 32 bits in 64 bytes."""


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    if why := accepts(problem):
        return NotApplicable(why)
    found = anchored(problem.workload, packed_product)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if stages.producers:
        return NotApplicable("x is computed for all products before the first")
    if knobs.digits and (why := digits_obstacle(info, knobs.vectors, problem)):
        return NotApplicable(why)
    lanes = problem.device.lanes()
    is_looked_up = not knobs.digits and has_nibble_table(info, problem.device)
    at_once = rows_of_digits(info, knobs.vectors, problem.device) if knobs.digits else info.rows
    if knobs.ahead and at_once < info.rows:
        return NotApplicable("rows in groups read weights again: nothing to ask for")
    form = Form(info, knobs.vectors * lanes, is_looked_up, knobs.digits, at_once)
    try:
        func = _rewritten(sch, stages, form)
        func = _scheduled(func, sch.get(stages.anchors[0]).name_hint, form, lanes, knobs.serial)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    func = _asking(func, form) if knobs.ahead else func
    if is_looked_up:
        func = with_nibble_table(func, form.point)
    dot = dot_of(problem.device)
    return Kernel(with_byte_dot(func, dot) if knobs.digits and dot else func, form.packings)


def _rewritten(sch: Schedule, stages: Stages, form: Form) -> PrimFunc:
    """The workload with its anchor in words, on packed parameters."""
    func = sch.mod["main"]
    nests, name = root_stages(func), sch.get(stages.anchors[0]).name_hint
    at = next(i for i, one in enumerate(nests) if stage_block(one).name_hint == name)
    block = stage_block(nests[at])
    anchor, result = Anchor(block, form), block.body.buffer
    writer = digits.Digits(anchor, form) if form.is_of_digits else floats.Floats(anchor, form)
    after = [_reading(stage_block(one), result, anchor.total) for one in nests[at + 1 :]]
    if any(param.same_as(result) for param in func.params):
        after.insert(0, anchor.copied(result))
    kept = [one for one in func.body.block.alloc_buffers if not one.same_as(result)]
    buffers = [*kept, *writer.buffers, anchor.total]
    params = [anchor.packed.get(i, param) for i, param in enumerate(func.params)]
    return with_stages(func, [*nests[:at], *writer.stages(), *after], buffers, params)


def _reading(block: Any, source: Any, by: Any) -> Any:
    """The stage of `block` with `by` read in place of `source`."""

    def follow(one: ir.TensorLoad) -> Any:
        return tirx.BufferLoad(by, list(one.indices)) if one.source.same_as(source) else one

    body = tvm_ffi.structural_map(block.body, (ir.TensorLoad, follow))
    return nest(block.name_hint, block.iter_vars, {}, body, block.init)


def _scheduled(func: PrimFunc, name: str, form: Form, lanes: int, is_serial: bool) -> PrimFunc:
    sch = Schedule(func)
    outputs = sch.get_consumers(sch.get_sblock(name))
    total, part = sch.get_sblock(name), sch.get_sblock(PART)
    *rows, n, block = sch.get_loops(total)
    no, nv, ni = sch.split(n, [None, form.panel // lanes, lanes])
    groups = []
    if form.at_once < form.info.rows:
        group, row = sch.split(sch.fuse(*rows), [None, form.at_once])
        groups, rows = [group], [row]
    sch.reorder(no, block, *groups, *rows, nv, ni)
    sch.set_scope(total, 0, "local")
    for output in outputs:
        sch.reverse_compute_at(output, no)
    sch.compute_at(part, [block, *groups][-1], preserve_unit_loops=True)
    sch.set_scope(part, 0, "local")
    *inner, columns, _, word, field = sch.get_loops(part)[2 + len(groups) :]
    pv, pi = sch.split(columns, [None, lanes])
    sch.reorder(word, field, pv, *inner, pi)
    for loop in (field, pv, *inner, nv, *rows):
        sch.unroll(loop)
    for loop in (pi, ni):
        sch.vectorize(loop)
    if not is_serial:
        sch.parallel(no)
    for output in outputs:
        vectorize_tile(sch, output, 1, lanes)
    sch.decompose_reduction(part, word)
    sch.decompose_reduction(total, block)
    (digits if form.is_of_digits else floats).place_x(sch, form, lanes)
    return sch.mod["main"]


def _asking(func: PrimFunc, form: Form) -> PrimFunc:
    """`func` asking ahead for what it reads once."""
    info = form.info
    words, scale = func.params[info.packed], func.params[info.scale]
    rows_ahead = ceil(_AHEAD_BYTES / (4 * form.panel))
    lines = range(0, form.panel, _LINE)

    def of_words(loops: Sequence[Any], step: Any) -> list[Any]:
        panel, block, word = (loop.loop_var for loop in loops)
        return [ask(words, [panel, block, word + rows_ahead, integer(line)], L1) for line in lines]

    def of_scale(loops: Sequence[Any], step: Any) -> list[Any]:
        panel, block = (loop.loop_var for loop in loops)
        return [ask(scale, [panel, block + rows_ahead, integer(line)], L1) for line in lines]

    func = before_steps(func, MicroKernel(f"{PART}_update", 2, 0, 1), of_words)
    return before_steps(func, MicroKernel(f"{PART}_update", 1, 0, 1), of_scale) if info.blocks > 1 else func
