"""ONNX Runtime as the reference of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from subtune.core.numerics import FLOAT8
from subtune.core.reference import CannotRun, Run, by_a_part, by_an_ulp

_WRONG_OF_FLOAT8 = ["ReluQuantRewrite"]
"""Leaves out a Relu in front of a zero point of no bits, as if that were the least number (onnxruntime 1.32)."""

_FAR = 4
"""Units in the last place, as many as `subtune.verification.sensitivity.TIMES`."""

_CUT_OFF_FLOAT8 = 2.0**-13
"""What tensor cores cut off of a sum of products of float8e4m3fn, of which they keep about 14 bits.
Next to a tie that decides how the sum is rounded, by an eighth of itself."""


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """A `subtune.core.reference.Reference`.

    `model` is the file, or the protobuf that was given to `load`, not a copy, when there is no file.
    """

    model: Path | onnx.ModelProto
    name: str = "ONNX Runtime"
    of_float8: bool | None = field(default=None, compare=False)
    """Whether the model has floats of 8 bits, from who has read it; None: it is read once more to know."""

    @property
    def is_installed(self) -> bool:
        return find_spec("onnxruntime") is not None

    def limits(self) -> dict[str, int]:
        return integer_limits(self.model)

    def start(self, threads: int) -> Run | None:
        return onnxruntime_reference(self.model, threads, of_float8=self.of_float8)

    def as_written(self, threads: int) -> Run | None:
        if not _scales(onnx.load(self.model) if isinstance(self.model, Path) else self.model):
            return None
        return onnxruntime_reference(self.model, threads, of_float8=self.of_float8, is_rewritten=False)

    def moved(self, threads: int, variation: int) -> Run | None:
        proto = onnx.load(self.model) if isinstance(self.model, Path) else self.model
        if has_float8(proto) if self.of_float8 is None else self.of_float8:
            return onnxruntime_reference(self.model, threads, _moved_float8(proto, variation), of_float8=True)
        scales = _scales(proto)  # if any, only those: of what lies round integers ONNX Runtime may keep a turned copy
        chosen = [init for init in proto.graph.initializer if (init.name in scales if scales else len(init.dims) > 1)]
        weights = {init.name: numpy_helper.to_array(init) for init in chosen}
        # a rounding to an integer crosses a half or does not: every second pair of directions goes as far as is excused
        times = 1 + (_FAR - 1) * (variation // 2 % 2) if scales else 1
        floats = {name: array for name, array in weights.items() if array.dtype.kind == "f"}
        by_name = {name: by_an_ulp(array, variation, times) for name, array in floats.items()}
        return onnxruntime_reference(self.model, threads, by_name, of_float8=False)


def _moved_float8(model: onnx.ModelProto, variation: int) -> dict[str, np.ndarray]:
    """The scales of a model of float8e4m3fn, each by `_CUT_OFF_FLOAT8` of itself, up or down."""
    named = {name for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")
             for name in node.input[1:2]}  # fmt: skip
    chosen = {init.name: numpy_helper.to_array(init) for init in model.graph.initializer if init.name in named}
    return {name: by_a_part(array, variation, _CUT_OFF_FLOAT8) for name, array in chosen.items()}


def _scales(model: onnx.ModelProto) -> set[str]:
    """What numbers of a quantised model are multiplied with: all of its floats, where its weights are integers.

    Where activations are quantised by what they are, the scales of weights are factors of their own.
    """
    quantised = [node for node in model.graph.node if "Quantize" in node.op_type or node.op_type.startswith("Q")]
    found = {name for node in quantised for name in node.input}
    if any(node.op_type.startswith("Dynamic") for node in quantised):
        vectors = {init.name for init in model.graph.initializer if len(init.dims) < 2}
        factors = (node for node in model.graph.node if node.op_type in ("Mul", "LayerNormalization"))
        found |= {name for node in factors for name in node.input if name in vectors}
    return found


def onnxruntime_reference(
    model: Any,
    threads: int = 1,
    weights: Mapping[str, np.ndarray] | None = None,
    of_float8: bool | None = None,
    is_rewritten: bool = True,
) -> Run | None:
    """The model as ONNX Runtime runs it; None where it is not installed or does not take this model.

    Args:
        model: path of the ONNX file, its bytes, or an `onnx.ModelProto`.
        weights: initializers that take the place of the model's own.
        of_float8: whether it has floats of 8 bits; None: the model is read to know.
        is_rewritten: with ONNX Runtime's optimisations.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        return None
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not is_rewritten:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(
        "session.qdqisint8allowed", "1"
    )  # else pairs of int8 are computed in floats on x86
    options.add_session_config_entry("session.disable_prepacking", "1")  # a second copy of the weights, for a few runs
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in (weights or {}).items()}
    for name, value in values.items():
        options.add_initializer(name, value)
    source = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    source = source if isinstance(source, bytes) else str(source)
    off = _WRONG_OF_FLOAT8 if (has_float8(model) if of_float8 is None else of_float8) else None
    try:
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], disabled_optimizers=off)
    except Exception as e:
        # ONNX Runtime's exceptions share no base class; those of its binding module are what it cannot run. The rest of
        # its C++ exceptions arrive as a RuntimeError.
        if type(e).__module__.startswith("onnxruntime") or isinstance(e, RuntimeError):
            return None
        raise
    names = [output.name for output in session.get_outputs()]
    in_bits = [output.name for output in session.get_outputs() if output.type == "tensor(float8e4m3fn)"]
    alive = (session, values, weights)  # the session reads the arrays and does not own them

    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            found = dict(zip(names, alive[0].run(names, inputs), strict=True))
            return {**found, **{name: found[name].view(FLOAT8) for name in in_bits}}
        except Exception as e:  # kernels that are missing, or fail, are only met here (a float64 LSTM)
            raise CannotRun(" ".join(str(e).split()) or type(e).__name__) from e

    return run


