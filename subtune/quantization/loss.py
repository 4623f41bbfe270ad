"""What quantising loses: signal to quantisation noise, layer by layer, in dB.

    10 log10(sum of x squared / sum of (x - y) squared)         x exact, y quantised

20 dB are an error of a tenth of the values' root mean square, 40 dB of a hundredth. Bytes spread evenly over the range
of a normal distribution have about 40 dB.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from subtune.core.errors import ModelError
from subtune.quantization.calibration import Feed
from subtune.quantization.choice import ACTIVATIONS, MOVERS

_MOST_FEEDS = 16
"""To compare on. Means over millions of values hardly move any more."""
_SAME_DB = 60.0
"""What differs by less has been rounded in another order."""
_QUANTISED = "_quantized"


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer loses, in dB; infinite where nothing is lost.

    Attributes:
        name: the node's; an input's, where op is "input".
        tensor: the result that becomes bytes, which may be that of the activation behind the node.
        result_db: of rounding this result alone.
        weights_db: of rounding the node's weights.
        total_db: the result beside that of the float model: all that was lost up to here.
    """

    name: str
    op: str
    tensor: str
    result_db: float
    weights_db: float
    total_db: float

    @property
    def own_db(self) -> float:
        """The lower of what the layer loses by itself."""
        return min(self.result_db, self.weights_db)


@dataclass(frozen=True, slots=True)
class Losses:
    """`layers`: that which loses most first. `outputs`: dB of the model's results. `samples`: compared on so many."""

    layers: tuple[Layer, ...]
    outputs: Mapping[str, float]
    samples: int


def measure(float_path: Path, qdq_path: Path, feeds: Sequence[Feed]) -> Losses:
    """Run both models side by side on the first feeds."""
    from onnxruntime.quantization.qdq_loss_debug import create_activation_matching

    before, after = onnx.load(float_path), onnx.load(qdq_path)
    results = [output.name for output in before.graph.output]
    watched = _float_tensors(after.graph)
    own, total, outputs = (defaultdict[str, _Powers](_Powers) for _ in range(3))
    exact = _Watch(before, [name for name in watched if name in _values(before.graph)])
    rounded = _Watch(after, watched)
    bounds = dict(_bounds(before.graph))
    compared = range(min(_MOST_FEEDS, len(feeds)))
    for index in compared:
        wanted, got = exact(feeds[index]), rounded(feeds[index])
        listed: tuple[dict[str, Any], ...] = tuple({k: [v] for k, v in found.items()} for found in (got, wanted))
        for name, match in create_activation_matching(*listed).items():
            (given,), (kept,) = match["pre_qdq"], match["post_qdq"]
            low, high = bounds.get(name, (-math.inf, math.inf))
            own[name].add(np.clip(given, low, high), kept)
            if "float" in match:
                total[name].add(match["float"][0], kept)
        for name in results:
            outputs[name].add(wanted[name], got[name])
    layers = _layers(before.graph, own, total, _weights(before.graph, after.graph))
    return Losses(
        tuple(sorted(layers, key=lambda layer: (layer.own_db, layer.name))),
        {name: outputs[name].db for name in results},
        len(compared),
    )


def require_same(model: onnx.ModelProto, path: Path, feed: Feed) -> None:
    """Raises ModelError: the model in the file computes something else; converting opsets is not always right."""
    given, made = (_Watch(one, [])(feed) for one in (model, onnx.load(path)))
    for name, wanted in given.items():
        powers = _Powers()
        powers.add(wanted, made[name])
        if powers.db < _SAME_DB:
            raise ModelError(f"Brought to a newer opset, the model computes another {name!r}: export it with opset 13.")


@dataclass(slots=True)
class _Powers:
    signal: float = 0.0
    noise: float = 0.0

    def add(self, exact: np.ndarray, rounded: np.ndarray) -> None:
        wide = exact.astype(np.float64)
        self.signal += float(np.sum(np.square(wide)))
        self.noise += float(np.sum(np.square(wide - rounded)))

    @property
    def db(self) -> float:
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


