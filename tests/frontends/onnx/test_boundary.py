"""Inputs and outputs of 2 to 8 bits: every number against ml_dtypes, to the bit, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from subtune.artifact import Artifact, load
from subtune.artifact.random_inputs import random_inputs
from subtune.cli.main import main
from subtune.core.errors import InputError, ModelError
from subtune.driver import compile_model
from subtune.frontends.onnx.ops import import_onnx
from subtune.frontends.onnx.ops.small_floats import SMALL_FLOATS
from subtune.frontends.onnx.reference import onnxruntime_reference
from tests.frontends.onnx.one_node import model_of, ours

F = np.float32
INTEGERS = ("int4", "uint4", "int2", "uint2")
NAMES = (*INTEGERS, *SMALL_FLOATS)
LENGTH = 256


FIXED = F([0.25, -3, np.inf]).astype(ml_dtypes.float8_e5m2)


def of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name))


def elem(name: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(of(name)))


def info(name: str, elem_type: int, *dims: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, dims)


def graph_of(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def bits() -> np.ndarray:
    """Bits above those of a type mean nothing."""
    return np.arange(LENGTH, dtype=np.uint8)


def canonical(name: str) -> np.ndarray:
    width = int(name[-1]) if name in INTEGERS else SMALL_FLOATS[name].bits
    return np.asarray((bits() & np.uint8((1 << width) - 1)).view(of(name)))


def hard(name: str) -> np.ndarray:
    """Every number, what lies between two of them and next to that, and beyond all; doubled, for a scale of 2."""
    finite = np.sort(canonical(name).astype(F))
    finite = np.unique(finite[np.isfinite(finite)])
    ties = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(ties, F(to)) for to in (-1e9, 1e9)]
    top = finite[-1] + (finite[-1] - finite[-2]) * F([0.49, 0.5, 0.51, 1])
    return np.concatenate([finite, -finite, ties, *near, top, -top, F([0, -0.0, 1e9, -1e9])]).astype(F) * F(2)


def specials() -> np.ndarray:
    return F([np.inf, -np.inf, np.nan])


def of_every_type() -> onnx.ModelProto:
    """Of each type: numbers read, written at a scale of 2, cast without saturation, and moved from input to output."""
    nodes, inputs, outputs = [], [info("scale", 1), info("one", 1)], []
    for name in NAMES:
        size = hard(name).size + (0 if name in INTEGERS else 3)
        inputs += [info(f"{name}_q", elem(name), LENGTH), info(f"{name}_x", 1, size)]
        nodes += [
            helper.make_node("DequantizeLinear", [f"{name}_q", "one"], [f"{name}_read"]),
            helper.make_node("QuantizeLinear", [f"{name}_x", "scale"], [f"{name}_written"], output_dtype=elem(name)),
            helper.make_node("Reshape", [f"{name}_q", "shape"], [f"{name}_moved"]),
        ]
        outputs += [info(f"{name}_read", 1, LENGTH), info(f"{name}_written", elem(name), size)]
        outputs += [info(f"{name}_moved", elem(name), 16, 16)]
        if name not in INTEGERS:
            nodes += [helper.make_node("Cast", [f"{name}_x"], [f"{name}_cast"], to=elem(name), saturate=0)]
            outputs += [info(f"{name}_cast", elem(name), size)]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [16, 16])
    fixed = numpy_helper.from_array(FIXED, "fixed")
    nodes.insert(0, helper.make_node("Constant", [], ["shape"], value=shape))
    nodes += [
        helper.make_node("Identity", ["int4_moved"], ["again"]),
        helper.make_node("Constant", [], ["fixed"], value=fixed),
    ]
    outputs += [info("again", elem("int4"), 16, 16), info("fixed", elem("float8_e5m2"), 3)]
    return graph_of(nodes, inputs, outputs)


def inputs_of_every_type() -> dict[str, np.ndarray]:
    made = {"scale": np.array(2, F), "one": np.array(1, F)}
    for name in NAMES:
        made[f"{name}_q"] = bits().view(of(name))
        made[f"{name}_x"] = hard(name) if name in INTEGERS else np.append(hard(name), specials())
    return made


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """ONNX Runtime has no arrays of these types: the untuned build verifies it."""
    path = tmp_path_factory.mktemp("narrow") / "a.subtune"
    return load(compile_model(of_every_type(), path, tune=False).path)


@pytest.fixture(scope="module")
def results(artifact: Artifact) -> dict[str, np.ndarray]:
    return artifact.run(inputs_of_every_type())


def same_numbers(got: np.ndarray, wanted: np.ndarray) -> None:
    """To the bit, but for which NaN it is."""
    assert got.dtype == wanted.dtype
    a, b = got.astype(F), wanted.astype(F)
    np.testing.assert_array_equal(a, b)
    numbers = ~np.isnan(b)
    np.testing.assert_array_equal(got.view(np.uint8)[numbers], wanted.view(np.uint8)[numbers])


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_read_as_they_are(name: str, results: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(results[f"{name}_read"], canonical(name).astype(F))
    same_numbers(results[f"{name}_moved"], canonical(name).reshape(16, 16))


def test_outputs_that_are_copies(results: dict[str, np.ndarray]) -> None:
    """Of another output, and of a constant."""
    same_numbers(results["again"], results["int4_moved"])
    same_numbers(results["fixed"], FIXED)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_rounded_as_ml_dtypes_does(name: str, results: dict[str, np.ndarray]) -> None:
    x = inputs_of_every_type()[f"{name}_x"] / F(2)
    limits: Any = ml_dtypes.iinfo(of(name)) if name in INTEGERS else ml_dtypes.finfo(of(name))
    bounded = np.clip(np.rint(x) if name in INTEGERS else x, F(limits.min), F(limits.max))
    same_numbers(results[f"{name}_written"], bounded.astype(of(name)))


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_casts_without_saturation(name: str, results: dict[str, np.ndarray]) -> None:
    same_numbers(results[f"{name}_cast"], inputs_of_every_type()[f"{name}_x"].astype(of(name)))


def test_types_are_shown_and_random_inputs_have_them(artifact: Artifact) -> None:
    assert f"int4_q: int4[{LENGTH}]" in repr(artifact)
    assert "float8_e5m2_moved: float8_e5m2[16, 16]" in repr(artifact)
    assert np.unique(random_inputs(artifact.inputs)["int4_q"].astype(int)).tolist() == list(range(-8, 8))
    tensors = artifact.run_tensors(inputs_of_every_type())
    assert [str(tensors[f"{name}_moved"].dtype) for name in ("int4", "float8_e5m2")] == ["uint8", "float8_e5m2"]


def test_outputs_go_where_they_are_wanted(artifact: Artifact) -> None:
    wanted = np.zeros((16, 32), of("int4"))[:, ::2]  # not contiguous: copied
    got = artifact.run(inputs_of_every_type(), out={"int4_moved": wanted})
    assert got["int4_moved"] is wanted
    same_numbers(np.ascontiguousarray(wanted), canonical("int4").reshape(16, 16))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(LENGTH, np.int8), r"has dtype int8, the model takes int4_q: int4\[256\]; convert it with .astype"),
        (np.zeros(LENGTH, of("uint4")), "has dtype uint4, the model takes int4_q"),
        (bits(), r"has dtype uint8, the model takes int4_q.*or with .view\('int4'\) if these are its bits"),
        (np.zeros(LENGTH // 2, of("int4")), "has shape"),
    ],
)
def test_arrays_of_another_dtype_are_refused(artifact: Artifact, array: np.ndarray, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        artifact.run({**inputs_of_every_type(), "int4_q": array})
    assert "\n" not in str(caught.value)


def test_the_command_line_takes_and_writes_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of these types, numpy's files have no names."""
    node = helper.make_node("Transpose", ["x"], ["y"])
    model = graph_of([node], [info("x", elem("float8_e5m2"), 2, 3)], [info("y", elem("float8_e5m2"), 3, 2)])
    path = compile_model(model, tmp_path / "a.subtune", tune=False, verify=False).path
    x = F([[1, 2, 3], [-4, 0.5, 0]]).astype(of("float8_e5m2"))
    np.save(tmp_path / "x.npy", x.view(np.uint8))
    out = tmp_path / "y.npz"
    assert main(["run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output", str(out)]) == 0
    assert "y: float8_e5m2[3, 2] min -4" in capsys.readouterr().out
    with np.load(out) as outputs:
        same_numbers(outputs["y"].view(x.dtype), np.ascontiguousarray(x.T))
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.int8))
    assert main(["run", path, "--input", f"x={tmp_path / 'x.npy'}"]) == 2
    assert "input x has dtype int8, the model takes x: float8_e5m2[2, 3]" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float8_e4m3fn"])
