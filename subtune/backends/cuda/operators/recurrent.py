"""Recurrent layers as kernels: all steps in one whose blocks are on the device at once, else one for every step."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm import tirx

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.operators.kernels import NOTHING, Tensor, Written, span, written
from subtune.backends.cuda.operators.recurrent_mma_source import RECURRENT_MMA
from subtune.backends.cuda.operators.recurrent_source import RECURRENT
from subtune.backends.cuda.source.calls import address, called
from subtune.backends.cuda.source.emit import Code, const
from subtune.core.numerics import HALVES
from subtune.core.recurrence import GATES, STATES
from subtune.core.workload import dtype_bits

_PACK = 16  # bytes of a load
_WARPS = (8, 4, 2, 1)
_SUMS = 32  # of a warp: one for every lane
_MAX_SHARED = 32 << 10  # bytes of hidden states: several blocks share a multiprocessor
_HELD = 128  # registers of a thread that may hold weights: beside them it needs up to 120
_REGISTERS = 255
_FEW = 4  # sequences, up to which tensor cores would mostly multiply zeros
_TENSOR_WARPS, _ROWS, _COLUMNS, _MOST_COLUMNS = 8, 16, 8, 4  # of a block; of a product, of which a warp has so many


@dataclass(frozen=True, slots=True)
class Layer:
    """As `subtune.core.recurrence.SYMBOL` is called.

    Attributes:
        given: shapes and dtypes of the arguments.
        y: those of the hidden states.
    """

    cell: str
    direction: str
    activations: tuple[str, ...]
    given: tuple[Tensor, ...]
    y: Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel that computes a step, or all of them.

    Attributes:
        function: of `source`, in CUDA C++.
        parameters: of its template, behind the cell, the activations and the directions.
        blocks: of a direction and a group of sequences.
        threads: of a block, which has `shared_bytes`.
        groups: of sequences that know nothing of one another; 0 where the kernel does not ask.
        is_whole: all steps are one kernel, whose blocks wait for one another.
    """

    function: str
    source: str
    parameters: tuple[object, ...]
    blocks: int
    threads: int
    shared_bytes: int
    is_whole: bool
    groups: int = 0


def plan_of(layer: Layer, device: CUDAModel) -> Plan:
    """Many sequences in halves are products for tensor cores; of few, the weights are read and that is all."""
    (_, _, batch, _), dtype = layer.y
    if dtype in HALVES and batch > _FEW and device.capability >= 80:
        return _on_tensor_cores(layer, device)
    return _on_fma(layer, device)


