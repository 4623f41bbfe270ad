"""The rules of the partition, each with the case where it does not apply, and its invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune.core.errors import SubtuneError
from subtune.core.graph import Kind, PartitionGraph
from subtune.passes.partition import check_partition, partition

F32 = "float32"
IMAGE = ((1, 8, 8, 16), F32)
WEIGHT = ((16, 3, 3, 16), F32)


def module(body: Callable[..., Any], *params: tuple[tuple[int, ...], str]) -> tvm.IRModule:
    """`main(x0, x1, …)` on tensors (shape, dtype); `body(emit, x0, …)` returns the result."""
    bb = relax.BlockBuilder()
    xs = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(params)]
    with bb.function("main", xs):
        with bb.dataflow():
            result = bb.emit_output(body(bb.emit, *xs))
        bb.emit_func_output(result)
    return bb.get()


def grouped(body: Callable[..., Any], *params: tuple[tuple[int, ...], str]) -> PartitionGraph:
    return partition(module(body, *params))


def sets(graph: PartitionGraph) -> set[frozenset[str]]:
    return {frozenset(group.ops) for group in graph.groups}


def conv(x: Any, w: Any, **attrs: Any) -> Any:
    return op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI", **attrs)


def const(*shape: int, dtype: str = F32) -> Any:
    return relax.const(np.random.default_rng(0).standard_normal(shape).astype(dtype), dtype)


def has(group: Any, text: str) -> bool:
    return any(text in sentence for sentence in group.boundary)


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_anchored", [False, True])
def test_a_chain_that_doubles_is_cut(is_anchored: bool) -> None:
    """Inlined whole, thirty gates would be two to the thirty."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        if is_anchored:
            x = emit(op.matmul(x, w))
        for _ in range(30):
            x = emit(op.multiply(emit(op.negative(x)), x))
        return emit(op.nn.relu(x))

    graph = grouped(body, ((4, 16), F32), ((16, 16), F32))
    sizes = [len(group.ops) for group in graph.groups]
    assert 5 <= len(sizes) <= 10
    assert max(sizes) <= 16
    assert any(
        "would be computed 128 times for each element" in text for group in graph.groups for text in group.boundary
    )


def test_a_long_chain_that_reads_once_is_one_group() -> None:
    def body(emit: Any, x: Any) -> Any:
        for _ in range(90):
            x = emit(op.negative(x))
        return x

    assert len(grouped(body, ((4, 16), F32)).groups) == 1


# -- epilogues ---------------------------------------------------------------------------------------------------------


def test_a_long_name_says_how_many_ops_it_leaves_out() -> None:
    def body(emit: Any, x: Any) -> Any:
        for _ in range(12):
            x = emit(op.negative(x))
        return x

    (group,) = grouped(body, ((8, 8), F32)).groups
    assert group.name == "_".join(["negative"] * 5) + "_and_7_more"


def test_bias_activation_and_cast_are_the_epilogue() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(op.nn.relu(emit(op.add(emit(conv(x, w)), const(1, 1, 1, 16)))))
        return emit(op.astype(emit(op.clip(y, 0, 6)), "float16"))

    (group,) = grouped(body, IMAGE, WEIGHT)
    assert group.anchor == "conv2d_0"
    assert group.epilogue == ("add_0", "relu_0", "clip_0", "astype_0")
    assert group.prologue == ()
    assert group.boundary == ("astype_0 is a result of the model",)


def test_concat_is_no_epilogue() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(op.concat([emit(conv(x, w)), x], axis=3))

    first, second = grouped(body, IMAGE, WEIGHT)
    assert (first.ops, second.ops) == (("conv2d_0",), ("concat_0",))
    assert has(first, "concat_0 moves data: not computable at the tile")


def test_broadcast_to_a_larger_tensor_is_no_epilogue() -> None:
    def body(emit: Any, x: Any) -> Any:
        mean = emit(op.mean(x, axis=[1, 2], keepdims=True))
        return emit(op.subtract(x, emit(op.sqrt(mean))))

    first, second = grouped(body, IMAGE)
    assert first.ops == ("mean_0", "sqrt_0")
    assert second.ops == ("subtract_0",)
    assert has(first, "another shape than the tile's")


