"""A tuned model's winners, exported, schedule the same outlined module through MetaScheduleApplyDatabase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir.meta_schedule.database import JSONDatabase

from subtune import backends, models
from subtune.backends import as_device
from subtune.backends.base import Device
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.database import Database, export_metaschedule
from subtune.measure import LocalMeasurer
from subtune.pipeline import prepare
from subtune.tuning.search import Search, tune


def contractions(workload: Workload, device: Device, topk: int) -> Sequence[Candidate]:
    """Of the policy's candidates those that are traces: of the first layer they leave the default far behind."""
    return [c for c in backends.candidates(workload, device, topk) if c.family == "contraction"]


@pytest.fixture(scope="module", params=[False, True], ids=["in memory", "in L3"])
def exported(
    device: CPUModel, workers: LocalMeasurer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """Records of a model that is in memory, or of one that L3 keeps."""
    directory = tmp_path_factory.mktemp("exported")
    tuned_for = device.for_working_set(0) if request.param else device
    prepared = prepare(models.reduced("mlp"))
    with Database(directory / "t.db") as database:
        records = tune(
            prepared.subgraphs, tuned_for, Search(3, candidates=contractions), database=database, measurer=workers
        )
        assert any(record.candidate.family == "contraction" for record in records.values())
        result = export_metaschedule(database, directory / "ms", as_device(device))
    assert result.count + len(result.skipped) == len(prepared.subgraphs)
    assert result.count >= 1
    return directory / "ms"


def test_apply_database(exported: Path, device: CPUModel) -> None:
    model = models.reduced("mlp")
    mod = prepare(model).mod
    target = device.target()
    with target, JSONDatabase(work_dir=str(exported)):
        scheduled = relax.transform.MetaScheduleApplyDatabase()(mod)
    applied = [f for f in scheduled.functions.values() if f.attrs and f.attrs.get("tirx.is_scheduled", False)]
    assert applied
    (value,) = models.example_inputs(model).values()
    results = [
        relax.VirtualMachine(tvm.compile(m, target), tvm.cpu())["main"](tvm.runtime.tensor(value)).numpy()
        for m in (mod, scheduled)
    ]
    assert np.abs(results[0] - results[1]).max() <= 1e-5 * np.abs(results[0]).max()
    # the packing of constants leaves the functions again the way TVM's own does
    split = relax.transform.SplitLayoutRewritePreproc()(scheduled)
    assert len(split.functions) > len(scheduled.functions), [g.name_hint for g in split.functions]
