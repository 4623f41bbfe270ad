"""Relay's JSON: documents as TVM 0.8 and 0.18 lay them out, written here node by node."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest

from subtune.core.errors import ModelError
from subtune.frontends import load
from tests.frontends.relay.run import run_text

TENSOR_MAGIC = 0xDD5E40F096B4A13F
CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


def tensor_bytes(array: np.ndarray) -> bytes:
    """As `SaveDLTensor` writes it: a truth value is an integer of one bit there."""
    bits = 1 if array.dtype == bool else 8 * array.dtype.itemsize
    code = 1 if array.dtype == bool else CODES[array.dtype.kind]
    head = struct.pack("<QQiiiBBH", TENSOR_MAGIC, 0, 1, 0, array.ndim, code, bits, 1)
    return head + struct.pack(f"<{array.ndim}qq", *array.shape, array.nbytes) + array.tobytes()


class Document:
    """Nodes by number. Attributes are strings; an object's is its number, a plain one's its value."""

    def __init__(self, boxed: bool) -> None:
        self.boxed = boxed  # 0.18: strings are objects, and so are the integers of lists
        self.nodes: list[dict[str, Any]] = [{"type_key": ""}]
        self.blobs: list[str] = []

    def add(self, key: str, **node: Any) -> str:
        self.nodes.append({"type_key": key, **node})
        return str(len(self.nodes) - 1)

    def array(self, items: list[str]) -> str:
        return self.add("Array", data=[int(i) for i in items])

    def value(self, value: Any) -> str:
        if isinstance(value, list):
            return self.array([self.value(item) for item in value])
        if isinstance(value, str):
            return self.add("runtime.String", repr_str=value)
        if self.boxed:
            return self.add("runtime.BoxInt", repr_str=str(value))
        return self.add("IntImm", attrs={"dtype": "int32", "span": "0", "value": str(value)})

    def text(self, value: str) -> str:
        return self.value(value) if self.boxed else value

    def dim(self, size: int | None) -> str:
        """None is `tvm.relay.Any()`."""
        key, value = ("tir.Any", {}) if size is None else ("IntImm", {"value": str(size)})
        return self.add(key, attrs={"dtype": "int32", "span": "0", **value})

    def type(self, shape: tuple[int | None, ...], dtype: str) -> str:
        dims = self.array([self.dim(size) for size in shape])
        return self.add("relay.TensorType", attrs={"dtype": dtype, "shape": dims, "span": "0"})

    def var(self, name: str, kind: str, checked: str = "0") -> str:
        identity = self.add("relay.Id", attrs={"name_hint": self.text(name)})
        return self.add("relay.Var", attrs={"vid": identity, "type_annotation": kind, "_checked_type_": checked})

    def constant(self, array: np.ndarray) -> str:
        self.blobs.append(base64.b64encode(tensor_bytes(array)).decode())
        return self.add("relay.Constant", attrs={"data": str(len(self.blobs) - 1), "span": "0"})

    def call(self, op: str, args: list[str], attrs: str = "0") -> str:
        callee = op if op.isdecimal() else self.add("Op", repr_str=op)
        return self.add("relay.Call", attrs={"op": callee, "args": self.array(args), "attrs": attrs, "type_args": "0"})

    def function(self, params: list[str], body: str) -> str:
        return self.add("relay.Function", attrs={"params": self.array(params), "body": body, "ret_type": "0"})

    def module(self, functions: dict[str, str]) -> str:
        names = [self.add("GlobalVar", attrs={"name_hint": self.text(name)}) for name in functions]
        pairs = [int(i) for pair in zip(names, functions.values(), strict=True) for i in pair]
        return self.add("IRModule", attrs={"functions": self.add("Map", data=pairs), "type_definitions": "0"})

    def dump(self, root: str) -> str:
        attrs = {"tvm_version": "0.18.0" if self.boxed else "0.8.0"}
        return json.dumps({"root": int(root), "nodes": self.nodes, "b64ndarrays": self.blobs, "attrs": attrs}, indent=2)


RNG = np.random.default_rng(3)
X = RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)
W = RNG.standard_normal((4, 1, 3, 3)).astype(np.float32)


def conv_document(boxed: bool) -> str:
    """A module with what JSON makes hard: plain integers and truth values, lists, strings, let, if, tuples, a shared
    node, a call of another function."""
    d = Document(boxed)
    x = d.var("x", d.type((1, 3, 6, 6), "float32"))
    w = d.constant(RNG.standard_normal((6, 1, 3, 3)).astype(np.float32))
    conv = d.call("nn.conv2d", [x, w], d.add("relay.attrs.Conv2DAttrs", attrs={
        "strides": d.value([1, 1]), "padding": d.value([1, 1, 1, 1]), "dilation": d.value([1, 1]), "groups": "3",
        "channels": d.value(6), "kernel_size": d.value([3, 3]), "data_layout": d.text("NCHW"),
        "kernel_layout": d.text("OIHW"), "out_layout": d.text("") if boxed else "", "out_dtype": "",
    }))  # fmt: skip
    pool = d.call("nn.max_pool2d", [conv], d.add("relay.attrs.MaxPool2DAttrs", attrs={
        "pool_size": d.value([3, 3]), "strides": d.value([2, 2]), "padding": d.value([0, 0, 0, 0]),
        "dilation": d.value([1, 1]), "layout": d.text("NCHW"), "out_layout": d.text(""), "ceil_mode": "1",
    }))  # fmt: skip
    leaky = d.call("nn.leaky_relu", [pool], d.add("relay.attrs.LeakyReluAttrs", attrs={"alpha": "0.25"}))
    p = d.var("p", "0")
    twice = d.function([p], d.call("add", [p, p]))
    doubled = d.call(d.add("GlobalVar", attrs={"name_hint": d.text("twice")}), [leaky])
    local = d.var("kept", "0")
    pair = d.add("relay.Tuple", attrs={"fields": d.array([doubled, local])})
    second = d.add("relay.TupleGetItem", attrs={"tuple_value": pair, "index": "1"})
    chosen = d.add("relay.If", attrs={
        "cond": d.constant(np.asarray(True)), "true_branch": second, "false_branch": d.call("nowhere", [x]),
    })  # fmt: skip
    reduced = d.call("mean", [chosen], d.add("relay.attrs.ReduceAttrs", attrs={
        "axis": d.value([2, 3]), "keepdims": "0", "exclude": "0",
    }))  # fmt: skip
    cast = d.call("cast", [reduced], d.add("relay.attrs.CastAttrs", attrs={"dtype": "float64"}))
    let = d.add("relay.Let", attrs={"var": local, "value": d.call("add", [doubled, leaky]), "body": cast})
    return d.dump(d.module({"twice": twice, "main": d.function([x], let)}))


@pytest.mark.parametrize("boxed", [False, True])
def test_a_module_of_json(boxed):
    document = conv_document(boxed)
    weight = np.frombuffer(base64.b64decode(json.loads(document)["b64ndarrays"][0])[-6 * 9 * 4 :], np.float32)
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(1, 3, 6, 6), float32], %w: Tensor[(6, 1, 3, 3), float32]) {
      %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], groups=3, channels=6, kernel_size=[3, 3]);
      %1 = nn.max_pool2d(%0, pool_size=[3, 3], strides=[2, 2], padding=[0, 0, 0, 0], ceil_mode=True);
      %2 = nn.leaky_relu(%1, alpha=0.25f);
      cast(mean(add(add(%2, %2), %2), axis=[2, 3]), dtype="float64")
    }"""
    expected = run_text(text, X, values={"w": weight.reshape(6, 1, 3, 3)})
    np.testing.assert_allclose(run_text(document, X)[0], expected[0], rtol=1e-6)


