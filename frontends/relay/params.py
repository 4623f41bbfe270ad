"""Parameters of a Relay model: `relay.save_param_dict`'s binary form, `.npz`, or a mapping."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from subtune.core.errors import ModelError

_LIST_MAGIC = 0xF7E58D4F05049CB7
_TENSOR_MAGIC = 0xDD5E40F096B4A13F
_MAX_RANK = 64
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}

Params = Mapping[str, Any]


def load_params(source: str | os.PathLike[str] | bytes | Params) -> dict[str, np.ndarray]:
    """Name -> array. A mapping may hold whatever numpy makes an array of, TVM's tensors too.

    Raises ModelError: the file is missing, damaged, or of another kind.
    """
    if isinstance(source, Mapping):
        return {str(name): _array(str(name), value) for name, value in source.items()}
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_bytes(bytes(source), "the parameters")
    path = Path(source)
    try:
        return _from_bytes(path.read_bytes(), str(path))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"The parameters {str(path)!r} cannot be read: {reason}.") from error


def _array(name: str, value: Any) -> np.ndarray:
    made = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if made.dtype.kind not in "biuf" and made.dtype != ml_dtypes.bfloat16:
        raise ModelError(f"The parameter {name!r} is no array of numbers (its dtype is {made.dtype}).")
    return made


def _from_bytes(data: bytes, name: str) -> dict[str, np.ndarray]:
    if data[:4] == b"PK\x03\x04":
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                return {key: _array(key, stored[key]) for key in stored.files}
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
            raise ModelError(f"{name!r} is no archive that numpy.savez wrote: {error}.") from error
    if data[:8] != struct.pack("<Q", _LIST_MAGIC):
        raise ModelError(f"{name!r} holds no parameters: give what relay.save_param_dict or numpy.savez wrote.")
    try:
        return _from_list(data)
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{name!r} is damaged or truncated: {error}.") from error


def _from_list(data: bytes) -> dict[str, np.ndarray]:
    """The list of names and of tensors behind the magic number and eight reserved bytes."""
    (count,) = struct.unpack_from("<Q", data, 16)
    position, names = 24, []
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, position)
        text = data[position + 8 : position + 8 + length]
        if len(text) < length:
            raise ValueError("a name ends early")
        names.append(text.decode())
        position += 8 + length
    (tensors,) = struct.unpack_from("<Q", data, position)
    if tensors != count:
        raise ValueError(f"{count} names but {tensors} tensors")
    position += 8
    found = {}
    for name in names:
        found[name], position = read_tensor(data, position)
    return found


def read_tensor(data: bytes, position: int = 0) -> tuple[np.ndarray, int]:
    """One tensor as TVM's runtime saves it, and where the next begins.

    Magic, eight reserved bytes, device (two int32), rank (int32), dtype (code, bits: uint8; lanes: uint16), extents
    (int64), number of bytes (int64), the bytes. Raises struct.error, ValueError: it is something else.
    """
    magic, _, _, _, rank, code, bits, lanes = struct.unpack_from("<QQiiiBBH", data, position)
    if magic != _TENSOR_MAGIC or not 0 <= rank <= _MAX_RANK or lanes != 1:
        raise ValueError("a tensor does not begin as TVM's do")
    position += struct.calcsize("<QQiiiBBH")
    extents = struct.unpack_from(f"<{rank}q", data, position)
    (nbytes,) = struct.unpack_from("<q", data, position + 8 * rank)
    position += 8 * rank + 8
    kind = _CODES.get(code, "")
    name = "bool" if kind == "bool" or (kind == "uint" and bits == 1) else f"{kind}{bits}"
    try:
        dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    except TypeError as error:
        raise ValueError(f"a tensor has the dtype {code}:{bits}, which is not supported") from error
    size = 1
    for extent in extents:
        if extent < 0:
            raise ValueError("a tensor has a negative extent")
        size *= extent
    if size * dtype.itemsize != nbytes or position + nbytes > len(data):
        raise ValueError("a tensor ends early")
    array = np.frombuffer(data, dtype, size, position).reshape(extents)
    return array, position + nbytes
