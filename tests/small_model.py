"""What several tests share: a small model, what it computes, and how it is built without the tuner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Builder = Callable[..., Any]


def small_onnx() -> onnx.ModelProto:
    """relu(x @ w + b), and its row sums: x float32[4, 32] -> y float32[4, 16], s float32[4]."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((32, 16), dtype=np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(16, dtype=np.float32), "b"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["xwb"]),
        helper.make_node("Relu", ["xwb"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["s"], axes=[1], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [4]),
        ],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
    model.ir_version = 8
    return model


def specs_of(values: Any) -> list[Any]:
    from subtune.core.tensor_spec import TensorSpec

    return [
        TensorSpec(
            value.name,
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
        )
        for value in values
    ]


def builder() -> Builder:
    """`build(model, path, **options)`: TVM's importer and zero pipeline, then subtune's writer."""
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    from subtune.artifact import load
    from subtune.assembly import Package, write_artifact
    from subtune.backends.cpu.device import CPU

    def build(model: onnx.ModelProto, path: Path, threads: int = 2, **options: Any) -> Any:
        mod = relax.get_pipeline("zero")(from_onnx(model, keep_params_in_input=False))
        weight_names = {init.name for init in model.graph.initializer}
        inputs = specs_of(value for value in model.graph.input if value.name not in weight_names)
        outputs = specs_of(model.graph.output)
        device = CPU(threads=threads)
        check = options.pop("check", None)
        return load(write_artifact(path, Package(mod, tuple(inputs), tuple(outputs), **options), device, check))

    return build


def small_reference(x: np.ndarray) -> dict[str, np.ndarray]:
    """What the small model computes, in numpy."""
    w, b = (numpy_helper.to_array(init) for init in small_onnx().graph.initializer)
    y = np.maximum(x @ w + b, 0)
    return {"y": y, "s": y.sum(1)}
