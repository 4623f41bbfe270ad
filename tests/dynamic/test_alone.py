"""Kernels of the instance of one element alone: static ones, chosen there and nowhere else."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dispatch import choose
from subtune.core.domain import Domain, Symbol
from subtune.core.kernel import Kernel
from subtune.dynamic.choose import Tuned, chosen
from subtune.dynamic.marks import alone, is_alone, of_family, overlapped
from subtune.dynamic.measure import Measurement
from subtune.dynamic.propose import for_one
from subtune.dynamic.serve import carried, schedule
from subtune.dynamic.tune import Prospect
from subtune.dynamic.workbench import Workbench
from subtune.dynamic.workload import dynamic_workload
from subtune.measure import LocalMeasurer
from tests.backends.cuda.cuda_on_cpu import source
from tests.backends.cuda.gemm_workloads import convolution
from tests.backends.workloads import conv, dense
from tests.dynamic.flat_kernels import FlatKernel, of_rows

ONE_THREAD = as_device(CPU("x86-64-v3", threads=1))


@pytest.fixture(scope="module")
def local(workers: LocalMeasurer) -> Workbench:
    return Workbench(workers)


def test_a_mark_is_no_knob() -> None:
    one = Candidate.make("direct", 1e-6, mr=3)
    assert of_family(alone(one)) == of_family(overlapped(one)) == one
    assert is_alone(alone(one))
    assert not is_alone(overlapped(one))
    assert alone(DEFAULT) == DEFAULT


def test_one_row_is_computed_by_the_kernel_of_one_row() -> None:
    workload = of_rows(lambda rows: dense(rows, 32, 16))
    (first, *_) = for_one(workload, ONE_THREAD, 4)
    kernel = schedule(carried(workload, (20,)), first, ONE_THREAD)
    assert isinstance(kernel, Kernel), kernel.reason
    assert (kernel.least, kernel.most) == (1, 1)
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape).astype("float32") for shape in ((1, 16), (16, 32), (32,)))
    got = FlatKernel(kernel, ONE_THREAD)([1], [x, w, b], (1, 32), constants=(1, 2))
    static = backends.schedule(workload.at((1,)), of_family(first), ONE_THREAD)
    assert isinstance(static, Kernel)
    assert dict(static.packings) == dict(kernel.packings)
    from scipy.special import erf

    y = x.astype("float64") @ w + b
    np.testing.assert_allclose(got, y * 0.5 * (1 + erf(y / np.sqrt(2))), rtol=1e-4, atol=1e-4)


def test_it_is_measured_and_chosen_there_alone(local: Workbench) -> None:
    """And so are the fastest kernels of all instances, made for that one."""
    device = as_device(CPU(threads=1))
    workload = of_rows(lambda rows: dense(rows, 64, 32))
    (first, *_) = for_one(workload, device, 4)
    where = ([(1,), (2,), (20,)], [(7,)], False, device, local)
    with closing(Measurement(workload, {DEFAULT: (), of_family(first): (), first: ((1,),)}, *where)) as measurement:
        found = measurement.result()
    of_one = [one for one in found.libraries if is_alone(one)]
    assert first in of_one
    for one in of_one:
        assert set(found.seconds[one]) == {(1,)}
        assert [found.serves(one, at) for at in ((0,), (1,), (2,), (20,))] == [False, True, False, False]
    found.seconds[first][(1,)] = 1e-12
    domain = Domain((Symbol.uniform("seq", (1, 2, 20)),))
    it = chosen({"it": Tuned(workload, found, 1)}, domain, 0.03, 16, 0)["it"]
    assert it.candidates[choose(it.tree, (1,))] == first
    assert not is_alone(it.candidates[choose(it.tree, (2,))])


@pytest.mark.parametrize(("values", "has_one"), [((1, 2, 8), True), ((2, 8), False)])
def test_a_gpu_is_given_kernels_of_one_image(values: tuple[int, ...], has_one: bool, local: Workbench) -> None:
    device = as_device(CUDA("H100"))
    made = [conv(7, 64, 64, 3, batch=batch) for batch in (3, 5, 7)]
    workload = dynamic_workload(made, [{"batch": batch} for batch in (3, 5, 7)], {"batch": 8}, least={"batch": 1})
    domain = Domain((Symbol.uniform("batch", values),))
    proposed = Prospect(workload, domain, False, True, 4, device)._proposed(local)
    assert any(map(is_alone, proposed)) == has_one
    assert all(at == ((1,),) for one, at in proposed.items() if is_alone(one))


def test_one_image_is_not_counted() -> None:
    """Its pixels are not told from those of other images: there is no division by as many as it has."""
    device = as_device(CUDA("H100"))
    made = [convolution(batch, 14, 64, 64, 3) for batch in (3, 5, 7)]
    workload = dynamic_workload(made, [{"batch": batch} for batch in (3, 5, 7)], {"batch": 8}, least={"batch": 1})
    candidate = Candidate.make("cuda.mma", bm=32, bn=64, bk=64, wm=2, wn=2, stages=2, raster=1, split=1)
    texts = []
    for one in (candidate, alone(candidate)):
        kernel = schedule(carried(workload, (8,)), one, device)
        assert isinstance(kernel, Kernel), kernel.reason
        texts.append(source(kernel.func, device.model))
    assert ["% 196" in text for text in texts] == [True, False]
