"""Products with weights of few bits as the importer writes them, before any pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from subtune.core.forms import Forms
from subtune.core.workload import Workload
from subtune.passes.exprs import make_const
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.pipeline import normalize, partition

PACKS = Forms(packed_rows=16)
F = np.float32


@dataclass(frozen=True, slots=True)
class Case:
    """x[rows, length] times weights[columns, length]; blocks of `size` have zero points if `zero` is "blocks"."""

    rows: int
    columns: int
    length: int
    size: int = 32
    bits: int = 4
    zero: str = ""
    signed: bool = False
    dtype: str = "float32"

    @property
    def blocks(self) -> int:
        return -(-self.length // self.size)

    @property
    def integers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values [columns, blocks, size], scale and zero points [columns, blocks]."""
        rng = np.random.default_rng(self.length + self.bits)
        low, high = (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1)) if self.signed else (0, 2**self.bits)
        of = np.int8 if self.signed else np.uint8
        values = rng.integers(low, high, (self.columns, self.blocks, self.size)).astype(of)
        values.flat[:2] = (low, high - 1)
        scale = rng.uniform(0.01, 0.1, (self.columns, self.blocks)).astype("float16").astype(F)
        middle = np.full(scale.shape, (low + high) // 2, of)
        return values, scale, rng.integers(low, high, scale.shape).astype(of) if self.zero == "blocks" else middle

    @property
    def weights(self) -> np.ndarray:
        """float32 [columns, length]."""
        values, scale, zero = self.integers
        wide = (values.astype(F) - zero.astype(F)[..., None]) * scale[..., None]
        return wide.reshape(self.columns, -1)[:, : self.length]

    def weight(self) -> Any:
        """[length, columns], as `subtune.frontends.onnx.ops.qdq.dequantised_blocks` has it."""
        values, scale, zero = self.integers
        rows = map(make_const, (values.reshape(-1, self.size), scale.reshape(-1), zero.reshape(-1)))
        y = relax.op.dequantize(*rows, axis=0, out_dtype="float32")
        y = relax.op.reshape(y, (self.columns, self.blocks * self.size))
        if self.blocks * self.size != self.length:
            y = relax.op.strided_slice(y, [1], [0], [self.length], [1])
        return relax.op.permute_dims(y, [1, 0])

    def product(self, x: Any) -> Any:
        if self.dtype == "float32":
            return relax.op.matmul(x, self.weight())
        halves = relax.op.astype(self.weight(), self.dtype)
        return relax.op.astype(relax.op.matmul(x, halves, out_dtype="float32"), self.dtype)

    def module(self, body: Callable[..., Any] | None = None) -> tvm.IRModule:
        """`body` of the product, of x and of a residual as large as the result, which is there if `body` is."""
        shapes = {"x": (self.rows, self.length), "r": (self.rows, self.columns)}
        params = [relax.Var(name, relax.TensorType(dims, self.dtype)) for name, dims in shapes.items()]
        params = params if body else params[:1]
        bb = relax.BlockBuilder()
        with bb.function("main", params):
            with bb.dataflow():
                y = self.product(params[0])
                out = bb.emit_output(bb.normalize(body(y, *params) if body else y))
            bb.emit_func_output(out)
        return bb.finalize()

    def workload(self, body: Callable[..., Any] | None = None, forms: Forms = PACKS) -> Workload:
        """The only one of the normalised module."""
        mod = normalize(self.module(body), forms=forms)
        (subgraph,) = extract(outline(mod, partition(mod, forms)))
        return subgraph.workload
