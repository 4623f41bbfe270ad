"""Where a partition has alternatives: each with the case where it has none; and that every one is a partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune.core.forms import Forms
from subtune.core.graph import Alternative, Origin, PartitionGraph, Region
from subtune.passes.alternatives import AS_PARTITIONED, MAX_ALTERNATIVES, alternatives
from subtune.passes.alternatives_lower import lower_regions
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import check_partition, partition
from subtune.passes.regroup import rearrange

F32 = "float32"
Body = Callable[..., Any]
Shape = tuple[int, ...]


def module(body: Body, *shapes: Shape) -> tvm.IRModule:
    """`main(x0, x1, …)` on float32 tensors; `body(emit, x0, …)` returns the result or a tuple of results."""
    bb = relax.BlockBuilder()
    xs = [relax.Var(f"x{i}", relax.TensorType(shape, F32)) for i, shape in enumerate(shapes)]
    with bb.function("main", xs):
        with bb.dataflow():
            result = body(bb.emit, *xs)
            result = bb.emit_output(relax.Tuple(list(result)) if isinstance(result, tuple) else result)
        bb.emit_func_output(result)
    return bb.get()


def const(*shape: int) -> Any:
    return relax.const(np.random.default_rng(0).standard_normal(shape).astype(F32), F32)


def conv(x: Any, filters: int, kernel: int, channels: int) -> Any:
    padding = kernel // 2
    return op.nn.conv2d(
        x, const(filters, kernel, kernel, channels), padding=padding, data_layout="NHWC", kernel_layout="OHWI"
    )


def regions(body: Body, *shapes: Shape) -> tuple[PartitionGraph, tuple[Region, ...]]:
    graph = partition(module(body, *shapes))
    return graph, alternatives(graph)


def found_in(body: Body, *shapes: Shape) -> dict[str, Alternative]:
    """The alternatives of the only region, by name; empty if there is none."""
    graph, found = regions(body, *shapes)
    for region in found:
        assert region.alternatives[0].name == AS_PARTITIONED
        for alternative in region.alternatives:
            check_partition(rearrange(graph, [alternative]))
    assert len(found) <= 1
    return {one.name: one for region in found for one in region.alternatives}


def op_sets(alternative: Alternative) -> set[frozenset[str]]:
    return {frozenset(group.ops) for group in alternative.groups}


# -- chains ------------------------------------------------------------------------------------------------


def attention(emit: Any, q: Any, k: Any, v: Any, axis: int = -1, flat: bool = False) -> Any:
    scores = emit(op.multiply(emit(op.matmul(q, k)), relax.const(0.125, F32)))
    if flat:
        weights = emit(op.nn.softmax(emit(op.reshape(scores, (4 * 32, 32))), axis))
        weights = emit(op.reshape(weights, (1, 4, 32, 32)))
    else:
        weights = emit(op.nn.softmax(scores, axis))
    return emit(op.permute_dims(emit(op.matmul(weights, v)), [0, 2, 1, 3]))


HEADS = ((1, 4, 32, 16), (1, 4, 16, 32), (1, 4, 32, 16))


def test_attention_may_be_one_kernel() -> None:
    found = found_in(attention, *HEADS)
    assert op_sets(found["one kernel"]) == {
        frozenset({"matmul_0", "multiply_0", "softmax_0", "matmul_1"}),
        frozenset({"permute_dims_0"}),
    }
    (group,) = found["one kernel, permuted"].groups
    assert group.anchor == "matmul_1"
    assert group.prologue == ("matmul_0", "multiply_0", "softmax_0")
    assert group.epilogue == ("permute_dims_0",)
    assert [str(value.tensor) for value in group.outputs] == ["float32[1,32,4,16]"]
    assert op_sets(found["permuted store"]) >= {frozenset({"matmul_1", "permute_dims_0"})}


def test_views_inside_a_chain_are_computed_by_it() -> None:
    found = found_in(lambda emit, *x: attention(emit, *x, flat=True), *HEADS)
    (group,) = found["one kernel, permuted"].groups
    assert {"reshape_0", "reshape_1"} <= set(group.ops)
    assert {"reshape_0", "reshape_1"}.isdisjoint(op for g in found[AS_PARTITIONED].groups for op in g.ops)


def test_softmax_along_another_axis_ends_a_chain() -> None:
    assert "one kernel" not in found_in(lambda emit, *x: attention(emit, *x, axis=2), *HEADS)


def test_a_chain_whose_middle_is_needed_elsewhere_stays_apart() -> None:
    def body(emit: Any, q: Any, k: Any, v: Any) -> Any:
        weights = emit(op.nn.softmax(emit(op.matmul(q, k)), -1))
        return weights, emit(op.matmul(weights, v))

    assert found_in(body, *HEADS) == {}


def exp_chain(emit: Any, a: Any, b: Any, e: Any) -> Any:
    return emit(op.matmul(emit(op.exp(emit(op.matmul(a, b)))), e))


def test_matmul_exp_matmul_may_be_one_kernel() -> None:
    found = found_in(exp_chain, (64, 32), (32, 64), (64, 48))
    assert op_sets(found["one kernel"]) == {frozenset({"matmul_0", "exp_0", "matmul_1"})}


def test_rows_of_any_length_are_a_chain() -> None:
    """Whether they stay in a cache, and must, a device's families know."""
    assert "one kernel" in found_in(exp_chain, (64, 4), (4, 32768), (32768, 4))


