"""Joint tuning of a dynamic model's subgraphs: what is remembered, Ctrl-C, progress, what is dumped and reported."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subtune import pipeline
from subtune.artifact import load
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError, UnsupportedOpsError
from subtune.core.kernel import Packing
from subtune.core.measurement import Failure, FailureKind
from subtune.core.progress import Progress
from subtune.core.saved import from_plain, to_plain
from subtune.database import Database
from subtune.driver import compile_model
from subtune.dynamic import verify
from subtune.dynamic.workbench import Workbench
from subtune.measure import LocalMeasurer, ReplayMeasurer
from subtune.measure.session import LocalSession
from subtune.models.builder import Builder
from subtune.report.compile_report import CompileReport


def two_layers() -> onnx.ModelProto:
    b = Builder("two_layers", opset=17, dtype="float32")
    x = b.op("Relu", b.linear("first", b.input("x", ["n", 16]), 16, 48))  # type: ignore[list-item]
    b.output(b.op("Softmax", b.linear("second", x, 48, 24), axis=-1), ["n", 24])  # type: ignore[list-item]
    return b.finish()


class Counting(LocalMeasurer):
    """Counts its sessions; where `at` are over it is interrupted, as by Ctrl-C, once."""

    def __init__(self) -> None:
        super().__init__(builders=1)
        self.sessions, self.at = 0, -1

    def session(self, *args: Any, **more: Any) -> Any:
        if self.sessions == self.at:
            self.at = -1
            raise KeyboardInterrupt
        self.sessions += 1
        return super().session(*args, **more)


@pytest.fixture(scope="module")
def local() -> Iterator[Counting]:
    with Counting() as used:
        yield used


def compiled(folder: Path, measurer: Counting, name: str = "m", **more: Any) -> CompileReport:
    options = {"dynamic": {"n": "1..6"}, "topk": 1, "threads": 1, "database": folder / "t.db", "verify": False, **more}
    measurer.sessions = 0
    return compile_model(two_layers(), folder / f"{name}.subtune", measurer=measurer, **options)


def runs(path: str) -> None:
    artifact = load(path)
    for n in (1, 4, 6):
        found = artifact.run({"x": np.ones((n, 16), np.float32)})
        (y,) = found.values()
        assert y.shape == (n, 24)
        np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-5)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, local: Counting) -> tuple[Path, CompileReport, list[Progress]]:
    """The model tuned into an empty database."""
    folder = tmp_path_factory.mktemp("joint")
    told: list[Progress] = []
    return folder, compiled(folder, local, progress=told.append, dump=folder / "dump"), told


def test_what_was_tuned_is_not_measured_again(first, local):
    folder, report, _ = first
    again = compiled(folder, local, "again")
    assert local.sessions == 0
    assert [row.kernels for row in again.dynamic] == [row.kernels for row in report.dynamic]
    assert again.dynamic == report.dynamic
    fewer = compiled(folder, local, "fewer", max_kernels=1)
    assert local.sessions == 0
    assert {len(row.kernels) for row in fewer.dynamic} == {1}
    runs(again.path)


def test_without_tuning_what_the_database_has_is_taken(first, local):
    folder, report, _ = first
    assert compiled(folder, local, "untuned", tune=False).dynamic == report.dynamic
    assert local.sessions == 0


def test_more_candidates_measure_only_those(first, local):
    folder, report, _ = first
    before = rows(folder)
    more = compiled(folder, local, "more", topk=2)
    assert sum(row.tried for row in more.dynamic) >= sum(row.tried for row in report.dynamic)
    assert before <= rows(folder)


def rows(folder: Path) -> set[tuple[Any, ...]]:
    with sqlite3.connect(folder / "t.db") as connection:
        return set(connection.execute("SELECT key, candidate, extents, median_s, at FROM instances"))


def test_progress_goes_from_subgraph_to_subgraph(first):
    _, report, told = first
    total = len(report.dynamic)
    assert {one.total for one in told} == {total}
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert (told[-1].done, told[-1].share) == (total, 1.0)
    assert {one.workload_key for one in told} == {row.name for row in report.dynamic}
    assert [one.share for one in told] == sorted(one.share for one in told)
    assert any(0 < one.tried <= one.candidates and one.best_s < 1 for one in told)


def test_the_module_of_the_largest_shape_is_dumped_once(first):
    names = sorted(path.stem for path in (first[0] / "dump").iterdir())
    static = len({number for number, _ in (name.split("-", 1) for name in names)})
    assert static == len(names)
    assert names[-1].endswith("-splice")
    assert sum(name.endswith("-outline") for name in names) == 1


def test_the_report_says_what_many_shapes_came_to(first):
    _, report, _ = first
    (row, *_) = report.dynamic
    assert row.extents == ("n",)
    assert (row.least, row.greatest) == ((1,), (6,))
    assert row.least_s > 0
    assert row.greatest_s > 0
    assert row.tried >= len(row.kernels) >= 1
    text = str(report)
    assert "default us" not in text
    assert "worst regret" in text
    assert f"code {report.code_bytes / 2**20:.1f} MiB" in text
    data = json.loads(report.to_json())
    assert data["dynamic"][0]["extents"] == ["n"]
    assert data["code_bytes"] > 0


@pytest.mark.parametrize("at", [0, 3], ids=lambda at: "between instances" if at else "at once")
def test_ctrl_c_keeps_what_was_tuned(at, local, tmp_path):
    local.at = at
    report = compiled(tmp_path, local)
    assert report.is_interrupted
    assert "were not tuned" in str(report)
    assert not any(row.is_timed for row in report.dynamic)
    runs(report.path)
    if at:
        assert len(rows(tmp_path)) > 0
    whole = compiled(tmp_path, local, "whole")
    assert not whole.is_interrupted
    assert all(row.is_timed for row in whole.dynamic)


def test_ctrl_c_after_a_subgraph(local, tmp_path, monkeypatch):
    """The first subgraph keeps its kernels, the others get one each."""

    def interrupted(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    def stop(progress: Progress) -> None:
        if progress.done == 1 and not progress.candidates:
            monkeypatch.setattr(LocalSession, "check", interrupted)

    report = compiled(tmp_path, local, progress=stop)
    assert report.is_interrupted
    assert [row.is_timed for row in report.dynamic] == [True] + [False] * (len(report.dynamic) - 1)
    runs(report.path)


def test_only_this_machines_own_processes_tune(tmp_path):
    with pytest.raises(SubtuneError, match="tuned by a LocalMeasurer, not by a ReplayMeasurer: leave measurer out"):
        compile_model(
            two_layers(), tmp_path / "m.subtune", dynamic={"n": "1..6"}, measurer=ReplayMeasurer({DEFAULT: 1e-3})
        )


def test_sizes_are_checked_without_verifying(local, tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr(
        verify.DynamicVerification, "_check_sizes", lambda self, imported, artifact, point: checked.append(point["n"])
    )
    compiled(tmp_path, local, tune=False)
    assert {1, 6} <= set(checked)

    def refuse(self: Any, imported: Any, artifact: Any, point: Any) -> None:
        raise UnsupportedOpsError("no polynomial")

    monkeypatch.setattr(verify.DynamicVerification, "_check_sizes", refuse)
    with pytest.raises(UnsupportedOpsError):
        compiled(tmp_path, local, "other", tune=False)
    assert not (tmp_path / "other.subtune").exists()


class TestMemory:
    """Of a workload, in a database."""

    CANDIDATE = Candidate.make("contraction", mr=4)

    @pytest.fixture
    def memory(self, workers, tmp_path):
        device = as_device(CPU(threads=1))
        workload = pipeline.prepare(two_layers(), {"x": (4, 16)}).subgraphs[0].workload
        with Database(tmp_path / "t.db") as database:
            yield lambda: Workbench(workers, database).memory(workload, device)

    def test_a_crash_may_have_been_the_machines(self, memory):
        memory().add_builds({self.CANDIDATE: Failure(FailureKind.CRASH, "died")})
        assert memory().built(self.CANDIDATE) is None
        memory().add_builds({self.CANDIDATE: Failure(FailureKind.INVALID, "no")})
        assert memory().built(self.CANDIDATE) == Failure(FailureKind.INVALID, "no")
        assert memory().is_whole(self.CANDIDATE, [((4,), True)])

    def test_a_check_is_no_timing(self, memory):
        from subtune.measure.messages import Library

        library = Library("a.so", "f", ((1, Packing(((2, 3),), (1, 0))),), 1.0, (4,))
        memory().add_builds({self.CANDIDATE: library})
        memory().add_outcomes((8,), {self.CANDIDATE: 1e-3}, is_timed=False)
        found = memory()
        assert not found.has_times
        assert (found.outcome(self.CANDIDATE, (8,), False), found.outcome(self.CANDIDATE, (8,), True)) == (1e-3, None)
        assert found.is_whole(self.CANDIDATE, [((8,), False)])
        assert not found.is_whole(self.CANDIDATE, [((8,), False), ((4,), False)])
        built = found.built(self.CANDIDATE)
        assert isinstance(built, Library)
        assert (built.path, built.packings, built.granules) == ("", library.packings, (4,))
        memory().add_outcomes((4,), {self.CANDIDATE: Failure(FailureKind.WRONG_RESULT, "off")}, is_timed=True)
        assert memory().is_whole(self.CANDIDATE, [((8,), False), ((4,), True), ((2,), True)])


@pytest.mark.parametrize("plain", [{"class": "os:system"}, {"class": "subtune.core.kernel:Gone"}, {"shape": [1]}])
def test_what_subtune_did_not_write_is_no_class_of_its(plain):
    with pytest.raises(ValueError, match=r"is no dataclass|has changed"):
        from_plain(plain)


def test_other_things_are_not_saved():
    with pytest.raises(TypeError, match="set cannot be stored"):
        to_plain((1, {2}))
