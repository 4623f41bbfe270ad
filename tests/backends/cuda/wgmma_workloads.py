"""Workloads in 16 bits and less, made by the pipeline itself, for the tensor-core families."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, te
from tvm.relax import op

from subtune.core.workload import Workload
from subtune.passes.alternatives import alternatives
from subtune.passes.alternatives_lower import lower_regions
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition

Shape = Sequence[int]


def build(
    body: Callable[..., Any], shapes: Sequence[Shape], constants: Sequence[Shape], dtype: str, merges: bool = False
) -> Workload:
    """The one workload of `body(emit, inputs..., constants...)`; `merges`: of its only alternative."""
    bb = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    weights = [relax.const(np.ones(shape, numpy_dtype)) for shape in constants]
    with bb.function("main", inputs):
        with bb.dataflow():
            result = bb.emit_output(body(bb.emit, *inputs, *weights))
        bb.emit_func_output(result)
    mod = bb.get()
    graph = partition(mod)
    subgraphs = extract(outline(mod, graph))
    if merges:
        subgraphs = lower_regions(mod, graph, alternatives(graph), subgraphs).subgraphs
    assert len(subgraphs) == 1, [s.name for s in subgraphs]
    return subgraphs[0].workload


def dense(
    m: int, n: int, k: int, residual: bool = False, act: str = "relu", dtype: str = "float16", sum_dtype: str = ""
) -> Workload:
    """act(x @ w + b [+ r]) with constant w and b; `sum_dtype`: what the product is in."""

    def body(emit: Any, x: Any, *rest: Any) -> Any:
        *r, w, b = rest
        y = emit(op.matmul(x, w, out_dtype=sum_dtype or None))
        y = emit(op.add(y, relax.const(np.ones(n, sum_dtype)) if sum_dtype else b))
        for other in r:
            y = emit(op.add(y, emit(op.astype(other, sum_dtype)) if sum_dtype else other))
        y = emit({"relu": op.nn.relu, "gelu": op.nn.gelu, "silu": op.nn.silu}[act](y))
        return op.astype(y, dtype) if sum_dtype else y

    return build(body, [(m, k), *([(m, n)] if residual else [])], [(k, n), (n,)], dtype)


def conv(
    size: int, cin: int, cout: int, kernel: int, stride: int = 1, batch: int = 2, residual: bool = True,
    planar: bool = False, width: int = 0,
) -> Workload:  # fmt: skip
    """NHWC convolution + bias [+ residual] + relu in float16; `planar`: of an image that lies channels first."""
    pad = kernel // 2
    out, across = ((extent + 2 * pad - kernel) // stride + 1 for extent in (size, width or size))

    def body(emit: Any, x: Any, *rest: Any) -> Any:
        *r, w, b = rest
        x = emit(op.permute_dims(x, [0, 2, 3, 1])) if planar else x
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
        y = emit(op.add(emit(op.nn.conv2d(x, w, strides=stride, padding=pad, **layouts)), b))
        for other in r:
            y = emit(op.add(y, other))
        return op.nn.relu(y)

    image = (batch, cin, size, width or size) if planar else (batch, size, width or size, cin)
    shapes = [image, *([(batch, out, across, cout)] if residual else [])]
    return build(body, shapes, [(cout, kernel, kernel, cin), (1, 1, 1, cout)], "float16", merges=planar)


def attention(batch: int, heads: int, m: int, n: int, k: int, transposed: bool = False) -> Workload:
    """a @ b, or a @ b^T, for every head."""

    def body(emit: Any, a: Any, b: Any) -> Any:
        return op.matmul(a, emit(op.permute_dims(b, [0, 1, 3, 2])) if transposed else b)

    last = (n, k) if transposed else (k, n)
    return build(body, [(batch, heads, m, k), (batch, heads, *last)], [], "float16")


def split_heads(batch: int, length: int, heads: int, width: int, k: int) -> Workload:
    """x @ w + b as `[batch, heads, length, width]`, which the partition would leave to another kernel."""
    x = te.placeholder((batch, length, k), "float16", "x")
    w = te.placeholder((k, heads * width), "float16", "w")
    b = te.placeholder((heads * width,), "float16", "b")
    i = te.reduce_axis((0, k), "i")
    y = te.compute((batch, length, heads * width), lambda o, m, n: te.sum(x[o, m, i] * w[i, n], i), "y")
    z = te.compute((batch, heads, length, width), lambda o, h, m, v: y[o, m, h * width + v] + b[h * width + v], "z")
    return Workload.of(te.create_prim_func([x, w, b, z]).with_attr("layout_free_buffers", [1, 2]), 1)


def quantised(m: int, n: int, k: int) -> Workload:
    """int8 x @ w, requantised."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(op.astype(emit(op.matmul(x, w, out_dtype="int32")), "float32"))
        y = emit(op.clip(emit(op.round(emit(op.multiply(y, relax.const(0.01))))), -128, 127))
        return op.astype(y, "int8")

    return build(body, [(m, k)], [(k, n)], "int8")


def strided(m: int, n: int, k: int) -> Workload:
    """A product with every second column of a."""
    a = te.placeholder((m, 2 * k), "float16", "a")
    b = te.placeholder((k, n), "float16", "b")
    i = te.reduce_axis((0, k), "i")
    return Workload.of(
        te.create_prim_func([a, b, te.compute((m, n), lambda x, y: te.sum(a[x, i * 2] * b[i, y], i))]), 1
    )


def product(m: int, n: int, k: int, dtype: str) -> Workload:
    """a @ b^T, summed in float32."""
    a, b = te.placeholder((m, k), dtype, "a"), te.placeholder((n, k), dtype, "b")
    i = te.reduce_axis((0, k), "i")
    c = te.compute((m, n), lambda x, y: te.sum(a[x, i].astype("float32") * b[y, i].astype("float32"), i))
    return Workload.of(te.create_prim_func([a, b, c]), 1)
