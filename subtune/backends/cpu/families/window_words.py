"""Depthwise convolutions of bytes: four taps of a row beside one another are a word, multiplied by one instruction.

    acc[c] += x[h, w + 4 q + i, c] * w[kh, 4 q + i, c]        i < 4
->  acc[c] = dot(acc[c], word of x[h, w + 4 q ..., c], words of w[kh, q, c])

The loops are those of `window`, over words of the window's last axis. A window whose rows are no whole words has zeros
behind its weights; what is multiplied by those is its last tap once more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.backends.base import Family
from subtune.backends.cpu.families.window import Knobs, permutation, placed, tilings
from subtune.backends.cpu.family import SERIAL, STREAMED, CPUProblem
from subtune.backends.cpu.math import byte_columns, byte_ops
from subtune.backends.cpu.math.bf16_ops import DOT_LANES
from subtune.backends.cpu.math.byte_dots import byte_dot
from subtune.backends.cpu.math.words import BYTES, WordPacking, axes_in_words, constant_words, iter_vars_in_words, sides
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.patterns.stages import Stages, anchored, classify
from subtune.patterns.window import Window, window
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import variables
from subtune.tir.prepack import split_prepack
from subtune.tir.substitute import substitute

_FEATURE = "avx512vnni"
_WORD_COST = 2.0
"""Of a word, in units of what a vector of float32 costs: four loads, three of them into their places, a permutation."""


def accepts(problem: CPUProblem) -> str:
    return _obstacle(problem.pattern, problem)


def _obstacle(anchor: Any, problem: CPUProblem) -> str:
    if not isinstance(anchor, Window) or anchor.acc_dtype != BYTES.acc or len(anchor.to_pack) != 1:
        return "no depthwise convolution of bytes"
    if anchor.to_pack[0].dtype != BYTES.b:
        return f"weights of {anchor.to_pack[0].dtype}"
    if anchor.of_role("n")[0].extent % DOT_LANES:
        return f"channels in no whole vectors of {DOT_LANES}"
    missing = {_FEATURE, byte_columns.FEATURE} - set(problem.device.features)
    return f"the processor has no {' and no '.join(sorted(missing))}" if missing else ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    found = tilings(_in_words(problem.pattern), problem.workload, problem.device)
    return [
        Candidate.of("window_int8", knobs, seconds * _WORD_COST)
        for knobs, seconds in found
        if not knobs.ragged and not knobs.ahead
    ]


def _row_axis(info: Window) -> int:
    """The axis along which taps lie beside one another: the last one of more than one."""
    taps = info.of_role("k")
    return next((axis.index for axis in reversed(taps) if axis.extent > 1), taps[-1].index)


def _in_words(info: Window) -> Window:
    """The window with its last axis counted in words."""
    return replace(info, axes=axes_in_words(info.axes, _row_axis(info), BYTES.count))


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = anchored(problem.workload, window)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if why := _obstacle(info, problem):
        return NotApplicable(why)
    name = sch.get(stages.anchors[0]).name_hint
    rewritten = _rewritten(sch.mod["main"], name, info)
    if isinstance(rewritten, NotApplicable):
        return rewritten
    func, weights = rewritten
    try:
        return _scheduled(func, name, weights, info, problem, knobs)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _scheduled(
    func: PrimFunc, name: str, weights: str, info: Window, problem: CPUProblem, knobs: Knobs
) -> Kernel | NotApplicable:
    (operand,) = info.to_pack
    sch = Schedule(func)
    stages = classify(sch)
    if isinstance(stages, NotApplicable):
        return stages
    block = sch.get_sblock(name)
    channels, last = info.of_role("n")[0].index, _row_axis(info)
    order = tuple(sorted(range(len(operand.axes)), key=lambda dim: operand.axes[dim] == channels))
    read = [str(region.source.name) for region in sch.get(block).reads].index(weights)
    sch.transform_layout(block, ("read", read), permutation(order))
    producers = tuple(p for p in stages.producers if sch.get(p).name_hint != weights)
    words = _in_words(info)
    kernel = placed(sch, Stages(producers, (block,), stages.outputs), words, knobs, problem.device)
    if isinstance(kernel, NotApplicable):
        return kernel
    count, k_dim = BYTES.count, operand.axes.index(last)
    shape = tuple(-(-d // count) if dim == k_dim else d for dim, d in enumerate(operand.shape))
    packing = WordPacking(k_dim, count, Packing(tuple((d,) for d in shape), order))
    made = split_prepack(kernel.func, operand.param)
    dot = byte_dot(BYTES.a, (_FEATURE,), DOT_LANES)
    assert dot is not None, _FEATURE
    made = byte_columns.with_byte_columns(byte_ops.with_byte_dot(made, dot))
    return Kernel(made, ((operand.param, packing),))


def _rewritten(func: PrimFunc, name: str, info: Window) -> tuple[PrimFunc, str] | NotApplicable:
    """`func` with its anchor `name` over words, and the name of the block that makes the weights' words."""
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == name)
    anchor = stage_block(stages[at])
    channels, last = info.of_role("n")[0].index, _row_axis(info)
    factors = sides(anchor, anchor.iter_vars[channels].var, BYTES)
    if isinstance(factors, NotApplicable):
        return factors
    data, weight = factors
    if not isinstance(data, ir.TensorLoad) or not isinstance(weight, ir.TensorLoad):
        return NotApplicable("something is computed on the way to the product")
    (operand,) = info.to_pack
    extent, count = info.axes[last].extent, BYTES.count
    tap, var = anchor.iter_vars[last].var, tirx.Var("vq", "int64")
    k_dim = operand.axes.index(last)
    if any(tap in variables(index) for dim, index in enumerate(weight.indices) if dim != k_dim):
        return NotApplicable("the weights' rows are not indexed by their axis alone")

    def tapped(i: int) -> Any:
        place = var * tirx.const(count, "int64") + tirx.const(i, "int64")
        if extent % count and i >= extent % count:
            place = tirx.min(place, tirx.const(extent - 1, "int64"))
        return tirx.BufferLoad(data.source, [substitute(index, {tap: place}) for index in data.indices])

    b_buffer, b_stage = constant_words(weight, k_dim, BYTES, extent)
    b_value = tirx.BufferLoad(b_buffer, [var if dim == k_dim else i for dim, i in enumerate(weight.indices)])
    store = anchor.body
    acc = tirx.BufferLoad(store.buffer, list(store.indices))
    word = byte_columns.byte_columns(*(tapped(i) for i in range(count)))
    body = tirx.BufferStore(store.buffer, BYTES.dot(acc, word, b_value), list(store.indices))
    rewritten = nest(name, iter_vars_in_words(anchor, last, -(-extent // count), var), {}, body, anchor.init)
    new = [*stages[:at], b_stage, rewritten, *stages[at + 1 :]]
    return with_stages(func, new, [*func.body.block.alloc_buffers, b_buffer]), str(b_buffer.name)


FAMILY = Family("window_int8", 1, Knobs, accepts, candidates, schedule, (SERIAL, STREAMED))
