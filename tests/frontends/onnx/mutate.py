"""Small models of every operator family, and random damage to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.frontends.onnx import test_ops
from tests.frontends.onnx.test_control import HEAD, IF, SCAN

TEXTS = {
    "a block": """
        g (float[2,4,6,6] x, int64[3] k) => (float[2,5] y, int64[3] z) <
            float[4,4,3,3] w, float[4] b = {1, 2, 3, 4}, float[4] m = {0, 1, 0, 1}, float[4] v = {1, 2, 1, 2},
            float[4,5] f, int64[2] flat = {0, -1}, int64[1] zero = {0}> {
            c = Conv<pads=[1,1,1,1], kernel_shape=[3,3]>(x, w, b)
            n = BatchNormalization<epsilon=0.001>(c, b, m, m, v)
            r = Relu(n)
            s = Add(r, x)
            p = GlobalAveragePool(s)
            sh = Shape(p)
            batch = Gather(sh, zero)
            rest = Constant<value_ints=[-1]>()
            to = Concat<axis=0>(batch, rest)
            q = Reshape(p, to)
            h = MatMul(q, f)
            y = Softmax<axis=-1>(h)
            z = Neg(k)
        }""",
    "attention": """
        g (float[2,4,8] x) => (float[2,4,8] y) <float[8,8] a, float[8,8] b, float[8] g1, float[8] g2> {
            n = LayerNormalization<axis=-1>(x, g1, g2)
            q = MatMul(n, a)
            k = MatMul(n, b)
            t = Transpose<perm=[0,2,1]>(k)
            s = MatMul(q, t)
            c = Constant<value_float=0.35>()
            d = Mul(s, c)
            e = Softmax<axis=2>(d)
            o = MatMul(e, n)
            y = Add(o, x)
        }""",
    "a table": """
        g (int64[2,3] i) => (float[2,3,1] y) <float[5,4] t, int64[2] at = {1, 2}> {
            e = Gather<axis=0>(t, i)
            s, u = Split<axis=2>(e)
            c = Cast<to=1>(i)
            last = Constant<value_ints=[-1]>()
            d = Unsqueeze(c, last)
            from = Constant<value_ints=[0]>()
            till = Constant<value_ints=[1]>()
            l = Slice(s, from, till, last)
            y = Mul(l, d)
        }""",
}


def corpus() -> dict[str, onnx.ModelProto]:
    """Name -> model; weights, where the text leaves them out, are drawn once."""
    found = {f"text {name}": onnx.parser.parse_model(HEAD + text) for name, text in TEXTS.items()}
    found |= {"if": onnx.parser.parse_model(HEAD + IF), "scan": onnx.parser.parse_model(HEAD + SCAN)}
    for name, (op, inputs, opset, attrs) in test_ops.CASES.items():
        found[name] = _one(op, inputs, opset, None, attrs)
    for name, (op, inputs, opset, constants, attrs) in test_ops.SHAPED.items():
        found[name] = _one(op, inputs, opset, constants, attrs)
    rng = np.random.default_rng(0)
    for op, gates, outputs in (("LSTM", 4, 3), ("GRU", 3, 2), ("RNN", 1, 2)):
        held = {1: (2, gates * 3, 4), 2: (2, gates * 3, 3), 3: (2, gates * 6)}
        weights = {i: rng.standard_normal(dims).astype(np.float32) for i, dims in held.items()}
        attrs = {"hidden_size": 3, "direction": "bidirectional", "outputs": outputs}
        found[op] = _one(op, [np.zeros((3, 2, 4), np.float32)], 14, weights, attrs)
    for model in found.values():
        defined = {name for node in model.graph.node for name in node.output}
        for value in [value for value in model.graph.value_info if value.name not in defined]:
            dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            weight = rng.standard_normal(dims).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(weight, value.name))
        del model.graph.value_info[:]
    return found


def _one(op: str, inputs: list[Any], opset: int, constants: Any, attrs: Mapping[str, Any]) -> onnx.ModelProto:
    attrs = dict(attrs)
    outputs = attrs.pop("outputs", 1)
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    held = {i: np.asarray(v, np.int64) if isinstance(v, list) else v for i, v in (constants or {}).items()}
    return test_ops.node_model(op, arrays, opset, outputs, held, **attrs)[0]


def mutated(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """A copy with one to three random changes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_CHANGES)(copy, rng)
    return copy


