"""Functions in half precision, read as if they computed in float32."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.relax import op

from subtune.tir.blocks import is_reduction, root_stages, stage_block
from subtune.tir.rebuild import in_float32
from tests.backends.cuda.attention_workloads import fused
from tests.backends.cuda.wgmma_workloads import dense
from tests.backends.workloads import softmax


def test_a_function_without_halves_comes_back() -> None:
    func = softmax(4, 10).func
    assert in_float32(func).same_as(func)


def test_halves_are_only_loaded_and_stored() -> None:
    func = in_float32(dense(6, 8, 10, act="gelu").func)
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    params = list(func.params)
    halves = [s.buffer for s in stores if str(s.buffer.dtype) == "float16"]
    assert len(halves) == 1
    assert halves[0].same_as(params[-1])


def test_a_sum_in_half_is_rounded_once() -> None:
    """What a reduction stores to a parameter is summed in float32, and rounded by a stage of its own."""
    workload = fused(lambda emit, a, b: emit(op.matmul(a, b)), [(1, 3000), (3000, 1)], ["float16", "float16"])
    func = in_float32(workload.func)
    total, rounded = (stage_block(stage) for stage in root_stages(func))
    assert is_reduction(total)
    assert str(total.body.buffer.dtype) == "float32"
    assert rounded.body.buffer.same_as(func.params[-1])
    assert isinstance(rounded.body.value, tirx.Cast)
    assert str(rounded.body.value.ty.dtype) == "float16"
