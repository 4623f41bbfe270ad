"""Attention in half precision, fused into one function by the pipeline's own passes."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from subtune.core.graph import Group, PartitionGraph
from subtune.core.workload import Workload
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition


def attention(
    heads: int, rows: int, keys: int, dim: int, *, batch: int = 2, shared: int = 1, mask: str = "",
    hidden: float = -65504.0, is_wide: bool = False, heads_last: bool = False, dtype: str = "float16",
) -> Workload:  # fmt: skip
    """softmax(q k^T / sqrt(dim) + mask) v.

    Args:
        shared: query heads that share a head of keys and values.
        mask: "causal" is a constant as exporters write it, with `hidden` above the diagonal; "added" and "square" are
            inputs, with a number for every key, or for every row and key.
        is_wide: products and softmax in float32, as `--precision fp16` has them; else all in `dtype`.
        heads_last: [batch, sequence, heads, dim] in memory; else heads before the sequence.
    """
    between = "float32" if is_wide else dtype
    sums = "float32" if is_wide else None

    def body(emit: Any, q: Any, k: Any, v: Any, *added: Any) -> Any:
        if heads_last:
            q, k, v = (emit(op.permute_dims(x, [0, 2, 1, 3])) for x in (q, k, v))
        if shared > 1:
            k, v = (emit(op.repeat(x, shared, axis=1)) for x in (k, v))
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])), out_dtype=sums))
        scores = emit(op.multiply(scores, relax.const(dim**-0.5, between)))
        if mask == "causal":
            triangle = np.triu(np.full((1, 1, rows, keys), hidden, between), 1)
            scores = emit(op.add(scores, relax.const(triangle)))
        for other in added:
            scores = emit(op.add(scores, other))
        weights = emit(op.nn.softmax(scores, axis=-1))
        weights = emit(op.astype(weights, dtype)) if is_wide else weights
        out = emit(op.matmul(weights, v, out_dtype=sums))
        out = emit(op.permute_dims(out, [0, 2, 1, 3])) if heads_last else out
        return emit(op.astype(out, dtype)) if is_wide else out

    theirs = heads // shared
    shapes = [(batch, heads, rows, dim), (batch, theirs, keys, dim), (batch, theirs, keys, dim)]
    if heads_last:
        shapes = [(b, s, h, d) for b, h, s, d in shapes]
    dtypes = [dtype] * 3
    if mask in ("added", "square"):
        shapes.append((batch, 1, 1 if mask == "added" else rows, keys))
        dtypes.append(between)
    return fused(body, shapes, dtypes)


def attention_that_gives(
    heads: int, keys: int, dim: int, *, rows: int = 0, batch: int = 2, shared: int = 1, is_causal: bool = True,
    heads_first: bool = True, cut: int = 0, given: str = "kv", dtype: str = "float16", given_dtype: str = "",
) -> Workload:  # fmt: skip
    """Attention over the heads of one joined projection, whose keys and values are results as well.

    Args:
        rows: of the queries, the last ones of `keys`; 0: as many.
        shared: query heads that share a head of keys and values.
        heads_first: of the results that are given; else they lie as in the projection.
        cut: keys of a result that are left out.
        given: which of "q", "k" and "v" are results; of `given_dtype`, or as they are.
    """
    theirs, rows = heads // shared, rows or keys
    widths = [heads * dim, theirs * dim, theirs * dim]
    begins = [0, widths[0], widths[0] + widths[1]]

    def body(emit: Any, joined: Any) -> Any:
        def part(i: int) -> Any:
            x = emit(op.strided_slice(joined, [2], [begins[i]], [begins[i] + widths[i]]))
            return emit(op.reshape(x, (batch, keys, widths[i] // dim, dim)))

        q, k, v = (emit(op.permute_dims(part(i), [0, 2, 1, 3])) for i in range(3))
        if rows != keys:
            q = emit(op.strided_slice(q, [2], [keys - rows], [keys]))
        if shared > 1:
            k, v = (emit(op.repeat(x, shared, axis=1)) for x in (k, v))
        scores = emit(
            op.multiply(emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])))), relax.const(0.125, dtype))
        )
        if is_causal:
            triangle = np.triu(np.full((1, 1, rows, keys), -65504.0, dtype), 1)
            scores = emit(op.add(scores, relax.const(triangle)))
        out = emit(op.permute_dims(emit(op.matmul(emit(op.nn.softmax(scores, axis=-1)), v)), [0, 2, 1, 3]))
        results = []
        for name in given:
            result = part("qkv".index(name))
            result = emit(op.strided_slice(result, [1], [cut], [keys])) if cut else result
            result = emit(op.permute_dims(result, [0, 2, 1, 3])) if heads_first else result
            results.append(emit(op.astype(result, given_dtype)) if given_dtype else result)
        return (*results, out)

    return fused(body, [(batch, keys, sum(widths))], [dtype])


def fused(body: Any, shapes: list[Any], dtypes: list[str]) -> Workload:
    """All that `body` emits as one group; it returns a result or several."""
    bb = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
    with bb.function("main", inputs):
        with bb.dataflow():
            result = body(bb.emit, *inputs)
            result = bb.emit_output(relax.Tuple(list(result)) if isinstance(result, tuple) else result)
        bb.emit_func_output(result)
    mod = bb.get()
    graph = partition(mod)
    ops = tuple(graph.dag)
    group = Group("one", ops[-1], ops[:-1], (), ops, (), graph.results, ())
    (subgraph,) = extract(outline(mod, PartitionGraph(graph.dag, (group,), (), graph.results)))
    return subgraph.workload
