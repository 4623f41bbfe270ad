"""Two pointwise convolutions that are added up, as the blocks of residual networks begin."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from subtune.core.forms import Forms
from subtune.core.workload import Workload
from subtune.passes.alternatives import alternatives
from subtune.passes.alternatives_lower import lower_regions
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.pipeline import normalize

FORMS = Forms(sums_products=True)
_NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def model(
    size: int, k: int, other_k: int, n: int, stride: int = 1, batch: int = 2, act: str = "relu", bias: bool = True,
    dtype: str = "float16", between: str = "",
) -> Any:  # fmt: skip
    """act(conv(x) + conv(y)), both 1x1, the one of x with `stride`; `between`: an activation of the one of x."""
    out = (size - 1) // stride + 1
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, size, size, other_k), dtype))
    y = relax.Var("y", relax.TensorType((batch, out, out, k), dtype))
    rng = np.random.default_rng(5)

    def constant(*shape: int) -> Any:
        return bb.emit(op.astype(relax.const(rng.standard_normal(shape).astype("float32") / 8), dtype))

    def conv(image: Any, channels: int, strides: int) -> Any:
        made = bb.emit(op.nn.conv2d(image, constant(n, 1, 1, channels), strides=strides, **_NHWC))
        return bb.emit(op.add(made, constant(1, 1, 1, n))) if bias else made

    with bb.function("main", [x, y]):
        with bb.dataflow():
            shortcut = conv(x, other_k, stride)
            shortcut = bb.emit(op.nn.relu(shortcut)) if between else shortcut
            made = bb.emit(op.add(conv(y, k, 1), shortcut))
            made = bb.emit({"relu": op.nn.relu, "silu": op.nn.silu}[act](made)) if act else made
            result = bb.emit_output(made)
        bb.emit_func_output(result)
    return normalize(bb.get())


def fused(*args: Any, **options: Any) -> Workload:
    """The one kernel that is proposed for it."""
    mod = model(*args, **options)
    graph = partition(mod)
    found = lower_regions(mod, graph, alternatives(graph, FORMS), extract(outline(mod, graph))).subgraphs
    (one,) = [s for s in found if s.ops.count("nn.conv2d") == 2]
    return one.workload
