"""A model for another machine's GPU, assembled of the kernels that a database says were measured there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from subtune import backends, models
from subtune.artifact import manifest as manifests
from subtune.backends import device_of
from subtune.backends.base import Device
from subtune.backends.cuda.building.compiler import compiler
from subtune.core.kernel import Kernel
from subtune.core.measurement import Timing
from subtune.core.numerics import PLAIN
from subtune.core.record import Record, func_hash
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.driver import compile_model
from subtune.pipeline import prepare

SLOW = Timing(1.0, 1.0, 0.0, 5)


def record_of(workload: Workload, device: Device) -> Record | None:
    """The candidate predicted fastest, as if it took that long."""
    for candidate in backends.candidates(workload, device, 20):
        kernel = backends.schedule(workload, candidate, device)
        if isinstance(kernel, Kernel):
            timing = Timing(candidate.predicted_s, candidate.predicted_s, 0.0, 5)
            found = func_hash(kernel.func)
            gain = SLOW.median_s / timing.median_s
            return Record(workload.key, device.fingerprint(), candidate, timing, SLOW, gain, found, 20, 1, 0, True)
    return None


def assembled(model: Any, path: Path) -> list[Any]:
    """The kernels of `model` for an H200, each the first that its policy proposes, as a manifest has them."""
    device = device_of("H200", None, None, PLAIN, is_measured=False)
    prepared = prepare(model, forms=device.backend.forms(device.model))
    with Database(path / "db") as database:
        for subgraph in (*prepared.subgraphs, *prepared.alternatives().subgraphs):
            if record := record_of(subgraph.workload, device):
                database.add_record(subgraph.workload, record, device.backend.versions())
        report = compile_model(model, path / "model.subtune", target="H200", verify=False, database=database)
    return list(manifests.read(Path(report.path)).subgraphs)


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
def test_attention_over_one_joined_projection(tmp_path: Path) -> None:
    """Its kernel has one input, as a reshape has, and no blocks."""
    model = models.build("vit", dtype="float16", layers=1, hidden=128, heads=2, image=64, patch=16, classes=10)
    found = [kernel.candidate for kernel in assembled(model, tmp_path)]
    assert any(name.startswith("cuda.attention") for name in found), found


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
def test_attention_that_stores_keys_and_values_as_results(tmp_path: Path) -> None:
    model = models.build("gpt2", dtype="float16", layers=1, hidden=128, heads=2, seq=128, context=128, batch=4)
    found = assembled(model, tmp_path)
    assert any(kernel.candidate.startswith("cuda.attention") for kernel in found), found
    assert not any("permute_dims" in kernel.name and "matmul" not in kernel.name for kernel in found), found
