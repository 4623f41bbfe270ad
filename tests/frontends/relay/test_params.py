"""Parameters: files, shapes, what is missing; which of main's parameters are inputs; random values."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
import tvm

from subtune.core.errors import ModelError, ShapeError
from subtune.frontends import Parameters, load
from subtune.frontends.relay.nodes import Tensor
from subtune.frontends.relay.params import load_params
from subtune.frontends.relay.random_weights import random_weight
from subtune.frontends.relay.roles import Use
from tests.frontends.relay.run import executable, run_text

X = np.float32([[1, 2, 3], [-1, 0, 1]])
W = np.float32([[1, 0, 2], [0, 1, 1], [1, 1, 1], [2, 2, 0]])
B = np.float32([0.5, 1, -1, 0])
TEXT = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 3), float32], %b: Tensor[(4), float32]) {
  nn.bias_add(nn.dense(%x, %w, units=4), %b)
}"""
ARRAYS = {
    "w": W, "b": B, "half": np.float16([1, 2]), "flags": np.asarray([True, False]), "scalar": np.asarray(7, np.int64),
    "bytes": np.arange(6, dtype=np.uint8).reshape(2, 1, 3),
}  # fmt: skip


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_what_tvm_saved():
    saved = bytes(tvm.runtime.save_param_dict({name: tvm.runtime.tensor(a) for name, a in ARRAYS.items()}))
    found = load_params(saved)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("kind", ["mapping", "tensors", "npz", "binary", "path"])
def test_every_way_to_give_them(kind, tmp_path):
    binary = bytes(tvm.runtime.save_param_dict({"w": tvm.runtime.tensor(W), "b": tvm.runtime.tensor(B)}))
    path = tmp_path / "model.params"
    path.write_bytes(binary)
    values = {
        "mapping": {"w": W, "b": B, "unused": B}, "tensors": {"w": tvm.runtime.tensor(W), "b": B.tolist()},
        "npz": npz(w=W, b=B), "binary": binary, "path": str(path),
    }[kind]  # fmt: skip
    if kind == "tensors":
        values["b"] = np.asarray(values["b"], np.float64)  # the same kind of number, another width
    np.testing.assert_allclose(run_text(TEXT, X, values=values)[0], X @ W.T + B)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"w": W}, r"no values for 1 parameter \(b\)"),
        ({}, r"no values for 2 parameters \(w, b\): give --params"),
        ({"w": W.T, "b": B}, r"'w' has the shape \[3, 4\], and the model wants Tensor\[\(4, 3\), float32\]"),
        ({"w": W.astype(int), "b": B}, "'w' has the dtype int64"),
        ({"w": np.asarray(["a"]), "b": B}, "no array of numbers"),
        (b"garbage", "holds no parameters"),
        (b"", "holds no parameters"),
        (b"PK\x03\x04garbage", "no archive that numpy.savez wrote"),
        ("/nowhere/at.all", "cannot be read: No such file"),
        ("/nowhere\0", "cannot be read"),
    ],
)
def test_what_does_not_fit(values, reason):
    with pytest.raises(ModelError, match=reason):
        load(TEXT, {}, Parameters(values))


def test_any_cut_or_flipped_byte_is_told():
    saved = bytes(tvm.runtime.save_param_dict({"w": tvm.runtime.tensor(W)}))
    for length in range(8, len(saved)):
        with pytest.raises(ModelError, match="damaged or truncated"):
            load_params(saved[:length])
    for position in range(16, 90):
        changed = bytearray(saved)
        changed[position] ^= 0x80
        with contextlib.suppress(ModelError):
            load_params(bytes(changed))


def names(text: str, **parameters) -> list[str]:
    return [spec.name for spec in load(text, {}, Parameters(random=True, **parameters)).inputs]


def main(params: str, body: str) -> str:
    return f'#[version = "0.0.5"]\ndef @main({params}) {{\n{body}\n}}'


F = "Tensor[(2, 3), float32]"


