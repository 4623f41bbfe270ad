"""What is recognised, of every pattern one workload or more; that it is worked out once; and what is left, and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm.relax import op
from tvm.script import tirx as T

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns import stages
from subtune.patterns.axes import Role, Sliding
from subtune.patterns.bottleneck import Bottleneck
from subtune.patterns.chain import Chain
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.gemv import MAX_VECTORS, Gemv, gemv
from subtune.patterns.recognise import Pattern, Unrecognised, recognise
from subtune.patterns.rows import Columns, Rowwise
from subtune.patterns.stages import anchored, inlined
from subtune.patterns.window import Window, window
from subtune.tir.blocks import root_stages
from tests.backends.cpu.chains import exp_chain
from tests.backends.workloads import (
    batch_matmul,
    build,
    conv,
    dense,
    elementwise,
    layer_norm,
    matmul,
    max_pool,
    softmax,
    transpose,
)

KINDS: dict[str, tuple[Callable[[], Workload], type[Pattern]]] = {
    "product": (lambda: dense(20, 30, 40), Contraction),
    "convolution": (lambda: conv(9, 5, 7, 3), Contraction),
    "depthwise": (lambda: conv(9, 8, 8, 3, groups=8), Window),
    "pooling": (lambda: max_pool(9, 8), Window),
    "softmax": (lambda: softmax(12, 40), Rowwise),
    "norm": (lambda: layer_norm(12, 40), Rowwise),
    "sum of columns": (lambda: build(lambda emit, x: op.sum(x, axis=[0]), [(12, 40)]), Window),
    "softmax of columns": (lambda: build(lambda emit, x: op.nn.softmax(x, axis=0), [(12, 40)]), Columns),
    "chain": (lambda: exp_chain(20, 30, 40, 50, constant=True), Chain),
    "elementwise": (lambda: elementwise(6, 7), Elementwise),
}


@pytest.mark.parametrize("case", KINDS)
def test_every_kind_is_told_by_its_structure(case: str) -> None:
    make, kind = KINDS[case]
    assert type(recognise(make())) is kind


def test_an_equal_workload_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = recognise(matmul(21, 22, 23))

    def never(sch: object) -> stages.Stages:
        raise AssertionError("inlined again")

    monkeypatch.setattr(stages, "inline", never)
    assert recognise(matmul(21, 22, 23)) is first


def test_roles_follow_from_the_accesses() -> None:
    found = recognise(batch_matmul(3, 20, 30, 40))
    assert isinstance(found, Contraction)
    assert [(axis.role, axis.extent) for axis in found.axes] == [
        (Role.BATCH, 3),
        (Role.M, 20),
        (Role.N, 30),
        (Role.K, 40),
    ]
    assert found.of_role("k") == found.of_role(Role.K)
    assert (found.a.axes, found.b.axes) == ((0, 1, 3), (0, 3, 2))


def test_windows_slide_along_the_image() -> None:
    found = recognise(conv(9, 5, 7, 3, stride=2))
    assert isinstance(found, Contraction)
    assert found.a.windows == (None, Sliding(1, 2, 4, 1), Sliding(2, 2, 5, 1), None)
    assert found.read_share == 1.0
    pointwise = recognise(conv(9, 5, 7, 1, stride=2))
    assert isinstance(pointwise, Contraction)
    assert {role for role in Role if pointwise.of_role(role)} == {Role.M, Role.N, Role.K}


def test_rows_and_columns_are_counted() -> None:
    assert recognise(softmax(12, 40)) == Rowwise(rows=12, length=40)
    found = recognise(build(lambda emit, x: op.nn.softmax(x, axis=1), [(3, 12, 40)]))
    assert found == Columns(outer=3, columns=40, length=12, group=1)


def test_a_transposed_operand_is_seen() -> None:
    assert recognise(elementwise(6, 7)) == Elementwise(42, row=7)
    found = recognise(transpose(2, 3, 5, 7))
    assert isinstance(found, Elementwise)
    assert found.transposed is not None
    assert (found.transposed.groups, found.transposed.extents) == (((0,), (1, 2), (3,)), (2, 35, 3))
    assert (found.transposed.a, found.transposed.b) == (2, 1)
    assert found.row == 3


def test_a_row_is_what_all_operands_run_along() -> None:
    """A scale for each channel of planes is the same along both axes of a plane."""
    found = recognise(build(lambda emit, x, s: op.multiply(x, s), [(2, 5, 7, 3), (1, 5, 1, 1)]))
    assert isinstance(found, Elementwise)
    assert found.row == 21
    assert recognise(build(lambda emit, x: op.tanh(x), [()])) == Elementwise(1)


def test_outputs_of_equal_rows_have_rows() -> None:
    """A recurrent cell gives two states, as halves of what a product gave; halves of unequal width have no row."""

    def states(first: int, second: int) -> Workload:
        @T.prim_func(s_tir=True)
        def func(
            x: T.Buffer((4, 20), "float32"), c: T.Buffer((4, first), "float32"), h: T.Buffer((4, second), "float32")
        ) -> None:
            for i, j in T.grid(4, first):
                with T.sblock("c"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    c[vi, vj] = T.tanh(x[vi, vj])
            for i, j in T.grid(4, second):
                with T.sblock("h"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    h[vi, vj] = T.tanh(x[vi, vj + first])

        return Workload.of(func, 2)

    assert recognise(states(10, 10)) == Elementwise(40, row=10)
    assert recognise(states(13, 7)) == Elementwise(52)


def test_few_vectors_make_a_product_one_of_a_matrix_and_vectors() -> None:
    found = recognise(dense(2, 64, 32))
    assert isinstance(found, Contraction)
    assert gemv(found) == Gemv(rows=64, length=32, vectors=2, is_across=True, is_swapped=False)
    many = recognise(dense(20, 64, 32))
    assert isinstance(many, Contraction)
    assert gemv(many) == NotApplicable(f"20 vectors, at most {MAX_VECTORS}")


def test_what_is_not_made_of_loops_over_blocks_has_a_reason() -> None:
    @T.prim_func(private=True, s_tir=True)
    def loose(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            y[i] = x[i]

    found = recognise(Workload.of(loose, 1))
    assert isinstance(found, Unrecognised)
    assert found.reason


def test_what_a_schedule_gets_is_its_own() -> None:
    """Families schedule what they get in place: the next candidate must find it as it was."""
    workload = dense(20, 30, 40)
    first, second = (anchored(workload, contraction) for _ in range(2))
    assert not isinstance(first, NotApplicable)
    assert not isinstance(second, NotApplicable)
    sch, blocks, info = first
    sch.parallel(sch.get_loops(blocks.anchors[0])[0])
    assert str(second[0].mod) != str(sch.mod)
    again = inlined(workload)
    assert not isinstance(again, NotApplicable)
    assert str(again[0].mod) == str(second[0].mod)
    assert info == recognise(workload)


def test_an_anchor_of_another_kind_is_refused_with_a_reason() -> None:
    assert anchored(max_pool(9, 8), contraction) == NotApplicable("the anchor does not sum products of two operands")
    assert anchored(softmax(12, 40), window) == NotApplicable("2 reductions: no single anchor")
    assert not isinstance(anchored(max_pool(9, 8), window), NotApplicable)


def test_inlining_leaves_the_anchor_the_padding_and_the_output() -> None:
    found = inlined(conv(9, 5, 7, 3))
    assert not isinstance(found, NotApplicable)
    sch, blocks = found
    assert (len(blocks.producers), len(blocks.anchors), len(blocks.outputs)) == (1, 1, 1)
    assert len(root_stages(sch.mod["main"])) == 3


def test_a_bottleneck_is_more_than_its_parts() -> None:
    """`test_bottleneck.py` has what is one; a chain is none."""
    assert not isinstance(recognise(exp_chain(20, 30, 40, 50)), Bottleneck)
