"""subtune as an ONNX backend (`onnx.backend.base.Backend`), for the official backend test suite and for
trying models.

A model is imported as `subtune compile` imports it. What the importer refuses, the backend refuses too
(`BackendIsNotSupposedToImplementIt`, which the suite's runner turns into a skip). Symbolic input dimensions
and inputs that decide shapes inside the model (the target of a Reshape, the axes of a reduction) are
constants to a compiler: the model is specialised to their values at `run`, once per distinct values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import tvm
from onnx.backend.base import Backend, BackendRep, namedtupledict
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt
from tvm import relax

from subtune.assembly import compile_module
from subtune.backends import device_of
from subtune.core.errors import ModelError, SubtuneError
from subtune.frontends.onnx.ops import ConstantInputsError, import_onnx
from subtune.runtime import carried, uncarried
from subtune.verification.references import untuned

Compiled: TypeAlias = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

# An input is bound as a constant only if it is this small: shapes, axes, sizes, not data.
_MAX_BOUND_ELEMENTS = 256
_ROUNDS = 8


def _build(mod: tvm.IRModule) -> Compiled:
    """Compile `mod` with default schedules for this CPU; the result takes the inputs of `main` in order."""
    device = device_of(threads=1)
    executable, _ = compile_module(untuned(mod, device), device)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        result = main(*(tvm.runtime.tensor(np.array(x, order="C")) for x in inputs))
        tensors = [result] if hasattr(result, "numpy") else list(result)
        return [t.numpy() for t in tensors]

    return run


def _is_static(info: onnx.ValueInfoProto) -> bool:
    """Whether the model gives the input's whole shape; what is no tensor the importer refuses."""
    if not info.type.HasField("tensor_type"):
        return True
    tensor = info.type.tensor_type
    return tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)


def _array(value: Any) -> Any:
    """Tensors as arrays; sequences and absent optionals stay as they are, for the importer to refuse."""
    return value if value is None or isinstance(value, list | tuple) else np.asarray(value)


def _declared(array: np.ndarray, info: onnx.ValueInfoProto) -> np.ndarray:
    """An output as an array of its declared type, which one of a narrow type has."""
    elem = info.type.tensor_type.elem_type
    return uncarried(array, str(onnx.helper.tensor_dtype_to_np_dtype(elem))) if elem else array


class SubtuneRep(BackendRep):
    """A model ready to run. Not safe for use by several threads at once."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        known = {t.name for t in model.graph.initializer}
        self._inputs = [info for info in model.graph.input if info.name not in known]
        self._output_names = [info.name for info in model.graph.output]
        self._bound: frozenset[str] = frozenset()
        self._open = [info.name for info in self._inputs if not _is_static(info)]
        self._compiled: dict[tuple[Any, ...], Compiled] = {}
        if not self._open:
            try:
                self._compiled[()] = _build(import_onnx(model))
            except ConstantInputsError as e:
                self._bound = e.names

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Runs the model on `inputs`: a mapping by name, a sequence in the model's order, or one array."""
        if isinstance(inputs, Mapping):
            arrays = {name: _array(value) for name, value in inputs.items()}
        else:
            values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            arrays = {info.name: _array(v) for info, v in zip(self._inputs, values, strict=True)}
        try:
            compiled = self._specialised(arrays)
        except SubtuneError as e:
            raise BackendIsNotSupposedToImplementIt(str(e)) from e
        free = [carried(arrays[info.name]) for info in self._inputs if info.name not in self._bound]
        outputs = map(_declared, compiled(free), self._model.graph.output)
        return namedtupledict("Outputs", self._output_names)(*outputs)

    def _specialised(self, arrays: Mapping[str, np.ndarray]) -> Compiled:
        """The model compiled for the values of the inputs that have to be constant."""
        for _ in range(_ROUNDS):
            constants = {name: arrays[name] for name in sorted(self._bound)}
            for name, array in constants.items():
                if array.size > _MAX_BOUND_ELEMENTS:
                    raise ModelError(f"input '{name}' decides shapes and has {array.size} elements: make it constant")
            shapes = {name: arrays[name].shape for name in self._open if name not in constants}
            values = tuple((a.shape, str(a.dtype), a.tobytes()) for a in constants.values())
            key = (*shapes.values(), *values)
            if key in self._compiled:
                return self._compiled[key]
            try:
                self._compiled[key] = _build(import_onnx(self._model, shapes, constants=constants))
            except ConstantInputsError as e:
                self._bound |= e.names
        raise ModelError(f"the inputs {sorted(self._bound)} decide shapes in more than {_ROUNDS} steps")


class SubtuneBackend(Backend):
    """`prepare(model).run(inputs)`, `run_model`, `run_node`; device "CPU" only."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return True  # refusals come from `prepare`, with their reason

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> SubtuneRep:
        """Imports and compiles `model`.

        Raises:
            BackendIsNotSupposedToImplementIt: the importer refuses the model; the message says why.
        """
        if not cls.supports_device(device):
            raise BackendIsNotSupposedToImplementIt(f"device {device} is not supported")
        try:
            return SubtuneRep(model)
        except SubtuneError as e:
            raise BackendIsNotSupposedToImplementIt(str(e)) from e

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs a single node; the dtypes of its outputs are inferred unless `outputs_info` gives them."""
        arrays = [np.asarray(x) for x in ([inputs] if isinstance(inputs, np.ndarray) else inputs)]
        names = [name for name in node.input if name]
        infos = [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", infos, outputs)
        opsets = [onnx.helper.make_opsetid(node.domain, kwargs.get("opset_version", onnx.defs.onnx_opset_version()))]
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        return cls.prepare(model, device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


prepare = SubtuneBackend.prepare
run_model = SubtuneBackend.run_model
run_node = SubtuneBackend.run_node
supports_device = SubtuneBackend.supports_device
