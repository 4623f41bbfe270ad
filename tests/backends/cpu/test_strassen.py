"""Strassen's algorithm: its tables, its kernels on every kind of contraction it takes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends import as_device
from subtune.backends.algorithms.strassen import PRODUCTS, terms
from subtune.backends.base import Problem
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.families import strassen
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from tests.backends.workloads import batch_matmul, build, conv, dense, dense_residual

Run = Callable[[Workload, Kernel | None], np.ndarray]


@pytest.mark.parametrize("levels", [1, 2])
def test_the_tables_multiply_matrices(levels: int) -> None:
    s, table = 2**levels, terms(levels)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (2, s, s))
    products = [
        sum(sign * a[block] for block, sign in left) * sum(sign * b[block] for block, sign in right)
        for left, right in zip(table.a, table.b, strict=True)
    ]
    assert len(products) == PRODUCTS**levels
    c = [[sum(sign * products[p] for p, sign in table.c[i][j]) for j in range(s)] for i in range(s)]
    assert np.array_equal(c, a @ b)


def _knobs(levels: int, mr: int, mb: int, order: str, **more: bool) -> dict[str, int | str | bool]:
    return {"levels": levels, "mr": mr, "nr": 16, "mb": mb, "order": order, **more}


CASES = {
    "dense": (lambda: dense(32, 64, 64), _knobs(1, 4, 16, "n")),
    "dense, by rows": (lambda: dense(32, 64, 64), _knobs(1, 4, 8, "m")),
    "dense, two levels": (lambda: dense(32, 64, 128), _knobs(2, 4, 8, "n")),
    "dense, two levels by rows, a row missing": (lambda: dense(31, 128, 64), _knobs(2, 2, 4, "m")),
    "dense, odd rows, next panel fetched": (lambda: dense(37, 96, 64), _knobs(1, 19, 19, "n", prefetch=True)),
    "dense, rows padded to whole tiles": (lambda: dense(37, 96, 64), _knobs(1, 8, 24, "n", prefetch=True)),
    "dense, rows padded, by rows": (lambda: dense(37, 96, 64), _knobs(1, 4, 12, "m")),
    "dense, two levels, a whole tile of padding": (lambda: dense(33, 64, 128), _knobs(2, 4, 12, "m")),
    "3x3, rows padded": (lambda: conv(9, 32, 32, 3, batch=2), _knobs(1, 6, 12, "m")),
    "dense, panels shared out": (lambda: dense(37, 128, 64), _knobs(1, 4, 4, "tn", prefetch=True)),
    "dense, two levels, panels shared out": (lambda: dense(33, 128, 128), _knobs(2, 4, 4, "tn")),
    "dense, rows shared out": (lambda: dense(37, 96, 64), _knobs(1, 4, 8, "tm", prefetch=True)),
    "3x3, rows shared out": (lambda: conv(9, 32, 32, 3, batch=2), _knobs(1, 6, 12, "tm")),
    "sum, rows padded": (lambda: dense_residual(37, 128, 64), _knobs(1, 4, 4, "tn")),
    "1x1": (lambda: conv(7, 32, 32, 1), _knobs(1, 5, 25, "n")),
    "1x1, stride 2, by rows": (lambda: conv(8, 32, 64, 1, stride=2, batch=2), _knobs(1, 4, 8, "m")),
    "3x3, padded, stride 2": (lambda: conv(9, 32, 32, 3, stride=2), _knobs(1, 13, 13, "n")),
    "no epilogue": (lambda: build(lambda emit, x, w: op.matmul(x, w), [(8, 64)], [(64, 32)]), _knobs(1, 4, 4, "n")),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_it_is_right(case: str, run: Run) -> None:
    make, knobs = CASES[case]
    workload, device = make(), replace(CPU("auto"), vector_bytes=64, threads=2)
    kernel = backends.schedule(workload, Candidate.make("strassen", **knobs), device)
    assert isinstance(kernel, Kernel), kernel
    expected = run(workload, None)
    got = run(workload, kernel)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("make", "knobs", "reason"),
    [
        (lambda: batch_matmul(2, 16, 32, 64), _knobs(1, 4, 8, "n"), "a batch"),
        (lambda: conv(7, 32, 32, 3, groups=4), _knobs(1, 5, 25, "n"), "groups"),
        (lambda: dense(32, 64, 40), _knobs(1, 4, 16, "n"), "no multiple of 32"),
        (lambda: dense(32, 48, 64), _knobs(1, 4, 16, "n"), "48 columns"),
        (lambda: dense(30, 64, 64), _knobs(1, 4, 15, "n"), "mb=15 is no multiple of mr=4"),
        (lambda: dense(30, 64, 64), _knobs(1, 1, 15, "n"), "not above 1"),
        (lambda: dense(32, 96, 64), _knobs(1, 4, 4, "tn"), "3 tiles of columns are not shared out"),
    ],
)
def test_it_says_why_not(make: Callable[[], Workload], knobs: dict[str, int], reason: str) -> None:
    device = replace(CPU("auto"), vector_bytes=64, threads=2)
    refused = backends.schedule(make(), Candidate.make("strassen", **knobs), device)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason


def test_every_candidate_of_the_policy_applies(device: CPUModel) -> None:
    workload = conv(14, 64, 128, 1)
    proposed = strassen.FAMILY.candidates(Problem(workload, device))
    assert {c["order"] for c in proposed} == {"m", "n", "tn"}
    for candidate in proposed[::5]:
        assert isinstance(backends.schedule(workload, candidate, device), Kernel), candidate


def test_exact_forbids_it(device: CPUModel) -> None:
    workload = dense(128, 768, 768)
    device = replace(device, features=tuple(f for f in device.features if not f.startswith("amx")))  # a faster one
    assert any(c.family == "strassen" for c in backends.candidates(workload, device))
    exact = replace(as_device(device), numerics=Numerics(exact=True))
    assert not any(c.family == "strassen" for c in backends.candidates(workload, exact, topk=500))
