"""Workloads with two contractions in a row, outlined as one group: what a partition with two anchors would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from subtune.core.graph import Group, Origin, PartitionGraph, Value
from subtune.core.workload import Workload
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition

Shape = Sequence[int]


def build_one(
    body: Callable[..., Any],
    shapes: Sequence[Shape],
    constants: Sequence[np.ndarray | Shape] = (),
    dtype: str = "float32",
) -> Workload:
    """All ops of `body(emit, inputs..., constants...)`, views included, as one workload."""
    bb = relax.BlockBuilder()
    rng = np.random.default_rng(0)
    inputs = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    weights = [
        relax.const(c if isinstance(c, np.ndarray) else rng.standard_normal(c).astype("float32")) for c in constants
    ]
    with bb.function("main", inputs):
        with bb.dataflow():
            result = bb.emit_output(body(bb.emit, *inputs, *weights))
        bb.emit_func_output(result)
    mod = bb.get()
    graph = partition(mod)
    ops = tuple(graph.dag)
    last = ops[-1]
    outputs = (Value(Origin.OP, last, graph.op(last).output),)
    group = Group("one", last, ops[:-1], (), ops, (), outputs, ())
    (subgraph,) = extract(outline(mod, PartitionGraph(graph.dag, (group,), (), graph.results)))
    return subgraph.workload


def exp_chain(m: int, k: int, n1: int, n2: int, constant: bool = False) -> Workload:
    """exp(0.02 * a @ b) @ e, documents/1's example with arguments that exp bears; b and e constants or not."""

    def body(emit: Any, a: Any, b: Any, e: Any) -> Any:
        scores = emit(op.multiply(emit(op.matmul(a, b)), relax.const(0.02)))
        return op.matmul(emit(op.exp(scores)), e)

    weights = [(k, n1), (n1, n2)]
    return build_one(body, [(m, k)], weights) if constant else build_one(body, [(m, k), *weights])


def feed_forward(m: int, k: int, n1: int, n2: int) -> Workload:
    """gelu(x @ w1 + b1) @ w2 + b2 + x, the weights constant."""

    def body(emit: Any, x: Any, residual: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        hidden = emit(op.nn.gelu(emit(op.add(emit(op.matmul(x, w1)), b1))))
        return op.add(emit(op.add(emit(op.matmul(hidden, w2)), b2)), residual)

    return build_one(body, [(m, k), (m, n2)], [(k, n1), (n1,), (n1, n2), (n2,)])


def bert_attention(batch: int, heads: int, seq: int, d: int, flat: bool = True) -> Workload:
    """Q, K, V as the projections leave them [batch * seq, heads * d], an additive mask [batch, 1, 1, seq] -> the same.

    `flat`: softmax over two-dimensional rows, between two reshapes, as exporters write it.
    """

    def split(emit: Any, x: Any, axes: list[int]) -> Any:
        return emit(op.permute_dims(emit(op.reshape(x, (batch, seq, heads, d))), axes))

    def body(emit: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v = split(emit, q, [0, 2, 1, 3]), split(emit, k, [0, 2, 3, 1]), split(emit, v, [0, 2, 1, 3])
        scores = emit(op.divide(emit(op.matmul(q, k)), relax.const(float(np.sqrt(d)))))
        scores = emit(op.add(scores, mask))
        if flat:
            rows = emit(op.nn.softmax(emit(op.reshape(scores, (batch * heads * seq, seq))), axis=1))
            weights = emit(op.reshape(rows, (batch, heads, seq, seq)))
        else:
            weights = emit(op.nn.softmax(scores, axis=-1))
        out = emit(op.permute_dims(emit(op.matmul(weights, v)), [0, 2, 1, 3]))
        return op.reshape(out, (batch * seq, heads * d))

    shape = (batch * seq, heads * d)
    return build_one(body, [shape, shape, shape, (batch, 1, 1, seq)])


def gpt2_attention(heads: int, seq: int, d: int) -> Workload:
    """QKV [seq, 3 * heads * d] with a constant causal mask -> [seq, heads * d]."""
    width = heads * d
    causal = np.tril(np.ones((seq, seq), bool)).reshape(1, 1, seq, seq)

    def part(emit: Any, qkv: Any, index: int, axes: list[int]) -> Any:
        piece = emit(op.strided_slice(qkv, [2], [index * width], [(index + 1) * width], [1]))
        return emit(op.permute_dims(emit(op.reshape(piece, (1, seq, heads, d))), axes))

    def body(emit: Any, qkv: Any, mask: Any) -> Any:
        qkv = emit(op.reshape(qkv, (1, seq, 3 * width)))
        q, v = part(emit, qkv, 0, [0, 2, 1, 3]), part(emit, qkv, 2, [0, 2, 1, 3])
        k = part(emit, qkv, 1, [0, 2, 3, 1])
        scores = emit(op.divide(emit(op.matmul(q, k)), relax.const(float(np.sqrt(d)))))
        scores = emit(op.where(mask, scores, relax.const(float(np.finfo(np.float32).min))))
        weights = emit(op.nn.softmax(scores, axis=3))
        out = emit(op.permute_dims(emit(op.matmul(weights, v)), [0, 2, 1, 3]))
        return op.reshape(out, (seq, width))

    return build_one(body, [(seq, 3 * width)], [causal])