class _Watch:
    """Runs a model and gives its results and those of nodes within, as it computes them without optimisation."""

    def __init__(self, model: onnx.ModelProto, inner: Sequence[str]) -> None:
        import onnxruntime as ort

        watched = onnx.ModelProto()
        watched.CopyFrom(model)
        known = {value.name for value in (*watched.graph.output, *watched.graph.input)}
        watched.graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inner if name not in known
        )
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        self._session = ort.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._names = [output.name for output in self._session.get_outputs()]
        self._inputs = [name for name in inner if name in {value.name for value in watched.graph.input}]

    def __call__(self, feed: Feed) -> dict[str, np.ndarray]:
        found = dict(zip(self._names, self._session.run(self._names, dict(feed)), strict=True))
        return found | {name: feed[name] for name in self._inputs}


def _values(graph: onnx.GraphProto) -> set[str]:
    return {value.name for value in graph.input} | {name for node in graph.node for name in node.output}


def _float_tensors(graph: onnx.GraphProto) -> list[str]:
    """What varies and is quantised, and what is dequantised."""
    constants = {tensor.name for tensor in graph.initializer}
    ends = {"QuantizeLinear": lambda node: node.input[0], "DequantizeLinear": lambda node: node.output[0]}
    nodes = [node for node in graph.node if node.op_type in ends and node.input[0] not in constants]
    return list(dict.fromkeys(ends[node.op_type](node) for node in nodes))


def _bounds(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[float, float]]]:
    """Between what an activation's results lie; the quantiser leaves the node out, as its range does the same."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Relu":
            yield node.output[0], (0.0, math.inf)
        elif node.op_type == "Clip":
            ends = [*node.input[1:], "", ""][:2]
            low, high = (numpy_helper.to_array(constants[one]) if one in constants else None for one in ends)
            yield node.output[0], (-math.inf if low is None else float(low), math.inf if high is None else float(high))


def _weights(before: onnx.GraphProto, after: onnx.GraphProto) -> dict[str, float]:
    """dB of every constant that has become bytes, by the float one's name."""
    exact = {tensor.name: tensor for tensor in before.initializer}
    constants = {tensor.name: tensor for tensor in after.initializer}
    found = {}
    for node in after.node:
        name = node.input[0].removesuffix(_QUANTISED) if node.input else ""
        held = constants.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if held is None or name not in exact or held.data_type not in (TensorProto.INT8, TensorProto.UINT8):
            continue
        bits, scale, zero = (numpy_helper.to_array(constants[one]) for one in node.input)
        axis = next((one.i for one in node.attribute if one.name == "axis"), 1)
        shape = [-1 if a == axis % max(bits.ndim, 1) else 1 for a in range(bits.ndim)] if scale.size > 1 else []
        steps = bits.astype(np.int32) - zero.astype(np.int32).reshape(shape)
        powers = _Powers()
        powers.add(numpy_helper.to_array(exact[name]), steps * scale.reshape(shape))
        found[name] = powers.db
    return found


def _layers(
    graph: onnx.GraphProto, own: Mapping[str, _Powers], total: Mapping[str, _Powers], weights: Mapping[str, float]
) -> Iterator[Layer]:
    """One of every node or input with a result or weights of bytes; what loses nothing by itself is left out."""
    for value in graph.input:
        if value.name in own and own[value.name].noise:
            yield Layer(value.name, "input", value.name, own[value.name].db, math.inf, total[value.name].db)
    readers = defaultdict[str, list[onnx.NodeProto]](list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    producers = {name: node for node in graph.node for name in node.output}
    taken = set()
    for node in graph.node:
        name = next((one for one in node.output if one), "")
        behind = readers[name]
        if name not in own and len(behind) == 1 and behind[0].op_type in ACTIVATIONS:
            name = behind[0].output[0]  # the activation is the range of what it reads
        made = _made_by(node, producers, own)
        lost = min((weights[one] for one in node.input if one in weights), default=math.inf)
        if name in taken or (name not in own and lost == math.inf):
            continue
        taken.add(name)
        result = own[name].db if name in own else math.inf
        layer = Layer(made.name, made.op_type, name, result, lost, total[name].db if name in total else math.inf)
        if layer.own_db != math.inf:
            yield layer


def _made_by(node: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto], own: Mapping[str, Any]) -> onnx.NodeProto:
    """Who computes what the node hands on in another shape."""
    while node.op_type in MOVERS and node.input[0] in producers and node.input[0] not in own:
        node = producers[node.input[0]]
    return node
