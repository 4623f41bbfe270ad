"""TopK and sorting: the written functions against NumPy, and what becomes of the operators in a module."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import relax, te
from tvm.relax import op

import subtune
from subtune.backends import device_of
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.backends.cpu.operators import own_operators
from subtune.backends.cpu.operators.sorting import Sorted, sorted_function
from subtune.passes.exprs import op_name
from subtune.pipeline import prepare
from tests.whole import IS_WHOLE

# shape [outer, length, inner], how many, whether the largest
CASES = {
    "few of many rows": ((40, 61, 1), 5, True),
    "few of rows side by side": ((3, 61, 21), 4, False),
    "few of rows nearly side by side": ((9, 30, 3), 2, True),
    "few of few rows": ((2, 77, 1), 3, True),
    "one": ((17, 50, 1), 1, True),
    "one of long rows": ((3, 1300, 1), 1, True),
    "few of long rows, the last block in part": ((5, 2100, 1), 5, False),
    "few of long rows not quite side by side": ((2, 1500, 3), 16, True),
    "more than are kept in registers": ((3, 130, 1), 50, True),
    "selected, the last block in part": ((5, 2100, 1), 40, True),
    "selected along another axis": ((2, 1500, 3), 20, False),
    "the best of sorted parts, the last one short": ((3, 292, 1), 100, True),
    "the best of sorted parts, all whole": ((2, 256, 3), 31, False),
    "the best of sorted parts and one element": ((3, 129, 1), 20, True),
    "sorted": ((4, 100, 1), 100, False),
    "sorted, a whole power of two": ((2, 256, 2), 256, True),
    "sorted, a short row": ((3, 3, 1), 3, True),
    "rows of one element": ((5, 1, 1), 1, False),
}
MORE = [("haswell", "int32"), ("x86-64", "uint8")] if IS_WHOLE else []


@pytest.mark.parametrize(
    ("processor", "dtype"),
    [("", "int32"), ("", "uint8"), ("haswell", "uint8"), ("x86-64", "int32"), *MORE],
)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_order_and_ties_are_right(case: str, dtype: str, processor: str, device: CPUModel) -> None:
    if processor and dtype != "int32":
        return
    shape, count, largest = CASES[case]
    model = CPU(processor, threads=2) if processor else device
    func = sorted_function(Sorted(dtype, shape, count, largest, ("values", "places"), "int64"), model)
    func = func.with_attr("global_symbol", "main")
    run = tvm.compile(func, target=model.target(), tir_pipeline=PIPELINE)["main"]
    rng, info = np.random.default_rng(0), np.iinfo(dtype)
    for low, high in ((0, 4), (info.min, info.max)):  # of equals the first comes first
        x = rng.integers(low, high, shape, dtype=dtype, endpoint=True)
        values, places = (tvm.runtime.tensor(np.zeros((shape[0], count, shape[2]), made)) for made in (dtype, "int64"))
        run(tvm.runtime.tensor(x), values, places)
        wanted = np.argsort(-x.astype("int64") if largest else x, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(places.numpy(), wanted)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, wanted, 1))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("length", "largest"), [(40, True), (1100, True), (1100, False)])
def test_floats_are_ordered_where_they_are_read(length: int, largest: bool, dtype: str) -> None:
    k = 7
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"], largest=int(largest))
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = [helper.make_tensor_value_info("values", number, [9, k]),
            helper.make_tensor_value_info("places", onnx.TensorProto.INT64, [9, k])]  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", number, [9, length])], made,
        [numpy_helper.from_array(np.array([k]), "k")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    device = device_of("auto", 2)
    subgraphs = prepare(model, forms=device.backend.forms(device.model)).subgraphs
    assert [subgraph.anchor for subgraph in subgraphs] == ["gather_elements"]
    rng = np.random.default_rng(3)
    x = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, *rng.standard_normal(30)], (9, length)).astype(dtype)
    found = subtune.compile(model, tune=False).run({"x": x})
    values, places = found["values"], found["places"]
    # NaN is the largest, zeros are equal, of equals the first comes first
    keys = np.where(np.isnan(x), np.inf, np.clip(x.astype("float64"), -1e30, 1e30))
    wanted = np.argsort(-keys if largest else keys, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, 1))


def module(dtype: str, made: object) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 30, 4), dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(made(x))  # type: ignore[operator]
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize(
    ("made", "dtype", "is_ours"),
    [
        (lambda x: op.topk(x, 3, axis=1, ret_type="both", dtype="int64"), "int32", True),
        (lambda x: op.topk(x, 3, axis=1, ret_type="indices", dtype="int64"), "int32", True),
        (lambda x: op.sort(x, axis=1), "int16", True),
        (lambda x: op.argsort(x, axis=-1, dtype="int32"), "int32", True),
        (lambda x: op.topk(x, 3, axis=1, ret_type="values", dtype="int64"), "float32", False),
        (lambda x: op.sort(x, axis=1), "int64", False),
    ],
)
def test_operators_become_functions(made: object, dtype: str, is_ours: bool, device: CPUModel) -> None:
    mod = module(dtype, made)
    out = own_operators(mod, device)
    calls = [op_name(binding.value) for block in out["main"].body.blocks for binding in block.bindings]
    assert ("relax.call_tir" in calls) == is_ours
    assert out["main"].ret_ty == mod["main"].ret_ty if is_ours else out.same_as(mod)


def test_what_knows_its_place_is_not_computed_by_the_sort(device: CPUModel) -> None:
    """An operator of one input may make other things of elements at other places."""

    def of_place(v: object) -> object:
        return te.compute(v.shape, lambda i, j, k: v[i, j, k] * (j + 1).astype("int32"), name="of_place")  # type: ignore[attr-defined]

    def made(multiply: object) -> tvm.IRModule:
        bb = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((2, 30, 4), "int32"))
        with bb.function("main", [x]):
            with bb.dataflow():
                y = bb.emit_te(multiply, x)
                out = bb.emit_output(op.argsort(y, axis=1, dtype="int32"))
            bb.emit_func_output(out)
        return own_operators(bb.get(), device)

    def double(v: object) -> object:
        return te.compute(v.shape, lambda *i: v(*i) * 2, name="double")  # type: ignore[attr-defined, operator]

    for multiply, loops in ((of_place, 2), (double, 1)):
        calls = [op_name(binding.value) for block in made(multiply)["main"].body.blocks for binding in block.bindings]
        assert calls.count("relax.call_tir") == loops
