"""What the suites share: compile something, then race it; settings, and cases chosen by name."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from subtune.backends import device_of
from subtune.backends.base import Device
from subtune.bench.job import BenchError
from subtune.bench.race import Pace
from subtune.core.numerics import Numerics
from subtune.core.progress import ProgressCallback
from subtune.database import Database
from subtune.driver import compile_model
from subtune.report.compile_report import CompileReport

_MAX_NAMES = 30
"""That an error message lists one by one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a suite compiles and times, the same for all of it.

    Attributes:
        options: for `compile_model`: target, threads, budget_s, topk, device_file, exact, precision ...
        tell: called with one line before each step.
    """

    database: Database
    against: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()
    pace: Pace = field(default_factory=Pace)
    progress: ProgressCallback | None = None
    tell: Callable[[str], None] = lambda line: None

    def option(self, name: str) -> Any:
        return dict(self.options).get(name)

    def any_device(self, target: object = None) -> Device:
        """What the settings name, or `target`; this machine's processor where neither says one."""
        return device_of(
            target or self.option("target") or "auto", self.option("threads"), self.option("device_file"), self.numerics
        )

    def device(self, kind: str, target: object = None) -> Device:
        """As `any_device`. Raises BenchError where it is not of the `kind` that a suite is for."""
        device = self.any_device(target)
        if device.backend.kind != kind:
            raise BenchError(
                f"this suite is for {kind}, and the target is {device.model.description}; name another one"
            )
        return device

    @property
    def numerics(self) -> Numerics:
        return Numerics(bool(self.option("exact")), bool(self.option("tf32")), self.option("tensor_core") or "auto")

    def compile(self, model: Any, output: Path, verify: bool = True, **more: Any) -> CompileReport:
        options = {**dict(self.options), **more}
        return compile_model(model, output, verify=verify, database=self.database, progress=self.progress, **options)


_Case = TypeVar("_Case")
_Row = TypeVar("_Row")
_Report = TypeVar("_Report")


def run_cases(
    cases: Iterable[_Case],
    run: Callable[[_Case], _Row],
    summary: Callable[[list[_Row], bool], _Report],
    keep: Callable[[_Report], Any],
) -> _Report:
    """The report of every case's row. Ctrl-C, KeyboardInterrupt from `run`, ends the suite after what is done.

    Args:
        summary: the report of the rows so far, and of whether the suite was interrupted.
        keep: called with the report so far after every case.
    """
    rows: list[_Row] = []
    report = summary(rows, False)
    for case in cases:
        is_interrupted = False
        try:
            rows.append(run(case))
        except KeyboardInterrupt:
            is_interrupted = True
        report = summary(rows, is_interrupted)
        keep(report)
        if is_interrupted:
            break
    return report


class Named(Protocol):
    @property
    def name(self) -> str: ...


_N = TypeVar("_N", bound=Named)


def chosen(cases: Sequence[_N], patterns: Iterable[str], suite: str) -> tuple[_N, ...]:
    """The cases that one of `patterns` names (`*` as in a shell), in their own order; all without patterns.

    Raises BenchError for a pattern that names none.
    """
    wanted = list(patterns)
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in cases):
            raise BenchError(f"suite {suite} has no {pattern!r}; it has {_overview([case.name for case in cases])}")
    return tuple(case for case in cases if not wanted or any(fnmatch.fnmatchcase(case.name, p) for p in wanted))


def _overview(names: Sequence[str]) -> str:
    """All names where they are few, else a pattern for all that begin alike."""
    if len(names) > _MAX_NAMES:
        names = list(dict.fromkeys(re.sub("-.*", "-*", name) for name in names))
    return ", ".join(names)


def reason(error: BaseException) -> str:
    """One line about what went wrong."""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"