def test_blocks_and_zero_points_that_are_inputs(name: str) -> None:
    """A zero point that is no constant is taken into account; without one the reference has the same formula."""
    rng = np.random.default_rng(0)
    x, scale = (3 * rng.standard_normal((4, 6))).astype(F), rng.uniform(0.5, 2, (4, 2)).astype(F)
    zero = np.zeros((4, 2), of(name))
    for op, first in (("QuantizeLinear", x), ("DequantizeLinear", x.astype(of(name)))):
        model, feeds = model_of(op, [first, scale, zero], (0, 2), domain="", opset=25, axis=1, block_size=3)
        model.graph.output[0].CopyFrom(info("y", elem(name) if op == "QuantizeLinear" else 1, 4, 6))
        (wanted,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_array_equal(ours(model, feeds).astype(F), wanted.astype(F))
    moved = np.full((4, 2), 2, of(name))
    got = ours(model, {**feeds, "x2": moved})
    np.testing.assert_array_equal(got, (feeds["x0"].astype(F) - F(2)) * np.repeat(scale, 3, 1))


def test_both_forms_of_float8e4m3fn_are_joined() -> None:
    """What an input has is held otherwise than what QuantizeLinear makes."""
    e4m3 = elem("float8_e4m3fn")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["a"], output_dtype=e4m3),
        helper.make_node("Concat", ["a", "q"], ["y"], axis=0),
    ]
    model = graph_of(nodes, [info("x", 1, 5), info("s", 1), info("q", e4m3, 4)], [info("y", e4m3, 9)])
    x, q = F([1.1, -500, 0.3, 7, np.nan]), F([1, -2, 3, 4]).astype(of("float8_e4m3fn"))
    got = ours(model, {"x": x, "s": np.array(1, F), "q": q})
    same_numbers(got, np.append(np.clip(x, -448, 448).astype(q.dtype), q))


