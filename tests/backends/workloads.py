"""Small workloads of every anchor, made by the pipeline itself: Relax ops, partitioned and outlined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from subtune.core.workload import Workload
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition

Shape = Sequence[int]


def build(
    body: Callable[..., Any], shapes: Sequence[Shape], constants: Sequence[Shape] = (), dtype: str = "float32"
) -> Workload:
    """The one workload of `body(emit, inputs..., constants...)`."""
    bb = relax.BlockBuilder()
    rng = np.random.default_rng(0)
    inputs = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    weights = [relax.const(rng.standard_normal(shape).astype(dtype)) for shape in constants]
    with bb.function("main", inputs):
        with bb.dataflow():
            result = bb.emit_output(body(bb.emit, *inputs, *weights))
        bb.emit_func_output(result)
    mod = bb.get()
    subgraphs = extract(outline(mod, partition(mod)))
    assert len(subgraphs) == 1, [s.name for s in subgraphs]
    return subgraphs[0].workload


def conv(size: int, cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1, batch: int = 1) -> Workload:
    """NHWC convolution + bias + residual + relu, padded to keep the size at stride 1."""
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1

    def body(emit: Any, x: Any, residual: Any, w: Any, b: Any) -> Any:
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
        y = emit(op.nn.conv2d(x, w, strides=stride, padding=pad, groups=groups, **layouts))
        return op.nn.relu(emit(op.add(emit(op.add(y, b)), residual)))

    shapes = [(batch, size, size, cin), (batch, out, out, cout)]
    return build(body, shapes, [(cout, kernel, kernel, cin // groups), (1, 1, 1, cout)])


def conv3d(size: Shape, cin: int, cout: int, kernel: Shape, stride: int = 1, batch: int = 1) -> Workload:
    """NDHWC convolution + bias + relu, padded to keep the size at stride 1."""

    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        layouts = {"data_layout": "NDHWC", "kernel_layout": "ODHWI", "out_layout": "NDHWC"}
        y = emit(op.nn.conv3d(x, w, strides=stride, padding=[k // 2 for k in kernel], **layouts))
        return op.nn.relu(emit(op.add(y, b)))

    return build(body, [(batch, *size, cin)], [(cout, *kernel, cin), (1, 1, 1, 1, cout)])


def dense(m: int, n: int, k: int) -> Workload:
    """x @ w + b with a constant w, then GELU."""
    return build(lambda emit, x, w, b: op.nn.gelu(emit(op.add(emit(op.matmul(x, w)), b))), [(m, k)], [(k, n), (n,)])


def dense_residual(m: int, n: int, k: int) -> Workload:
    """x @ w + b + y with a constant w."""
    return build(
        lambda emit, x, y, w, b: op.add(emit(op.add(emit(op.matmul(x, w)), b)), y), [(m, k), (m, n)], [(k, n), (n,)]
    )


def matmul(m: int, n: int, k: int) -> Workload:
    """a @ b, nothing constant."""
    return build(lambda emit, a, b: op.matmul(a, b), [(m, k), (k, n)])


def batch_matmul(batch: int, m: int, n: int, k: int, transposed: bool = False) -> Workload:
    """a @ b, or a @ b^T as in attention, nothing constant."""

    def body(emit: Any, a: Any, b: Any) -> Any:
        return op.matmul(a, emit(op.permute_dims(b, [0, 2, 1])) if transposed else b)

    return build(body, [(batch, m, k), (batch, n, k) if transposed else (batch, k, n)])


def max_pool(size: int, channels: int) -> Workload:
    return build(
        lambda emit, x: op.nn.max_pool2d(
            x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1), layout="NHWC", out_layout="NHWC"
        ),
        [(1, size, size, channels)],
    )


def global_pool(size: int, channels: int) -> Workload:
    return build(lambda emit, x: op.mean(x, axis=[1, 2], keepdims=True), [(1, size, size, channels)])


def softmax(rows: int, length: int) -> Workload:
    return build(lambda emit, x: op.nn.softmax(emit(op.multiply(x, relax.const(0.125)))), [(rows, length)])


def layer_norm(rows: int, length: int) -> Workload:
    return build(lambda emit, x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), [(rows, length)], [(length,), (length,)])


def elementwise(*shape: int) -> Workload:
    return build(lambda emit, x, y, b: op.nn.silu(emit(op.add(emit(op.add(x, y)), b))), [shape, shape], [shape[-1:]])


def transpose(*shape: int) -> Workload:
    return build(lambda emit, x: op.permute_dims(x, [0, 2, 3, 1]), [shape])
