"""What a model has to do at least: operations of its products, bytes of its inputs, weights and outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import helper

_CALL_S = {False: 20e-6, True: 6e-6}
"""Less than this at the nominal speeds below, and the case is said to be tiny."""
_MOST_S = {False: 8e-3, True: 1e-3}
_FLOPS = {False: 1.5e11, True: 2.5e14}
"""Nominal operations per second of a CPU and of a GPU: to draw cases of a sensible size, nothing else."""
_BYTES = {False: 2e10, True: 3.5e12}
_MOST_BYTES = {False: 1.6e8, True: 1e9}
_STEP_S = {False: 5e-6, True: 5e-6}
"""Of a recurrent cell, nominally: one waits for the other."""
_RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, slots=True)
class Work:
    """`smallest` is the least extent of any output, `steps` how often a recurrent cell is taken."""

    flops: float
    nbytes: float
    smallest: int
    steps: int = 0

    def fits(self, is_gpu: bool) -> bool:
        return self.smallest > 0 and self._nominal_s(is_gpu) <= _MOST_S[is_gpu] and self.nbytes <= _MOST_BYTES[is_gpu]

    def counts(self, is_gpu: bool) -> bool:
        """Whether it takes long enough to say something of a kernel."""
        return self._nominal_s(is_gpu) >= _CALL_S[is_gpu]

    def roofline_s(self, flops_per_s: float, bytes_per_s: float) -> float:
        """The least seconds on a machine of such peaks."""
        return max(self.flops / flops_per_s, self.nbytes / bytes_per_s)

    def _nominal_s(self, is_gpu: bool) -> float:
        return max(self.roofline_s(_FLOPS[is_gpu], _BYTES[is_gpu]), self.steps * _STEP_S[is_gpu])


def work_of(model: onnx.ModelProto) -> Work:
    """Of a model whose shapes are inferred. Of a table only the rows count that are gathered."""
    graph = model.graph
    values = (*graph.input, *graph.value_info, *graph.output)
    shapes = {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in values}
    sizes = {value.name: _itemsize(value.type.tensor_type.elem_type) for value in values}
    for tensor in graph.initializer:
        shapes[tensor.name], sizes[tensor.name] = tuple(tensor.dims), _itemsize(tensor.data_type)
    ends = [value.name for value in (*graph.input, *graph.output)] + [tensor.name for tensor in graph.initializer]
    tables = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "Gather"}
    nbytes = sum(sizes[name] * min(math.prod(shapes[n]) for n in (name, tables.get(name, name))) for name in set(ends))
    smallest = min((min(shapes[value.name], default=1) for value in graph.output), default=1)
    steps = sum(shapes[node.input[0]][0] for node in graph.node if node.op_type in _RECURRENT)
    return Work(sum(_flops(node, shapes) for node in graph.node), float(nbytes), smallest, steps)


def _flops(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> float:
    """Two for each multiply-add; nothing for what is bound by memory."""
    if node.op_type == "MatMul":
        return 2.0 * math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    if node.op_type == "Conv":
        return 2.0 * math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":
        return 2.0 * math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type in _RECURRENT:
        tokens, batch, _ = shapes[node.input[0]]
        return 2.0 * tokens * batch * sum(math.prod(shapes[name]) for name in node.input[1:3])
    return 0.0


def _itemsize(element: int) -> int:
    return int(helper.tensor_dtype_to_np_dtype(element).itemsize)
