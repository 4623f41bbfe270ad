"""Products whose results are given in parts as well, fused into one function by the pipeline's own passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.measure.guarded import numpy_dtype
from tests.backends.cuda.attention_workloads import fused


def product_that_gives(
    heads: int, rows: int, dim: int, k: int, *, batch: int = 2, given: str = "kv",
    order: tuple[int, ...] = (0, 2, 1, 3), cut: int = 0, by: float = 1.0, step: int = 1, gelu: bool = False,
    residual: bool = False, dtype: str = "float16", given_dtype: str = "float32",
) -> Workload:  # fmt: skip
    """act(x @ w + b [+ r]) of `dtype`, joined queries, keys and values; and parts of it.

    Args:
        given: which of "q", "k" and "v" are given, as [batch, rows, heads, dim] permuted to `order`.
        cut: rows that are left out of them, in every batch.
        by: what they are multiplied by.
        step: of their columns, from one to the next.
    """
    width = heads * dim
    of_numpy = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    rng = np.random.default_rng(2)
    w = relax.const((rng.standard_normal((k, 3 * width)) / 8).astype(of_numpy))
    b = relax.const(rng.standard_normal(3 * width).astype("float32"))

    def body(emit: Any, x: Any, *others: Any) -> Any:
        y = emit(op.add(emit(op.matmul(x, w, out_dtype="float32")), b))
        for other in others:
            y = emit(op.add(y, emit(op.astype(other, "float32"))))
        y = emit(op.astype(emit(op.nn.gelu(y)) if gelu else y, dtype))
        joined = emit(op.reshape(y, (batch, rows, 3 * width)))
        results = []
        for part in ("qkv".index(name) for name in given):
            own = emit(op.strided_slice(joined, [2], [part * width], [(part + 1) * width], [step]))
            own = emit(op.reshape(own, (batch, rows, heads, dim // step)))
            own = emit(op.strided_slice(own, [1], [cut], [rows])) if cut else own
            own = emit(op.permute_dims(own, list(order))) if order != (0, 1, 2, 3) else own
            own = emit(op.multiply(own, relax.const(by, dtype))) if by != 1.0 else own
            results.append(emit(op.astype(own, given_dtype)) if given_dtype != dtype else own)
        return (joined, *results)

    shapes = [(batch * rows, k), *([(batch * rows, 3 * width)] if residual else [])]
    return fused(body, shapes, [dtype] * len(shapes))


def copies_of(joined: np.ndarray, workload: Workload, **options: Any) -> list[np.ndarray]:
    """What `product_that_gives`, of the same options, gives beside the joined result."""
    heads, rows, dim, batch = options["heads"], options["rows"], options["dim"], options.get("batch", 2)
    parts = joined.reshape(batch, rows, 3, heads, dim)
    names = options.get("given", "kv")
    found = []
    for name, arg in zip(names, workload.args[-len(names) :], strict=True):
        part = parts[:, options.get("cut", 0) :, "qkv".index(name)]
        part = part.transpose(options.get("order", (0, 2, 1, 3)))
        found.append(np.ascontiguousarray(part).astype("float32" if arg.dtype == "float32" else joined.dtype))
    return found


def product_and_widened(m: int, n: int, k: int) -> Workload:
    """x @ w, of halves; and the same as float32."""

    def body(emit: Any, x: Any) -> Any:
        y = emit(op.matmul(x, relax.const(np.ones((k, n), "float16"))))
        return y, emit(op.astype(y, "float32"))

    return fused(body, [(m, k)], ["float16"])


def outputs_on_gpu(workload: Workload, candidate: Candidate, model: CUDAModel, inputs: Sequence[Any]) -> list[Any]:
    """What a candidate's kernel makes of `inputs` on the GPU here, which `model` describes."""
    kernel = backends.schedule(workload, candidate, model)
    assert isinstance(kernel, Kernel), (candidate, kernel)
    with model.target():
        built = tvm.compile(kernel.func, target=model.target(), tir_pipeline=register())
    packed, device = dict(kernel.packings), tvm.cuda(0)
    arrays = [tvm.runtime.tensor(packed[i](x) if i in packed else x, device) for i, x in enumerate(inputs)]
    results = [
        tvm.runtime.tensor(np.full(arg.shape, np.nan).astype(numpy_dtype(arg.dtype)), device)
        for arg in workload.args
        if arg.is_output
    ]
    built["main"](*arrays, *results)
    return [result.numpy() for result in results]
