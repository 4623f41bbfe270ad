"""bfloat16 mode: which operators get which types, and that groups and interfaces stay as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune import frontends, models
from subtune.core.graph import Kind, PartitionGraph
from subtune.passes.half_precision import to_bfloat16, to_half
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.pipeline import normalize

Body = Callable[..., Any]
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def weights(*shape: int) -> Any:
    return relax.const(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def module(body: Body, *shapes: tuple[int, ...]) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(bb.normalize(body(*params)))
        bb.emit_func_output(out)
    return bb.get()


def converted(body: Body, *shapes: tuple[int, ...]) -> PartitionGraph:
    mod = to_bfloat16(module(body, *shapes))
    relax.analysis.well_formed(mod)
    return partition(mod)


def types(graph: PartitionGraph, name: str) -> list[str]:
    return [value.tensor.dtype for value in graph.op(name).inputs] + [graph.op(name).output.dtype]


def test_a_product_reads_bfloat16_and_sums_in_float32() -> None:
    graph = converted(lambda x: op.nn.relu(op.matmul(op.nn.relu(op.matmul(x, weights(8, 6))), weights(6, 4))), (3, 8))
    assert types(graph, "matmul_0") == types(graph, "matmul_1") == ["bfloat16", "bfloat16", "float32"]
    assert [group.ops for group in graph.groups] == [
        ("astype_0", "matmul_0", "relu_0", "astype_1"),  # the model's input is rounded where it is read
        ("matmul_1", "relu_1"),
    ]
    assert graph.groups[0].outputs[0].tensor.dtype == "bfloat16"
    assert graph.results[0].tensor.dtype == "float32"


def test_a_residual_is_rounded_once_and_widened_in_the_epilogue_that_adds_it() -> None:
    def body(x: Any) -> Any:
        y = op.nn.relu(op.nn.conv2d(x, weights(8, 3, 3, 8), padding=1, **NHWC))
        return op.nn.relu(op.add(op.nn.conv2d(y, weights(8, 3, 3, 8), padding=1, **NHWC), y))

    graph = converted(body, (1, 5, 5, 8))
    first, second = graph.groups
    assert [value.tensor.dtype for value in first.outputs] == ["bfloat16"]
    assert Counter(value.tensor.dtype for value in second.inputs) == {"bfloat16": 2}
    assert second.outputs[0].tensor.dtype == "float32"


def test_what_moves_elements_moves_bfloat16() -> None:
    def body(x: Any) -> Any:
        left, right = (op.nn.relu(op.matmul(x, weights(8, 4))), op.nn.relu(op.matmul(x, weights(8, 4)) * x2))
        joined = op.reshape(op.concat([left, right], axis=1), (1, 3, 8))
        return op.matmul(op.nn.softmax(joined), weights(8, 2))

    x2 = relax.const(np.float32(2.0))
    graph = converted(body, (3, 8))
    assert types(graph, "concat_0") == ["bfloat16"] * 3
    assert types(graph, "reshape_0")[0] == "bfloat16"
    assert types(graph, "softmax_0") == ["float32", "float32"]


def test_depthwise_and_grouped_convolutions_compute_in_float32() -> None:
    def body(x: Any) -> Any:
        y = op.nn.relu(op.nn.conv2d(x, weights(8, 1, 1, 4), **NHWC))
        y = op.nn.relu(op.nn.conv2d(y, weights(8, 3, 3, 1), padding=1, groups=8, **NHWC))
        return op.nn.conv2d(y, weights(4, 1, 1, 8), **NHWC)

    graph = converted(body, (1, 6, 6, 4))
    assert types(graph, "conv2d_1") == ["float32", "float32", "float32"]
    assert [value.tensor.dtype for value in graph.group_of("conv2d_1").inputs] == ["bfloat16", "float32"]
    assert graph.group_of("conv2d_1").outputs[0].tensor.dtype == "bfloat16"
    assert types(graph, "conv2d_2") == ["bfloat16", "bfloat16", "float32"]


def test_results_that_others_use_stay_exact_and_single() -> None:
    def body(x: Any) -> Any:
        y = op.nn.softmax(op.matmul(x, weights(8, 8)))
        return relax.Tuple([y, op.nn.relu(op.sum(y, axis=-1))])

    graph = converted(body, (3, 8))
    assert [value.tensor.dtype for value in graph.results] == ["float32", "float32"]
    assert [value.tensor.dtype for value in graph.group_of("softmax_0").outputs] == ["float32"]


def test_integers_and_indices_keep_their_types() -> None:
    def body(x: Any) -> Any:
        return op.matmul(
            op.take(op.nn.relu(op.matmul(x, weights(8, 4))), relax.const([0, 2], "int64"), 0), weights(4, 4)
        )

    graph = converted(body, (3, 8))
    assert types(graph, "take_0") == ["bfloat16", "int64", "bfloat16"]


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "bert", "gpt2", "unet", "squeezenet", "mlp"])
def test_the_zoo_keeps_its_groups(name: str) -> None:
    """As many kernels as in float32, but for results that are computed in bfloat16; every product in bfloat16."""
    mod = normalize(frontends.load(models.reduced(name)).mod)
    before, made = partition(mod), to_bfloat16(mod)
    after = partition(made)
    assert len(before.groups) <= len(after.groups) <= len(before.groups) + len(before.results)
    assert [p.ty for p in made["main"].params] == [p.ty for p in mod["main"].params]
    assert [value.tensor for value in after.results] == [value.tensor for value in before.results]
    ops = [after.op(op) for op in after.dag]
    assert any(node.inputs[0].tensor.dtype == "bfloat16" for node in ops if node.kind is Kind.CONTRACTION)
    widened = [v for g in after.groups for v in g.outputs if v.tensor.dtype == "float32" and v not in after.results]
    assert len(widened) <= len(before.results)
    outline(made, after)  # every group lowers to one PrimFunc


@pytest.mark.parametrize(
    ("channels", "groups", "with_groups", "expected"),
    [(8, 2, True, "float16"), (8, 2, False, "float32"), (8, 8, True, "float32")],
)
def test_grouped_convolutions_are_products_where_a_device_multiplies_groups(
    channels: int, groups: int, with_groups: bool, expected: str
) -> None:
    def body(x: Any) -> Any:
        return op.nn.conv2d(x, weights(8, 3, 3, channels // groups), padding=1, groups=groups, **NHWC)

    graph = partition(to_half(module(body, (1, 6, 6, channels)), "float16", with_groups))
    assert types(graph, "conv2d_0") == [expected, expected, "float32"]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_what_hides_all_scores_of_a_row_stays_finite(half: str) -> None:
    """The least float32 is infinite as a half, and a row of such has no mean."""

    def masked(x: Any, shown: Any) -> Any:
        hidden = relax.const(np.finfo("float32").min, "float32")
        mask = op.where(op.greater(shown, relax.const(0.0, "float32")), relax.const(0.0, "float32"), hidden)
        return op.matmul(op.nn.softmax(op.add(op.matmul(x, weights(8, 6)), mask)), weights(6, 4))

    mod = to_half(module(masked, (3, 8), (1, 6)), half)
    shown = np.zeros((1, 6), "float32")
    run = relax.VirtualMachine(tvm.compile(relax.transform.LegalizeOps()(mod), target="llvm"), tvm.cpu())
    inputs = [tvm.runtime.tensor(array) for array in (np.ones((3, 8), "float32"), shown)]
    assert np.isfinite(run["main"](*inputs).numpy()).all()


def test_an_einsum_of_one_operand_multiplies_nothing() -> None:
    """Its module has halves, so that its precision is settled as a half's."""
    mod = to_bfloat16(module(lambda x: op.matmul(op.expand_dims(op.einsum([x], "ij->i"), 0), weights(3, 4)), (3, 8)))
    relax.analysis.well_formed(mod)
    assert types(partition(mod), "matmul_0")[:2] == ["bfloat16", "bfloat16"]
