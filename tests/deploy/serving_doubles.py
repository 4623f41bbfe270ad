"""What the examples for servers import, without the servers: as much of each interface as they use."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType
from typing import Any

import numpy as np


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError(Exception):
    def message(self) -> str:
        return str(self)


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self._outputs, self._error = output_tensors or [], error

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


def triton() -> ModuleType:
    """Triton's `triton_python_backend_utils`; a request is a list of `Tensor`s."""
    module = ModuleType("triton_python_backend_utils")
    module.__dict__.update(Tensor=Tensor, TritonError=TritonError, InferenceResponse=InferenceResponse)
    module.__dict__["get_input_tensor_by_name"] = lambda request, name: next(t for t in request if t.name() == name)
    return module


class Model:
    def __init__(self, name: str) -> None:
        self.name, self.ready = name, False


class InvalidInput(ValueError):
    pass


class InferOutput:
    """KServe's checks of the name of the type and of the shape, which it makes as it takes an array."""

    def __init__(self, name: str, shape: list[int], datatype: str) -> None:
        self.name, self.shape, self.datatype = name, shape, datatype
        self._raw = b""

    def set_data_from_numpy(self, array: np.ndarray, binary_data: bool = True) -> None:
        if self.datatype != from_np_dtype(array.dtype) or list(self.shape) != list(array.shape):
            raise InvalidInput(f"{self.datatype}{self.shape} is not {array.dtype}{array.shape}")
        self._raw = array.tobytes()

    def as_numpy(self) -> np.ndarray:
        dtype = {"FP32": np.float32, "INT64": np.int64}[self.datatype]
        return np.frombuffer(self._raw, dtype).reshape(self.shape)


class Request:
    def __init__(self, inputs: list[Any], request_id: str) -> None:
        self.inputs, self.id = inputs, request_id


class InferResponse:
    def __init__(self, response_id: str, model_name: str, infer_outputs: list[InferOutput]) -> None:
        self.id, self.model_name, self.outputs = response_id, model_name, infer_outputs


def from_np_dtype(dtype: np.dtype) -> str:
    return {"float32": "FP32", "int64": "INT64"}[dtype.name]


def kserve() -> dict[str, ModuleType]:
    """KServe's modules by their names."""
    names = ("kserve", "kserve.errors", "kserve.utils", "kserve.utils.numpy_codec", "kserve.model_server")
    found = {name: ModuleType(name) for name in names}
    found["kserve.model_server"].__dict__["parser"] = argparse.ArgumentParser(add_help=False)
    found["kserve.errors"].__dict__["InvalidInput"] = InvalidInput
    found["kserve.utils.numpy_codec"].__dict__["from_np_dtype"] = from_np_dtype
    found["kserve"].__dict__.update(
        Model=Model,
        ModelServer=object,
        InferRequest=Request,
        InferResponse=InferResponse,
        InferOutput=InferOutput,
        model_server=found["kserve.model_server"],
    )
    return found


def put(patch: Any, modules: dict[str, ModuleType]) -> None:
    """Let `import` find them as long as the patch lasts."""
    for name, module in modules.items():
        patch.setitem(sys.modules, name, module)
