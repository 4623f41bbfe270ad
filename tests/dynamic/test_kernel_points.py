"""At which instances a candidate is scheduled before it is a kernel for all of them, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tvm import te, tirx
from tvm.relax import op

from subtune import backends
from subtune.backends.base import Device, Problem
from subtune.backends.cpu.backend import CPUBackend
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dims import Dim
from subtune.core.domain import Domain, Symbol
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.dynamic.constants import corner
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel
from subtune.dynamic.samples import sample_tiles
from subtune.dynamic.serve import carried, schedule
from subtune.dynamic.template import difference, graph_of
from subtune.dynamic.tune import _between as between
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload
from tests.backends.workloads import build


def _doubled(rows: int, columns: int = 8) -> Any:
    x = te.placeholder((rows, columns), name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * tirx.const(2.0, "float32"), name="y")])


def _workload(rows: tuple[int, ...] = (5, 7, 11, 13)) -> DynamicWorkload:
    found = dynamic_workload([Workload.of(_doubled(n), 1) for n in rows], [{"n": n} for n in rows])
    assert isinstance(found, DynamicWorkload)
    return found


class _Backend(CPUBackend):
    """Its kernels do the same several times, as `times` says of an extent; `lowered` are those it was asked for."""

    def __init__(self, times: Mapping[int, int]) -> None:
        self._times = times
        self.lowered: list[int] = []

    def kernel(self, problem: Problem[Any], candidate: Candidate) -> Kernel | NotApplicable:
        return Kernel(problem.workload.func, ())

    def comparable(self, func: Any, device: Device) -> Any:
        rows = int(func.params[0].shape[0])
        self.lowered.append(rows)
        return _repeated(_doubled(rows), self._times.get(rows, 1))


def _repeated(func: Any, times: int) -> Any:
    return func if times == 1 else tirx.PrimFunc(func.params, tirx.SeqStmt([func.body] * times), func.ret_type)


@pytest.fixture
def device() -> Device:
    return backends.device_of("llvm -mcpu=haswell", 1)


def _with(device: Device, times: Mapping[int, int]) -> tuple[Device, list[int]]:
    backend = _Backend(times)
    return replace(device, backend=backend), backend.lowered


def test_a_kernel_that_differs_is_left_after_two_instances(device):
    (first,), _, _, (last,), *_ = sample_tiles([128])
    other, lowered = _with(device, {last: 2})
    found = dynamic_kernel(_workload(), DEFAULT, other)
    assert isinstance(found, NotApplicable)
    assert "differ by more than extents" in found.reason
    assert lowered == [first, last]


def test_a_kernel_that_is_the_same_is_compared_at_all(device):
    other, lowered = _with(device, {})
    found = dynamic_kernel(_workload(), DEFAULT, other)
    assert isinstance(found, DynamicKernel)
    assert sorted(lowered) == sorted(rows for (rows,) in sample_tiles([128]))
    assert set(found.template.holes.values()) == {Dim.symbol("e0")}


@pytest.mark.parametrize("at", [1, 2])
def test_a_kernel_that_differs_at_a_later_instance_is_found_out(device, at):
    other, _ = _with(device, {sample_tiles([128])[at][0]: 2})
    assert isinstance(dynamic_kernel(_workload(), DEFAULT, other), NotApplicable)


def test_what_depends_on_no_symbol_is_scheduled_once(device):
    other, lowered = _with(device, {})
    found = dynamic_kernel(_workload((6, 6, 6, 6)), DEFAULT, other)
    assert isinstance(found, DynamicKernel)
    assert found.template.holes == {}
    assert lowered == [6]


def test_numbers_make_no_difference():
    one, longer, wider = (graph_of(_doubled(*shape)) for shape in ((5, 8), (7, 8), (7, 9)))
    assert difference([one, longer]) is None
    assert difference([one, wider]) is None
    assert isinstance(difference([one, graph_of(_repeated(_doubled(5), 2))]), NotApplicable)


def test_the_same_kernel_is_made_in_a_builder(device):
    """What `carried` writes is read once; candidates after the first find what was found out before."""
    workload = _workload()
    text = carried(workload, (40,))
    for candidate in (
        DEFAULT,
        Candidate("elementwise", (("serial", True), ("shape", "flat"), ("unroll", 1), ("wide", False))),
    ):
        made = [schedule(text, candidate, device) for _ in range(2)]
        assert all(isinstance(one, Kernel) for one in made), made
        first, second = (graph_of(one.func) for one in made)
        assert first == second


def _dense(rows: int) -> Any:
    x, w = te.placeholder((rows, 192), name="x"), te.placeholder((192, 192), name="w")
    k = te.reduce_axis((0, 192), name="k")
    return te.create_prim_func([x, w, te.compute((rows, 192), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="y")])


def test_strassen_is_not_for_rows_of_several_axes(device):
    """It adds rows up: which of them there are, it is told of one axis alone."""
    rows = (5, 7, 11, 13)
    layers = [Workload.of(_dense(n).with_attr("layout_free_buffers", [1]), 1) for n in rows]
    tile = (("levels", 1), ("mb", 8), ("mr", 4), ("nr", 16), ("order", "n"))
    workload = replace(dynamic_workload(layers, [{"n": n} for n in rows]), extents=(Dim.symbol("n"),) * 2)
    found = dynamic_kernel(workload, Candidate("strassen", tile), device)
    assert isinstance(found, NotApplicable)
    assert found.reason == "strassen adds up rows, and these are not alone"


@pytest.mark.parametrize("is_even", [False, True])
@pytest.mark.parametrize("most", [(24, 24), (2, 24, 24), (2, 128, 128), (1, 2, 3, 4)])
def test_extents_vary_alone(most, is_even):
    """No extent takes few of the values that it may have, or those of another one everywhere."""
    points = sample_tiles(most, is_even)
    columns = list(zip(*points, strict=True))
    assert len(set(points)) == len(points)
    assert all(len(set(column)) >= 6 for column in columns)
    assert len(set(columns)) == len(columns)


@pytest.mark.parametrize("most", [(3, 13), (1, 40), (6, 4)], ids=str)
def test_kernels_are_checked_at_extents_that_two_divides_and_at_others(most: tuple[int, int]) -> None:
    """They are made of primes: `(rows + 1) // 2 - 1` and `rows // 2` are the same there."""
    points = [{"batch": batch, "rows": rows} for batch, rows in ((1, 11), (3, 13), (5, 17), (2, 7), (4, 9))]
    shapes = [(point["batch"] * point["rows"], 32) for point in points]
    workload = dynamic_workload([corner(shape, shape, "float32") for shape in shapes], points)
    assert isinstance(workload, DynamicWorkload), workload
    symbols = [Symbol.uniform(name, tuple(range(1, end + 1))) for name, end in zip(points[0], most, strict=True)]
    domain = Domain(tuple(symbols))
    ends = [(1,), (most[0] * most[1],)]
    checked = [rows for (rows,) in (*ends, *between(workload, domain, ends, 2))]
    assert {min(rows & -rows, 8) for rows in checked} == {1, 2, 4, 8}


@pytest.mark.parametrize("most", [256, 512, 128, 100])
def test_sums_of_rows_are_padded_at_all_points(most: int, device: Device) -> None:
    """Of odd numbers, too, a sum may be a whole number of tiles: 197 + 59 is 256, and padded by nothing."""
    points = [{"past": past, "seq": seq} for past, seq in ((11, 5), (29, 17), (41, 7), (23, 31), (61, 19), (83, 11))]

    def padded(past: int, seq: int) -> Workload:
        behind = -(past + seq) % 32
        joined = lambda emit, x, y: op.nn.pad(emit(op.concat([x, y], 0)), (0, behind, 0, 0))  # noqa: E731
        return build(joined, [(past, 16), (seq, 16)])

    sums = (Dim.symbol("past") + Dim.symbol("seq"),)
    greatest, least = {"past": most, "seq": 64}, {"past": 1, "seq": 1}
    workload = dynamic_workload([padded(**point) for point in points], points, greatest, sums, least=least)
    assert isinstance(workload, DynamicWorkload), workload
    found = dynamic_kernel(workload, DEFAULT, device)
    assert isinstance(found, DynamicKernel), found.reason
