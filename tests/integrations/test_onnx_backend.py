"""The ONNX backend interface, and the official suite through it."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from subtune.integrations.onnx_backend import SubtuneBackend
from tests.integrations.onnx_suite import CaseResult, case_names, counts, run_chosen, run_suite
from tests.whole import IS_WHOLE

PASSES = 1810  # of the 2033 CPU cases of onnx 1.23.2; 1150 is promised for any onnx release
NARROW = re.compile(r"quantizelinear_(e4m3|e5m2|float4|u?int[24])")
SLOW_STEP = 20  # where the whole suite, which takes four minutes, is not asked for


def _reshape() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
        ],
        [helper.make_empty_tensor_value_info("y")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_an_input_that_decides_a_shape_may_change_between_runs() -> None:
    rep = SubtuneBackend.prepare(_reshape())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for dims in ([3, 2], [6, 1], [3, 2], [1, -1]):
        (y,) = rep.run([x, np.array(dims)])
        np.testing.assert_array_equal(y, x.reshape(dims))


def test_a_symbolic_dimension_may_change_between_runs() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> agraph (float[N, 2] x) => (float[N] y) {'
        "y = ReduceSum <keepdims = 0> (x, a) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "a"))
    rep = SubtuneBackend.prepare(model)
    for n in (1, 4):
        x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        np.testing.assert_array_equal(rep.run({"x": x}).y, x.sum(1))


def test_run_node() -> None:
    (y,) = SubtuneBackend.run_node(helper.make_node("Relu", ["x"], ["y"]), np.array([-1, 2], np.float32))
    np.testing.assert_array_equal(y, np.array([0, 2], np.float32))


def test_a_refusal_says_why() -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="NonZero node 'y' is not supported"):
        SubtuneBackend.run_node(node, np.zeros(2000, np.float32))


def test_only_the_cpu_is_offered() -> None:
    assert SubtuneBackend.supports_device("CPU")
    assert not SubtuneBackend.supports_device("CUDA")


def _complaints(results: tuple[CaseResult, ...]) -> list[str]:
    return [f"{r.outcome}: {r.name}: {r.message}" for r in results if r.outcome in ("wrong", "crash")]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_official_suite() -> None:
    """Every tenth case, and all that quantise to floats of 8 and 4 bits and integers of few, or from them.

    All where the whole suite is asked for, and then as many pass as are promised.
    """
    if IS_WHOLE:
        every = case_names()
        results = run_suite(every, workers=2)
    else:  # one process, as the other tests have the other cores
        every, results = run_chosen(lambda every: sorted({*every[::SLOW_STEP], *filter(NARROW.search, every)}))
    names, narrow = {*every[:: 1 if IS_WHOLE else SLOW_STEP]}, {*filter(NARROW.search, every)}
    assert _complaints(results) == []
    assert [r.name for r in results if r.name in narrow and r.outcome != "pass"] == []
    results = tuple(r for r in results if r.name in names)
    promised = PASSES if onnx.__version__ == "1.23.2" else 1150
    assert counts(results)["pass"] >= (promised if IS_WHOLE else 0.9 * promised / SLOW_STEP)