def test_the_right_operand_is_no_chain() -> None:
    def body(emit: Any, a: Any, b: Any, e: Any) -> Any:
        return emit(op.matmul(e, emit(op.exp(emit(op.matmul(a, b))))))

    assert "one kernel" not in found_in(body, (64, 32), (32, 64), (48, 64))


# -- copies ------------------------------------------------------------------------------------------------


def joined(emit: Any, x: Any, y: Any) -> Any:
    return emit(op.concat([emit(op.nn.relu(conv(x, 16, 1, 16))), emit(op.nn.relu(conv(y, 16, 1, 16)))], axis=3))


IMAGES = ((1, 16, 16, 16), (1, 16, 16, 16))


def pooled(emit: Any, x: Any) -> Any:
    return emit(op.nn.max_pool2d(x, (3, 3), (2, 2), layout="NHWC"))


def test_pooling_may_read_both_parts_of_a_concat() -> None:
    found = found_in(lambda emit, x, y: pooled(emit, joined(emit, x, y)), *IMAGES)
    assert op_sets(found["no copy"]) >= {frozenset({"concat_0", "max_pool2d_0"})}
    assert "concat_0" in found["no copy"].why


def test_a_convolution_may_not() -> None:
    assert found_in(lambda emit, x, y: emit(conv(joined(emit, x, y), 16, 1, 32)), *IMAGES) == {}


@pytest.mark.parametrize(("kernel", "names"), [(1, {AS_PARTITIONED, "no copy"}), (3, set())])
def test_a_pointwise_convolution_may_read_a_slice(kernel: int, names: set[str]) -> None:
    def body(emit: Any, x: Any) -> Any:
        return emit(conv(emit(op.strided_slice(x, [3], [16], [32])), 16, kernel, 16))

    assert set(found_in(body, (1, 16, 16, 48))) == names


@pytest.mark.parametrize(("kernel", "names"), [(1, {AS_PARTITIONED, "no copy"}), (3, set())])
def test_a_pointwise_convolution_of_a_row_may_read_it_turned(kernel: int, names: set[str]) -> None:
    def body(emit: Any, x: Any) -> Any:
        weight = relax.const(np.ones((16, kernel, 48), "float32"))
        turned = emit(op.permute_dims(x, (0, 2, 1)))
        return emit(op.nn.conv1d(turned, weight, data_layout="NWC", kernel_layout="OWI", out_layout="NWC"))

    assert set(found_in(body, (1, 48, 160))) == names


def test_a_matmul_may_read_a_slice_behind_a_view() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        part = emit(op.reshape(emit(op.strided_slice(x, [1], [0], [32])), (2, 4, 32)))
        return emit(op.matmul(part, y))

    found = found_in(body, (8, 64), (2, 32, 16))
    assert op_sets(found["no copy"]) == {frozenset({"strided_slice_0", "reshape_0", "matmul_0"})}


