"""Kernels for all instances: right at every extent, between guard zones; what only seems so is found out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tvm import te, tirx

from subtune import backends
from subtune.backends import as_device
from subtune.backends.base import Problem
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dispatch import choose
from subtune.core.domain import Domain, Symbol
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.measurement import FailureKind
from subtune.core.workload import Workload
from subtune.dynamic.choose import Tuned, chosen
from subtune.dynamic.kernel import PLAIN, DynamicKernel, dynamic_kernel
from subtune.dynamic.measure import Measurement
from subtune.dynamic.serve import carried, linked, schedule
from subtune.dynamic.tune import Prospect
from subtune.dynamic.workbench import Workbench
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload
from subtune.measure import LocalMeasurer
from subtune.runtime import use_threads
from subtune.tir.walk import found
from tests.backends.cpu.test_bottleneck import block
from tests.backends.workloads import batch_matmul, conv, dense, elementwise, layer_norm, softmax
from tests.dynamic.flat_kernels import FlatKernel, of_rows

DEVICE = as_device(CPU("x86-64-v3", threads=1))
KINDS: dict[str, Callable[[int], Workload]] = {
    "dense": lambda rows: dense(rows, 32, 16),
    "layer norm": lambda rows: layer_norm(rows, 24),
    "softmax": lambda rows: softmax(rows, 24),
    "elementwise": lambda rows: elementwise(rows, 24),
}
_MOST = 3
"""Kernels of each kind: each has to be built."""


def expected(kind: str, given: list[np.ndarray]) -> np.ndarray:
    x = given[0].astype(np.float64)
    if kind == "dense":
        from scipy.special import erf

        y = x @ given[1] + given[2]
        return y * 0.5 * (1 + erf(y / np.sqrt(2)))
    if kind == "layer norm":
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * given[1] + given[2]
    if kind == "softmax":
        powers = np.exp(0.125 * x)
        return powers / powers.sum(axis=1, keepdims=True)
    y = x + given[1] + given[2]
    return y / (1 + np.exp(-y))


@cache
def kernels(kind: str) -> list[DynamicKernel]:
    """Of the policy's candidates for a few and for many rows: different families and granules first."""
    workload = of_rows(KINDS[kind])
    proposed = [c for rows in (64, 6) for c in backends.candidates(workload.at((rows,)), DEVICE, 8)]
    found = [dynamic_kernel(workload, candidate, DEVICE) for candidate in dict.fromkeys([*proposed, DEFAULT])]
    made = [one for one in found if isinstance(one, DynamicKernel)]
    kinds = {(one.candidate.family, one.granules): one for one in reversed(made)}
    return sorted(kinds.values(), key=lambda one: -max(one.granules))[:_MOST]


def check(workload: DynamicWorkload, kind: str, one: DynamicKernel) -> None:
    rng = np.random.default_rng(0)
    (granule,) = one.granules
    most = 3 * granule + 1 if granule > 1 else 17
    built = FlatKernel(linked(workload, one, (most,), DEVICE), DEVICE)
    for rows in range(1, most + 1):
        args = workload.at((rows,)).args
        given = [rng.standard_normal(arg.shape).astype(np.float32) for arg in args[:-1]]
        tiles, *known = one.numbers((rows,))
        assert known == [rows] * one.knows_extents
        assert tiles * granule - granule < rows <= tiles * granule
        constants = {i for i, arg in enumerate(args) if arg.is_constant}
        got = built([tiles, *known], given, args[-1].shape, tiles * granule - rows, constants)
        wanted = expected(kind, given)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{one.candidate} at {rows}")


@pytest.mark.parametrize("kind", KINDS)
def test_right_at_every_extent(kind):
    workload, found = of_rows(KINDS[kind]), kernels(kind)
    assert found
    for one in found:
        check(workload, kind, one)


def test_tiles_in_parallel_are_told_apart():
    """The points at which templates are made lie far enough from one another to tell divisors apart."""
    workload = of_rows(KINDS["dense"])
    found = dynamic_kernel(workload, Candidate.make("contraction", mr=5, mt=13, nr=16, order="m"), DEVICE)
    assert isinstance(found, DynamicKernel)
    check(workload, "dense", found)


def test_a_dense_layer_has_kernels_of_whole_tiles():
    assert any(max(one.granules) > 1 for one in kernels("dense"))


def test_a_workload_travels_in_an_attribute():
    workload = of_rows(KINDS["softmax"])
    one = kernels("softmax")[0]
    found = schedule(carried(workload, (20,)), one.candidate, DEVICE)
    assert not isinstance(found, NotApplicable), found.reason
    assert found.granules == one.granules
    again = linked(workload, one, (20,), DEVICE)
    assert found.func.script() == again.func.script()