def test_residual_add_belongs_to_the_later_producer() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        main = emit(conv(emit(op.nn.relu(emit(conv(x, w)))), w))
        shortcut = emit(conv(x, w))  # later in main, yet on the shorter branch
        return emit(op.nn.relu(emit(op.add(main, shortcut))))

    graph = grouped(body, IMAGE, WEIGHT)
    assert sets(graph) == {
        frozenset({"conv2d_0", "relu_0"}),
        frozenset({"conv2d_2"}),
        frozenset({"conv2d_1", "add_0", "relu_1"}),
    }
    assert has(graph.group_of("conv2d_2"), "add_0 belongs to conv2d_1, the later of its producers")


def test_residual_add_that_needs_the_output_again_is_left_to_the_end_of_the_branch() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        first = emit(op.nn.relu(emit(conv(x, w))))
        return emit(op.add(first, emit(conv(first, w))))

    graph = grouped(body, IMAGE, WEIGHT)
    assert sets(graph) == {frozenset({"conv2d_0", "relu_0"}), frozenset({"conv2d_1", "add_0"})}
    assert has(graph.group_of("conv2d_0"), "relu_0 is used by 2 ops: conv2d_1, add_0")


def test_earlier_anchor_takes_what_the_later_cannot() -> None:
    def body(emit: Any, x: Any, w: Any, v: Any) -> Any:
        wide = emit(conv(x, w))
        gate = emit(op.nn.softmax(emit(op.matmul(v, v)), axis=-1))  # deeper, (16, 16)
        return emit(op.multiply(wide, gate))  # the gate broadcasts: no epilogue of softmax

    graph = grouped(body, ((1, 4, 16, 16), F32), WEIGHT, ((16, 16), F32))
    assert frozenset({"conv2d_0", "multiply_0"}) in sets(graph)


def test_fan_out_inside_the_epilogue_is_one_group() -> None:
    def gelu(emit: Any, x: Any, w: Any) -> Any:
        y = emit(op.matmul(x, w))
        inner = emit(op.add(emit(op.erf(emit(op.multiply(y, relax.const(0.7071, F32))))), relax.const(1.0, F32)))
        return emit(op.multiply(emit(op.multiply(y, inner)), relax.const(0.5, F32)))

    (group,) = grouped(gelu, ((4, 8), F32), ((8, 8), F32))
    assert len(group.ops) == 6
    assert len(group.outputs) == 1


def test_pre_activation_residual_makes_two_outputs() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        total = emit(op.add(emit(conv(x, w)), x))
        return emit(op.add(emit(conv(emit(op.nn.relu(total)), w)), total))

    graph = grouped(body, IMAGE, WEIGHT)
    first = graph.group_of("conv2d_0")
    assert first.ops == ("conv2d_0", "add_0", "relu_0")
    assert [value.source for value in first.outputs] == ["add_0", "relu_0"]
    assert has(first, "add_0 is written as well")


def test_no_more_than_two_outputs() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(conv(x, w))
        return relax.Tuple([emit(f(y)) for f in (op.nn.relu, op.exp, op.tanh, op.sqrt)])

    graph = grouped(body, IMAGE, WEIGHT)
    first = graph.group_of("conv2d_0")
    assert len(first.outputs) == 2
    assert has(first, "would make more than 2 outputs")


# -- prologues ---------------------------------------------------------------------------------------------------------


def test_permute_dims_feeds_a_matmul() -> None:
    def body(emit: Any, q: Any, k: Any) -> Any:
        return emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))

    (group,) = grouped(body, ((2, 8, 4), F32), ((2, 8, 4), F32))
    assert group.prologue == ("permute_dims_0",)


def test_permute_dims_with_another_user_stays_out() -> None:
    def body(emit: Any, q: Any, k: Any) -> Any:
        kt = emit(op.permute_dims(k, [0, 2, 1]))
        return relax.Tuple([emit(op.matmul(q, kt)), emit(op.sort(kt))])

    graph = grouped(body, ((2, 8, 4), F32), ((2, 8, 4), F32))
    assert graph.group_of("matmul_0").ops == ("matmul_0",)
    assert has(graph.group_of("matmul_0"), "permute_dims_0 stays out: sort_0 needs it too")


