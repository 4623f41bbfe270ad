"""A model as one protobuf, for what takes ONNX and gives ONNX: read and checked as for importing, its shapes fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import numpy_helper

from subtune.core.errors import ModelError
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends.onnx.file import OnnxModel
from subtune.frontends.onnx.load import checked
from subtune.frontends.onnx.shapes import fix_inputs

_MOST_BYTES = 2**31 - 1
"""Of a protobuf."""


def whole_model(
    model: OnnxModel, shapes: Mapping[str, Sequence[int] | int]
) -> tuple[onnx.ModelProto, tuple[TensorSpec, ...]]:
    """The model that `file` has read with its weights in it and its metadata, and its inputs. Its own to change.

    Raises ModelError, ShapeError: one sentence each, with the node or the input; more than 2 GiB.
    """
    metadata = _metadata(model)
    model = checked(model)
    proto = model.proto
    inputs = [value for value in proto.graph.input if value.name not in model.weights]
    specs = fix_inputs(inputs, shapes)
    kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in inputs]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    if sum(weight.tensor.ByteSize() for weight in model.weights.values()) > _MOST_BYTES:
        raise ModelError("The model has more than 2 GiB, which no protobuf holds.")
    for name, weight in model.weights.items():
        if weight.side_file is None:
            tensor = proto.graph.initializer.add()
            tensor.CopyFrom(weight.tensor)
            tensor.name = name
        else:
            proto.graph.initializer.append(numpy_helper.from_array(weight.read(), name))
    proto.metadata_props.extend(metadata)
    return proto, specs


def _metadata(model: OnnxModel) -> Sequence[onnx.StringStringEntryProto]:
    source = model.source
    if isinstance(source, Path):
        source = onnx.load(source, load_external_data=False)
    assert isinstance(source, onnx.ModelProto), "who lends weights gives no such model"
    return source.metadata_props