def test_a_copy_that_others_read_is_made() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        both = joined(emit, x, y)
        return both, pooled(emit, both)

    assert found_in(body, *IMAGES) == {}


def test_two_copies_with_a_view_between_may_be_one() -> None:
    def body(emit: Any, x: Any) -> Any:
        part = emit(op.strided_slice(x, [1], [0], [32]))
        return emit(op.permute_dims(emit(op.reshape(part, (8, 4, 8))), [1, 0, 2]))

    found = found_in(body, (8, 64))
    assert op_sets(found["one copy"]) == {frozenset({"strided_slice_0", "reshape_0", "permute_dims_0"})}


@pytest.mark.parametrize(("begins", "is_offered"), [((0, 32), True), ((0, 32, 64), True), ((0,), False)])
def test_results_that_are_parts_of_one_tensor_may_be_copied_together(begins: tuple[int, ...], is_offered: bool) -> None:
    """Keys and values that a model gives back: cut from one product, each with its heads in front."""

    def body(emit: Any, x: Any) -> Any:
        parts = [emit(op.reshape(emit(op.strided_slice(x, [1], [b], [b + 32])), (8, 4, 8))) for b in begins]
        return tuple(emit(op.permute_dims(part, [1, 0, 2])) for part in parts)

    found = found_in(body, (8, 96))
    assert ("one copy of all" in found) == is_offered
    if is_offered:
        names = (f"{op}_{i}" for op in ("strided_slice", "reshape", "permute_dims") for i in range(len(begins)))
        assert op_sets(found["one copy of all"]) == {frozenset(names)}


def test_copies_that_others_read_or_of_other_shapes_stay_apart() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        first, second, third = (emit(op.strided_slice(x, [1], [b], [e])) for b, e in ((0, 32), (32, 64), (64, 80)))
        return first, third, emit(op.matmul(second, y))

    assert "one copy of all" not in found_in(body, (8, 96), (32, 16))


def with_results_of_its_own(emit: Any, x: Any, is_scaled: bool = False) -> Any:
    """Attention over one joined projection, whose keys and values are results as well."""

    def heads(i: int, order: tuple[int, ...]) -> Any:
        part = emit(op.strided_slice(x, [1], [i * 64], [i * 64 + 64]))
        return emit(op.permute_dims(emit(op.reshape(part, (1, 32, 4, 16))), list(order)))

    q, k, v = heads(0, (0, 2, 1, 3)), heads(1, (0, 2, 3, 1)), heads(2, (0, 2, 1, 3))
    given = [heads(i, (0, 2, 1, 3)) for i in (1, 2)]
    given = [emit(op.multiply(one, relax.const(2.0, F32))) for one in given] if is_scaled else given
    return (attention(emit, q, k, v), *given)


INTO_RESULTS = "one kernel, inputs moved and copied"


def test_attention_may_store_the_keys_and_values_that_are_results() -> None:
    graph = partition(module(with_results_of_its_own, (32, 192)))
    found = alternatives(graph, Forms(copies_operands=True))
    (region,) = (one for one in found if any(INTO_RESULTS in way.name for way in one.alternatives))
    ways = {way.name: way for way in region.alternatives}
    for way in ways.values():
        check_partition(rearrange(graph, [way]))
    (group,) = ways[INTO_RESULTS].groups
    assert set(group.ops) == set(graph.dag)
    assert len(group.outputs) == 3
    assert {value.source for value in group.inputs if value.origin is Origin.INPUT} == {"x0"}
    # what it has to beat: the same attention, and the best of the copies
    assert "one kernel, inputs moved + one copy of all" in ways
    assert len(ways["one kernel, inputs moved + one copy of all"].groups) == 2


def test_where_attention_cannot_store_them_it_is_not_tried() -> None:
    for is_scaled, forms in ((False, Forms()), (True, Forms(copies_operands=True))):
        graph = partition(module(lambda emit, x, s=is_scaled: with_results_of_its_own(emit, x, s), (32, 192)))
        names = {way.name for region in alternatives(graph, forms) for way in region.alternatives}
        assert not any(INTO_RESULTS in name for name in names)
        assert any("one kernel, inputs moved" in name for name in names)