def test_onnx_runtime_gives_float8e4m3fn_as_we_do() -> None:
    pytest.importorskip("onnxruntime")
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=elem("float8_e4m3fn"))
    model = graph_of([node], [info("x", 1, 3), info("s", 1)], [info("y", elem("float8_e4m3fn"), 3)])
    run = onnxruntime_reference(model)
    assert run is not None
    x = F([1, 0.3, 1000])
    same_numbers(run({"x": x, "s": np.array(1, F)})["y"], F([1, 0.3, 448]).astype(of("float8_e4m3fn")))


INT4 = info("q", TensorProto.INT4, 4)
REFUSED = {
    "reader": ("Relu", INT4, {}, info("y", TensorProto.INT4, 4), "takes int4, which only operators that move elements"),
    "no type": (
        "Identity",
        INT4,
        {},
        onnx.ValueInfoProto(name="y"),
        "'y' is int4.*the model does not declare its type",
    ),
    "other type": ("Identity", INT4, {}, info("y", TensorProto.UINT4, 4), "declared as uint4 but is int4"),
    "e8m0": ("Identity", info("q", TensorProto.FLOAT8E8M0, 4), {}, info("y", 1, 4), "uses dtype float8e8m0"),
    "to e8m0": ("Cast", info("q", 1, 4), {"to": 24}, info("y", TensorProto.FLOAT8E8M0, 4), "uses dtype float8e8m0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    op, given, attrs, made, said = REFUSED[case]
    with pytest.raises(ModelError, match=said) as caught:
        import_onnx(graph_of([helper.make_node(op, ["q"], ["y"], **attrs)], [given], [made]))
    assert "\n" not in str(caught.value)
