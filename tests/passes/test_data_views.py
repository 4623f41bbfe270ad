"""Reshapes between kernels become views, whatever the kernels are made of."""

from __future__ import annotations

import tvm_ffi
from tvm import relax, te, tirx
from tvm.relax import op

from subtune.passes.data_views import reshapes_to_views


def test_a_kernel_without_blocks_is_no_reshape_and_stays_what_it_is() -> None:
    block = te.create_prim_func([x := te.placeholder((4, 6), "float32", "x"), te.compute((6, 4), lambda i, j: x[j, i])])
    kernel = block.with_body(tirx.Evaluate(0)).with_attr("global_symbol", "kernel")
    bb = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType((4, 6), "float32"))
    with bb.function("main", [given]):
        called = bb.add_func(kernel, "kernel")
        with bb.dataflow():
            one = bb.emit(relax.call_tir(called, [given], relax.TensorType((6, 4), "float32")))
            flat = bb.emit(op.reshape(one, (24,)))
            out = bb.emit_output(relax.call_tir(called, [flat], relax.TensorType((6, 4), "float32")))
        bb.emit_func_output(out)
    mod = bb.get()
    after = reshapes_to_views(mod)
    assert tvm_ffi.structural_equal(after["kernel"], mod["kernel"])
    assert str(after["main"].script()).count("call_tir") == 2
    assert "reshape" in str(after["main"].script())