def test_cast_and_pad_feed_a_convolution() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        cast = emit(op.astype(x, F32))
        return emit(conv(emit(op.nn.pad(cast, [0, 0, 1, 1, 1, 1, 0, 0])), w))

    (group,) = grouped(body, ((1, 8, 8, 16), "float16"), WEIGHT)
    assert group.prologue == ("astype_0", "pad_0")


@pytest.mark.parametrize("function", [op.nn.relu, op.exp])
def test_elementwise_into_a_convolution_stays_out(function: Callable[..., Any]) -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(conv(emit(function(x)), w))

    graph = grouped(body, IMAGE, WEIGHT)
    assert len(graph.groups) == 2
    assert has(graph.group_of("conv2d_0"), "for each of its multiplications")


def test_elementwise_into_a_matmul_stays_out() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(op.matmul(emit(op.nn.relu(x)), w))

    relu, matmul = grouped(body, ((64, 32), F32), ((32, 64), F32))
    assert (relu.ops, matmul.ops) == (("relu_0",), ("matmul_0",))


def test_scale_mask_softmax_is_one_group() -> None:
    def body(emit: Any, x: Any, mask: Any) -> Any:
        return emit(op.nn.softmax(emit(op.add(emit(op.divide(x, relax.const(8.0, F32))), mask)), axis=-1))

    (group,) = grouped(body, ((1, 4, 8, 8), F32), ((1, 1, 1, 8), F32))
    assert group.anchor == "softmax_0"
    assert group.prologue == ("divide_0", "add_0")


def test_costly_producer_stays_out_of_softmax_but_not_of_a_sum() -> None:
    def softmax(emit: Any, x: Any) -> Any:
        return emit(op.nn.softmax(emit(op.erf(x)), axis=-1))

    def total(emit: Any, x: Any) -> Any:
        return emit(op.sum(emit(op.erf(x)), axis=-1))

    assert len(grouped(softmax, ((8, 8), F32)).groups) == 2
    assert len(grouped(total, ((8, 8), F32)).groups) == 1


def test_residual_before_layer_norm_stays_with_its_matmul() -> None:
    def body(emit: Any, x: Any, w: Any, g: Any) -> Any:
        total = emit(op.add(emit(op.matmul(x, w)), x))
        return emit(op.add(emit(op.nn.layer_norm(total, g, g, axes=[-1])), total))

    graph = grouped(body, ((4, 8), F32), ((8, 8), F32), ((8,), F32))
    assert sets(graph) == {frozenset({"matmul_0", "add_0"}), frozenset({"layer_norm_0", "add_1"})}


# -- views, opaque ops, leftovers --------------------------------------------------------------------------------------


def test_views_stay_in_main() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(op.reshape(emit(op.matmul(x, w)), (2, 2, 8)))
        return emit(op.permute_dims(emit(op.expand_dims(y, 0)), [1, 0, 2, 3]))

    graph = grouped(body, ((4, 8), F32), ((8, 8), F32))
    assert [left.name for left in graph.left] == ["reshape_0", "expand_dims_0", "permute_dims_0"]
    assert has(graph.groups[0], "reshape_0 is a view")


def test_permute_that_moves_bytes_is_no_view() -> None:
    graph = grouped(lambda emit, x: emit(op.permute_dims(x, [1, 0, 2])), ((2, 3, 4), F32))
    assert graph.left == ()
    assert graph.op("permute_dims_0").kind is Kind.MOVEMENT


def test_sort_is_opaque() -> None:
    graph = grouped(lambda emit, x: emit(op.nn.relu(emit(op.sort(x)))), ((4, 8), F32))
    assert [left.name for left in graph.left] == ["sort_0"]
    assert sets(graph) == {frozenset({"relu_0"})}


def test_injective_runs_are_one_group_ending_in_the_last_op() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return emit(op.concat([emit(op.exp(emit(op.nn.relu(x)))), y], axis=1))

    (group,) = grouped(body, ((4, 8), F32), ((4, 8), F32))
    assert group.anchor == "concat_0"
    assert group.prologue == ("relu_0", "exp_0")


