"""A small ONNX model as numpy programs it: one call per operator, results written where the last run's were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Compute = Callable[[Sequence[Array], Mapping[str, Any], Array | None], Array]


class NumpyModel:
    """Runs the operators numpy has a function for.

    Raises NotImplementedError naming the first operator that it has none for: a loop in Python would say nothing.
    """

    def __init__(self, path: str, inputs: Mapping[str, Array]) -> None:
        import onnx

        graph = onnx.load(path).graph
        self._values: dict[str, Array] = dict(inputs)
        self._values |= {init.name: onnx.numpy_helper.to_array(init) for init in graph.initializer}
        self._names = [value.name for value in graph.output]
        self._steps: list[tuple[Compute, list[str], dict[str, Any], str]] = []
        for node in graph.node:
            if node.op_type not in _COMPUTE:
                raise NotImplementedError(f"numpy has no function for {node.op_type}")
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            self._steps.append((_COMPUTE[node.op_type], list(node.input), attributes, node.output[0]))
        for compute, names, attributes, name in self._steps:  # the first time makes the arrays
            self._values[name] = np.ascontiguousarray(compute([self._values[n] for n in names], attributes, None))

    def run(self) -> list[Array]:
        values = self._values
        for compute, names, attributes, name in self._steps:
            compute([values[n] for n in names], attributes, values[name])
        return [values[name] for name in self._names]


def _gemm(args: Sequence[Array], attributes: Mapping[str, Any], out: Array | None) -> Array:
    a = args[0].T if attributes.get("transA") else args[0]
    b = args[1].T if attributes.get("transB") else args[1]
    result = np.matmul(a, b, out=out)
    return np.add(result, args[2], out=result) if len(args) > 2 else result


def _transpose(args: Sequence[Array], attributes: Mapping[str, Any], out: Array | None) -> Array:
    view = np.transpose(args[0], attributes.get("perm"))
    if out is None:
        return view
    np.copyto(out, view)
    return out


def _concat(args: Sequence[Array], attributes: Mapping[str, Any], out: Array | None) -> Array:
    return np.concatenate(args, axis=attributes["axis"], out=out)


def _reduce_sum(args: Sequence[Array], attributes: Mapping[str, Any], out: Array | None) -> Array:
    axes = tuple(int(axis) for axis in args[1])
    return np.sum(args[0], axis=axes, keepdims=bool(attributes.get("keepdims", 1)), out=out)


_COMPUTE: Mapping[str, Compute] = {
    "MatMul": lambda args, _, out: np.matmul(args[0], args[1], out=out),
    "Gemm": _gemm,
    "Add": lambda args, _, out: np.add(args[0], args[1], out=out),
    "Relu": lambda args, _, out: np.maximum(args[0], np.float32(0), out=out),
    "Exp": lambda args, _, out: np.exp(args[0], out=out),
    "Transpose": _transpose,
    "Concat": _concat,
    "ReduceSum": _reduce_sum,
}
