"""An artifact behind the interface of ONNX Runtime's `InferenceSession`: for programs that have one already.

What differs: sessions are made from artifacts, not from model files; options of providers mean nothing, because an
artifact is for one device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from subtune.artifact import load
from subtune.core.errors import InputError
from subtune.core.tensor_spec import TensorSpec
from subtune.runtime import numpy_dtype

_ONNX = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float4_e2m1fn": "float4e2m1",
}
"""ONNX's names of types, where they are not numpy's."""

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or an output, as ONNX Runtime describes it.

    Attributes:
        shape: numbers, and text where a dimension varies.
        type: such as `tensor(float)`.
    """

    name: str
    shape: list[int | str]
    type: str

    @classmethod
    def of(cls, spec: TensorSpec) -> NodeArg:
        return cls(spec.name, list(spec.shape), f"tensor({_ONNX.get(spec.dtype, spec.dtype)})")


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """`get_modelmeta()`; what artifacts do not know is empty."""

    graph_name: str
    producer_name: str = "subtune"
    description: str = ""
    domain: str = ""
    version: int = 0
    graph_description: str = ""
    custom_metadata_map: Mapping[str, str] | None = None


@final
class InferenceSession:
    """`onnxruntime.InferenceSession` on an artifact.

    `run` may be called from several threads; the calls take turns.

    Args:
        path_or_bytes: the artifact's directory.
        sess_options: of ONNX Runtime's options, `intra_op_num_threads` counts; 0 means as many as were tuned for.
        providers: ignored; `get_providers` says what runs the artifact.
        provider_options: ignored.

    Raises:
        ArtifactError: as `subtune.load`.

    >>> import numpy as np
    >>> import subtune
    >>> path = subtune.compile("zoo:mlp?image=8&batch=2", tune=False).path
    >>> session = subtune.InferenceSession(path, providers=["CPUExecutionProvider"])
    >>> [(one.name, one.shape, one.type) for one in session.get_inputs()]
    [('input', [2, 8, 8, 3], 'tensor(float)')]
    >>> scores, = session.run(["output"], {"input": np.zeros((2, 8, 8, 3), "float32")})
    >>> scores.shape
    (2, 10)
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(path_or_bytes, bytes):
            raise InputError("a session is made from an artifact's directory, not from a model's bytes: give its path")
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        self.artifact = load(path_or_bytes, threads=threads)
        self._sess_options = sess_options

    def get_inputs(self) -> list[NodeArg]:
        return [NodeArg.of(spec) for spec in self.artifact.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [NodeArg.of(spec) for spec in self.artifact.outputs]

    def get_providers(self) -> list[str]:
        return [_PROVIDERS.get(self.artifact.manifest.kind, self.artifact.manifest.kind)]

    def get_session_options(self) -> Any:
        return self._sess_options

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(graph_name=self.artifact.manifest.name)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
        """The outputs of those names, in that order; of None or nothing, all of them.

        Args:
            input_feed: an array for every input, by name; lists and numbers become arrays of the input's dtype.
            run_options: ignored.

        Raises:
            InputError: an array does not fit, or there is no output of a name.
        """
        known = [spec.name for spec in self.artifact.outputs]
        if unknown := [name for name in output_names or () if name not in known]:
            raise InputError(f"there is no output {', '.join(unknown)}: the model gives {', '.join(known)}")
        outputs = self.artifact.run({name: self._array(name, value) for name, value in input_feed.items()})
        return [outputs[name] for name in output_names or known]

    def _array(self, name: str, value: Any) -> Any:
        """What `Artifact.run` takes: lists, numbers and objects with `numpy()`, as ONNX Runtime's own values, too."""
        if hasattr(value, "__dlpack__") or isinstance(value, np.ndarray):
            return value
        if hasattr(value, "numpy"):
            return value.numpy()
        spec = next((spec for spec in self.artifact.inputs if spec.name == name), None)
        return value if spec is None else np.asarray(value, numpy_dtype(spec.dtype))
