"""Between how many threads a kernel can be shared, and what it takes where some of them have nothing to do."""

from __future__ import annotations

import pytest

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.backends.many_shapes import TileShape
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.dynamic.measured import Measured
from subtune.dynamic.predict import predicted, times_of
from subtune.dynamic.serve import carried, schedule
from subtune.measure.messages import Library
from tests.backends.workloads import dense, layer_norm
from tests.dynamic.flat_kernels import of_rows

DEVICE = as_device(CPU("x86-64-v4", threads=2))
STRASSEN = {"levels": 1, "mb": 8, "mr": 4, "nr": 16, "panel": 16}


@pytest.mark.parametrize(
    ("candidate", "granule", "iterations"),
    [
        (Candidate.make("strassen", **STRASSEN, order="m"), 16, 1),
        (Candidate.make("strassen", **{**STRASSEN, "mb": 4}, order="n"), 8, 0),
        (Candidate.make("contraction", mr=4, mt=1, nr=16, order="n"), 4, 0),
        (Candidate.make("contraction", mr=4, mt=2, nr=16, order="m"), 4, 0.5),
    ],
    ids=str,
)
def test_parallel_loops_of_rows_are_told_from_those_of_columns(candidate, granule, iterations):
    workload = of_rows(lambda rows: dense(rows, 64, 64))
    kernel = schedule(carried(workload, (256,)), candidate, DEVICE)
    assert isinstance(kernel, Kernel), kernel
    assert (kernel.granules, kernel.iterations) == ((granule,), iterations)


def test_rows_one_by_one():
    workload = of_rows(lambda rows: layer_norm(rows, 64))
    kernel = schedule(carried(workload, (256,)), Candidate.make("rowwise", unroll=1), DEVICE)
    assert isinstance(kernel, Kernel), kernel
    assert kernel.iterations == 1


def test_three_tiles_take_two_threads_as_long_as_four():
    known = {(128,): 1e-3, (256,): 1e-3, (1024,): 4e-3}
    rows = [(129,), (300,), (384,), (512,), (513,), (768,)]
    shared = Library("", "", (), 0.0, (128,), iterations=1)
    assert predicted(shared, known, rows, threads=2) == pytest.approx([1e-3, 2e-3, 2e-3, 2e-3, 3e-3, 3e-3])
    in_pairs = Library("", "", (), 0.0, (64,), iterations=0.5)
    last_alone = [1e-3, 1.5e-3, 2e-3, 2e-3, 2.5e-3, 3e-3]  # of a pair's two tiles one is there
    assert predicted(in_pairs, known, rows, threads=2) == pytest.approx(last_alone)
    known = {(128,): 1e-3, (256,): 2e-3, (1024,): 8e-3}
    each = Library("", "", (), 0.0, (128,))
    assert predicted(each, known, rows, threads=2) == pytest.approx([2e-3, 3e-3, 3e-3, 4e-3, 5e-3, 6e-3])


def test_a_kernel_that_waits_behind_others_takes_longer():
    """The times of two kernels alone are the same."""
    alone, behind = Candidate.make("alone"), Candidate.make("behind")
    library = Library("", "", (), 0.0, (1,))
    found = Measured(
        {alone: library, behind: library},
        {one: {(1,): 4e-6, (64,): 4e-6} for one in (alone, behind)},
        tiles={behind: TileShape(behind_s=1e-6)},
    )
    assert times_of(found, alone, [(32,)]) == pytest.approx(4e-6)
    assert times_of(found, behind, [(32,)]) == pytest.approx(5e-6)
