"""A function as stages: told apart, put together again, and made of nothing but a name, axes and a store."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import tirx
from tvm.relax import op
from tvm.s_tir import Schedule

from subtune.tir.blocks import (
    all_blocks,
    extents_of,
    is_costly,
    is_reduction,
    nest,
    root_stages,
    stage_block,
    with_stages,
)
from subtune.tir.padding import pad_reductions
from tests.backends.workloads import build, dense, softmax
from tests.plain_tvm import compiled


def test_stages_are_in_program_order_and_know_their_block() -> None:
    func = softmax(4, 10).func
    stages = root_stages(func)
    names = [stage_block(stage).name_hint for stage in stages]
    sch = Schedule(func)
    assert names == [sch.get(block).name_hint for block in all_blocks(sch)]
    assert sum(is_reduction(stage_block(stage)) for stage in stages) == 2
    assert any(is_costly(stage_block(stage)) for stage in stages), "exp"
    assert extents_of(stage_block(stages[0])) == [4, 10]


def test_the_same_stages_make_the_same_function() -> None:
    func = dense(6, 8, 10).func
    again = with_stages(func, root_stages(func), func.body.block.alloc_buffers)
    tvm.ir.assert_structural_equal(again, func)


def test_a_nest_reads_its_regions_off_the_body() -> None:
    source, target = (tirx.decl_buffer([tirx.const(4, "int64")], "float32", name) for name in ("s", "t"))
    axis = tirx.IterVar(tvm.ir.Range(tirx.const(0, "int64"), tirx.const(4, "int64")), tirx.Var("v", "int64"), 0)
    value = tirx.BufferLoad(source, [axis.var]) + tirx.BufferLoad(source, [axis.var])
    made = stage_block(nest("copy", [axis], {0: 3}, tirx.BufferStore(target, value, [axis.var]), None))
    assert extents_of(made) == [3], "extents may be given anew"
    assert [region.source.name for region in made.reads] == ["s"], "each region once"
    assert [region.source.name for region in made.writes] == ["t"]


def test_padded_reductions_add_nothing() -> None:
    workload = build(lambda emit, x: op.sum(x, axis=[1]), [(3, 13)])
    padded = pad_reductions(workload.func, 8)
    assert padded is not None
    assert extents_of(stage_block(root_stages(padded)[0])) == [3, 16]
    x = np.random.default_rng(0).standard_normal((3, 13), dtype=np.float32)
    result = tvm.runtime.tensor(np.zeros(3, np.float32))
    compiled(padded.with_attr("global_symbol", "main"))["main"](tvm.runtime.tensor(x), result)
    np.testing.assert_allclose(result.numpy(), x.sum(1), rtol=1e-5)


def test_whole_and_short_reductions_stay_as_they_are() -> None:
    assert pad_reductions(build(lambda emit, x: op.sum(x, axis=[1]), [(3, 16)]).func, 8) is None
    assert pad_reductions(build(lambda emit, x: op.sum(x, axis=[1]), [(3, 5)]).func, 8) is None