def _on_fma(layer: Layer, device: CUDAModel) -> Plan:
    """A unit for every warp. All steps in one kernel where its weights fit registers, and every multiprocessor has one
    block at most; else fewer warps to a block where multiprocessors would stay without one.
    """
    (steps, directions, batch, hidden), dtype = layer.y
    nbytes = dtype_bits(dtype) // 8
    pack = _packed(hidden, nbytes)
    chunks = ceil(hidden / (32 * pack))
    most = min(_SUMS // (1 if layer.cell == "RNN" else 4), max(1, _MAX_SHARED // (chunks * 32 * pack * nbytes)))
    at_once = 1
    while at_once * 2 <= most and at_once < batch:
        at_once *= 2
    wanted = min(device.sms, directions * hidden)
    held = GATES[layer.cell] * chunks * pack * nbytes // 4

    def plan(warps: int, is_whole: bool) -> Plan:
        parameters = (warps, 1, chunks, pack, at_once, *[is_whole] * 2)
        shared = at_once * chunks * 32 * pack * nbytes
        return Plan("recurrent", RECURRENT, parameters, ceil(hidden / warps), warps * 32, shared, is_whole)

    for warps in _WARPS if held <= _HELD else ():
        fits = warps * 32 * _REGISTERS <= device.registers_per_sm
        if steps > 1 and fits and directions * ceil(hidden / warps) <= device.sms:
            return plan(warps, True)
    return plan(next(w for w in _WARPS if w == 1 or directions * ceil(hidden / w) >= wanted), False)


def _on_tensor_cores(layer: Layer, device: CUDAModel) -> Plan:
    """The sequences in as many groups as there are multiprocessors for; all steps in one kernel as above."""
    (steps, directions, batch, hidden), dtype = layer.y
    tiles = 1 if layer.cell == "RNN" else 2
    blocks = ceil(hidden / (_ROWS if layer.cell == "RNN" else _ROWS * tiles // 4))
    groups = max(1, min(ceil(batch / _COLUMNS), device.sms // (directions * blocks)))
    columns = min(_MOST_COLUMNS, ceil(ceil(batch / groups) / _COLUMNS))
    chunks = ceil(hidden / (_TENSOR_WARPS * 32))
    held = chunks * tiles * 8
    is_whole = steps > 1 and held <= _HELD and directions * blocks * groups <= device.sms
    shared = 2 * _TENSOR_WARPS * _ROWS * tiles * (columns + 1) * _COLUMNS * 4
    pack = _packed(hidden, dtype_bits(dtype) // 8)
    parameters = (chunks, pack, columns, dtype == "bfloat16", is_whole, is_whole)
    return Plan(
        "recurrent_mma", RECURRENT_MMA, parameters, blocks, _TENSOR_WARPS * 32, shared, is_whole, groups
    )  # fmt: skip


def _packed(hidden: int, nbytes: int) -> int:
    """Elements of a row that one load reads."""
    pack = _PACK // nbytes
    while hidden % pack:
        pack //= 2
    return pack


def recurrent_kernels(layer: Layer, device: CUDAModel) -> Written:
    """The function of the layer: its arguments, then its outputs."""
    states, first = STATES[layer.cell], layer.given[3]
    outputs = [layer.y, *[first] * states]
    return written(layer.given, outputs, lambda *buffers: _steps(layer, plan_of(layer, device), buffers))


def _steps(layer: Layer, plan: Plan, buffers: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    (steps, directions, batch, hidden), _ = layer.y
    states, count = STATES[layer.cell], len(layer.given)
    (x, r, bias, *initial), (y, *last) = buffers[:count], buffers[count:]
    lengths = address(initial[states], const(0)) if len(initial) > states else NOTHING[0]
    cells = tirx.decl_buffer([const(directions * batch * hidden)], "float32", "cells")
    is_long, apart = layer.cell == "LSTM", directions * max(plan.groups, 1)
    places = [address(one, const(0)) for one in (x, r, bias, initial[0], initial[states - 1])]
    results = [address(one, const(0)) for one in (y, last[0], last[-1])]
    arrived = tirx.decl_buffer([const(apart)], "uint32", "arrived")
    step = tirx.const(0, "int32") if plan.is_whole else tirx.Var("step", "int32")
    code = Code()
    code.thread("blockIdx.x", apart * plan.blocks)
    code.thread("threadIdx.x", plan.threads)
    shared = span(code.dynamic("uint8", plan.shared_bytes))
    workspace = (*(span(cells) if is_long else NOTHING), *(span(arrived) if plan.is_whole else NOTHING))
    sizes = [const(n) for n in (steps, batch, hidden, directions, plan.blocks, *([plan.groups] if plan.groups else []))]
    arguments = [*places, lengths, *results, *workspace, *shared, *sizes, step]
    code.emit(called(f"subtune::{plan.function}<{', '.join(_parameters(layer, plan))}>", arguments, plan.source))
    between = [cells] if is_long else []
    if plan.is_whole:
        return [_none_arrived(arrived, apart), code.kernel()], [*between, arrived]
    loop = tirx.For(step, tirx.const(0, "int32"), tirx.const(steps, "int32"), tirx.ForKind.SERIAL, code.kernel())
    return [loop], between


def _none_arrived(arrived: Any, count: int) -> Any:
    code = Code()
    code.thread("blockIdx.x", 1)
    code.thread("threadIdx.x", count)
    code.emit(called("subtune::none_arrived", span(arrived), RECURRENT))
    return code.kernel()


def _parameters(layer: Layer, plan: Plan) -> list[str]:
    """Of the C++ template."""
    names = [name.upper() for name in layer.activations]
    names += [names[-1]] * (3 - len(names))
    backwards = {"forward": 0, "reverse": 1, "bidirectional": 2}[layer.direction]
    assert layer.cell in GATES
    enums = [f"subtune::{name}" for name in (layer.cell, *names)]
    return [*enums, *(str(one).lower() for one in (backwards, *plan.parameters))]
