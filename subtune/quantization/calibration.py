"""What calibration runs a model on: arrays of many samples -> one feed for every run."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from subtune.core.errors import InputError
from subtune.core.tensor_spec import TensorSpec

Feed = Mapping[str, np.ndarray]
"""One array for each input, in the input's shape and type."""
Data = Any
"""Path of an .npz or of a directory of them; name -> array; or a sequence of these."""


def feeds_of(data: Data, specs: Sequence[TensorSpec]) -> list[Feed]:
    """Feeds for a model, in the order of the data.

    An input of shape (B, ...) takes an array of shape (N, B, ...), which are N feeds, or of (N * B, ...): batches one
    behind the other.

    Args:
        data: arrays named after the inputs, in files or in memory.

    Raises InputError: no such file, no .npz, nothing in it; names, shapes or types that are not the model's; values
    that are not finite.
    """
    feeds: list[Feed] = []
    for name, arrays in _parts(data):
        feeds += _split(name, arrays, specs)
    return feeds


def files_of(data: Data) -> list[Path]:
    """The files and directories that the data names."""
    if isinstance(data, str | os.PathLike):
        return [Path(data)]
    if data is None or isinstance(data, Mapping):
        return []
    return [path for part in data for path in files_of(part)]


def _parts(data: Data) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    """What messages call a part of the data, and its arrays."""
    if isinstance(data, Mapping):
        yield "the data", {name: np.asarray(array) for name, array in data.items()}
    elif isinstance(data, str | os.PathLike):
        for path in _files(Path(data)):
            yield str(path), _read(path)
    else:
        for part in data:
            yield from _parts(part)


def _files(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        found = sorted(path.glob("*.npz"))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if not found:
        raise InputError(f"The directory {str(path)!r} holds no .npz file to calibrate with.")
    return found


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise InputError(f"{str(path)!r} holds one array without a name: write an .npz with numpy.savez.")
        with found as file:
            return {name: np.asarray(file[name]) for name in file.files}  # what else a zip archive holds is bytes
    except FileNotFoundError as error:
        raise InputError(f"There is no file {str(path)!r} to calibrate with.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{str(path)!r} is not a readable .npz file: write one with numpy.savez.") from error


def _split(name: str, arrays: Mapping[str, np.ndarray], specs: Sequence[TensorSpec]) -> list[Feed]:
    wanted = [spec.name for spec in specs]
    if not arrays:
        raise InputError(f"There are no arrays in {name}: name one after each input ({', '.join(wanted)}).")
    if arrays.keys() != set(wanted):
        raise InputError(
            f"The arrays in {name} are named {', '.join(arrays)}, but the inputs of the model {', '.join(wanted)}."
        )
    parts = {spec.name: _samples(name, spec, arrays[spec.name]) for spec in specs}
    counts = {key: len(part) for key, part in parts.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{key} {count}" for key, count in counts.items())
        raise InputError(f"The arrays in {name} have different numbers of samples: {shown}.")
    return [{key: part[index] for key, part in parts.items()} for index in range(min(counts.values()))]


def _samples(name: str, spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """The array as (samples, *shape of the input)."""
    where = f"The array {spec.name!r} in {name}"
    shape = (-1, *spec.shape)
    if array.ndim == len(shape) and array.shape[1:] == spec.shape:
        found = array
    elif spec.shape and array.ndim == len(spec.shape) and array.shape[1:] == spec.shape[1:]:
        if not spec.shape[0] or array.shape[0] % spec.shape[0]:
            raise InputError(f"{where} has {array.shape[0]} rows, no multiple of the batch of {spec.shape[0]}.")
        found = array.reshape(array.shape[0] // spec.shape[0], *spec.shape)
    else:
        raise InputError(
            f"{where} has the shape {list(array.shape)}, not [samples, {', '.join(map(str, spec.shape))}]."
        )
    if not len(found):
        raise InputError(f"{where} has no samples.")
    return _typed(where, spec, found)


def _typed(where: str, spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """In the input's type: numbers may become floats, integers other integers that hold them."""
    is_float = spec.dtype.startswith("float")
    if array.dtype.kind not in ("biuf" if is_float else "biu"):
        raise InputError(f"{where} is of {array.dtype}, which is no {spec.dtype}.")
    with np.errstate(over="ignore"):
        found = array.astype(spec.dtype, copy=False)
    if is_float and not np.isfinite(found).all():
        raise InputError(f"{where} has values that are not finite in {spec.dtype}: no range can be made of them.")
    if not is_float and not np.array_equal(found, array):
        raise InputError(f"{where} has values that do not fit into {spec.dtype}.")
    return found
