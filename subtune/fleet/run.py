"""A fleet from its description to its artifacts, target by target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from subtune.artifact.destination import check_destination
from subtune.core.errors import FleetError, SubtuneError
from subtune.core.progress import ProgressCallback
from subtune.database import Database, opened
from subtune.driver import compile_model
from subtune.fleet.described import Fleet, FleetModel, FleetTarget
from subtune.fleet.pooled import Pool, pooled, tuned
from subtune.measure import Measurer
from subtune.options import Options
from subtune.report.compile_report import CompileReport
from subtune.tuning.records import Records
from subtune.workplace import Workplace, workplace


@dataclass(frozen=True, slots=True)
class FleetRow:
    """What became of a model. `report` is None where it was not compiled, and `error` says why, if that is an error."""

    model: str
    artifact: str
    report: CompileReport | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TargetReport:
    """`workloads` counts what the models need, equal ones once; `shared` those of several models; `known` those that an
    earlier run had tuned to the end; `tuned` those that have a record now."""

    target: str
    device: str
    workloads: int
    shared: int
    known: int
    tuned: int = 0
    seconds: float = 0.0
    rows: tuple[FleetRow, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetReport:
    targets: tuple[TargetReport, ...]
    is_interrupted: bool = False

    @property
    def failed(self) -> int:
        return sum(bool(row.error) for target in self.targets for row in target.rows)


def tune_fleet(
    fleet: Fleet,
    *,
    cluster: str = "",
    is_dry: bool = False,
    measurer: Measurer | None = None,
    progress: ProgressCallback | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> FleetReport:
    """Tune all models for every target, and write their artifacts.

    Ctrl-C while tuning keeps what was tuned: the artifacts for that target are still written, and no target follows. A
    model that cannot be compiled is a row with an error, and the others go on.

    Args:
        is_dry: nothing is tuned and written; the report says what would be.
        measurer: worker processes that are warm already, in the place of own ones.
        tell: called with what is begun, in a sentence.

    Raises:
        SubtuneError: a target is not known, a model cannot be read, or nothing can be measured any more.
    """
    if not is_dry:
        for target in fleet.targets:
            _make_folder(fleet, target)
    done: list[TargetReport] = []
    begin = time.monotonic()
    with opened(fleet.database) as database:
        for number, target in enumerate(fleet.targets):
            left_s = math.inf if fleet.budget_s is None else max(0.0, fleet.budget_s - (time.monotonic() - begin))
            options = Options(
                target=target.target, threads=target.threads, cluster=cluster, topk=fleet.topk, measurer=measurer
            )
            run = _Target(fleet, target, options, database, progress, tell)
            report, is_interrupted = run.run(left_s / (len(fleet.targets) - number), is_dry)
            done.append(report)
            if is_interrupted:
                return FleetReport(tuple(done), is_interrupted=True)
    return FleetReport(tuple(done))


def _make_folder(fleet: Fleet, target: FleetTarget) -> None:
    for model in fleet.models:
        path = fleet.artifact(target, model)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise FleetError(f"no artifacts can be put in {path.parent}: {e.strerror or e}") from e
        check_destination(path)


class _Target:
    def __init__(
        self,
        fleet: Fleet,
        target: FleetTarget,
        options: Options,
        database: Database,
        progress: ProgressCallback | None,
        tell: Callable[[str], None],
    ) -> None:
        self._fleet, self._target, self._options, self._database = fleet, target, options, database
        self._progress, self._tell = progress, tell

    def run(self, budget_s: float, is_dry: bool) -> tuple[TargetReport, bool]:
        """Within that time for tuning; and whether the user ended it."""
        begin = time.monotonic()
        with workplace(self._options) as place:
            pools = pooled(self._fleet, place.device, self._options, self._database)
            users = [count for pool in pools for count in pool.users.values()]
            known = sum(pool.known(self._database, self._fleet.topk) for pool in pools)
            about = (self._target.name, place.device.model.description, len(users), sum(n > 1 for n in users), known)
            if is_dry:
                rows = [FleetRow(one.path, str(self._fleet.artifact(self._target, one))) for one in self._fleet.models]
                return TargetReport(*about, rows=tuple(rows)), False
            self._tell(
                f"{self._target.name} ({about[1]}): {about[2]} workloads of {len(self._fleet.models)} models, "
                f"{about[3]} of them of several; {known} are tuned"
            )
            records = [] if place.is_elsewhere else self._tuned(pools, place, begin + budget_s)
        is_interrupted = any(one.interrupted for one in records)
        tuned = len({key for one in records for key in one} & {key for pool in pools for key in pool.users})
        rows = [self._compiled(model, place) for model in self._fleet.models]
        return TargetReport(*about, tuned, time.monotonic() - begin, tuple(rows)), is_interrupted

    def _tuned(self, pools: Sequence[Pool], place: Workplace, deadline: float) -> list[Records]:
        with place.measurer(self._options) as measurer:
            return tuned(pools, self._fleet.topk, deadline, self._database, measurer, self._progress)

    def _compiled(self, model: FleetModel, place: Workplace) -> FleetRow:
        """With what the database has by now."""
        output = self._fleet.artifact(self._target, model)
        self._tell(f"{self._target.name}: {Path(output).name}")
        try:
            report = compile_model(
                model.path,
                output,
                target=place.device.model,
                shapes=model.shapes,
                topk=self._fleet.topk,
                tune=False,
                database=self._database,
            )
        except SubtuneError as e:
            return FleetRow(model.path, str(output), error=" ".join(str(e).split()))
        return FleetRow(model.path, str(output), report)