@pytest.mark.parametrize(
    ("params", "body", "inputs"),
    [
        (f"%w: Tensor[(3, 3), float32], %x: {F}", "nn.dense(%x, %w, units=3)", ["x"]),  # first, and yet a weight
        (f"%x: {F}, %w: Tensor[(3, 3), float32]", "nn.dense(%x, transpose(transpose(%w)), units=3)", ["x"]),
        (f"%x: {F}, %w: Tensor[(3, 3), float32]", "%0 = fn (%a, %b) { nn.dense(%a, %b) }; %0(%x, %w)", ["x"]),
        ("%ids: Tensor[(4), int32], %rows: Tensor[(9, 2), float32]", "take(%rows, %ids, axis=0)", ["ids"]),
        (f"%a: {F}, %b: {F}", "add(%a, %b)", ["a", "b"]),
        (f"%a: {F}, %b: {F}", "add(nn.relu(%a), nn.softmax(%b))", ["a", "b"]),
        (f"%a: {F}, %gamma: {F}", "multiply(%a, %gamma)", ["a"]),
        (f"%a: {F}, %s: Tensor[(3), float32]", "multiply(nn.relu(%a), %s)", ["a"]),
        (f"%a: {F}, %mask: Tensor[(3), float32]", "multiply(nn.relu(%a), %mask)", ["a", "mask"]),
        (f"%a: {F}, %anchors: Tensor[(1, 1, 2, 3), float32]", "multiply(nn.relu(%a), %anchors)", ["a"]),
        (f"%data: {F}, %data_scale: Tensor[(3), float32]", "multiply(%data, %data_scale)", ["data"]),
        (f"%x: {F}, %var: Tensor[(3), float32]", "divide(%x, sqrt(add(%var, 1f)))", ["x"]),
        (f"%x: {F}, %h: Tensor[(2, 4), float32], %w: Tensor[(5, 3), float32], %u: Tensor[(5, 4), float32]",
         "nn.dense(concatenate((%x, %h), axis=1), concatenate((%w, %u), axis=1))", ["x", "h"]),
        ("%x: Tensor[(1, 4, 8, 8), int8], %w: Tensor[(2, 4, 1, 1), int8]",
         'nn.conv2d(%x, %w, kernel_size=[1, 1], channels=2, out_dtype="int32")', ["x"]),
        (f"%x: {F}, %w: Tensor[(3, 3), float32]", "nn.dense(qnn.dequantize(qnn.quantize(%x, 0.1f, 0), 0.1f, 0), "
         "qnn.dequantize(qnn.quantize(%w, 0.1f, 0), 0.1f, 0), units=3)", ["x"]),
        (f"%x: {F}, %alpha_1: Tensor[(1, 3), float32]",
         "nn.prelu(reshape(%x, newshape=[-1]), reshape(broadcast_to_like(%alpha_1, %x), newshape=[-1]), axis=0)",
         ["x"]),
        (f"%x: {F}, %offsets: Tensor[(1, 1, 4, 5), float32]",
         "add(nn.relu(%x), reshape(slice_like(%offsets, zeros(shape=[1, 1, 2, 3], dtype=\"float32\"), axes=[2, 3]), "
         "newshape=[2, 3]))", ["x"]),
        (f"%x: {F}, %aten::add_3.an: {F}", "add(nn.relu(%x), exp(%aten::add_3.an))", ["x"]),
        (f"%x: {F}, %stage_anchors: {F}", "add(nn.relu(%x), exp(%stage_anchors))", ["x"]),
        (f"%x: {F}, %onnx::Add_387: {F}", "add(nn.relu(%x), reshape(%onnx::Add_387, newshape=[2, 3]))", ["x"]),
        (f"%onnx::Add_0: {F}, %y: {F}", "add(%onnx::Add_0, nn.relu(%y))", ["onnx::Add_0", "y"]),
        (f"%x: {F}, %t: ({F}, {F})", "add(%x, add(%t.0, %t.1))", ["x", "t_0", "t_1"]),
    ],
)  # fmt: skip
def test_roles(params, body, inputs):
    assert names(main(params, body)) == inputs