def test_what_no_instance_allows_is_told():
    found = dynamic_kernel(of_rows(KINDS["softmax"]), Candidate.make("contraction", mr=4), DEVICE)
    assert isinstance(found, NotApplicable)
    assert found.reason


@pytest.fixture(scope="module")
def local(workers: LocalMeasurer) -> Workbench:
    return Workbench(workers)


def columns(rows: int) -> Workload:
    """Of x[rows, 8] with no more columns than rows, the others being the last of them."""
    x = te.placeholder((rows, 8), name="x")
    return Workload.of(te.create_prim_func([x, te.compute((rows, 8), lambda i, j: x[i, te.min(j, rows - 1)])]), 1)


def test_a_kernel_that_is_not_what_it_seems_is_found_out(local):
    """Of all the extents at which the kernel is made, that is a plain copy."""
    workload = of_rows(columns)
    where = ([(7,), (96,)], [(8,)], False, as_device(CPU(threads=1)), local)
    with closing(Measurement(workload, {DEFAULT: ()}, *where)) as measurement:
        found = measurement.result()
    assert found.failures[DEFAULT].kind is FailureKind.WRONG_RESULT
    assert found.right[DEFAULT] == [(96,), (8,)]
    assert set(found.seconds[DEFAULT]) == {(96,)}
    assert [found.serves(DEFAULT, at) for at in ((97,), (8,), (7,))] == [True, True, False]


@pytest.mark.parametrize(("levels", "mb", "order"), [(1, 4, "n"), (1, 8, "m"), (2, 4, "n")])
def test_sums_of_rows_leave_out_those_behind_the_last(levels, mb, order):
    """Strassen's algorithm, with NaN in the rows that nobody wrote."""
    workload = of_rows(lambda rows: dense(rows, 128, 64))
    found = dynamic_kernel(workload, Candidate.make("strassen", levels=levels, mr=4, nr=16, mb=mb, order=order), DEVICE)
    assert isinstance(found, DynamicKernel), found.reason
    assert found.knows_extents
    assert found.granules == (2**levels * mb,)
    check(workload, "dense", found)


@pytest.mark.parametrize(("mr", "order"), [(1, "n"), (2, "n"), (1, "m")])
def test_blocks_of_tiles_are_granules(mr, order):
    """Of any number of rows: as often as there are blocks, the next columns are asked for by some of them."""
    device = as_device(CPU("sapphirerapids", threads=1))
    candidate = Candidate.make("amx_parts", mr=mr, nr=1, rows=8, mt=1, order=order)
    problem = Problem(of_rows(lambda rows: dense(rows, 64, 32)).at((96,)), device.model, device.numerics)
    of_any = device.backend.for_many_shapes(problem, candidate)
    assert {one.get("passes") for one in of_any} == {6 if order == "n" else None}
    # of several heights; or, where rows are shared out, of its own, which divides the rows, and of the highest
    assert len(of_any) == {(1, "n"): 3, (2, "n"): 1, (1, "m"): 2}[mr, order]
    for one in of_any:
        found = dynamic_kernel(of_rows(lambda rows: dense(rows, 64, 32)), one, device)
        assert isinstance(found, DynamicKernel), found.reason
        assert found.granules == (one["rows"] * mr,)


def test_what_is_measured_once_is_checked_everywhere(local):
    device = as_device(CPU(threads=1))
    lanes = device.model.lanes()
    workload = of_rows(lambda rows: dense(rows, 4 * lanes, 64))
    sums = Candidate.make("strassen", levels=1, mr=4, nr=lanes, mb=4, order="n")
    where = ([(1,), (96,)], [(7,)], False, device, local)
    with closing(Measurement(workload, {sums: (), DEFAULT: ()}, *where, is_timed=False)) as measurement:
        found = measurement.result()
    assert not found.failures
    assert set(found.libraries) == {sums, DEFAULT}
    for seconds in found.seconds.values():
        assert set(seconds) == {(1,), (7,), (96,)}
        assert all(one > 0 for one in seconds.values())


