"""`subtune bench --suite budget`: what tuning for a while buys. Each model once per budget, from an empty database."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from subtune.artifact import manifest as manifests
from subtune.artifact.random_inputs import random_inputs
from subtune.bench.job import BenchError, Job
from subtune.bench.race import FOREIGN_LIMIT, cores_for, race, write_inputs
from subtune.bench.suite import Settings, reason, run_cases
from subtune.bench.table import aligned
from subtune.core.scratch import temporary
from subtune.database import Database
from subtune.report.compile_report import CompileReport

BUDGETS_S: tuple[float | None, ...] = (None, 5.0, 10.0, 20.0)


@dataclass(frozen=True, slots=True)
class BudgetCase:
    name: str
    model: str


CASES = tuple(BudgetCase(name, f"zoo:{name}") for name in ("resnet18", "bert", "mobilenet_v2", "gpt2"))


@dataclass(frozen=True, slots=True)
class Point:
    """A model tuned for `budget_s` seconds, or to the end where that is None.

    Attributes:
        tune_s: what tuning took in fact.
        latency_s: median of a call.
        speed: relative to the model tuned to the end; median over rounds in which both were timed.
        untuned: subgraphs of which nothing was measured; `tried`: candidates.
    """

    budget_s: float | None
    tune_s: float
    latency_s: float
    speed: float
    subgraphs: int
    untuned: int
    tried: int


@dataclass(frozen=True, slots=True)
class BudgetRow:
    name: str
    points: tuple[Point, ...] = ()
    foreign_cores: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class BudgetReport:
    threads: int
    device: str
    rows: tuple[BudgetRow, ...]
    is_interrupted: bool = False


def run_budgets(
    cases: Iterable[BudgetCase], settings: Settings, keep: Callable[[BudgetReport], Any] = lambda report: None
) -> BudgetReport:
    """Tune every case for each of `BUDGETS_S`, or for the settings' budget and to the end; then time all in turns.

    Args:
        keep: called with the report so far after every case.
    """
    device = settings.device("cpu")
    threads = device.model.host.threads
    return run_cases(
        cases,
        lambda case: _run(case, settings),
        lambda rows, is_interrupted: BudgetReport(threads, device.fingerprint(), tuple(rows), is_interrupted),
        keep,
    )


def _run(case: BudgetCase, settings: Settings) -> BudgetRow:
    given = settings.option("budget_s")
    budgets = BUDGETS_S if given is None else (None, given)
    with temporary() as scratch:
        try:
            compiled = [_compiled(case, budget_s, settings, scratch) for budget_s in budgets]
            settings.tell(f"{case.name}: time")
            return _timed(case.name, budgets, compiled, settings, scratch)
        except Exception as e:  # whatever one model meets, the others are still to be measured
            return BudgetRow(case.name, failure=reason(e))


def _compiled(case: BudgetCase, budget_s: float | None, settings: Settings, scratch: Path) -> CompileReport:
    settings.tell(f"{case.name}: tune, budget {_name(budget_s)}")
    place = scratch / f"{_name(budget_s)}.subtune"
    with Database(place.with_suffix(".db")) as database:
        report = replace(settings, database=database).compile(case.model, place, verify=False, budget_s=budget_s)
    if report.is_interrupted:
        raise KeyboardInterrupt
    return report


def _timed(
    name: str, budgets: Sequence[float | None], compiled: Sequence[CompileReport], settings: Settings, scratch: Path
) -> BudgetRow:
    manifest = manifests.read(Path(compiled[0].path))
    arrays = random_inputs(manifest.inputs, 0)
    inputs = write_inputs(scratch / "inputs.npz", list(arrays.values()))
    dtypes = tuple(spec.dtype for spec in manifest.inputs)
    jobs = [
        Job("subtune", report.path, manifest.threads, inputs, tuple(arrays), dtypes, cores=cores_for(manifest.threads))
        for report in compiled
    ]
    found = race(jobs, settings.pace)
    if found.failures:
        raise BenchError(f"{name}: {found.failures[0][1]}")
    points = [
        Point(
            budget_s,
            report.seconds["tune"],
            row.median_s,
            1 / row.ratio,
            len(report.rows),
            sum(not one.tuned_s for one in report.rows),
            sum(one.tried for one in report.rows),
        )
        for budget_s, report, row in zip(budgets, compiled, found.rows, strict=True)
    ]
    return BudgetRow(name, tuple(sorted(points, key=lambda point: point.budget_s or math.inf)), found.foreign_cores)


def budget_json(report: BudgetReport) -> str:
    return json.dumps({"suite": "budget", **asdict(report)}, indent=1)


def budget_table(report: BudgetReport) -> str:
    cells = [("model", "budget", "tuning s", "latency ms", "speed", "untuned", "candidates")]
    for row in report.rows:
        for point in row.points:
            cells.append((
                row.name, _name(point.budget_s), f"{point.tune_s:.1f}", f"{point.latency_s * 1e3:.3f}",
                f"{point.speed:.0%}", f"{point.untuned}/{point.subgraphs}", str(point.tried),
            ))  # fmt: skip
    lines = [f"{report.threads} threads, {report.device}; speed relative to no budget", *aligned(cells)]
    for row in report.rows:
        if row.failure:
            lines.append(f"{row.name}: {row.failure}")
        if row.foreign_cores > FOREIGN_LIMIT:
            lines.append(f"{row.name}: other processes kept {row.foreign_cores:.1f} cores busy meanwhile")
    return "\n".join(lines)


def _name(budget_s: float | None) -> str:
    return "unlimited" if budget_s is None else f"{budget_s:g}s"
