"""Small ONNX models with symbolic dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
Shape = Sequence[int | str]


def weight(name: str, *shape: int) -> onnx.TensorProto:
    rng = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array((0.2 * rng.standard_normal(shape)).astype(np.float32), name)


def numbers(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    weights: Sequence[Any] = (),
    integers: Sequence[str] = (),
) -> onnx.ModelProto:
    """Of float32, but for the `integers`."""
    types = dict.fromkeys(integers, TensorProto.INT64)
    infos = [
        [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape) for name, shape in of.items()]
        for of in (inputs, outputs)
    ]
    graph = helper.make_graph(list(nodes), "dynamic", *infos, list(weights))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def block(hidden: int = 32, heads: int = 2, longest: int = 20) -> onnx.ModelProto:
    """A layer of BERT: x[batch, seq, hidden] and an additive mask -> the same, and its mean over seq."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["seq"], axis=0),
        node("Slice", ["table", "zero", "seq", "one"], ["positions"]),
        node("Add", ["x", "positions"], ["h"]),
    ]
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            node("MatMul", ["h", f"w{name}"], [f"{name}_product"]),
            node("Add", [f"{name}_product", f"b{name}"], [f"{name}_rows"]),
            node("Reshape", [f"{name}_rows", "by_head"], [f"{name}_heads"]),
            node("Transpose", [f"{name}_heads"], [name], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["scores"]),
        node("Mul", ["scores", "scale"], ["scaled"]),
        node("Add", ["scaled", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v"], ["context"]),
        node("Transpose", ["context"], ["context_rows"], perm=(0, 2, 1, 3)),
        node("Reshape", ["context_rows", "flat"], ["context_flat"]),
        node("MatMul", ["context_flat", "wo"], ["projected"]),
        node("Add", ["projected", "h"], ["sum"]),
        node("LayerNormalization", ["sum", "gamma", "beta"], ["normed"]),
        node("MatMul", ["normed", "w1"], ["wide"]),
        node("Relu", ["wide"], ["active"]),
        node("MatMul", ["active", "w2"], ["narrow"]),
        node("Add", ["narrow", "normed"], ["y"]),
        node("ReduceMean", ["y"], ["pooled"], axes=[1], keepdims=0),
    ]
    weights = [
        *(weight(f"w{name}", hidden, hidden) for name in "qkvo"),
        *(weight(f"b{name}", hidden) for name in "qkv"),
        weight("w1", hidden, 2 * hidden),
        weight("w2", 2 * hidden, hidden),
        weight("gamma", hidden),
        weight("beta", hidden),
        weight("table", 1, longest, hidden),
        numbers("zero", 0),
        numbers("one", 1),
        numbers("by_head", 0, 0, heads, hidden // heads),
        numbers("flat", 0, 0, hidden),
        numpy_helper.from_array(np.float32((hidden // heads) ** -0.5), "scale"),
    ]
    inputs: dict[str, Shape] = {"x": ("batch", "seq", hidden), "mask": ("batch", 1, 1, "seq")}
    return model(nodes, inputs, {"y": ("batch", "seq", hidden), "pooled": ("batch", hidden)}, weights)


def cached(hidden: int = 32, heads: int = 2) -> onnx.ModelProto:
    """A layer of a decoder: x[batch, seq, hidden], and keys and values of the words before it -> what follows, and the
    keys and values with those of x behind them."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["seq"], axis=0),
        node("Shape", ["past_key"], ["cache"]),
        node("Gather", ["cache", "two"], ["past"], axis=0),
        node("Add", ["past", "seq"], ["total"]),
        node("Range", ["zero", "total", "one"], ["keys"]),
        node("Range", ["past", "total", "one"], ["words"]),
        node("Unsqueeze", ["words", "last"], ["column"]),
        node("LessOrEqual", ["keys", "column"], ["is_seen"]),
        node("Where", ["is_seen", "nothing", "hidden"], ["mask"]),
    ]
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 1, 3)), ("v", (0, 2, 1, 3))):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}_rows"]),
            node("Reshape", [f"{name}_rows", "by_head"], [f"{name}_heads"]),
            node("Transpose", [f"{name}_heads"], [name], perm=perm),
        ]
    nodes += [
        node("Concat", ["past_key", "k"], ["key"], axis=2),
        node("Concat", ["past_value", "v"], ["value"], axis=2),
        node("Transpose", ["key"], ["turned"], perm=(0, 1, 3, 2)),
        node("MatMul", ["q", "turned"], ["scores"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "value"], ["context"]),
        node("Transpose", ["context"], ["context_rows"], perm=(0, 2, 1, 3)),
        node("Reshape", ["context_rows", "flat"], ["context_flat"]),
        node("MatMul", ["context_flat", "wo"], ["projected"]),
        node("Add", ["projected", "x"], ["y"]),
    ]
    weights = [
        *(weight(f"w{name}", hidden, hidden) for name in "qkvo"),
        *(numpy_helper.from_array(np.int64(value), name) for name, value in (("zero", 0), ("one", 1), ("two", 2))),
        numbers("last", -1),
        numbers("by_head", 0, 0, heads, hidden // heads),
        numbers("flat", 0, 0, hidden),
        numpy_helper.from_array(np.float32(0), "nothing"),
        numpy_helper.from_array(np.float32(-1e9), "hidden"),
    ]
    past: Shape = ("batch", heads, "past", hidden // heads)
    present: Shape = ("batch", heads, "total", hidden // heads)
    inputs: dict[str, Shape] = {"x": ("batch", "seq", hidden), "past_key": past, "past_value": past}
    outputs: dict[str, Shape] = {"y": ("batch", "seq", hidden), "key": present, "value": present}
    return model(nodes, inputs, outputs, weights)


def decoder(words: int = 1000, hidden: int = 32, heads: int = 2) -> onnx.ModelProto:
    """`cached` between a table of words and their logits, with inputs and outputs as exporters name them."""
    made = cached(hidden, heads)
    graph = made.graph
    renamed = {"past_key": "past_key_values.0.key", "past_value": "past_key_values.0.value"}
    renamed |= {"key": "present.0.key", "value": "present.0.value"}
    for one in graph.node:
        for names in (one.input, one.output):
            names[:] = [renamed.get(name, name) for name in names]
        if one.output[0] == "masked":
            one.input[1] = "mask_of_both"
    for info in (*graph.input, *graph.output):
        info.name = renamed.get(info.name, info.name)
    before = [
        node("Gather", ["table", "input_ids"], ["meanings"]),
        node("Gather", ["places", "position_ids"], ["positions"]),
        node("Add", ["meanings", "positions"], ["x"]),
        node("Cast", ["attention_mask"], ["is_word"], to=TensorProto.BOOL),
        node("Unsqueeze", ["is_word", "rows"], ["is_key"]),
        node("Where", ["is_key", "nothing", "hidden"], ["mask_of_words"]),
    ]
    both = node("Add", ["mask", "mask_of_words"], ["mask_of_both"])
    at = next(i for i, one in enumerate(graph.node) if "mask" in one.output) + 1
    nodes = [*before, *graph.node[:at], both, *graph.node[at:], node("MatMul", ["y", "head"], ["logits"])]
    del graph.node[:], graph.input[0], graph.output[0]
    graph.node.extend(nodes)
    shapes = {"input_ids": "seq", "attention_mask": "total", "position_ids": "seq"}
    for name, dim in reversed(shapes.items()):
        graph.input.insert(0, helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", dim]))
    graph.output.insert(0, helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", words]))
    tables = (weight("table", words, hidden), weight("places", 1024, hidden), weight("head", hidden, words))
    graph.initializer.extend([*tables, numbers("rows", 1, 2)])
    onnx.checker.check_model(made)
    return made


def convolutions() -> onnx.ModelProto:
    """A convolution net of x[batch, 3, 8, 8] with ten results for each image."""
    nodes = [
        node("Conv", ["x", "filters"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "w"], ["y"]),
    ]
    return model(
        nodes, {"x": ("batch", 3, 8, 8)}, {"y": ("batch", 10)}, [weight("filters", 8, 3, 3, 3), weight("w", 8, 10)]
    )


def biased() -> onnx.ModelProto:
    """softmax of x[batch, seq, seq] times a corner of factors plus that of a bias, times the first rows of a table."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["seq"], axis=0),
        node("Concat", ["seq", "seq"], ["square"], axis=0),
        node("Slice", ["all_bias", "corner", "square", "axes"], ["bias"]),
        node("Slice", ["all_factors", "corner", "square", "axes"], ["factors"]),
        node("Mul", ["x", "factors"], ["scaled"]),
        node("Add", ["scaled", "bias"], ["biased"]),
        node("Softmax", ["biased"], ["shares"], axis=-1),
        node("Slice", ["table", "zero", "seq", "zero"], ["first"]),
        node("MatMul", ["shares", "first"], ["y"]),
    ]
    weights = [
        weight("table", 32, 4),
        numbers("zero", 0),
        numbers("one", 1),
        numbers("corner", 0, 0),
        numbers("axes", 0, 1),
        weight("all_bias", 32, 32),
        weight("all_factors", 32, 32),
    ]
    return model(nodes, {"x": ("batch", "seq", "seq")}, {"y": ("batch", "seq", 4)}, weights)


def placed() -> onnx.ModelProto:
    """x[seq, 4] behind a cache[past, 4]; x times the rows of a table from `past` on, plus those of another."""
    nodes = [
        node("Shape", ["cache"], ["of_cache"]),
        node("Gather", ["of_cache", "zero"], ["past"]),
        node("Concat", ["cache", "x"], ["both"], axis=0),
        node("Shape", ["both"], ["of_both"]),
        node("Gather", ["of_both", "zero"], ["total"]),
        node("Range", ["past", "total", "one"], ["positions"]),
        node("Gather", ["table", "positions"], ["rows"]),
        node("Gather", ["other", "positions"], ["factors"]),
        node("Mul", ["x", "factors"], ["scaled"]),
        node("Add", ["scaled", "rows"], ["y"]),
        node("Relu", ["both"], ["z"]),
    ]
    counts = [numpy_helper.from_array(np.int64(value), name) for name, value in (("zero", 0), ("one", 1))]
    inputs: dict[str, Shape] = {"x": ("seq", 4), "cache": ("past", 4)}
    return model(
        nodes, inputs, {"y": ("seq", 4), "z": ("total", 4)}, [weight("table", 256, 4), weight("other", 256, 4), *counts]
    )


def halves(channels: int = 4) -> onnx.ModelProto:
    """x[batch, 3, height, width] through a convolution and a pool by two, and back to its size beside itself."""
    nodes = [
        node("Conv", ["x", "filters"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["m", "spread"], ["u"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", ["x", "u"], ["y"], axis=1),
    ]
    shape = ("batch", 3, "height", "width")
    weights = [weight("filters", channels, 3, 3, 3), weight("spread", channels, 2, 2, 2)]
    return model(
        nodes, {"x": shape}, {"y": ("batch", 5, "height", "width"), "m": ("batch", channels, "h", "w")}, weights
    )


def routed(experts: int = 6) -> onnx.ModelProto:
    """The two largest of x[tokens, experts] and their places, and its running sums along both axes."""
    nodes = [
        node("TopK", ["x", "two"], ["values", "places"], axis=-1),
        node("Cast", ["places"], ["at"], to=TensorProto.FLOAT),
        node("CumSum", ["x", "first"], ["down"]),
        node("CumSum", ["x", "last"], ["along"]),
    ]
    two: Shape = ("tokens", 2)
    whole: Shape = ("tokens", experts)
    numbers_of = [numpy_helper.from_array(np.int64(value), name) for name, value in (("first", 0), ("last", 1))]
    outputs = {"values": two, "at": two, "down": whole, "along": whole}
    return model(nodes, {"x": whole}, outputs, [numbers("two", 2), *numbers_of])


def constants() -> onnx.ModelProto:
    """x[4, seq]: the larger of it and a scalar, its sizes, and a unit matrix of them."""
    nodes = [
        node("CastLike", ["half", "x"], ["least"]),
        node("Max", ["x", "least"], ["y"]),
        node("Shape", ["x"], ["sizes"]),
        node("Size", ["x"], ["size"]),
        node("EyeLike", ["x"], ["unit"], dtype=TensorProto.FLOAT),
    ]
    whole: Shape = (4, "seq")
    outputs: dict[str, Shape] = {"y": whole, "sizes": (2,), "size": (), "unit": whole}
    integers = ("sizes", "size")
    return model(nodes, {"x": whole}, outputs, [numpy_helper.from_array(np.float32(0.5), "half")], integers)


def by_columns() -> onnx.ModelProto:
    """x[3, seq] times z[18, seq], summed along seq."""
    nodes = [node("Transpose", ["z"], ["turned"], perm=(1, 0)), node("MatMul", ["x", "turned"], ["y"])]
    return model(nodes, {"x": (3, "seq"), "z": (18, "seq")}, {"y": (3, 18)})


def depthwise() -> onnx.ModelProto:
    """A convolution of x[2, 4, 6, width], channel by channel: channels come last where it is narrow."""
    nodes = [node("Conv", ["x", "filters"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=4)]
    shape: Shape = (2, 4, 6, "width")
    return model(nodes, {"x": shape}, {"y": shape}, [weight("filters", 4, 1, 3, 3)])


def cut_inside() -> onnx.ModelProto:
    """The mean of the first four rows of x[seq, 8], or of as many as there are."""
    nodes = [node("Slice", ["x", "zero", "four"], ["part"]), node("ReduceMean", ["part"], ["y"], axes=[0], keepdims=1)]
    return model(nodes, {"x": ("seq", 8)}, {"y": (1, 8)}, [numbers("zero", 0), numbers("four", 4)])


def view() -> onnx.ModelProto:
    """x[seq, 8], and its elements in rows of four."""
    nodes = [node("Reshape", ["x", "shape"], ["y"]), node("Identity", ["x"], ["z"])]
    return model(nodes, {"x": ("seq", 8)}, {"y": ("rows", 4), "z": ("seq", 8)}, [numbers("shape", -1, 4)])


def scaled_twice() -> onnx.ModelProto:
    """x[seq, 8] times a scalar, twice: 2*seq rows."""
    nodes = [node("Mul", ["x", "factor"], ["m"]), node("Concat", ["m", "m"], ["c"], axis=0), node("Relu", ["c"], ["y"])]
    return model(nodes, {"x": ("seq", 8), "factor": ()}, {"y": ("rows", 8)})


def cut(operator: str) -> onnx.ModelProto:
    """relu of the first rows of x[seq, 8]: as many as 4 and seq give with an operator."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["seq"], axis=0),
        node(operator, ["seq", "four"], ["found"]),
        node("Max", ["found", "one"], ["end"]),
        node("Slice", ["x", "zero", "end"], ["part"]),
        node("Relu", ["part"], ["y"]),
    ]
    return model(
        nodes, {"x": ("seq", 8)}, {"y": ("rows", 8)}, [numbers("zero", 0), numbers("one", 1), numbers("four", 4)]
    )


def scattered() -> onnx.ModelProto:
    """x[seq, 8] with its first column in the place of another."""
    nodes = [
        node("Slice", ["x", "zero", "one", "one"], ["column"]),
        node("Cast", ["column"], ["at"], to=TensorProto.INT64),
        node("ScatterElements", ["x", "at", "column"], ["y"], axis=1),
    ]
    return model(nodes, {"x": ("seq", 8)}, {"y": ("seq", 8)}, [numbers("zero", 0), numbers("one", 1)])


def layer(columns: int = 64) -> onnx.ModelProto:
    """x[seq, columns] @ w + b -> relu."""
    nodes = [
        node("MatMul", ["x", "w"], ["product"]),
        node("Add", ["product", "b"], ["rows"]),
        node("Relu", ["rows"], ["y"]),
    ]
    shapes = ("seq", columns)
    return model(nodes, {"x": shapes}, {"y": shapes}, [weight("w", columns, columns), weight("b", columns)])


def twins(columns: int = 8) -> onnx.ModelProto:
    """relu of x[n, columns] and of z[m, columns]: one function where n and m are equal."""
    shapes: dict[str, Shape] = {"x": ("n", columns), "z": ("m", columns)}
    nodes = [node("Relu", ["x"], ["of_x"]), node("Relu", ["z"], ["of_z"])]
    return model(nodes, shapes, {"of_x": shapes["x"], "of_z": shapes["z"]})


def halved(whole: onnx.ModelProto) -> onnx.ModelProto:
    """The same in float16."""
    made = onnx.ModelProto()
    made.CopyFrom(whole)
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for info in (*made.graph.input, *made.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


def beginnings() -> onnx.ModelProto:
    """x[5, n] times the first n rows of a table, z[5, 20] times its first n columns."""
    nodes = [
        node("Shape", ["x"], ["n"], start=1, end=2),
        node("Slice", ["table", "zero", "n", "zero"], ["rows"]),
        node("Slice", ["table", "zero", "n", "one"], ["columns"]),
        node("MatMul", ["x", "rows"], ["y"]),
        node("MatMul", ["z", "columns"], ["v"]),
    ]
    weights = [weight("table", 20, 40), numbers("zero", 0), numbers("one", 1)]
    return model(nodes, {"x": (5, "n"), "z": (5, 20)}, {"y": (5, 40), "v": (5, "n")}, weights)
