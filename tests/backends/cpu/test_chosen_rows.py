"""Elementwise rows whose operands lie where a choice or a table says: vectors up to the last one, which is a part."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.recognise import recognise
from subtune.pipeline import prepare
from tests.backends.workloads import build

RAGGED = Candidate.make("elementwise", shape="ragged", unroll=1, wide=False)


def resize(shape: tuple[int, ...], scale: float, mode: str = "linear") -> onnx.ModelProto:
    out = [*shape[:2], *(int(extent * scale) for extent in shape[2:])]
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    scales = numpy_helper.from_array(np.array([1, 1, scale, scale], np.float32), "scales")
    graph = helper.make_graph(
        [node],
        "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [scales],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def joined(*rows: int) -> Workload:
    """silu of two arrays beside one another along the middle axis, whose innermost rows are of 29 elements."""

    def body(emit: Any, *given: Any) -> Any:
        return op.nn.silu(emit(op.concat(given, 1)))

    return build(body, [(5, count, 29) for count in rows])


def computed(workload: Workload, kernel: Kernel, inputs: list[np.ndarray], device: CPUModel) -> np.ndarray:
    tensors = [tvm.runtime.tensor(array) for array in (*inputs, np.full(workload.args[-1].shape, np.nan, np.float32))]
    func = kernel.func.with_attr("global_symbol", "main")
    tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE)["main"](*tensors)
    result: np.ndarray = tensors[-1].numpy()
    return result


def test_rows_of_joined_arrays_are_vectors(device: CPUModel) -> None:
    """Lanes that divide 29 are one; a vector of sixteen, or three of eight, and a part of one are few for each row."""
    workload = joined(2, 4)
    proposed = backends.candidates(workload, device, topk=20)
    assert any(c.get("shape") == "ragged" for c in proposed)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(arg.shape, np.float32) for arg in workload.args if not arg.is_output]
    x = np.concatenate(inputs, 1).astype(float)
    kernel = backends.schedule(workload, RAGGED, device)
    assert isinstance(kernel, Kernel)
    assert np.abs(computed(workload, kernel, inputs, device) - x / (1 + np.exp(-x))).max() <= 1e-6


def test_resized_axes_are_summed_apart_the_innermost_where_elements_are_few() -> None:
    """Along the innermost axis elements are gathered, along the others vectors are read."""
    grown = [s.workload.args[-1].shape for s in prepare(resize((1, 2, 6, 5), 4)).subgraphs]
    assert grown == [(1, 2, 6, 20), (1, 2, 24, 20)]
    shrunk = [s.workload.args[-1].shape for s in prepare(resize((1, 2, 8, 12), 0.5)).subgraphs]
    assert shrunk == [(1, 2, 4, 12), (1, 2, 4, 6)]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_the_taps_of_a_resize_are_written_out(mode: str, device: CPUModel) -> None:
    """A loop over two or four taps would be the innermost one, and no vector."""
    for subgraph in prepare(resize((1, 2, 6, 13), 3, mode)).subgraphs:
        assert isinstance(recognise(subgraph.workload), Elementwise)
        assert any(c.family == "elementwise" for c in backends.candidates(subgraph.workload, device, topk=20))
