"""Queries and keys that attention scales, as torch.onnx exports it: the numbers go into the weights before them."""

from __future__ import annotations

import math

import onnx
import onnx.parser
import pytest

from subtune.core.forms import Forms
from subtune.frontends import load
from subtune.passes.exprs import op_name
from subtune.pipeline import normalize

ROWS, WIDTH, HEADS = 10, 16, 2
EACH = WIDTH // HEADS


def numbers(count: int, begin: int) -> str:
    return ", ".join(f"{math.sin(1.3 * i + begin):.4f}" for i in range(count))


def attention(scaled: bool) -> onnx.ModelProto:
    """softmax(q k^T) v with q and k times the root of the scale, behind the split into heads."""
    root = math.sqrt(1.0 / math.sqrt(EACH)) if scaled else 1.0
    weights = ", ".join(
        f"float[{WIDTH}, {WIDTH}] w{n} = {{{numbers(WIDTH * WIDTH, n)}}}, float[{WIDTH}] b{n} = {{{numbers(WIDTH, n)}}}"
        for n in range(3)
    )
    heads = "".join(
        f"m{n} = MatMul(x, w{n}) a{n} = Add(b{n}, m{n}) h{n} = Reshape(a{n}, split) "
        f"t{n} = Transpose<perm=[0, 2, 1, 3]>(h{n}) "
        for n in range(3)
    )
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, {ROWS}, {WIDTH}] x) => (float[1, {HEADS}, {ROWS}, {EACH}] y)
    <{weights}, float root = {{{root}}}, int64[4] split = {{1, {ROWS}, {HEADS}, {EACH}}}>
    {{ {heads} q = Mul(t0, root) kt = Transpose<perm=[0, 1, 3, 2]>(t1) k = Mul(kt, root)
       s = MatMul(q, k) p = Softmax<axis=-1>(s) y = MatMul(p, t2) }}"""
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("scaled", [False, True])
def test_scaled_projections_are_one_product(scaled: bool) -> None:
    main = normalize(load(attention(scaled)).mod, forms=Forms(keeps_planes=True, halves=frozenset()))["main"]
    names = [op_name(binding.value) for block in main.body.blocks for binding in block.bindings]
    assert names.count("relax.matmul") == 3  # all projections together, the scores, and what they weigh
    assert "relax.multiply" not in names
