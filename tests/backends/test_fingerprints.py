"""Distances of devices, told by their fingerprints."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from subtune.backends import device_of
from subtune.backends.base import Device
from subtune.backends.cpu.backend import BACKEND as CPU_BACKEND
from subtune.backends.cpu.device import CPU
from subtune.backends.cuda.backend import BACKEND as CUDA_BACKEND
from subtune.core.numerics import Numerics

ZEN4 = "cpu/x86_64/znver4/512b/32K-1024K-32768K/t8"
H200 = "cuda/sm_90/nvidia-h200/132sm"


@pytest.mark.parametrize(
    ("other", "least", "most"),
    [
        (ZEN4, 0.0, 0.0),
        ("cpu/x86_64/znver5/512b/48K-1024K-32768K/t8", 1.0, 1.5),
        ("cpu/x86_64/znver4/512b/32K-1024K-32768K/t16", 1.0, 1.0),
        ("cpu/x86_64/znver4/512b/32K-1024K-32768K/t8/in-l3", 1.0, 1.0),
        ("cpu/x86_64/znver3/256b/32K-512K-32768K/t8", 3.0, 4.0),
        ("cpu/x86_64/znver4/512b/32K-1024K-32768K/t8/exact", inf, inf),
        ("cpu/aarch64/cortex-a76/128b/64K-512K-2048K/t4", inf, inf),
        ("cpu/x86_64", inf, inf),
        (H200, inf, inf),
    ],
)
def test_cpus(other: str, least: float, most: float) -> None:
    for one, another in ((ZEN4, other), (other, ZEN4)):
        assert least <= CPU_BACKEND.distance(one, another) <= most


@pytest.mark.parametrize(
    ("other", "most"),
    [
        (H200, 0.0),
        ("cuda/sm_90/nvidia-h100-pcie/114sm", 1.3),
        ("cuda/sm_80/nvidia-a100/108sm", inf),
        (f"{H200}/tf32", inf),
    ],
)
def test_gpus(other: str, most: float) -> None:
    assert CUDA_BACKEND.distance(H200, other) <= most
    assert (CUDA_BACKEND.distance(H200, other) == inf) == (most == inf)


def test_a_device_is_read_as_it_is_written() -> None:
    """What a backend writes into the database, it can read."""
    here = device_of(threads=1)
    twice = Device(CPU("auto", 2), here.backend)
    assert here.backend.distance(here.scope().device, twice.scope().device) == 1.0
    exact = replace(here, numerics=Numerics(exact=True))
    assert here.backend.distance(here.scope().device, exact.scope().device) == inf
    cached = here.for_working_set(1)
    assert here.backend.distance(here.scope().device, cached.scope().device) == float(cached != here)