def test_what_cannot_matter_is_not_tried() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        small = emit(op.strided_slice(y, [1], [0], [4]))
        return emit(op.matmul(x, const(512, 512))), emit(op.permute_dims(emit(op.reshape(small, (2, 2, 2))), [1, 0, 2]))

    _, found = regions(body, (512, 512), (2, 64))
    assert found == ()


# -- splits ------------------------------------------------------------------------------------------------


def test_bias_and_relu_and_a_residual_are_not_questioned() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        z = emit(op.add(emit(conv(x, 16, 3, 16)), const(1, 1, 1, 16)))
        return emit(op.nn.relu(emit(op.add(z, y))))

    assert found_in(body, *IMAGES) == {}


def test_an_operand_read_across_its_rows_may_be_transposed_first() -> None:
    found = found_in(lambda emit, x, y: emit(op.matmul(x, emit(op.permute_dims(y)))), (64, 32), (48, 32))
    assert op_sets(found["prologue apart"]) == {frozenset({"permute_dims_0"}), frozenset({"matmul_0"})}
    assert "large strides" in found["prologue apart"].why


def test_a_costly_prologue_of_a_sum_and_one_of_a_softmax_may_be_apart() -> None:
    assert "prologue apart" in found_in(lambda emit, x: emit(op.sum(emit(op.exp(x)), axis=[1])), (64, 32))
    assert found_in(lambda emit, x: emit(op.sum(emit(op.nn.relu(x)), axis=[1])), (64, 32)) == {}
    assert "prologue apart" in found_in(lambda emit, x: emit(op.nn.softmax(emit(op.nn.relu(x)))), (64, 32))


def test_an_epilogue_that_costs_as_much_as_its_anchor_may_be_apart() -> None:
    def body(emit: Any, x: Any) -> Any:
        return emit(op.permute_dims(emit(op.sigmoid(emit(conv(x, 2, 1, 16)))), [0, 3, 1, 2]))

    found = found_in(body, (1, 16, 16, 16))
    assert op_sets(found["epilogue apart"]) == {frozenset({"conv2d_0"}), frozenset({"sigmoid_0", "permute_dims_0"})}


def test_two_outputs_may_be_two_kernels() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        total = emit(op.add(emit(conv(x, 16, 3, 16)), y))
        return total, emit(op.nn.relu(total))

    found = found_in(body, *IMAGES)
    assert op_sets(found["epilogue apart"]) == {frozenset({"conv2d_0", "add_0"}), frozenset({"relu_0"})}


# -- all of them -------------------------------------------------------------------------------------------


def test_proposals_that_share_a_group_make_one_region_and_combine_where_they_do_not() -> None:
    def body(emit: Any, q: Any, k: Any, v: Any) -> Any:
        return attention(emit, q, emit(op.permute_dims(k, [0, 1, 3, 2])), v)

    found = found_in(body, (1, 4, 32, 16), (1, 4, 32, 16), (1, 4, 32, 16))
    assert {"permuted store", "prologue apart", "permuted store + prologue apart"} <= set(found)
    assert "one kernel + prologue apart" not in found


def test_every_way_covers_the_same_ops_and_regions_are_disjoint() -> None:
    def body(emit: Any, q: Any, k: Any, v: Any) -> Any:
        return attention(emit, attention(emit, q, k, v), k, v)

    graph, found = regions(body, (1, 32, 32, 16), (1, 32, 16, 32), (1, 32, 32, 16))
    assert found
    seen: set[str] = set()
    for region in found:
        (own, *_) = region.alternatives
        ops = {op for group in own.groups for op in group.ops}
        assert not ops & seen
        seen |= ops
        for alternative in region.alternatives:
            covered = {op for group in alternative.groups for op in group.ops}
            assert ops <= covered <= ops | {left.name for left in graph.left}