_INTS = (-9, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 16)
_SWITCHES = frozenset({"largest", "sorted", "keepdims", "noop_with_empty_axes", "count_include_pad", "ceil_mode"})
"""On or off: other values mean nothing, and runtimes differ."""
_OPS = (
    "Add Mul MatMul Relu Softmax Concat Transpose Reshape Flatten Gather ReduceMean Conv MaxPool AveragePool Identity "
    "LayerNormalization Cast Squeeze Unsqueeze Slice Split Where Pow Gemm GlobalMaxPool Clip Pad Resize ArgMax"
).split()
_TYPES = (1, 2, 3, 6, 7, 9, 10, 11, 12, 13, 16)


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(model.graph.node)


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if not node.attribute:
        node.attribute.append(helper.make_attribute(rng.choice(("axis", "keepdims", "to")), rng.choice(_INTS)))
        return
    attribute = rng.choice(node.attribute)
    if rng.random() < 0.15:
        node.attribute.remove(attribute)
    elif attribute.type == AttributeProto.INT:
        attribute.i = rng.choice((0, 1) if attribute.name in _SWITCHES else _INTS)
    elif attribute.type == AttributeProto.INTS:
        _list(attribute.ints, rng)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice((-1.0, 0.0, 0.5, 2.0, float("nan"), float("inf")))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice((b"", b"nonsense", b"SAME_UPPER", b"VALID", b"linear", b"reverse", b"constant"))


def _list(values: Any, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif kind == 1:
        values.append(rng.choice(_INTS))
    elif kind == 2 and len(values) > 1:
        order = list(values)
        rng.shuffle(order)
        values[:] = order
    elif len(values):
        values[rng.randrange(len(values))] = rng.choice(_INTS)


def _inputs_of_a_node(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    known = [value.name for value in model.graph.input] + [tensor.name for tensor in model.graph.initializer]
    known += [name for other in model.graph.node for name in other.output]
    kind = rng.randrange(5)
    if kind == 0 and len(node.input) > 1:
        order = list(node.input)
        rng.shuffle(order)
        node.input[:] = order
    elif kind == 1 and node.input:
        del node.input[rng.randrange(len(node.input))]
    elif kind == 2 and node.input:
        node.input[rng.randrange(len(node.input))] = ""
    elif kind == 3 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(known)
    else:
        node.input.append(rng.choice(known))


def _shape_of_an_input(model: onnx.ModelProto, rng: random.Random) -> None:
    if not model.graph.input:
        return
    tensor = rng.choice(model.graph.input).type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    _list(dims, rng)
    tensor.shape.Clear()
    tensor.shape.SetInParent()
    for dim in dims:
        tensor.shape.dim.add().dim_value = abs(dim)


def _type_of_an_input(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.input:
        rng.choice(model.graph.input).type.tensor_type.elem_type = rng.choice(_TYPES)


def _initialiser(model: onnx.ModelProto, rng: random.Random) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor)
    kind = rng.randrange(6)
    if kind == 0:
        array = np.transpose(array, rng.sample(range(array.ndim), array.ndim))
    elif kind == 1:
        array = array.reshape(-1)
    elif kind == 2:
        array = array[None] if rng.random() < 0.5 or not array.ndim else array[..., :1]
    elif kind == 3:
        array = array.astype(rng.choice(("float32", "float64", "int32", "int64", "int8", "uint8", "float16", "bool")))
    elif kind == 4 and array.size:
        array = array.copy()
        array.reshape(-1)[rng.randrange(array.size)] = (
            abs(rng.choice(_INTS)) if array.dtype.kind == "u" else rng.choice(_INTS)
        )
    else:
        array = array.reshape(-1)[: rng.randrange(array.size + 1)]
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), tensor.name))


def _order(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _operator(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    node.op_type = rng.choice(_OPS)
    if rng.random() < 0.7:
        del node.attribute[:]


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.randint(1, 24)


def _outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    kind = rng.randrange(3)
    if kind == 0:
        node.output.append(f"more{rng.randrange(9)}")
    elif kind == 1:
        model.graph.output.append(helper.make_empty_tensor_value_info(rng.choice(node.output or ["nothing"])))
    else:
        tensor = rng.choice(model.graph.output).type.tensor_type
        tensor.elem_type = rng.choice(_TYPES)
        tensor.ClearField("shape")


def _constant_input(model: onnx.ModelProto, rng: random.Random) -> None:
    """An input becomes an initialiser, or the other way round."""
    if model.graph.initializer and rng.random() < 0.5:
        tensor = rng.choice(model.graph.initializer)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        model.graph.initializer.remove(tensor)
    elif model.graph.input:
        value = rng.choice(model.graph.input)
        spec = value.type.tensor_type
        dims = [dim.dim_value for dim in spec.shape.dim]
        if spec.elem_type == TensorProto.FLOAT:
            array = np.random.default_rng(rng.randrange(9)).standard_normal(dims).astype(np.float32)
        else:
            array = np.full(dims, rng.randrange(3)).astype(helper.tensor_dtype_to_np_dtype(spec.elem_type))
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)


_CHANGES: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    _attribute,
    _attribute,
    _attribute,
    _inputs_of_a_node,
    _inputs_of_a_node,
    _shape_of_an_input,
    _shape_of_an_input,
    _type_of_an_input,
    _initialiser,
    _initialiser,
    _initialiser,
    _order,
    _operator,
    _opset,
    _outputs,
    _constant_input,
)
