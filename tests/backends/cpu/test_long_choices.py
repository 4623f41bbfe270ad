"""Long chains of choices in a loop of 8, 16, ... iterations: LLVM 22 would follow each of their 2 ** n ways."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

import subtune
from subtune.backends.cpu.lowering.long_choices import begun_at_one
from subtune.backends.cpu.lowering.pipeline import flat


def largest(rows: int, columns: int) -> tirx.PrimFunc:
    x = te.placeholder((rows, columns), "float32", "x")
    i, j = te.reduce_axis((0, rows)), te.reduce_axis((0, columns))
    return te.create_prim_func([x, te.compute((1,), lambda _: te.max(x[i, j], [i, j]), "y")])


def total(rows: int, columns: int) -> tirx.PrimFunc:
    x = te.placeholder((rows, columns), "float32", "x")
    i, j = te.reduce_axis((0, rows)), te.reduce_axis((0, columns))
    return te.create_prim_func([x, te.compute((1,), lambda _: te.sum(x[i, j], [i, j]), "y")])


def lowered(func: tirx.PrimFunc, device) -> tvm.IRModule:
    target = device.target()
    mod = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule({"main": func}))
    return flat(mod)


def test_a_long_chain_is_built_in_bounded_time_and_right(tmp_path) -> None:
    """Without the pass this takes 2 ** 44 steps of LLVM."""
    text = "g (float[1, 1, 48, 44] x) => (float[1, 1] y) { y = ReduceMax<axes=[2, 3], keepdims=0>(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {text}')
    artifact = subtune.compile(model, tune=False, verify=False, database=tmp_path / "db")
    x = np.random.default_rng(0).standard_normal((1, 1, 48, 44)).astype("float32")
    assert artifact.run({"x": x})["y"] == x.max()


@pytest.mark.parametrize(
    ("func", "changes"),
    [(largest(48, 44), True), (largest(47, 44), False), (largest(48, 5), False), (total(48, 44), False)],
    ids=["long", "no multiple of 8", "short", "a sum reads once"],
)
def test_only_what_llvm_would_follow_is_changed(func, changes, device) -> None:
    before = lowered(func, device)
    assert tvm_ffi.structural_equal(begun_at_one()(before), before) != changes