def test_the_first_way_has_the_workloads_of_the_partition() -> None:
    mod = module(attention, *HEADS)
    graph = partition(mod)
    own = extract(outline(mod, graph))
    lowered = lower_regions(mod, graph, alternatives(graph), own)
    (region,) = lowered.regions
    assert set(region.alternatives[0].keys) <= {subgraph.workload.key for subgraph in own}
    others = {subgraph.workload.key for subgraph in lowered.subgraphs}
    assert others.isdisjoint(subgraph.workload.key for subgraph in own)
    assert {key for alternative in region.alternatives for key in alternative.keys} == others | set(
        region.alternatives[0].keys
    )
    for lowered_alternative in region.alternatives:
        changed = extract(outline(mod, rearrange(graph, [lowered_alternative.alternative])))
        assert set(lowered_alternative.keys) <= {subgraph.workload.key for subgraph in changed}


def test_a_way_that_tvm_cannot_lower_is_refused_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from subtune.passes import outline as module_of_outline

    real = module_of_outline.lower

    def fragile(functions: Any, names: Any, prim_funcs: Any) -> Any:
        if any("softmax" in name and "matmul" in name for name in names):
            raise RuntimeError("not foreseen")
        return real(functions, names, prim_funcs)

    mod = module(attention, *HEADS)
    graph = partition(mod)
    monkeypatch.setattr(module_of_outline, "lower", fragile)
    (region,) = lower_regions(mod, graph, alternatives(graph), ()).regions
    refused = {lowered.alternative.name for lowered in region.alternatives if lowered.refusal}
    assert refused == {"one kernel", "one kernel, permuted"}
    assert all(bool(lowered.keys) != bool(lowered.refusal) for lowered in region.alternatives)
    assert "not foreseen" in next(lowered.refusal for lowered in region.alternatives if lowered.refusal)


def test_a_way_that_would_close_a_circle_is_left_out() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(op.matmul(x, const(16, 16)))
        return emit(op.matmul(emit(op.nn.softmax(y)), y))

    graph = partition(module(body, (16, 16)))
    first, middle, last = graph.groups
    from subtune.passes.regroup import drafts_of, group_of_ops

    alternative = Alternative("circle", "", (group_of_ops(drafts_of(graph), (*first.ops, *last.ops), ""),))
    assert rearrange(graph, [alternative]).groups == graph.groups
    whole = Alternative("all", "", (group_of_ops(drafts_of(graph), (*first.ops, *middle.ops, *last.ops), ""),))
    assert len(rearrange(graph, [whole]).groups) == 1


def test_a_deep_perceptron_is_one_region_of_bounded_size() -> None:
    def body(emit: Any, x: Any) -> Any:
        for _ in range(40):
            x = emit(op.nn.relu(emit(op.matmul(x, const(32, 32)))))
        return x

    found = found_in(body, (4096, 32))
    assert len(found) > 1
    _, (region,) = regions(body, (4096, 32))
    assert len(region.alternatives) <= MAX_ALTERNATIVES


# -- depthwise convolutions between 1x1 convolutions -------------------------------------------------------


def inverted_residual(emit: Any, x: Any, w: Any, v: Any, u: Any, between: Any = lambda emit, y: y) -> Any:
    nhwc = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    y = emit(op.clip(emit(op.nn.conv2d(x, w, **nhwc)), 0, 6))
    y = between(emit, emit(op.clip(emit(op.nn.conv2d(y, v, padding=1, groups=64, **nhwc)), 0, 6)))
    return emit(op.add(emit(op.nn.conv2d(y, u, **nhwc)), x))


BLOCK = ((1, 16, 16, 16), (64, 1, 1, 16), (64, 3, 3, 1), (16, 1, 1, 64))


def test_a_mobile_networks_block_may_be_one_kernel() -> None:
    found = found_in(inverted_residual, *BLOCK)
    assert op_sets(found["one kernel"]) == {
        frozenset({"conv2d_0", "clip_0", "conv2d_1", "clip_1", "conv2d_2", "add_0"}),
    }


def test_a_block_whose_depthwise_result_is_needed_elsewhere_stays_apart() -> None:
    def body(emit: Any, x: Any, w: Any, v: Any, u: Any) -> Any:
        kept: list[Any] = []
        y = inverted_residual(emit, x, w, v, u, lambda emit, y: kept.append(y) or y)
        return emit(op.add(y, emit(op.strided_slice(kept[0], [3], [0], [16], [1]))))

    assert "one kernel" not in found_in(body, *BLOCK)
