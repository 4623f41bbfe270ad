"""Which device a compile is for, and on what it is measured."""

from __future__ import annotations

import pytest

from subtune.backends import as_device
from subtune.backends.cuda.backend import CUDABackend
from subtune.backends.cuda.device import CUDA
from subtune.core.errors import TargetError
from subtune.measure import LocalMeasurer
from subtune.measure.site import HERE, Site
from subtune.options import Options
from subtune.workplace import measured_on

GPUS = ("NVIDIA H200", "NVIDIA H200", "NVIDIA L4")


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(CUDABackend, "accelerators", lambda _: GPUS)


def test_one_device_by_default():
    device, sites = measured_on(Options(threads=1))
    assert device.backend.kind == "cpu"
    assert sites == HERE == (Site(),)


def test_numbered_gpus(gpus):
    _, sites = measured_on(Options(target="nvidia/nvidia-h100", devices=(1, 0)))
    assert sites == (Site(gpu=1, shares_cores=False), Site(gpu=0, shares_cores=False))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "auto", "devices": (0,)}, "--devices 0: this machine has no devices of target"),
        ({"devices": (0, 0)}, "a device is named twice"),
        ({"devices": (0, 3)}, "there is no 3; this machine's are 0 to 2"),
        ({"devices": (0, 2)}, "2 is a NVIDIA L4 and 0 a NVIDIA H200; their times do not compare"),
        ({"devices": (0, 1), "remote": "127.0.0.1:9090"}, "name one of them"),
    ],
)
def test_devices_that_are_refused(gpus, given, said):
    with pytest.raises(TargetError, match=said):
        measured_on(Options(**{"target": "nvidia/nvidia-h100", **given}))


@pytest.mark.parametrize(("visible", "seen"), [(None, "1"), ("", "1"), ("4,7", "7"), ("GPU-a,GPU-b", "GPU-b")])
def test_a_process_sees_its_gpu_alone(monkeypatch, visible, seen):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Site(gpu=1).environment() == {"CUDA_VISIBLE_DEVICES": seen}
    assert Site().environment() == {}


@pytest.mark.parametrize("shares_cores", [True, False])
def test_builds_rest_only_where_they_take_the_cores(device, shares_cores):
    with LocalMeasurer(builders=1, sites=(Site(shares_cores=shares_cores),)) as measurer:
        assert measurer.overlaps(as_device(device)) is not shares_cores
        assert measurer.overlaps(as_device(CUDA("H100")))
