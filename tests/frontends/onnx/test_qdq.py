"""QuantizeLinear, DequantizeLinear and MatMulNBits of every type and granularity, against ONNX Runtime: to the bit.

What ONNX Runtime has no kernel for is compared with ONNX's reference evaluator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import subtune
from subtune.core.errors import ModelError
from subtune.driver import compile_model
from subtune.frontends.onnx.ops import import_onnx
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.passes.exprs import array_of
from subtune.pipeline import normalize
from tests.frontends.onnx.one_node import RNG, F, both, model_of, ours, some

BF16 = ml_dtypes.bfloat16
NARROW = {"int4": 21, "uint4": 21, "int2": 25, "uint2": 25}
"""The opset that has the type first."""
SHORT = ("int8", "uint8", "int16", "uint16")


def of_type(name: str, *dims: int) -> np.ndarray:
    of = np.dtype(getattr(ml_dtypes, name) if name in NARROW else name)
    limits = ml_dtypes.iinfo(of)
    return RNG.integers(int(limits.min), int(limits.max) + 1, dims).astype(np.int64).astype(of)


def zero(name: str) -> np.ndarray:
    return np.asarray(of_type(name), of_type(name).dtype)


def scales(*dims: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.4, dims).astype(F)


def chain(nodes: list[Any], x: np.ndarray, constants: dict[str, np.ndarray], opset: int = 21) -> onnx.ModelProto:
    """Nodes from `x` to `y`."""
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info("y")], held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def agree(model: onnx.ModelProto, x: np.ndarray) -> None:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got, (wanted,) = ours(model, {"x": x}), session.run(None, {"x": x})
    assert got.dtype == wanted.dtype
    assert np.ptp(wanted.astype(float)) > 0
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("name", NARROW)
def test_narrow_activations(name: str, domain: str) -> None:
    """Halves between two steps and far beyond the range; ONNX Runtime shows them dequantised."""
    if domain and NARROW[name] > 21:
        pytest.skip("com.microsoft has no integers of two bits")
    x = np.append(np.arange(-60, 60) * F(0.5) * F(0.3), [1e20, -1e20]).astype(F)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=domain),
        helper.make_node("DequantizeLinear", ["q", "one"], ["y"], domain=domain),
    ]
    agree(chain(nodes, x, {"s": F(0.3), "z": zero(name), "one": F(1)}, NARROW[name]), x)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", [*SHORT, *NARROW])
def test_quantised_along_any_axis(name: str, axis: int) -> None:
    x = (4 * RNG.standard_normal((5, 6, 7))).astype(F)
    count = x.shape[axis]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis),
    ]
    agree(chain(nodes, x, {"s": scales(count), "z": of_type(name, count)}, NARROW.get(name, 21)), x)


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["uint8", "int16", "int4"])
def test_quantised_by_blocks(name: str, axis: int, size: int) -> None:
    """The last block may be shorter."""
    x = (4 * RNG.standard_normal((5, 6, 7))).astype(F)
    dims = [-(-d // size) if a == axis % 3 else d for a, d in enumerate(x.shape)]
    attrs = {"axis": axis, "block_size": size}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attrs),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attrs),
    ]
    agree(chain(nodes, x, {"s": scales(*dims), "z": of_type(name, *dims)}), x)


@pytest.mark.parametrize("to", [F, np.float16])
@pytest.mark.parametrize("name", ["int32", *SHORT, *NARROW])
@pytest.mark.grid
def test_weights(name: str, to: Any) -> None:
    """Constants: one scale, one of each position of an axis, one of each block; some are zero or negative."""
    opset = NARROW.get(name, 21)
    w = of_type(name, 6, 7, 5)
    blocks = scales(6, 3, 5)
    blocks[0, 0, :2] = 0, -0.3
    forms: list[tuple[np.ndarray, dict[str, int]]] = [
        (scales(), {}), (scales(6), {"axis": 0}), (scales(5), {"axis": -1}), (blocks, {"axis": 1, "block_size": 3}),
    ]  # fmt: skip
    for scale, attrs in forms:
        point = None if name == "int32" else of_type(name, *scale.shape)
        x = np.zeros(w.shape, to)
        dequantize = helper.make_node("DequantizeLinear", ["w", "s", "z" if point is not None else ""], ["f"], **attrs)
        constants = {"w": w, "s": scale.astype(to), **({"z": point} if point is not None else {})}
        agree(chain([dequantize, helper.make_node("Add", ["x", "f"], ["y"])], x, constants, opset), x)


@pytest.mark.parametrize("name", NARROW)
def test_narrow_weights_are_moved(name: str) -> None:
    """ONNX Runtime moves them by some of these operators alone: compared with the reference evaluator."""
    x, w = np.zeros((3, 8), F), of_type(name, 4, 3, 4)
    node = helper.make_node
    nodes = [
        node("Reshape", ["w", "dims"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[1, 0]),
        node("Slice", ["b", "from", "to", "axis"], ["c"]),
        node("Split", ["c"], ["d", "e"], axis=0, num_outputs=2),
        node("Concat", ["e", "d"], ["f"], axis=0),
        node("Gather", ["f", "rows"], ["g"], axis=0),
        node("DequantizeLinear", ["g", "s"], ["h"], axis=1),
        node("Add", ["x", "h"], ["y"]),
    ]
    constants = {
        "w": w, "dims": np.array([8, 6]), "from": np.array([1]), "to": np.array([5]), "axis": np.array([0]),
        "rows": np.array([2, 0, 3]), "s": scales(8),
    }  # fmt: skip
    model = chain(nodes, x, constants, NARROW[name])
    got, (wanted,) = ours(model, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})
    assert np.ptp(wanted) > 0
    np.testing.assert_array_equal(got, wanted)


def compiled(model: onnx.ModelProto, x: np.ndarray, dims: list[int], folder: Path) -> None:
    """From a file, verified by the compile; and compared once more."""
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, dims))
    onnx.save(model, folder / "m.onnx")
    report = compile_model(folder / "m.onnx", folder / "a", tune=False)
    assert "ONNX Runtime" in report.verified
    run = onnxruntime_reference(folder / "m.onnx")
    assert run is not None
    np.testing.assert_allclose(subtune.load(folder / "a").run({"x": x})["y"], run({"x": x})["y"], rtol=1e-4, atol=1e-4)


def test_a_large_weight_of_four_bits(tmp_path: Path) -> None:
    """Kept outside of the protobuf, as large initialisers are."""
    x = RNG.standard_normal((3, 128)).astype(F)
    w = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], axis=0, block_size=32)
    constants = {"w": of_type("int4", 128, 96), "s": scales(4, 96), "z": of_type("int4", 4, 96)}
    compiled(chain([w, helper.make_node("MatMul", ["x", "f"], ["y"])], x, constants), x, [3, 96], tmp_path)


def test_rounding_the_activations_is_not_asked_for(tmp_path: Path) -> None:
    """By accuracy_level 4 ONNX Runtime may round them to int8; the reference that verifies does not."""
    x, b = RNG.standard_normal((3, 128)).astype(F), RNG.integers(0, 256, (96, 4, 16)).astype(np.uint8)
    attrs = {"K": 128, "N": 96, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", **attrs)
    compiled(chain([node], x, {"b": b, "s": scales(96, 4)}), x, [3, 96], tmp_path)


@pytest.mark.parametrize("name", SHORT)
def test_halves_are_divided_in_float32(name: str) -> None:
    x = np.arange(0, 0x7C00, 3, dtype=np.uint16).view(np.float16)
    x = np.concatenate([x, -x])
    for scale in (0.3, 0.013):
        np.testing.assert_array_equal(*both("QuantizeLinear", [x, np.float16(scale), zero(name)], domain="", opset=21))
        q = some(zero(name).dtype, 999)
        np.testing.assert_array_equal(
            *both("DequantizeLinear", [q, np.float16(scale), zero(name)], domain="", opset=21)
        )


def test_types_that_attributes_name() -> None:
    x = (40 * RNG.standard_normal((40, 50))).astype(F)
    half, full = int(TensorProto.FLOAT16), int(TensorProto.FLOAT)
    quantize, dequantize = "QuantizeLinear", "DequantizeLinear"
    for opset in (23, 25):
        same = {"domain": "", "opset": opset}
        np.testing.assert_array_equal(*both(quantize, [x, F(0.3), np.uint8(100)], precision=half, **same))
        np.testing.assert_array_equal(*both(quantize, [x, scales(50), None], precision=half, **same))
        np.testing.assert_array_equal(*both(quantize, [x, F(0.3)], output_dtype=int(TensorProto.INT16), **same))
        np.testing.assert_array_equal(*both(quantize, [F(x) / 9, F(0.3)], **same))
        q = some(np.int16, 4, 50)
        np.testing.assert_array_equal(*both(dequantize, [q, F(0.013), np.int16(5)], output_dtype=half, **same))
        np.testing.assert_array_equal(*both(dequantize, [q, np.float16(0.01), np.int16(5)], output_dtype=full, **same))


def reference(op: str, inputs: list[Any], **attrs: Any) -> tuple[np.ndarray, np.ndarray]:
    model, feeds = model_of(op, inputs, domain="", opset=23, **attrs)
    (wanted,), got = ReferenceEvaluator(model).run(None, feeds), ours(model, feeds)
    assert got.dtype == wanted.dtype
    return got, wanted


def test_what_onnx_runtime_has_no_kernel_for() -> None:
    x = (5 * RNG.standard_normal((40, 50))).astype(BF16)
    for name in ("int8", "uint16"):
        got, wanted = reference("QuantizeLinear", [x, np.asarray(0.3, BF16), np.array(60, name)])
        np.testing.assert_array_equal(got, wanted)
        got, wanted = reference("DequantizeLinear", [of_type(name, 9, 50), np.asarray(0.3, BF16), np.array(60, name)])
        np.testing.assert_array_equal(got, wanted)
    whole = RNG.integers(-900, 900, (40, 50)).astype(np.int32)
    got, wanted = reference("QuantizeLinear", [whole, F(3), np.uint8(7)])
    np.testing.assert_array_equal(got, wanted)


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """uint8 along the last axis, the first value in the lowest bits; a last byte is filled with zeros."""
    each = 8 // bits
    filled = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % each)]).reshape(
        *values.shape[:-1], -1, each
    )
    return (filled << (np.arange(each, dtype=np.uint8) * bits)).sum(-1, dtype=np.uint8)


def nbits(
    bits: int, size: int, points: str, of: Any = F, columns: int = 96, extra: dict[int, Any] | None = None
) -> Any:
    rows, blocks = 20, -(-columns // size)
    values = RNG.integers(0, 2**bits, (rows, blocks, size)).astype(np.uint8)
    zeros = RNG.integers(0, 2**bits, (rows, blocks)).astype(np.uint8)
    zero = {"": None, "packed": packed(zeros, bits), "floats": (zeros + 0.25).astype(of)}[points]
    inputs = [
        RNG.standard_normal((2, 3, columns)).astype(of),
        packed(values, bits),
        scales(rows, blocks).astype(of),
        zero,
    ]
    inputs += [(extra or {}).get(i) for i in (4, 5)]
    while inputs[-1] is None:
        del inputs[-1]
    return both("MatMulNBits", inputs, K=columns, N=rows, bits=bits, block_size=size)


@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.grid
def test_weights_of_few_bits(bits: int, size: int) -> None:
    for points in ("", "packed", *(["floats"] if bits == 4 else [])):
        np.testing.assert_allclose(*nbits(bits, size, points), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(*nbits(bits, size, points, columns=272), rtol=1e-4, atol=1e-3)


def test_weights_of_few_bits_with_what_may_follow() -> None:
    np.testing.assert_allclose(*nbits(2, 32, "packed"), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(*nbits(4, 32, "packed", extra={5: scales(20)}), rtol=1e-4, atol=1e-4)
    groups = RNG.integers(0, 3, 96).astype(np.int32)
    np.testing.assert_allclose(*nbits(4, 32, "", extra={4: groups}), rtol=1e-4, atol=1e-4)
    got, wanted = nbits(4, 32, "packed", np.float16)
    np.testing.assert_allclose(got.astype(F), wanted.astype(F), rtol=2e-2, atol=2e-2)


def test_groups_with_zero_points() -> None:
    """Column k belongs to group g[k]. ONNX Runtime takes 8 for their zero points on CPUs, whatever the model says."""
    values, zeros = RNG.integers(0, 16, (20, 96)).astype(np.uint8), RNG.integers(0, 16, (20, 3)).astype(np.uint8)
    x, scale, groups = RNG.standard_normal((2, 96)).astype(F), scales(20, 3), RNG.integers(0, 3, 96).astype(np.int32)
    inputs = [x, packed(values.reshape(20, 3, 32), 4), scale, packed(zeros, 4), groups]
    model, feeds = model_of("MatMulNBits", inputs, K=96, N=20, bits=4, block_size=32)
    got = ours(model, feeds)
    weights = (values.astype(F) - zeros[:, groups]) * scale[:, groups]
    np.testing.assert_allclose(got, x @ weights.T, rtol=1e-4, atol=1e-4)


def test_blocks_are_the_rows_of_one_dequantize() -> None:
    """Where kernels of packed weights will find them; until then they are floats when the model is compiled."""
    values, scale = RNG.integers(0, 16, (20, 3, 32)).astype(np.uint8), scales(20, 3)
    model, _ = model_of(
        "MatMulNBits", [np.zeros((2, 96), F), packed(values, 4), scale], K=96, N=20, bits=4, block_size=32
    )
    mod = import_onnx(model)
    (found,) = [call for call in calls(mod) if call.op.name == "relax.dequantize"]
    q, held, zero = (array_of(arg) for arg in found.args)
    np.testing.assert_array_equal(q, values.reshape(60, 32))
    np.testing.assert_array_equal(held, scale.reshape(60))
    np.testing.assert_array_equal(zero, np.full(60, 8))
    (product,) = calls(normalize(mod))
    weights = (values.astype(F) - 8) * scale[..., None]
    np.testing.assert_array_equal(array_of(product.args[1]), weights.reshape(20, 96).T)


def calls(mod: tvm.IRModule) -> list[Any]:
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, tvm.ir.Call)]


def test_halves_are_multiplied_as_integers() -> None:
    """A model of float16 has scales of that type."""
    h, node = np.float16, helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["a"]),
        node("DequantizeLinear", ["w", "t"], ["b"], axis=1),
        node("MatMul", ["a", "b"], ["m"]),
        node("QuantizeLinear", ["m", "u", "z"], ["y"]),
    ]
    constants = {
        "s": h(0.02), "z": np.uint8(120), "u": h(0.11), "w": of_type("int8", 48, 24), "t": (0.1 * scales(24)).astype(h),
    }  # fmt: skip
    x = RNG.standard_normal((7, 48)).astype(h)
    model = chain(nodes, x, constants)
    products = [call for call in calls(normalize(import_onnx(model))) if call.op.name == "relax.matmul"]
    assert [str(call.args[0].ty.dtype) for call in products] == ["uint8"]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    assert np.ptp(wanted.astype(int)) > 20
    # ONNX Runtime rounds the product to float16.
    assert np.abs(ours(model, {"x": x}).astype(int) - wanted.astype(int)).max() <= 1


X, W = np.zeros((4, 6), F), of_type("int4", 4, 6)
REFUSED = {
    "blocks": ("DequantizeLinear", [X.astype(np.int8), scales(4, 4)], {"block_size": 2}, r"\[4, 4\] for blocks of 2"),
    "other zero": ("DequantizeLinear", [W, F(1), np.int8(0)], {}, "a zero point of dtype int8 for values of int4"),
    "both named": ("QuantizeLinear", [X, F(1), np.int8(0)], {"output_dtype": 2}, "dtype int8 and output_dtype uint8"),
    "another float8": ("QuantizeLinear", [X, F(1)], {"output_dtype": 24}, "quantises to float8_e8m0fnu, which is not"),
    "division": ("QuantizeLinear", [X, F(1)], {"precision": 11}, "divides in float64, which is not supported"),
    "infinite block": ("DequantizeLinear", [X.astype(np.int8), F([[np.inf] * 6])], {"axis": 0, "block_size": 4},
                       "a scale that is not finite"),
    "reader": ("Relu", [W], {}, "takes int4, which only operators that move elements"),
    "output": ("QuantizeLinear", [X, F(1), zero("uint4")], {}, "'y' is uint4.* the model does not declare its type"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    op, inputs, attrs, reason = REFUSED[case]
    run = () if inputs[0] is W else (0,)
    with pytest.raises(ModelError, match=reason) as caught:
        import_onnx(model_of(op, inputs, run, domain="", opset=23, **attrs)[0])
    assert "\n" not in str(caught.value)


NBITS: dict[str, tuple[dict[int, Any], dict[str, int], str]] = {
    "bits": ({}, {"bits": 3}, "weights of 3 bits in blocks of 32, in a form that is not supported"),
    "columns": ({}, {"K": 64}, r"multiplies shapes \[2, 96\] and \[64, 20\]"),
    "weights": ({1: np.zeros((20, 2, 16), np.uint8)}, {}, r"has weights of shape \[20, 2, 16\], not \[20, 3, 16\]"),
    "no number": ({2: np.full((20, 3), np.nan, F)}, {}, "a scale that is not finite"),
    "zero points": ({3: np.zeros((20, 3), np.uint8)}, {}, r"has zero points of shape \[20, 3\], not \[20, 2\]"),
    "groups": ({4: np.full(96, 3, np.int32)}, {}, "up to 3 for 96 columns in 3 blocks"),
    "bias": ({5: np.zeros(4, F)}, {}, r"a bias of float32 and shape \[4\] for \[2, 20\]"),
}


@pytest.mark.parametrize("case", NBITS)
def test_refusals_of_few_bits(case: str) -> None:
    changes, attrs, reason = NBITS[case]
    inputs: dict[int, Any] = {0: np.zeros((2, 96), F), 1: np.zeros((20, 3, 16), np.uint8), 2: np.ones((20, 3), F)}
    inputs |= changes
    listed = [inputs.get(i) for i in range(max(inputs) + 1)]
    with pytest.raises(ModelError, match=reason):
        import_onnx(model_of("MatMulNBits", listed, **{"K": 96, "N": 20, "bits": 4, "block_size": 32, **attrs})[0])
