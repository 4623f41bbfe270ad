"""`subtune bench --suite coverage`: every case tuned, compared with float64, and raced against its peers.

A case that fails is a row that says how. Processes go from case to case. On a GPU the peers of a case load side by
side; nothing else runs while one is tuned or timed: who shares the device with a search misleads it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from subtune.backends.base import Device
from subtune.bench.coverage.case import Case
from subtune.bench.coverage.compiling import Compiler
from subtune.bench.coverage.grammar import cases
from subtune.bench.coverage.lane import Files, Lane, Loaded, written
from subtune.bench.coverage.onnx_dialect import OnnxDialect
from subtune.bench.coverage.report import CoverageReport, CoverageRow
from subtune.bench.job import BenchError
from subtune.bench.peers import REFERENCE, peers_of
from subtune.bench.race import best_peer, outputs_of, run_race
from subtune.bench.suite import Settings, reason, run_cases
from subtune.core.scratch import temporary

AGAINST = {"cpu": ("onnxruntime", "openvino-f32", "torch"), "cuda": ("torch-graph", "torch-compile")}
BUDGET_S = {"cpu": 6.0, "cuda": 8.0}
"""Of tuning a case, where the user names none."""
LIMIT_S = 60.0
"""Beyond the budget, for a case's compile; and for a framework to load it."""
_LIMITS = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Relative error against float64 above which a result is wrong, unless the best peer's is as large."""
_AS_LARGE = 2.0


@dataclass(frozen=True, slots=True)
class _Ready:
    """A case whose files are written."""

    case: Case
    files: Files


class Coverage:
    """The suite's processes on one device, and a row for each case. `close` it."""

    def __init__(self, settings: Settings, device: Device, scratch: Path):
        self._settings, self._device, self._scratch = settings, device, scratch
        budget_s = float(settings.option("budget_s") or BUDGET_S[device.backend.kind])
        given = {key: value for key, value in settings.options if value is not None}
        options = {**given, "budget_s": budget_s, "database": str(settings.database.path)}
        self._compiler = Compiler(options, budget_s + LIMIT_S, device.model.host.threads)
        self._peers = Lane(LIMIT_S, side_by_side=device.backend.measuring.overlaps)
        self._ours = Lane(LIMIT_S, side_by_side=False)

    def warm(self) -> None:
        """Let the compiler's processes load TVM: that is no part of any case's budget."""
        dialect = OnnxDialect("float32")
        model, artifact = self._scratch / "warm.onnx", self._scratch / "warm.subtune"
        onnx.save(dialect.model([dialect.unary("relu", dialect.input((64,)))], []), model)
        with suppress(BenchError):  # the first case will meet the same
            self._compiler.compile(model, artifact)

    def ready(self, drawn: Iterable[Case]) -> Iterator[_Ready]:
        """The cases in order, written to disk."""
        for case in drawn:
            folder = self._scratch / str(case.index)
            folder.mkdir()
            yield _Ready(case, written(case, folder, self._device))

    def row(self, ready: _Ready) -> CoverageRow:
        begin, case = time.monotonic(), ready.case
        self._settings.tell(case.name)
        found = CoverageRow(case.name, case.family, case.dtype, "crash")
        try:
            found = self._row(found, ready)
        except BenchError as e:
            found = replace(found, outcome="time limit" if "no answer" in str(e) else "crash", why=str(e))
        except Exception as e:  # whatever one case meets, the others are still to be measured
            found = replace(found, why=reason(e))
        finally:
            shutil.rmtree(ready.files.model.parent, ignore_errors=True)
        return replace(found, case_s=time.monotonic() - begin)

    def close(self) -> None:
        self._compiler.close()
        self._peers.close()
        self._ours.close()

    def _row(self, row: CoverageRow, ready: _Ready) -> CoverageRow:
        artifact = ready.files.model.with_name("case.subtune")
        compiled = self._compiler.compile(ready.files.model, artifact)
        if compiled.refusal:
            return replace(row, outcome="refused", why=compiled.refusal)
        row = replace(
            row, defaults=compiled.defaults, untuned=compiled.untuned, kernels=compiled.kernels, tried=compiled.tried,
            failed=compiled.failed, tune_s=compiled.tune_s, roofline_s=self._roofline_s(ready),
        )  # fmt: skip
        peers = self._peers.load([ready.files.job_of(name) for name in (REFERENCE, *self._settings.against)])
        ours = self._ours.load([ready.files.job_of("subtune", artifact)])
        if ours.reasons:
            return replace(row, why=f"not loaded: {ours.reasons['subtune']}")
        return self._raced(row, ready, peers, ours)

    def _raced(self, row: CoverageRow, ready: _Ready, peers: Loaded, ours: Loaded) -> CoverageRow:
        if REFERENCE not in peers.workers:
            return replace(row, why=f"no reference: {peers.reasons[REFERENCE]}")
        expected = outputs_of(ready.files.job_of(REFERENCE))
        against = [worker for name, worker in peers.workers.items() if name != REFERENCE]
        race = run_race([*ours.workers.values(), *against], list(peers.reasons.items()), self._settings.pace, expected)
        mine = race.rows[0]
        best = best_peer(race.rows[1:], self._settings.against)
        row = replace(row, race=race, ours_s=mine.median_s, error=mine.max_rel)
        if best is not None:
            row = replace(
                row, best=best.framework, best_s=best.ratio * mine.median_s, ratio=best.ratio, peer_error=best.max_rel
            )
        if mine.max_rel > max(_LIMITS[row.dtype], _AS_LARGE * row.peer_error):
            return replace(row, outcome="wrong", why=f"relative error {mine.max_rel:.1e} against float64")
        return replace(row, outcome="timed")

    def _roofline_s(self, ready: _Ready) -> float:
        model = self._device.model
        return ready.files.work.roofline_s(model.peak_flops(ready.case.dtype), model.dram_bytes_per_s)


def run_coverage(
    seed: int, count: int, settings: Settings, keep: Callable[[CoverageReport], Any] = lambda report: None
) -> CoverageReport:
    """The first `count` cases of `seed`, in order. Ctrl-C ends the suite after what is done.

    Args:
        keep: called with the report so far after every case.
    """
    device, begin = device_for(settings), time.monotonic()
    kind = device.backend.kind

    def summary(rows: list[CoverageRow], is_interrupted: bool) -> CoverageReport:
        wall_s = time.monotonic() - begin
        return CoverageReport(
            seed, kind, device.fingerprint(), device.model.host.threads, settings.against, tuple(rows), is_interrupted,
            wall_s,
        )  # fmt: skip

    with temporary() as scratch:
        suite = Coverage(settings, device, scratch)
        try:
            suite.warm()
            return run_cases(suite.ready(cases(seed, count, peers_of(kind).is_gpu)), suite.row, summary, keep)
        finally:
            suite.close()


def device_for(settings: Settings) -> Device:
    """What the settings name, or this machine's processor."""
    return settings.any_device()
