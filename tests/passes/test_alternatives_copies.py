"""Products that may store copies of their results: when that is offered, and that what comes of it is a partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.core.forms import Forms
from subtune.core.graph import Alternative, PartitionGraph, Region
from subtune.passes.alternatives import alternatives
from subtune.passes.alternatives_copies import MAX_COPIES
from subtune.passes.carry_norms import carry_norms
from subtune.passes.outline import outline
from subtune.passes.partition import check_partition, partition
from subtune.passes.regroup import rearrange

ROWS, HEADS, DIM = 1024, 4, 32
WIDTH = HEADS * DIM
COPIES, WITH_NORMS = "copies in products", "moments and copies in products"


def half(*shape: int) -> Any:
    return relax.const((np.random.default_rng(0).standard_normal(shape) * shape[0] ** -0.5).astype("float16"))


def product(emit: Any, x: Any, parts: int = 3, dtype: str = "float16") -> Any:
    """x @ w, [rows, parts * WIDTH]."""
    w = half(WIDTH, parts * WIDTH)
    y = emit(op.matmul(x, w, out_dtype="float32") if dtype == "float16" else op.matmul(x, emit(op.astype(w, dtype))))
    return emit(op.astype(y, "float16")) if dtype == "float16" else y


def projection(emit: Any, x: Any) -> Any:
    return emit(op.reshape(product(emit, x), (2, ROWS // 2, 3 * WIDTH)))


def part_of(emit: Any, joined: Any, i: int, by: float = 1.0) -> Any:
    """Heads first, as float32."""
    own = emit(op.strided_slice(joined, [2], [i * WIDTH], [(i + 1) * WIDTH]))
    own = emit(op.permute_dims(emit(op.reshape(own, (2, ROWS // 2, HEADS, DIM))), [0, 2, 1, 3]))
    own = emit(op.astype(own, "float32"))
    return emit(op.multiply(own, relax.const(by))) if by != 1.0 else own


def module(body: Any, dtype: str = "float16") -> Any:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, WIDTH), dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            result = bb.emit_output(relax.Tuple(list(body(bb.emit, x))))
        bb.emit_func_output(result)
    return bb.get()


def ways_of(mod: Any, forms: Forms) -> tuple[PartitionGraph, dict[str, Alternative]]:
    """Every alternative of every region by its name; each is a partition."""
    graph = partition(mod)
    found: dict[str, Alternative] = {}
    regions: tuple[Region, ...] = alternatives(graph, forms)
    for region in regions:
        for way in region.alternatives:
            check_partition(rearrange(graph, [way]))
            found.setdefault(way.name, way)
    return graph, found


FORMS = Forms(copies_products=True)


def test_a_product_may_store_copies_that_are_results() -> None:
    """What others read is the product's own result still."""

    def body(emit: Any, x: Any) -> Any:
        joined = projection(emit, x)
        return emit(op.nn.softmax(joined)), *(part_of(emit, joined, i) for i in (1, 2))

    graph, found = ways_of(module(body), FORMS)
    (group,) = (g for g in found[COPIES].groups if g.anchor == "matmul_0")
    assert {"matmul_0", "strided_slice_0", "strided_slice_1", "permute_dims_0", "permute_dims_1"} <= set(group.ops)
    assert [value.tensor.shape for value in group.outputs] == [(2, 512, 384), (2, 4, 512, 32), (2, 4, 512, 32)]
    assert [value.tensor.dtype for value in group.outputs] == ["float16", "float32", "float32"]
    assert "astype_1, astype_2" in found[COPIES].why
    assert len(found[COPIES].groups) == 1
    assert len(graph.groups) > 4
    assert "one copy of all" in found  # what it has to beat
    assert COPIES not in ways_of(module(body), Forms(copies_operands=True, carries_norms=True))[1]


def test_the_model_computes_the_same(agree: Any) -> None:
    def body(emit: Any, x: Any) -> Any:
        joined = projection(emit, x)
        return emit(op.nn.softmax(joined)), *(part_of(emit, joined, i) for i in (1, 2))

    mod = module(body)
    graph, found = ways_of(mod, FORMS)
    agree(mod, outline(mod, rearrange(graph, [found[COPIES]])), 2e-3)


@pytest.mark.parametrize("case", ["scaled", "float32", "too many", "nobody reads the product", "read in two shapes"])
def test_what_it_cannot_store_is_not_offered(case: str) -> None:
    dtype = "float32" if case == "float32" else "float16"

    def body(emit: Any, x: Any) -> Any:
        y = product(emit, x, MAX_COPIES + 1, dtype)
        joined = emit(op.reshape(y, (2, ROWS // 2, -1)))
        count = {"too many": MAX_COPIES + 1}.get(case, 2)
        copies = [part_of(emit, joined, i, 2.0 if case == "scaled" else 1.0) for i in range(count)]
        if case == "nobody reads the product":
            return tuple(copies)
        flat = [emit(op.nn.softmax(y))] if case == "read in two shapes" else []
        return (emit(op.nn.softmax(joined)), *flat, *copies)

    _, found = ways_of(module(body, dtype), FORMS)
    assert "one copy of all" in found or case in ("scaled", "too many", "float32")
    assert not any(COPIES in name for name in found)


def test_a_product_that_uses_a_norm_may_store_copies_as_well() -> None:
    """Both proposals have the product's group, so that only one of them could be taken: there is one that is both."""

    def body(emit: Any, x: Any) -> Any:
        y = emit(op.astype(emit(op.matmul(x, half(WIDTH, WIDTH), out_dtype="float32")), "float16"))
        ones = [relax.const(np.full(WIDTH, value, "float32")) for value in (1, 0)]
        y = emit(op.astype(emit(op.nn.layer_norm(emit(op.astype(y, "float32")), *ones, axes=[-1])), "float16"))
        joined = projection(emit, y)
        return emit(op.nn.softmax(joined)), *(part_of(emit, joined, i) for i in (1, 2))

    forms = Forms(copies_products=True, carries_norms=True)
    _, found = ways_of(carry_norms(module(body), forms), forms)
    (group,) = (g for g in found[WITH_NORMS].groups if g.anchor == "matmul_1")
    assert {"row_scales_0", "matmul_1", "strided_slice_0", "strided_slice_1"} <= set(group.ops)
    assert len(group.outputs) == 3
    assert f"{COPIES} + {WITH_NORMS}" not in found
    assert {COPIES, "moments in products"} <= set(found)
