"""A sum of two products is recognised, and what its parts make adds up to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from subtune.core.forms import Forms
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.passes.alternatives import AS_PARTITIONED, alternatives
from subtune.passes.partition import partition
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemm_view import GemmView, gemm_view
from subtune.patterns.recognise import recognise
from subtune.patterns.summed import Summed, summed
from tests.backends.cuda.summed_workloads import FORMS, fused, model
from tests.plain_tvm import compiled


def run(workload: Workload, arrays: list[np.ndarray]) -> np.ndarray:
    out = tvm.runtime.tensor(np.zeros(workload.args[-1].shape, workload.args[-1].dtype))
    compiled(workload.func)["main"](*map(tvm.runtime.tensor, arrays), out)
    return np.asarray(out.numpy(), "float32")


@pytest.mark.parametrize("stride", [1, 2])
def test_its_parts_are_products_that_add_up_to_it(stride: int) -> None:
    workload = fused(9, 16, 24, 32, stride, act="")
    pattern = recognise(workload)
    assert isinstance(pattern, Summed)
    front, beside = recognise(pattern.front), recognise(pattern.beside)
    assert isinstance(front, Contraction)
    assert isinstance(beside, Contraction)
    assert {int(front.of_role("k")[-1].extent), int(beside.of_role("k")[-1].extent)} == {16, 24}
    assert pattern.beside.args[:-1] == pattern.front.args[:-1] == workload.args[:-1]
    assert pattern.beside.args[-1].dtype == "float32"
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args[:-1]]
    whole = run(workload, arrays)
    np.testing.assert_allclose(run(pattern.front, arrays) + run(pattern.beside, arrays), whole, rtol=8e-3, atol=2e-2)
    assert np.abs(run(pattern.front, arrays) - whole).max() > 1


def test_rows_that_one_of_them_has_side_by_side_are_kept_apart() -> None:
    pattern = recognise(fused(9, 16, 24, 32, 2))
    assert isinstance(pattern, Summed)
    counts = {}
    for keeps_rows in (False, True):
        views = [gemm_view(recognise(part), keeps_rows) for part in (pattern.front, pattern.beside)]
        assert all(isinstance(view, GemmView) for view in views)
        counts[keeps_rows] = sorted(len(view.rows) for view in views)
    assert counts == {False: [1, 3], True: [3, 3]}


def of_sums(body: Callable[[Any, Any], Any], is_chained: bool = False) -> Workload:
    """`body` of two products of float16, element by element; `is_chained`: the second one multiplies the first."""
    a, c = (te.placeholder((16, 16), "float16", name) for name in "ac")
    b, d = (te.placeholder((16, 16), "float16", name) for name in "bd")

    def product(x: Any, y: Any, name: str) -> Any:
        k = te.reduce_axis((0, 16), f"k{name}")
        return te.compute((16, 16), lambda m, n: te.sum(x[m, k].astype("float32") * y[k, n].astype("float32"), k), name)

    s = product(a, b, "s")
    t = product(s if is_chained else c, d, "t")
    out = te.compute((16, 16), lambda m, n: body(s[m, n], t[m, n]).astype("float16"), "out")
    return Workload.of(te.create_prim_func([a, b, c, d, out]).with_attr("layout_free_buffers", [1, 3]), 1)


@pytest.mark.parametrize(
    "body",
    [
        lambda s, t: s + t,
        lambda s, t: tirx.max(s.astype("float16").astype("float32") + (t + 1.0), 0.0),
        lambda s, t: (t + s) * tirx.sigmoid(s + t),
    ],
)
def test_what_depends_on_the_sum_alone(body: Callable[[Any, Any], Any]) -> None:
    assert isinstance(recognise(of_sums(body)), Summed)


@pytest.mark.parametrize(
    ("body", "is_chained", "reason"),
    [
        (lambda s, t: s + t * 2.0, False, "not only added up"),
        (lambda s, t: s + tirx.max(t, 0.0), False, "not only added up"),
        (lambda s, t: s + t + t, False, "not only added up"),
        (lambda s, t: (s + t) * s, False, "not only added up"),
        (lambda s, t: s - t, False, "not only added up"),
        (lambda s, t: s + t.astype("int8").astype("float32"), False, "not only added up"),
        (lambda s, t: s + t, True, "needs the other"),
    ],
)
def test_what_depends_on_more_is_refused(body: Callable[[Any, Any], Any], is_chained: bool, reason: str) -> None:
    found = summed(of_sums(body, is_chained).func, 1)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason


def test_it_is_an_alternative_where_something_can_make_it() -> None:
    graph = partition(model(9, 16, 24, 32, 2))
    (region,) = alternatives(graph, FORMS)
    assert [one.name for one in region.alternatives] == [AS_PARTITIONED, "one product"]
    (both,) = region.alternatives[1].groups
    assert sum(graph.op(name).op == "nn.conv2d" for name in both.ops) == 2
    assert not alternatives(graph)
    assert not alternatives(graph, Forms(pools_stems=True, normed_columns=256))


@pytest.mark.parametrize("options", [{"between": "relu"}, {"dtype": "float32"}])
def test_other_shortcuts_are_kernels_of_their_own(options: dict[str, str]) -> None:
    assert not alternatives(partition(model(9, 16, 24, 32, 2, **options)), FORMS)
