"""Instances of few rows find their data in L3, those of many do not: measured so, and remembered apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import Candidate
from subtune.database import Database
from subtune.dynamic.serve import carried
from subtune.dynamic.workbench import Workbench
from subtune.dynamic.working_set import WorkingSet
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure import LocalMeasurer
from subtune.measure.messages import Library
from subtune.pipeline import prepare
from tests.backends.workloads import dense
from tests.dynamic.flat_kernels import of_rows
from tests.small_model import small_onnx

DEVICE = as_device(CPU("znver4", threads=2)).for_working_set(1 << 30)
CANDIDATE = Candidate.make("contraction", mr=4, nr=64, mt=1, order="n")


def _workload() -> DynamicWorkload:
    return replace(of_rows(lambda rows: dense(rows, 64, 64)), greatest=(1000,), least=(1,))


def test_what_is_no_constant_grows_with_the_extents() -> None:
    half = DEVICE.model.l3_bytes // 2
    at = WorkingSet(half // 2, half // 2 + 4 * half).device_at(DEVICE, _workload())
    kept = [rows for rows in (1, 100, 125, 126, 500, 1000) if at((rows,)).scope() != DEVICE.scope()]
    assert kept == [1, 100, 125], "an eighth of the rows, and the constants, are half of L3"


def test_constants_are_a_part_of_it() -> None:
    prepared = prepare(small_onnx())
    found = WorkingSet.of(prepared)
    assert 0 < found.constant < found.greatest == prepared.working_set_bytes


def test_each_state_has_measurements_of_its_own(tmp_path: Path) -> None:
    workload = _workload()
    whole = carried(workload, (1000,))
    states = WorkingSet(0, 8 * DEVICE.model.l3_bytes).device_at(DEVICE, workload)
    library = Library("", "hash", (), 0.0)
    with Database(tmp_path / "t.sqlite") as database, LocalMeasurer() as local:
        bench = Workbench(local, database)
        memory = bench.memory(whole, DEVICE, states)
        memory.add_builds({CANDIDATE: library})
        memory.add_outcomes((1,), {CANDIDATE: 1e-6}, True)
        memory.add_outcomes((1000,), {CANDIDATE: 1e-3}, True)
        again, elsewhere = bench.memory(whole, DEVICE, states), bench.memory(whole, DEVICE)
        assert [again.outcome(CANDIDATE, at, True) for at in ((1,), (1000,))] == [1e-6, 1e-3]
        assert [elsewhere.outcome(CANDIDATE, at, True) for at in ((1,), (1000,))] == [None, 1e-3]
        assert isinstance(elsewhere.built(CANDIDATE), Library)