def test_small_value_broadcast_is_not_recomputed() -> None:
    def body(emit: Any, x: Any, gate: Any) -> Any:
        return emit(op.multiply(x, emit(op.sigmoid(gate))))

    graph = grouped(body, IMAGE, ((1, 1, 1, 16), F32))
    assert len(graph.groups) == 2
    assert has(graph.group_of("multiply_0"), "would be computed 64 times")


def test_siblings_of_one_shape_share_a_group_with_their_input() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(op.nn.relu(x))
        return relax.Tuple([emit(op.exp(y)), emit(op.tanh(y))])

    (group,) = grouped(body, ((4, 8), F32))
    assert set(group.ops) == {"relu_0", "exp_0", "tanh_0"}
    assert len(group.outputs) == 2


def test_siblings_of_two_shapes_do_not() -> None:
    def body(emit: Any, x: Any) -> Any:
        return relax.Tuple([emit(op.exp(x)), emit(op.concat([x, x], axis=0))])

    assert len(grouped(body, ((4, 8), F32)).groups) == 2


def test_lstm_cell_is_one_group() -> None:
    def body(emit: Any, gates: Any, c: Any) -> Any:
        parts = emit(op.split(gates, 4, axis=-1))
        i, f, g, o = (emit(parts[k]) for k in range(4))
        i, f, o, g = (*(emit(op.sigmoid(t)) for t in (i, f, o)), emit(op.tanh(g)))
        cell = emit(op.add(emit(op.multiply(f, c)), emit(op.multiply(i, g))))
        return relax.Tuple([cell, emit(op.multiply(o, emit(op.tanh(cell))))])

    (group,) = grouped(body, ((1, 64), F32), ((1, 16), F32))
    assert len(group.outputs) == 2


def test_dead_ops_are_ignored() -> None:
    def body(emit: Any, x: Any) -> Any:
        emit(op.exp(x))
        return emit(op.nn.relu(x))

    assert sets(grouped(body, ((4, 8), F32))) == {frozenset({"relu_0"})}


# -- invariants and errors ---------------------------------------------------------------------------------------------


def test_groups_are_in_execution_order() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = x
        for _ in range(5):
            y = emit(op.nn.relu(emit(op.matmul(y, w))))
        return y

    graph = grouped(body, ((8, 8), F32), ((8, 8), F32))
    assert [group.anchor for group in graph] == [f"matmul_{i}" for i in range(5)]
    assert nx.is_directed_acyclic_graph(graph.quotient())


def test_check_partition_names_what_is_wrong() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(op.matmul(emit(op.sort(emit(op.matmul(x, w)))), w))

    graph = grouped(body, ((8, 8), F32), ((8, 8), F32))
    first, second = graph.groups
    with pytest.raises(AssertionError, match="ops in no group: matmul_1"):
        check_partition(replace(graph, groups=(first,)))
    with pytest.raises(AssertionError, match="ops in two groups: matmul_0"):
        check_partition(replace(graph, groups=(first, second, first)))
    both = replace(first, ops=("matmul_0", "matmul_1"), epilogue=("matmul_1",))
    with pytest.raises(AssertionError, match="depend on each other"):
        check_partition(replace(graph, groups=(both,)))


def test_module_without_main_is_refused() -> None:
    with pytest.raises(SubtuneError, match="no Relax function main"):
        partition(tvm.IRModule({}))


def test_ops_written_as_loops_fuse_by_their_pattern() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(op.nn.relu(emit(op.matmul(x, w))))

    mod = module(body, ((4, 8), F32), ((8, 8), F32))
    mod = relax.transform.LegalizeOps({"relax.matmul": lambda _, call: call})(mod)
    (group,) = partition(mod)
    assert (group.anchor, group.epilogue) == ("matmul_0", ("relu_0",))
    assert partition(mod).op("relu_0").op == "tir.relu"


def test_call_of_a_relax_function_is_refused() -> None:
    mod = module(lambda emit, x: emit(op.exp(x)), ((4,), F32))
    helper = mod["main"].without_attr("global_symbol")
    bb = relax.BlockBuilder()
    gvar = bb.add_func(helper, "helper")
    x = relax.Var("x", relax.TensorType((4,), F32))
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(gvar(x)))
    with pytest.raises(SubtuneError, match="main calls helper"):
        partition(bb.get())