def test_roles_can_be_said():
    text = main(f"%a: {F}, %gamma: {F}", "multiply(%a, %gamma)")
    assert names(text, inputs=("gamma",)) == ["gamma"]
    assert names(text, inputs=("gamma", "a")) == ["a", "gamma"]
    assert [spec.name for spec in load(text, {}, Parameters(inputs=("a", "gamma"))).inputs] == ["a", "gamma"]
    with pytest.raises(ModelError, match="--inputs names b, and main has no such parameter; it has a, gamma"):
        names(text, inputs=("b",))
    assert load(text, {}, Parameters(random=True)).notes[0] == "inputs: a: float32[2, 3]"


def test_shapes_from_outside():
    text = main("%x: Tensor[(?, 3), float32], %y", "add(%x, %y)")
    imported = load(text, {"x": (5, 3)})
    assert [str(spec) for spec in imported.inputs] == ["x: float32[5, 3]", "y: float32[5, 3]"]
    for shapes, reason in (({"x": (5, 4)}, "contradicts"), ({"z": (1,)}, "inputs are x, y"), ({"x": (5,)}, "contra")):
        with pytest.raises(ShapeError, match=reason):
            load(text, shapes)


def test_types_of_weights_are_inferred():
    text = main(
        "%x: Tensor[(1, 8, 9, 9), float32], %w, %b, %g, %h, %m, %v, %k, %p, %q, %r",
        """
      %0 = nn.conv2d(%x, %w, kernel_size=[3, 3], channels=6, groups=2);
      %1 = nn.bias_add(%0, %b);
      %2 = nn.batch_norm(%1, %g, %h, %m, %v);
      %3 = nn.conv2d(layout_transform(%2.0, src_layout="NCHW", dst_layout="NHWC"), %k, kernel_size=[1, 1], channels=4,
                     data_layout="NHWC", kernel_layout="HWIO");
      %4 = nn.dense(nn.batch_flatten(%3), %p, units=5);
      nn.layer_norm(%4, %q, %r)""",
    )
    assert names(text) == ["x"]
    given = {name: np.ones(shape, np.float32) for name, shape in {
        "w": (6, 4, 3, 3), "b": (6,), "g": (6,), "h": (6,), "m": (6,), "v": (6,), "k": (1, 1, 6, 4), "p": (5, 196),
        "q": (5,), "r": (5,),
    }.items()}  # fmt: skip
    random = load(text, {}, Parameters(random=True))
    assert [spec.shape for spec in random.outputs] == [(1, 5)]
    x = np.ones((1, 8, 9, 9), np.float32)
    assert run_text(text, x, values=given)[0].shape == (1, 5)
    assert np.isfinite(executable(random.mod)([x])[0]).all()


def test_random_weights():
    conv = Use(weight=("nn.conv2d", 1, {}))
    kind = Tensor((64, 32, 3, 3), "float32")
    made = random_weight("w", kind, conv)
    assert abs(made.std() * np.sqrt(32 * 9) - 1) < 0.05
    np.testing.assert_array_equal(made, random_weight("w", kind, conv))
    assert not np.array_equal(made, random_weight("v", kind, conv))
    assert not np.array_equal(made, random_weight("w", kind, conv, seed=1))
    assert random_weight("v", Tensor((9,), "float32"), Use(weight=("nn.batch_norm", 4, {}))).min() >= 0.5
    assert random_weight("v", Tensor((9,), "float16"), Use(is_positive=True)).dtype == np.float16
    assert random_weight("s", Tensor((), "float32"), Use(weight=("qnn.conv2d", 4, {}))) > 0
    assert random_weight("z", Tensor((), "int32"), Use(weight=("qnn.conv2d", 2, {}))) == 0
    floats = random_weight("f", Tensor((64, 32, 3, 3), "float32"), Use(weight=("qnn.conv2d", 1, {})))  # then quantised
    assert floats.min() < -0.05
    assert floats.max() > 0.05
    quantised = random_weight("q", Tensor((99,), "int8"), Use(weight=("qnn.conv2d", 1, {})))
    assert quantised.dtype == np.int8
    assert np.ptp(quantised) > 50


def test_what_is_too_large_is_told():
    text = main("%x: Tensor[(1, 9), float32], %w: Tensor[(99999999, 9999999), float32]", "nn.dense(%x, %w)")
    with pytest.raises(ModelError, match="does not fit this machine's memory"):
        load(text, {}, Parameters(random=True))
