"""Recurrent layers of many sequences: their kernels, and how a device's blocks share units and sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from tvm import tirx

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.operators.kernels import NOTHING, span
from subtune.backends.cuda.operators.recurrent_layer import Layer, packed
from subtune.backends.cuda.operators.recurrent_many_source import RECURRENT_MANY
from subtune.backends.cuda.operators.recurrent_small_source import RECURRENT_SMALL
from subtune.backends.cuda.source.calls import called
from subtune.backends.cuda.source.emit import Code, const
from subtune.core.numerics import HALVES
from subtune.core.recurrence import GATES

_FEW = {True: 4, False: 8}
"""Sequences in halves and in float32, of which one reading of the weights is most of the work."""
_OTHER_REGISTERS = 56  # of a thread that holds a row of weights
_MOST_SEQUENCES = 4  # of such a thread
_THREADS = 256
_COLUMNS = 8  # sequences of a product on tensor cores
_MOST = 4  # times 8: sequences at once
_DEPTH = 32  # of a warp's step
_SMALL_WARPS = 16  # of a block that has a whole layer
_HELD = 128  # registers of a thread that may hold weights
_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
_Buffers = tuple[Any, ...]
_Body = Callable[[_Buffers], tuple[list[Any], list[Any]]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """`core` computes a step's product. `blocks` of a direction and of a group of `share` sequences.

    `pitch`: of the states' rows. `is_whole`: all steps are one kernel, whose blocks wait for one another.
    """

    core: str
    blocks: int
    groups: int
    share: int
    pitch: int
    shared_bytes: int
    is_whole: bool


def many_sequences(layer: Layer, device: CUDAModel) -> _Body | None:
    """What gives the kernels, of the function's buffers; None for few sequences of a layer that no block has whole."""
    (_, _, batch, hidden), dtype = layer.y
    is_half = dtype in HALVES
    if device.capability < 80:
        return None
    if is_half and ceil(hidden / _units_of_warp(layer)) <= _SMALL_WARPS:
        return partial(_small, layer)
    if not is_half and _rows_fit(layer, device):
        return partial(_rows, layer, device)
    if batch <= _FEW[is_half]:
        return None
    plan = _of_halves(layer, device) if is_half else _of_floats(layer, device)
    return partial(_steps, layer, plan) if plan.shared_bytes <= device.shared_per_block_bytes else None


