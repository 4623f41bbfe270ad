"""What several test files share: one warm measurer (starting processes is most of what it costs), one small artifact.

The artifact is read only; whoever changes it makes a copy first.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune.backends.cpu.device import CPU, CPUModel
from subtune.measure import LocalMeasurer
from tests.subtune.patient import PatientMeasurer

Builder = Callable[..., Any]

DOUBLES = Path(__file__).resolve().parent / "measure" / "doubles.py"


def load_doubles() -> ModuleType:
    if "doubles" not in sys.modules:
        spec = importlib.util.spec_from_file_location("doubles", DOUBLES)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["doubles"] = module
        spec.loader.exec_module(module)
    return sys.modules["doubles"]


@pytest.fixture(scope="session")
def doubles() -> ModuleType:
    return load_doubles()


@pytest.fixture(scope="session")
def device() -> CPUModel:
    return CPU("auto", threads=2)


@pytest.fixture(scope="session")
def measurer() -> Iterator[LocalMeasurer]:
    """Its workers may have 8 GiB: less than the doubles that hoard want, on any machine."""
    with PatientMeasurer(
        builders=2, schedule="doubles:schedule", search_path=[str(DOUBLES.parent)], memory_bytes=8 << 30
    ) as used:
        yield used


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
    from subtune.artifact.writer import write_files
    from subtune.backends.cpu.device import CPU

    def build(model: onnx.ModelProto, path: Path, threads: int = 2, **options: Any) -> Any:
        mod = relax.get_pipeline("zero")(from_onnx(model, keep_params_in_input=False))
        weight_names = {init.name for init in model.graph.initializer}
        inputs = specs_of(value for value in model.graph.input if value.name not in weight_names)
        outputs = specs_of(model.graph.output)
        device = CPU(threads=threads)
        return load(write_files(path, mod=mod, inputs=inputs, outputs=outputs, device=device, **options))

    return build


@pytest.fixture(scope="session")
def build_artifact() -> Builder:
    return builder()


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(small_onnx(), path)
    return path


@pytest.fixture(scope="session")
def small_artifact(build_artifact: Builder, small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from subtune.artifact.manifest import Source, sha256_of

    path = tmp_path_factory.mktemp("artifact") / "small.subtune"
    build_artifact(small_onnx(), path, source=Source(str(small_model), sha256_of(small_model)))
    return path


@pytest.fixture
def own_artifact(small_artifact: Path, tmp_path: Path) -> Path:
    """A copy of the small artifact to damage."""
    import shutil

    return Path(shutil.copytree(small_artifact, tmp_path / "small.subtune"))


def small_reference(x: np.ndarray) -> dict[str, np.ndarray]:
    """What the small model computes, in numpy."""
    w, b = (numpy_helper.to_array(init) for init in small_onnx().graph.initializer)
    y = np.maximum(x @ w + b, 0)
    return {"y": y, "s": y.sum(1)}


@pytest.fixture(scope="session")
def reference() -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    return small_reference
