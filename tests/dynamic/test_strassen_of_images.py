"""Strassen's algorithm on any number of images: it knows how many there are."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import Candidate
from subtune.dynamic.measure import Measurement
from subtune.dynamic.workbench import Workbench
from subtune.measure import LocalMeasurer
from tests.backends.workloads import conv
from tests.dynamic.flat_kernels import of_rows


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate.make("strassen", levels=1, mr=7, nr=16, mb=49, order="m", panel=16),
        Candidate.make("strassen", levels=1, mr=5, nr=32, mb=5, order="n", panel=16, prefetch=True, passes=2),
    ],
)
def test_it_is_right_at_every_number(candidate: Candidate) -> None:
    """Whose pixels its blocks divide, or do not: the last pixel is taken for those that lack."""
    device = as_device(CPU("auto", threads=2))
    workload = replace(of_rows(lambda images: conv(14, 32, 64, 3, batch=images)), greatest=(5,), least=(1,))
    instances = [(5,), (3,), (2,), (1,)]
    with LocalMeasurer() as local:
        where = (instances, [], False, device, Workbench(local))
        with closing(Measurement(workload, {candidate: ()}, *where)) as one:
            found = one.result()
    assert not found.failures
    assert sorted(found.right[candidate]) == sorted(instances)