def _of_halves(layer: Layer, device: CUDAModel) -> _Plan:
    (steps, directions, batch, hidden), dtype = layer.y
    tiles = 1 if layer.cell == "RNN" else 2
    blocks = ceil(hidden / _units_of_warp(layer))
    groups = max(1, min(ceil(batch / _COLUMNS), device.sms // (directions * blocks)))
    share = ceil(batch / groups)
    columns, chunks = min(_MOST, ceil(share / _COLUMNS)), ceil(hidden / (_THREADS // 32 * _DEPTH))
    is_whole = steps > 1 and chunks * tiles * 8 <= _HELD and directions * blocks * groups <= device.sms
    numbers = (GATES[layer.cell], chunks, packed(hidden, dtype), columns, dtype == "bfloat16", is_whole)
    core = f"subtune::OnTensorCores<{', '.join(str(one).lower() for one in numbers)}, {_TYPES[dtype]}>"
    shared = 2 * 8 * tiles * 16 * (columns + 1) * 8 * 4
    return _Plan(core, blocks, groups, share, ceil(hidden / 8) * 8, shared, is_whole)


def _of_floats(layer: Layer, device: CUDAModel) -> _Plan:
    """A block's weights lie in shared memory, whether it computes one step or all."""
    steps, directions, batch, hidden = layer.y[0]
    blocks = ceil(hidden / (32 if layer.cell == "RNN" else 8))
    groups = max(1, min(ceil(batch / _COLUMNS), device.sms // (directions * blocks)))
    share = ceil(batch / groups / 4) * 4
    lanes = next((n for n in (2, 4) if share <= 4 * n), 8)
    is_whole = steps > 1 and directions * blocks * groups <= device.sms
    shared = 4 * (2 * 8 * 32 * (4 * lanes + 4) + 32 * hidden)
    pitch = groups * share + 4 * lanes
    core = f"subtune::OnCudaCores<{GATES[layer.cell]}, {lanes}>"
    return _Plan(core, blocks, groups, share, pitch, shared, is_whole)


def _units_of_warp(layer: Layer) -> int:
    return 16 if layer.cell == "RNN" else 8


def _rows_fit(layer: Layer, device: CUDAModel) -> bool:
    """Whether a block's threads, one for each row of the weights, hold them."""
    hidden = layer.y[0][3]
    threads = ceil(GATES[layer.cell] * hidden / 32) * 32
    needed = ceil(hidden / 4) * 4 + _OTHER_REGISTERS
    return threads <= device.max_threads_per_block and needed <= min(255, device.registers_per_sm // threads)


def _rows(layer: Layer, device: CUDAModel, buffers: _Buffers) -> tuple[list[Any], list[Any]]:
    """Of few sequences a block each, of many as few to a block as there are multiprocessors for."""
    _, directions, batch, hidden = layer.y[0]
    sequences = 1
    while sequences < _MOST_SEQUENCES and directions * ceil(batch / sequences) > device.sms:
        sequences *= 2
    rows, quads = GATES[layer.cell] * hidden, ceil(hidden / 4)
    shared_bytes = sequences * (quads * 4 + rows) * 4
    return _alone(layer, "rows", (quads, sequences), sequences, ceil(rows / 32), shared_bytes, buffers)


def _small(layer: Layer, buffers: _Buffers) -> tuple[list[Any], list[Any]]:
    hidden, dtype = layer.y[0][-1], layer.y[1]
    chunks, warps = ceil(hidden / _DEPTH), ceil(hidden / _units_of_warp(layer))
    numbers = (chunks, packed(hidden, dtype), str(dtype == "bfloat16").lower())
    shared_bytes = 2 * _COLUMNS * (chunks + 1 - chunks % 2) * _DEPTH * 2
    return _alone(layer, "small", numbers, _COLUMNS, warps, shared_bytes, buffers)


def _alone(
    layer: Layer, name: str, numbers: _Buffers, sequences: int, warps: int, shared_bytes: int, buffers: _Buffers
) -> tuple[list[Any], list[Any]]:
    """One kernel, without anything between its steps; `numbers` of its template, `sequences` of a block."""
    steps, directions, batch, hidden = layer.y[0]
    given, groups, code = layer.addresses(buffers), ceil(batch / sequences), Code()
    code.thread("blockIdx.x", directions * groups)
    code.thread("threadIdx.x", warps * 32)
    shared = span(code.dynamic("uint8", shared_bytes))
    sizes = [const(n) for n in (steps, batch, hidden, directions, groups)]
    function = f"subtune::recurrent_{name}<{', '.join([*layer.parameters, *map(str, numbers)])}>"
    arguments = [*given.operands, *given.initial, given.lengths, *given.results, *shared, *sizes]
    code.emit(called(function, arguments, RECURRENT_SMALL))
    return [code.kernel()], []


def _steps(layer: Layer, plan: _Plan, buffers: _Buffers) -> tuple[list[Any], list[Any]]:
    (steps, directions, batch, hidden), dtype = layer.y
    given = layer.addresses(buffers)
    is_long, is_float = layer.cell == "LSTM", dtype == "float32"
    lines, apart = hidden if is_float else batch, directions * plan.groups
    cells = tirx.decl_buffer([const(directions * batch * hidden)], "float32", "cells")
    arrived = tirx.decl_buffer([const(apart)], "uint32", "arrived")
    states = tirx.decl_buffer([const(2 * directions * lines * plan.pitch)], dtype, "states")
    waits = plan.is_whole and plan.blocks > 1
    workspace = (*span(states), *(span(cells) if is_long else NOTHING), *(span(arrived) if waits else NOTHING))
    begin = Code()
    begin.thread("blockIdx.x", ceil(directions * lines * plan.pitch / _THREADS))
    begin.thread("threadIdx.x", _THREADS)
    sizes = [const(n) for n in (batch, hidden, directions, plan.pitch, apart if waits else 0)]
    name = f"subtune::recurrent_begin<{str(is_float).lower()}>"
    begin.emit(called(name, [*given.initial, *workspace, *sizes], RECURRENT_MANY))
    code = Code()
    step = tirx.const(0, "int32") if plan.is_whole else tirx.Var("step", "int32")
    code.thread("blockIdx.x", apart * plan.blocks)
    code.thread("threadIdx.x", _THREADS)
    shared = span(code.dynamic("uint8", plan.shared_bytes))
    numbers = (steps, batch, hidden, directions, plan.blocks, plan.groups, plan.share, plan.pitch)
    name = f"subtune::recurrent_many<{', '.join([plan.core, *layer.parameters, str(plan.is_whole).lower()])}>"
    arguments = [*given.operands, given.lengths, *given.results, *workspace, *shared, *map(const, numbers), step]
    code.emit(called(name, arguments, RECURRENT_MANY))
    kernel = code.kernel()
    if not plan.is_whole:
        kernel = tirx.For(step, tirx.const(0, "int32"), tirx.const(steps, "int32"), tirx.ForKind.SERIAL, kernel)
    return [begin.kernel(), kernel], [states, *([cells] if is_long else []), *([arrived] if waits else [])]
