"""One head of a decoder with a key cache, small: symbols, and an expression of two, among its inputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as h
from onnx import TensorProto, numpy_helper

KEY = "past_key_values.0.key"
HEADS, WIDTH, WORDS = 2, 4, 10


def cached_attention(total: str = "past + seq") -> onnx.ModelProto:
    """`present` is the cache with the keys of the new words behind it; `total` is the length of the mask."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((WORDS, HEADS * WIDTH), dtype="float32")
    nodes = [
        h.make_node("Gather", ["table", "input_ids"], ["words"]),
        h.make_node("Reshape", ["words", "heads"], ["split"]),
        h.make_node("Transpose", ["split"], ["key"], perm=[0, 2, 1, 3]),
        h.make_node("Concat", [KEY, "key"], ["present"], axis=2),
        h.make_node("Transpose", ["present"], ["turned"], perm=[0, 1, 3, 2]),
        h.make_node("MatMul", ["key", "turned"], ["scores"]),
        h.make_node("Cast", ["attention_mask"], ["floats"], to=TensorProto.FLOAT),
        h.make_node("Unsqueeze", ["floats", "axes"], ["row"]),
        h.make_node("Mul", ["scores", "row"], ["masked"]),
    ]
    inputs = [
        h.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"]),
        h.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", total]),
        h.make_tensor_value_info(KEY, TensorProto.FLOAT, ["batch", HEADS, "past", WIDTH]),
    ]
    outputs = [
        h.make_tensor_value_info("present", TensorProto.FLOAT, ["batch", HEADS, total, WIDTH]),
        h.make_tensor_value_info("masked", TensorProto.FLOAT, ["batch", HEADS, "seq", total]),
    ]
    constants = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.array([0, 0, HEADS, WIDTH]), "heads"),
        numpy_helper.from_array(np.array([1, 2]), "axes"),
    ]
    graph = h.make_graph(nodes, "cached", inputs, outputs, constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
