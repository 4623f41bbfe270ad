"""Runs an exported model from Python: numpy, and the libraries that lie beside it. Nothing of subtune's is imported.

`subtune export` copies this file: it has to work alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_INPUT, _OUTPUT = 0, 1
_Pointers = ctypes.Array[ctypes.c_void_p]


class ModelError(Exception):
    """The model cannot be loaded, an array does not fit it, or a run failed."""


class Model:
    """A loaded model. `run` may be called from several threads; the calls take turns.

    Args:
        folder: the artifact's directory.
        libraries: where libsubtune.so and TVM's runtime lie.
        threads: that every run uses; 0: as many as the model was tuned for.

    Attributes:
        inputs, outputs: names, each with its dtype.
    """

    def __init__(self, folder: str | os.PathLike[str], libraries: str | os.PathLike[str], threads: int = 0) -> None:
        self._library = _declared(ctypes.CDLL(str(Path(libraries) / "libsubtune.so")))
        self._model = self._library.subtune_load(os.fsencode(folder), threads)
        if not self._model:
            raise ModelError(self._library.subtune_error().decode())
        self.inputs = self._dtypes(_INPUT)
        self.outputs = self._dtypes(_OUTPUT)
        self._symbol_count = self._library.subtune_symbol_count(self._model)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.subtune_free(self._model)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Compute the outputs from one array per input, of exactly its shape and dtype. Raises ModelError."""
        if set(inputs) != set(self.inputs):
            raise ModelError(f"the model takes {', '.join(self.inputs)}, and was given {', '.join(map(str, inputs))}")
        arrays = [self._read(place, name, inputs[name]) for place, name in enumerate(self.inputs)]
        symbols = (ctypes.c_int64 * (self._symbol_count + 1))()
        shapes = [(ctypes.c_int64 * (array.ndim + 1))(*array.shape) for array in arrays]
        places = (ctypes.c_void_p * (len(shapes) + 1))(*map(ctypes.addressof, shapes))
        self._check(self._library.subtune_bind(self._model, places, symbols))
        made = {
            name: np.empty(self._shape(place, symbols), dtype)
            for place, (name, dtype) in enumerate(self.outputs.items())
        }
        given, taken = _addresses(arrays), _addresses(list(made.values()))
        self._check(self._library.subtune_run(self._model, given, taken, symbols))
        return made

    def _dtypes(self, side: int) -> dict[str, np.dtype]:
        library, model = self._library, self._model
        places = range(library.subtune_count(model, side))
        names = [library.subtune_name(model, side, place).decode() for place in places]
        return {
            name: _dtype(library.subtune_dtype(model, side, place).decode())
            for name, place in zip(names, places, strict=True)
        }

    def _read(self, place: int, name: str, value: Any) -> np.ndarray:
        array = np.asarray(value)
        dtype, rank = self.inputs[name], self._library.subtune_rank(self._model, _INPUT, place)
        if array.dtype != dtype or array.ndim != rank:
            raise ModelError(f"input {name} is {array.dtype} of {array.ndim} axes; the model takes {dtype} of {rank}")
        return np.require(array, requirements=("C", "A"))

    def _shape(self, place: int, symbols: Any) -> tuple[int, ...]:
        shape = (ctypes.c_int64 * (self._library.subtune_rank(self._model, _OUTPUT, place) + 1))()
        self._library.subtune_shape(self._model, _OUTPUT, place, symbols, shape)
        return tuple(shape[:-1])

    def _check(self, status: int) -> None:
        if status:
            raise ModelError(self._library.subtune_error().decode())


def _addresses(arrays: list[np.ndarray]) -> _Pointers:
    return (ctypes.c_void_p * (len(arrays) + 1))(*(array.ctypes.data for array in arrays))


def _dtype(name: str) -> np.dtype:
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16, float8 and so on are not numpy's own
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of subtune.h."""
    number, text, model, place = ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p
    for name, result, *arguments in (
        ("load", model, text, number),
        ("free", None, model),
        ("error", text),
        ("run", number, model, place, place, place),
        ("bind", number, model, place, place),
        ("count", number, model, number),
        ("name", text, model, number, number),
        ("dtype", text, model, number, number),
        ("rank", number, model, number, number),
        ("shape", None, model, number, number, place, place),
        ("symbol_count", number, model),
    ):
        function = getattr(library, f"subtune_{name}")
        function.restype, function.argtypes = result, arguments
    return library