def has_float8(model: Any) -> bool:
    """Whether anything is quantised to floats of 8 bits: they have constants of that type, at least as zero points.

    Of a protobuf whose large constants are its inputs, too.
    """
    try:
        if isinstance(model, bytes):
            model = onnx.load_from_string(model)
        elif not hasattr(model, "graph"):
            model = onnx.load(model, load_external_data=False)
    except (DecodeError, OSError):
        return False  # ONNX Runtime says what is wrong with it
    types = [init.data_type for init in model.graph.initializer]
    types += [value.type.tensor_type.elem_type for value in model.graph.input]
    return onnx.TensorProto.FLOAT8E4M3FN in types


@lru_cache(maxsize=4)
def _limits_of_file(path: Path, _written: int) -> Mapping[str, int]:
    """As `integer_limits`: a model of many shapes asks at each of several, and the file may be large."""
    return integer_limits(onnx.load(path, load_external_data=False))


def integer_limits(model: Any) -> dict[str, int]:
    """Exclusive upper bound of each integer input that indexes a table: the smallest table's rows.

    Args:
        model: an `onnx.ModelProto` or the path of its file. Indices are followed through Cast, Reshape, Squeeze,
            Unsqueeze, Identity and Flatten, tables through DequantizeLinear.
    """
    if isinstance(model, Path):
        return dict(_limits_of_file(model, model.stat().st_mtime_ns))
    rows: dict[str, tuple[int, ...]] = {init.name: tuple(init.dims) for init in model.graph.initializer}
    origin = {value.name: value.name for value in model.graph.input if value.name not in rows}
    limits: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in ("Cast", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten") and node.input:
            if node.input[0] in origin:
                origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type == "DequantizeLinear" and node.input[0] in rows:
            rows[node.output[0]] = rows[node.input[0]]
        elif node.op_type == "Gather" and node.input[0] in rows and node.input[1] in origin:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            bound = rows[node.input[0]][axis]
            name = origin[node.input[1]]
            limits[name] = min(bound, limits.get(name, bound))
    return limits
