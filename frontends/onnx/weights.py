"""Big initialisers, kept out of the protobuf that is copied, checked and inferred.

A serialised protobuf ends at 2 GB, and every step of `onnx` in C++ serialises the model. So a model is split
at once into a light protobuf, in which each big initialiser is a mere graph input, and its `Weight`s, read
once: by the importer, straight into the constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from subtune.core.errors import ModelError
from subtune.runtime import aligned_array

BIG_BYTES = 4096
"""Initialisers above this leave the light protobuf; shapes and axes, which inference wants to see, stay."""

_HALF_BYTE_TYPES = {
    getattr(TensorProto, name) for name in ("INT4", "UINT4", "FLOAT4E2M1") if hasattr(TensorProto, name)
}
_QUARTER_BYTE_TYPES = {getattr(TensorProto, name) for name in ("INT2", "UINT2") if hasattr(TensorProto, name)}


@dataclass(frozen=True, slots=True)
class DataDir:
    """Where side files may lie: the model's directory, and where its file really is if it is a link."""

    given: Path
    allowed: tuple[Path, ...]

    @staticmethod
    def of(model_path: Path) -> DataDir:
        # Download caches link both the model and its side files into one store of blobs, so the store counts too.
        return DataDir(model_path.parent, (model_path.parent.resolve(), model_path.resolve().parent))


@dataclass(frozen=True, slots=True)
class SideFile:
    """A tensor's bytes in a side file, checked to be there."""

    path: Path
    offset: int


@dataclass(frozen=True, slots=True)
class Weight:
    """One big initialiser: its protobuf (part of the model given, not a copy) and where its bytes are.

    `lent` are the values themselves where somebody else has them in memory (`lent.LentModel`). In `kept`, by name, they
    stay for another import.
    """

    tensor: TensorProto
    side_file: SideFile | None
    lent: np.ndarray | None = None
    kept: dict[str, np.ndarray] | None = None

    def read(self) -> np.ndarray:
        """The values; they share the protobuf's, the mapped file's or the lender's memory where they can."""
        if self.lent is not None:
            return self.lent
        if self.kept is None or self.side_file is not None:
            return read_tensor(self.tensor, self.side_file)
        if self.tensor.name not in self.kept:
            found = read_tensor(self.tensor)
            own = self.kept[self.tensor.name] = aligned_array(found.shape, found.dtype, found.nbytes)
            np.copyto(own, found)
        return self.kept[self.tensor.name]


def tensor_bytes(tensor: TensorProto) -> int:
    """Size of the values, packed as ONNX packs them; 0 for strings, which are refused elsewhere."""
    if tensor.data_type == TensorProto.STRING:
        return 0
    elements = math.prod(tensor.dims)
    if tensor.data_type in _HALF_BYTE_TYPES:
        return (elements + 1) // 2
    if tensor.data_type in _QUARTER_BYTE_TYPES:
        return (elements + 3) // 4
    try:
        return elements * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError as error:
        raise ModelError(f"Tensor {tensor.name!r} has the unknown data type {tensor.data_type}.") from error


def find_side_file(tensor: TensorProto, data_dir: DataDir | None) -> SideFile | None:
    """Where the tensor's bytes lie outside of the model; None if they are in it.

    Raises ModelError: no such file, too short, outside of the model's directory, or no directory to look in.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    what = f"The weights of tensor {tensor.name!r} are in the side file {location!r}"
    if not location:
        raise ModelError(f"Tensor {tensor.name!r} keeps its weights in a side file without saying in which.")
    if data_dir is None:
        raise ModelError(f"{what}, which only a model given by its path can find: give the path.")
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else tensor_bytes(tensor)
    except ValueError as error:
        raise ModelError(f"{what}, at an offset or length that is no number.") from error
    if offset < 0 or length != tensor_bytes(tensor):
        raise ModelError(
            f"{what} at offset {offset} with {length} bytes, but its shape {tuple(tensor.dims)} takes "
            f"{tensor_bytes(tensor)} bytes."
        )
    # A location of another system's making may have backslashes; as a name here it would only be not found.
    path = data_dir.given / location
    if Path(location).is_absolute() or ".." in Path(location).parts or "\0" in location:
        raise ModelError(f"{what}, which lies outside of the model's directory; that is refused.")
    try:
        real = path.resolve(strict=True)
        size = real.stat().st_size
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{what}, which is not there or not readable: put it beside the model.") from error
    if not any(real.is_relative_to(directory) for directory in data_dir.allowed):
        raise ModelError(f"{what}, which is a link out of the model's directory; that is refused.")
    if not real.is_file():
        raise ModelError(f"{what}, which is not a regular file.")
    if offset + length > size:
        raise ModelError(
            f"{what}, which is too short: {offset + length} bytes are needed, it has {size}; fetch it again."
        )
    return SideFile(real, offset)


def read_tensor(tensor: TensorProto, side_file: SideFile | None = None) -> np.ndarray:
    """The values of a tensor. Raises ModelError if they do not fill its shape."""
    try:
        if side_file is None:
            return numpy_helper.to_array(tensor)
        if tensor.data_type in _HALF_BYTE_TYPES | _QUARTER_BYTE_TYPES:
            inline = TensorProto()
            inline.CopyFrom(tensor)
            inline.data_location = TensorProto.DEFAULT
            inline.raw_data = _read_side_file(side_file, tensor_bytes(tensor))
            return numpy_helper.to_array(inline)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        shape = tuple(tensor.dims)
        if 0 in shape:
            return np.zeros(shape, dtype)
        little_endian = dtype.newbyteorder("<")
        return np.memmap(side_file.path, little_endian, "r", side_file.offset, shape)
    except (ValueError, TypeError, OSError) as error:
        raise ModelError(
            f"The values of tensor {tensor.name!r} do not fit its shape {tuple(tensor.dims)} and data type: {error}."
        ) from error


def _read_side_file(side_file: SideFile, length: int) -> bytes:
    with side_file.path.open("rb") as file:
        file.seek(side_file.offset)
        return file.read(length)


def load_small_side_files(graph: onnx.GraphProto, data_dir: DataDir | None) -> None:
    """Bring every tensor of the light graph that lies in a side file into it, in place."""
    for tensor in _tensors(graph):
        side_file = find_side_file(tensor, data_dir)
        if side_file is not None:
            tensor.raw_data = _read_side_file(side_file, tensor_bytes(tensor))
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)
            for subgraph in attribute.graphs:
                yield from _tensors(subgraph)