def test_a_lone_function_deep_as_a_model():
    d = Document(False)
    x = d.var("x", "0", d.type((2,), "float32"))
    value = x
    for _ in range(3000):
        value = d.call("negative", [value])
    imported = load(d.dump(d.function([x], value)).encode())
    assert str(imported.inputs[0]) == "x: float32[2]"
    assert len(imported.mod["main"].body.blocks[0].bindings) == 3001


def test_dtypes_of_constants():
    d = Document(True)
    arrays = [np.asarray(v).astype(t) for v, t in (
        ([1, 0], "bool"), ([-1], "int8"), ([200], "uint8"), (3, "int64"), ([0.5], "float16"), ([1.5], "float64"),
    )]  # fmt: skip
    fields = d.add("relay.Tuple", attrs={"fields": d.array([d.constant(array) for array in arrays])})
    outputs = load(d.dump(d.function([], fields))).outputs
    assert [(spec.shape, spec.dtype) for spec in outputs] == [(a.shape, str(a.dtype)) for a in arrays]


def damaged(change: str) -> str:
    d = Document(False)
    x = d.var("x", d.type((2,), "float32"))
    call = d.call("negative", [x])
    if change == "cycle":
        d.nodes[int(d.nodes[int(call)]["attrs"]["args"])]["data"] = [int(call)]
    if change == "reference":
        d.nodes[int(call)]["attrs"]["args"] = "999"
    if change == "negative":
        d.nodes[int(call)]["attrs"]["args"] = "-1"
    if change == "blob":
        d.blobs.append("AAAA")
        call = d.add("relay.Constant", attrs={"data": "0"})
    if change == "unknown":
        call = d.add("relay.Match", attrs={})
    root = d.function([x], call)
    return d.dump(root if change != "root" else "77")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("cycle", "contains itself"), ("reference", "not what tvm.ir.save_json writes"), ("negative", "no node -1"),
        ("blob", "not what tvm.ir.save_json writes"), ("unknown", "match at node"), ("root", "not what"),
    ],
)  # fmt: skip
def test_damaged_documents(change, reason):
    with pytest.raises(ModelError, match=reason):
        load(damaged(change))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"nodes": [{"op": "null"}], "arg_nodes": [0], "heads": []}', "graph of a build"),
        ('{"nodes": 3, "root": 1}', "not what"), ('{"root": {}, "nodes": []}', "not what"), ('{"root": 1,', "line 1"),
    ],
)  # fmt: skip
def test_other_json(text, reason):
    with pytest.raises(ModelError, match=reason):
        load(text.encode())
