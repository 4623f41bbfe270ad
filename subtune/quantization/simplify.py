"""A model as the quantiser wants it: opset 13 or newer, constants folded, norms in the weights, shapes known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.version_converter
from onnx import TensorProto, helper

from subtune.core.errors import ModelError

OPSET = 13
"""From here on scales may be vectors: one for each channel."""
_OTHER_FLOATS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16", TensorProto.DOUBLE: "float64"}
_MOST_BYTES = 2**31 - 1
_RUNTIME = "ONNX Runtime's quantiser"


def require_float(model: onnx.ModelProto) -> None:
    """Raises ModelError: not a model of float32, or quantised already."""
    for node in model.graph.node:
        if "QLinear" in node.op_type or node.op_type in _INTEGER:
            raise ModelError(
                f"The model is quantised already ({node.op_type} {node.name or node.output[0]!r}): "
                "compile it as it is, or quantise the float model it was made of."
            )
    values = [(value.name, value.type.tensor_type.elem_type) for value in model.graph.input]
    weights = [(tensor.name, tensor.data_type) for tensor in model.graph.initializer if len(tensor.dims) > 1]
    for name, dtype in (*values, *weights):
        if dtype in _OTHER_FLOATS:
            raise ModelError(f"The model computes in {_OTHER_FLOATS[dtype]} ({name!r}): quantise its float32 original.")


def simplified(model: onnx.ModelProto, scratch: Path) -> onnx.ModelProto:
    """The model in a form that quantises well, and computes the same; `model` stays as it is.

    Args:
        scratch: a directory for files on the way.

    Raises ModelError: it cannot be upgraded, or is too large.
    """
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if model.ByteSize() > _MOST_BYTES:
        raise ModelError(f"The model has more than 2 GiB, which {_RUNTIME} does not take in one piece.")
    upgraded = _upgraded(model)
    _weights_are_constant(upgraded.graph)
    _sums_of_two_are_additions(upgraded.graph)
    given, path = scratch / "given.onnx", scratch / "simplified.onnx"
    onnx.save(upgraded, given)
    # The shapes are fixed, so ONNX's own inference finds them all: no symbols.
    quant_pre_process(str(given), str(path), skip_symbolic_shape=True)
    made = onnx.load(path)
    name_nodes(made.graph)
    return made


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node a name of its own, in place: one without gets its first result's."""
    seen = Counter(node.name for node in graph.node)
    for node in graph.node:
        if not node.name or seen[node.name] > 1:
            node.name = f"{node.name}/{node.output[0]}" if node.name else node.output[0]


def domains(graph: onnx.GraphProto) -> Iterator[str]:
    """Those of the operators, also inside branches and loops."""
    for node in graph.node:
        yield node.domain
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from domains(inner)


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def _upgraded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in opset 13 or newer."""
    version = opset_of(model)
    if version >= OPSET:
        made = onnx.ModelProto()
        made.CopyFrom(model)
        return made
    try:
        made = onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # C++ exceptions of several unrelated Python types
        why = " ".join(str(error).split())
        raise ModelError(
            f"The model cannot be brought from opset {version} to {OPSET}, which scales for each channel need ({why}): "
            f"export it with opset {OPSET} or newer."
        ) from error
    made.ir_version = max(made.ir_version, helper.find_min_ir_version_for(list(made.opset_import)))
    return made


def _weights_are_constant(graph: onnx.GraphProto) -> None:
    """Initialisers are no inputs, in place: as inputs they might be given other values, and could not be folded."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)


def _sums_of_two_are_additions(graph: onnx.GraphProto) -> None:
    """Sum(a, b) -> Add(a, b), in place: the quantiser, and ONNX Runtime, know no Sum of bytes."""
    for node in graph.node:
        if node.op_type == "Sum" and not node.domain and len(node.input) == 2:
            node.op_type = "Add"


_INTEGER = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear ConvInteger MatMulInteger QGemm MatMulIntegerToFloat "
    "DynamicQuantizeMatMul DynamicQuantizeLSTM MatMulNBits MatMulBnb4 QAttention".split()
)
