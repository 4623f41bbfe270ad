"""Recurrent layers as kernels: all steps in one where its blocks are on the device at once, else one for every step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from tvm import tirx

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.operators.kernels import NOTHING, Written, span, written
from subtune.backends.cuda.operators.recurrent_layer import Layer, packed
from subtune.backends.cuda.operators.recurrent_many import many_sequences
from subtune.backends.cuda.operators.recurrent_source import RECURRENT
from subtune.backends.cuda.source.calls import called
from subtune.backends.cuda.source.emit import Code, const
from subtune.core.recurrence import GATES, STATES
from subtune.core.workload import dtype_bits

_WARPS = (8, 4, 2, 1)
_SUMS = 32  # of a warp: one for every lane
_MAX_SHARED = 32 << 10  # bytes of hidden states: several blocks share a multiprocessor
_HELD = 128  # registers of a thread that may hold weights: beside them it needs up to 120
_REGISTERS = 255


@dataclass(frozen=True, slots=True)
class Plan:
    """How a step is divided: `pack` weights of a lane at a time, `batch` sequences, blocks of a direction.

    `is_whole`: all steps are one kernel, whose blocks wait for one another.
    """

    warps: int
    pack: int
    chunks: int
    batch: int
    blocks: int
    is_whole: bool


def plan_of(layer: Layer, device: CUDAModel) -> Plan:
    """A unit for every warp. All steps in one kernel where its weights fit registers, and every multiprocessor has one
    block at most; else fewer warps to a block where multiprocessors would stay without one.
    """
    (steps, directions, batch, hidden), dtype = layer.y
    nbytes = dtype_bits(dtype) // 8
    pack = packed(hidden, dtype)
    chunks = ceil(hidden / (32 * pack))
    most = min(_SUMS // (1 if layer.cell == "RNN" else 4), max(1, _MAX_SHARED // (chunks * 32 * pack * nbytes)))
    at_once = 1
    while at_once * 2 <= most and at_once < batch:
        at_once *= 2
    wanted = min(device.sms, directions * hidden)
    held = GATES[layer.cell] * chunks * pack * nbytes // 4
    for warps in _WARPS if held <= _HELD else ():
        blocks = ceil(hidden / warps)
        fits = warps * 32 * _REGISTERS <= device.registers_per_sm
        if steps > 1 and fits and directions * blocks <= device.sms:
            return Plan(warps, pack, chunks, at_once, blocks, True)
    warps = next(w for w in _WARPS if w == 1 or directions * ceil(hidden / w) >= wanted)
    return Plan(warps, pack, chunks, at_once, ceil(hidden / warps), False)


def recurrent_kernels(layer: Layer, device: CUDAModel) -> Written:
    """The function of the layer: its arguments, then its outputs."""
    body = many_sequences(layer, device) or partial(_steps, layer, plan_of(layer, device))
    states, first = STATES[layer.cell], layer.given[3]
    outputs = [layer.y, *[first] * states]
    return written(layer.given, outputs, lambda *buffers: body(buffers))


def _steps(layer: Layer, plan: Plan, buffers: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    (steps, directions, batch, hidden), _ = layer.y
    given = layer.addresses(buffers)
    cells = tirx.decl_buffer([const(directions * batch * hidden)], "float32", "cells")
    is_long = layer.cell == "LSTM"
    arrived = tirx.decl_buffer([const(directions)], "uint32", "arrived")
    step = tirx.const(0, "int32") if plan.is_whole else tirx.Var("step", "int32")
    code = Code()
    code.thread("blockIdx.x", directions * plan.blocks)
    code.thread("threadIdx.x", plan.warps * 32)
    nbytes = plan.batch * plan.chunks * 32 * plan.pack * dtype_bits(layer.y[1]) // 8
    shared = span(code.dynamic("uint8", nbytes))
    workspace = (*(span(cells) if is_long else NOTHING), *(span(arrived) if plan.is_whole else NOTHING))
    sizes = [const(n) for n in (steps, batch, hidden, directions, plan.blocks)]
    arguments = [
        *given.operands, *given.initial, given.lengths, *given.results, *workspace, *shared, *sizes, step,
    ]  # fmt: skip
    code.emit(called(f"subtune::recurrent<{', '.join(_parameters(layer, plan))}>", arguments, RECURRENT))
    between = [cells] if is_long else []
    if plan.is_whole:
        return [_none_arrived(arrived, directions), code.kernel()], [*between, arrived]
    loop = tirx.For(step, tirx.const(0, "int32"), tirx.const(steps, "int32"), tirx.ForKind.SERIAL, code.kernel())
    return [loop], between


def _none_arrived(arrived: Any, directions: int) -> Any:
    code = Code()
    code.thread("blockIdx.x", 1)
    code.thread("threadIdx.x", directions)
    code.emit(called("subtune::none_arrived", span(arrived), RECURRENT))
    return code.kernel()


def _parameters(layer: Layer, plan: Plan) -> list[str]:
    """Of the C++ template."""
    numbers = (plan.warps, 1, plan.chunks, plan.pack, plan.batch)
    return [*layer.parameters, *map(str, numbers), *[str(plan.is_whole).lower()] * 2]
