"""Reductions of rows whose result keeps the reduced axis, or has no axis at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm import te, tirx
from tvm.relax import op

from subtune import backends
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.test_values import check

A100 = CUDA("A100")


def rounded(kind: str, shape: tuple[int, ...], keeps: bool) -> Workload:
    """Reduced in float32 between casts, as exporters write it in a float16 file."""

    def body(emit: Any, x: Any) -> Any:
        wide = emit(op.astype(x, "float32"))
        axis = [1] if keeps else None
        return op.astype(emit(getattr(op, kind)(wide, axis=axis, keepdims=keeps)), "float16")

    return workloads.build(body, [shape], dtype="float16")


def test_rows_that_keep_their_axis_are_rows() -> None:
    found = backends.candidates(rounded("max", (64, 384), True), A100, 20)
    assert {candidate.family for candidate in found} == {"cuda.rowwise"}


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("kind", ["max", "sum"])
def test_values(kind: str, tmp_path: Path) -> None:
    workload = rounded(kind, (5, 96), True)
    kernel = backends.schedule(workload, backends.candidates(workload, A100, 1)[0], A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize(("shape", "split"), [((4, 256), 4), ((3, 200), 16), ((7, 104), 4)])
def test_a_total_of_everything_in_parts(shape: tuple[int, ...], split: int, tmp_path: Path) -> None:
    """Parts are whole runs: the last one may be shorter, or have nothing left."""
    workload = rounded("sum", shape, False)
    parts = Candidate.make("cuda.rowwise", threads=32, rows=1, lanes=8, unroll=1, split=split)
    kernel = backends.schedule(workload, parts, A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("split", [1, 16])
def test_where_the_largest_is(split: int, tmp_path: Path) -> None:
    """A prime length: the last part is shorter."""
    workload = workloads.build(lambda emit, x: op.argmax(x, axis=1), [(3, 211)])
    knobs = {"unroll": 1} | ({"split": split} if split > 1 else {})
    kernel = backends.schedule(workload, Candidate.make("cuda.rowwise", threads=64, rows=1, lanes=1, **knobs), A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("keep", [False, True])
def test_means_that_leave_are_read_by_every_thread_of_a_row(keep: bool, tmp_path: Path) -> None:
    """One thread stores a row's mean, all of them take it from their elements."""
    x = te.placeholder((6, 64), "float16", name="x")
    k, again = te.reduce_axis((0, 64), name="k"), te.reduce_axis((0, 64), name="again")
    total = te.compute((6,), lambda i: te.sum(x[i, k].astype("float32"), k), name="total")
    mean = te.compute((6,), lambda i: total[i] * tirx.const(1 / 64, "float32"), name="mean")

    def square(i: Any) -> Any:
        return (x[i, again].astype("float32") - mean[i]) * (x[i, again].astype("float32") - mean[i])

    squares = te.compute((6,), lambda i: te.sum(square(i), again), name="squares")
    workload = Workload.of(te.create_prim_func([x, mean, squares]), num_outputs=2)
    knobs = Candidate.make("cuda.rowwise", threads=8, rows=2, lanes=4, keep=keep)
    kernel = backends.schedule(workload, knobs, A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


def test_a_total_of_any_length_is_shared_by_all_multiprocessors() -> None:
    """34221600 elements in 256 parts are no whole number each: eight blocks had them all."""
    found = backends.candidates(rounded("sum", (291, 588, 200), False), CUDA("H200"), 20)[0]
    assert int(dict(found.knobs)["split"]) >= CUDA("H200").sms


def test_few_long_rows_are_those_of_clusters() -> None:
    """On Hopper; nothing there is emulated."""
    few, many = workloads.softmax(4, 50257), workloads.softmax(4096, 1024)
    hopper = CUDA("H200")
    first = backends.candidates(few, hopper, 20)[0]
    assert dict(first.knobs)["cluster"] == 8
    assert isinstance(backends.schedule(few, first, hopper), Kernel)
    assert not isinstance(backends.schedule(few, first, A100), Kernel)
    for workload, device in ((few, A100), (many, hopper)):
        assert all("cluster" not in dict(found.knobs) for found in backends.candidates(workload, device, 20))


def test_few_long_columns_are_those_of_clusters() -> None:
    """On Hopper; nothing there is emulated."""
    hopper = CUDA("H200")
    workload = workloads.build(lambda emit, x: op.nn.softmax(x, axis=0), [(23168, 488)])
    first = backends.candidates(workload, hopper, 20)[0]
    assert first.family == "cuda.columns"
    assert dict(first.knobs)["cluster"] == 8
    kernel = backends.schedule(workload, first, hopper)
    assert isinstance(kernel, Kernel), kernel
    text = cuda_on_cpu.source(kernel.func, hopper)
    assert "subtune::sync_cluster()" in text
    assert not isinstance(backends.schedule(workload, first, A100), Kernel)
    assert all("cluster" not in dict(found.knobs) for found in backends.candidates(workload, A100, 20))


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
def test_groups_of_channels_are_rows(tmp_path: Path) -> None:
    """Channels first: an axis is partly a row's number and partly an element's."""

    def body(emit: Any, x: Any, gamma: Any, beta: Any) -> Any:
        return op.nn.silu(emit(op.nn.group_norm(x, gamma, beta, 2, 1, [2, 3])))

    workload = workloads.build(body, [(2, 6, 5, 8), (6,), (6,)])
    rows = Candidate.make("cuda.rowwise", threads=16, rows=2, lanes=4, keep=True)
    kernel = backends.schedule(workload, rows, A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)