@pytest.mark.parametrize("values", [(1, 5, 20), ()], ids=["three instances", "one instance"])
def test_untuned_one_kernel_is_checked_at_both_ends_and_between(values, local):
    build = KINDS["elementwise"]
    domain = Domain((Symbol.uniform("seq", values),) if values else ())
    workload = of_rows(build) if values else dynamic_workload([build(7)] * 2, [{}, {}])
    assert isinstance(workload, DynamicWorkload)
    found = Prospect(workload, domain, False, True, 8, as_device(CPU(threads=1))).untuned(local)
    one = chosen({"it": Tuned(workload, found, 1)}, domain, 0.03, 16, 0)["it"]
    assert len(one.candidates) == len(one.seconds) == 1
    assert set(one.best_s) == ({(1,), (5,), (20,)} if values else {()})
    assert choose(one.tree, (5,)) == 0


@pytest.mark.parametrize("is_heavy", [False, True])
def test_what_has_begun_is_taken(is_heavy, local):
    """Builds that began while another subgraph was measured are those that are measured."""
    domain = Domain((Symbol.uniform("seq", (1, 5, 20)),))
    where = (of_rows(KINDS["elementwise"]), domain, False, is_heavy, 2, as_device(CPU(threads=1)))
    begun, alone = Prospect(*where), Prospect(*where)
    begun.begin(local)
    assert set(begun.tuned(local).seconds) == set(alone.tuned(local).seconds)
    left = Prospect(*where)
    left.begin(local)
    left.close()
    assert len(left.untuned(local).libraries) == 1, "its builds ended, and others are made"


def test_threads_take_over_from_one_another_however_many_rows_there_are():
    device, workload = as_device(CPU("x86-64-v3", threads=2)), of_rows(KINDS["elementwise"])
    one = dynamic_kernel(workload, PLAIN, device)
    assert isinstance(one, DynamicKernel), one.reason
    kernel = linked(workload, one, (300,), device)
    code = device.backend.lower(kernel.func.with_attr("global_symbol", "main"), device)
    assert "atomicrmw add" in code.inspect_source("ll")
    built = FlatKernel(kernel, device)
    use_threads(2)
    rng = np.random.default_rng(0)
    for rows in (*range(1, 70), 127, 128, 129, 300):
        args = workload.at((rows,)).args
        given = [rng.standard_normal(arg.shape).astype(np.float32) for arg in args[:-1]]
        got = built(one.numbers((rows,)), given, args[-1].shape)
        np.testing.assert_allclose(got, expected("elementwise", given), rtol=1e-4, atol=1e-5, err_msg=f"{rows} rows")


@pytest.mark.parametrize(
    ("build", "family"),
    [
        (lambda images: conv(8, 32, 32, 3, groups=32, batch=images), "window"),
        (lambda images: batch_matmul(images, 24, 32, 16), "contraction"),
        (lambda images: block(8, 8, 16, 32, 16, batch=images, residual=True)[0], "bottleneck"),
    ],
    ids=["windows", "products", "bottlenecks"],
)
def test_tiles_of_one_image_are_of_no_others(build, family):
    """Their tiles have several rows or pixels, and not of the images that vary: none is computed that is not there."""
    workload = of_rows(build)
    proposed = backends.candidates(workload.at((6,)), DEVICE, 8)
    found = [dynamic_kernel(workload, one, DEVICE) for one in proposed if one.family == family and one.get("mr") != 1]
    made = [one for one in found if isinstance(one, DynamicKernel)]
    assert made
    assert {one.granules for one in made} == {(1,)}


@pytest.mark.parametrize(
    ("layer", "candidate"),
    [
        ((7, 64, 64, 3), Candidate.make("winograd", fuse=False, m=2, mr=11, nr=32, passes=2, prefetch=True)),
        ((28, 64, 64, 3), Candidate.make("winograd", fuse=False, m=4, mr=6, nr=64, passes=16, prefetch=True)),
    ],
    ids=["16/11", "49/6"],
)
def test_a_number_of_tiles_is_that_of_few_images_too(layer, candidate):
    """At odd numbers from 17 to 29 `ceil(16*n/11)` is `(3*n - 1)/2`, and at none of them 6 divides `49*n`."""
    device = as_device(CPU("sapphirerapids", threads=2))
    workload = replace(of_rows(lambda images: conv(*layer, batch=images)), greatest=(8,), least=(1,))
    kernel = dynamic_kernel(workload, candidate, device)
    assert isinstance(kernel, DynamicKernel), kernel.reason
    for images in range(1, 9):
        own = backends.schedule(workload.at((images,)), kernel.candidate, device)
        assert isinstance(own, Kernel), own.reason
        wanted, got = (
            [int(loop.extent) for loop in found(func.body, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
            for func in (device.backend.comparable(own.func, device), kernel.template.at({workload.names[0]: images}))
        )
        assert got == wanted, f"{images} images"
