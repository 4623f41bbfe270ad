"""A file, bytes or a protobuf -> `OnnxModel`: a light protobuf of our own, the weights beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from subtune.core.errors import ModelError
from subtune.core.manifest import MANIFEST_NAME
from subtune.frontends.onnx.lent import LentModel
from subtune.frontends.onnx.weights import (
    BIG_BYTES,
    DataDir,
    Weight,
    find_side_file,
    load_small_side_files,
    tensor_bytes,
)

_OTHER_FORMATS = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\x7fELF", "an ELF program or library"),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x89HDF", "an HDF5 (Keras?) file"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?): export the model to ONNX or unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` to get the model itself"),
)


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model on its way through this frontend.

    Attributes:
        proto: ours to change; every big initialiser is a graph input in it, with its shape and data type.
        weights: those initialisers by name.
        source: the file, the protobuf as it was given, or what lends its weights.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, Weight]
    name: str
    source: Path | onnx.ModelProto | LentModel


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that was read and parsed, to be imported more than once. `proto` is never changed.

    `arrays` are those of its weights that were read, by name.
    """

    path: Path
    proto: onnx.ModelProto
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def open_file(path: Path) -> OpenedFile:
    """Raises ModelError: the file is missing, unreadable, empty, truncated or no ONNX model."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"There is no file {str(path)!r}.") from error
    except IsADirectoryError as error:
        if (path / MANIFEST_NAME).is_file():
            raise ModelError(f"{str(path)!r} is an artifact, compiled already: give its model.") from error
        raise ModelError(f"{str(path)!r} is a directory: give the .onnx file in it.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ModelError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    return OpenedFile(path, _parse(data, repr(str(path))))


def read_opened(file: OpenedFile) -> OnnxModel:
    """Raises ModelError: weights in side files that are not there."""
    return _split(file.proto, DataDir.of(file.path), file.path.stem, file.path, kept=file.arrays)


def read_bytes(data: bytes) -> OnnxModel:
    """Raises ModelError: empty, truncated or no ONNX model."""
    proto = _parse(data, "The bytes given")
    return _split(proto, None, proto.graph.name or "model", proto)


def read_proto(proto: onnx.ModelProto, name: str) -> OnnxModel:
    """Raises ModelError: no graph in it, or weights in side files (which only a path can find)."""
    _require_graph(proto, "The model given")
    return _split(proto, None, name, proto)


def read_lent(model: LentModel) -> OnnxModel:
    """Raises ModelError: no graph in the protobuf."""
    _require_graph(model.proto, "The model given")
    return _split(model.proto, None, model.name, model, model.arrays)


def _parse(data: bytes, who: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{who} is empty, not an ONNX model.")
    for magic, what in _OTHER_FORMATS:
        if data.startswith(magic):
            raise ModelError(f"{who} is not an ONNX model but {what}.")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        reason = "it is a text file" if _is_text(data[:4096]) else "it is truncated, damaged or in another format"
        raise ModelError(f"{who} is not a readable ONNX model: {reason}.") from error
    _require_graph(proto, who)
    return proto


def _is_text(head: bytes) -> bool:
    """Whether it decodes as UTF-8 without control characters (a character cut at the end is forgiven)."""
    text = head.decode("utf-8", errors="ignore")
    return len(text.encode()) >= len(head) - 3 and all(c.isprintable() or c in "\r\n\t\f" for c in text)


def _require_graph(proto: onnx.ModelProto, who: str) -> None:
    if proto.ir_version <= 0 or not proto.HasField("graph"):
        raise ModelError(f"{who} is not an ONNX model, or is truncated: it has no graph or no IR version.")
    if not proto.graph.output:
        raise ModelError(f"{who} has a graph without outputs: there is nothing to compile.")
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{who} has IR version {proto.ir_version}; the onnx package installed knows up to "
            f"{onnx.IR_VERSION}: upgrade onnx or export with an older version."
        )


def _split(
    proto: onnx.ModelProto,
    data_dir: DataDir | None,
    name: str,
    source: Path | onnx.ModelProto | LentModel,
    arrays: Mapping[str, np.ndarray] | None = None,
    kept: dict[str, np.ndarray] | None = None,
) -> OnnxModel:
    """The light protobuf and the weights; `proto` stays as it is and lends its big tensors, or `arrays` are they;
    in `kept` they stay for another import.

    Left behind: documentation, metadata, training information, the shapes noted for intermediate values
    (inferred anew), and the initialisers' entries among the graph's inputs, where IR versions below 4 list them.
    """
    graph = proto.graph
    if graph.sparse_initializer:
        names = ", ".join(repr(sparse.values.name) for sparse in graph.sparse_initializer)
        raise ModelError(f"The model has sparse initialisers ({names}), which are not supported: make them dense.")
    light = onnx.ModelProto(ir_version=max(proto.ir_version, 8))
    light.graph.name = graph.name or "graph"
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    weights: dict[str, Weight] = {}
    initialisers: set[str] = set()

    for tensor in graph.initializer:
        if tensor.name in initialisers:
            raise ModelError(f"The model has two initialisers named {tensor.name!r}.")
        if not tensor.name:
            raise ModelError("The model has an initialiser without a name.")
        initialisers.add(tensor.name)
        if arrays is not None and tensor.name in arrays:
            weights[tensor.name] = Weight(tensor, None, arrays[tensor.name])
        elif tensor_bytes(tensor) > BIG_BYTES:
            weights[tensor.name] = Weight(tensor, find_side_file(tensor, data_dir), kept=kept)
        else:
            light.graph.initializer.append(tensor)
    for node in graph.node:
        big = _big_constant(node)
        if big is None:
            light.graph.node.append(node)
        elif node.output[0] in weights or node.output[0] in initialisers:
            raise ModelError(f"Two values of the model are named {node.output[0]!r}.")
        else:
            weights[node.output[0]] = Weight(big, find_side_file(big, data_dir))
    light.graph.input.extend(value for value in graph.input if value.name not in initialisers)
    light.graph.output.extend(graph.output)
    for weight_name, weight in weights.items():
        light.graph.input.append(
            helper.make_tensor_value_info(weight_name, weight.tensor.data_type, list(weight.tensor.dims))
        )
    load_small_side_files(light.graph, data_dir)
    return OnnxModel(light, weights, name, source)


def _big_constant(node: onnx.NodeProto) -> TensorProto | None:
    """The tensor of a Constant node that is as good as a big initialiser."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if len(node.attribute) != 1 or node.attribute[0].name != "value" or not node.attribute[0].HasField("t"):
        return None
    tensor = node.attribute[0].t
    return tensor if tensor_bytes(tensor) > BIG_BYTES else None
