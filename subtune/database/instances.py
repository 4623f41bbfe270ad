"""What joint tuning remembers: kernels for all instances of a dynamic workload, and their times at some of them.

One row per candidate, device, versions and instance; a row without an instance says how the build ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from subtune.core.candidate import Candidate
from subtune.core.dispatch import Extents
from subtune.core.measurement import DETERMINISTIC, Failure, FailureKind
from subtune.core.versions import Scope, Versions
from subtune.core.workload import Workload
from subtune.database.statements import Select, equal
from subtune.database.tables import INSTANCES

if TYPE_CHECKING:
    from subtune.database.store import Database

VERSION = "joint-10"
"""Of how kernels for all instances are made and measured."""
_BUILD = ""
"""In the place of an instance."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """At one instance: seconds, or why the kernel does not serve it.

    `is_timed` is False where the seconds are those of the calls whose results were checked.
    """

    result: float | Failure
    is_timed: bool = True


@dataclass(frozen=True, slots=True)
class Known:
    """A candidate's kernel: what its library's users must know of it, or why it could not be built; outcomes."""

    built: Mapping[str, Any] | Failure
    outcomes: Mapping[Extents, Outcome] = field(default_factory=dict)


class Instances:
    """Of one dynamic workload in a database.

    Args:
        workload: its greatest instance, with all others in an attribute (`subtune.dynamic.serve.carried`).
    """

    def __init__(self, database: Database, workload: Workload, scope: Scope) -> None:
        self._database, self._workload, self._scope = database, workload, scope

    def known(self) -> dict[Candidate, Known]:
        """Candidates whose build ended, with all their outcomes; failures that are the machine's are left out."""
        built, outcomes = self._read()
        return {candidate: Known(how, outcomes.get(candidate, {})) for candidate, how in built.items()}

    def outcomes(self) -> dict[Candidate, dict[Extents, Outcome]]:
        """The same where builds are noted under another device, of which this is a state."""
        return self._read()[1]

    def _read(self) -> tuple[dict[Candidate, Mapping[str, Any] | Failure], dict[Candidate, dict[Extents, Outcome]]]:
        columns = ("candidate", "versions", "extents", "kind", "message", "median_s", "is_timed", "built")
        where = equal(key=self._workload.key, device=self._scope.device)
        rows = self._database.read(Select(INSTANCES, columns, where))
        built: dict[Candidate, Mapping[str, Any] | Failure] = {}
        outcomes: dict[Candidate, dict[Extents, Outcome]] = {}
        for text, versions, extents, kind, message, median_s, is_timed, plain in rows:
            candidate = Candidate.from_json(text)
            if versions != self._versions(candidate) or (kind and FailureKind(kind) not in DETERMINISTIC):
                continue
            failure = Failure(FailureKind(kind), message) if kind else None
            if extents == _BUILD:
                built.setdefault(candidate, failure or json.loads(plain))
            else:
                found = outcomes.setdefault(candidate, {})
                found.setdefault(_numbers(extents), Outcome(failure or median_s, bool(is_timed)))
        return built, outcomes

    def add_builds(self, builds: Mapping[Candidate, Mapping[str, Any] | Failure]) -> None:
        """How builds ended: what must be known of the library, as JSON holds it, or a failure."""
        self._write(
            (candidate, _BUILD, Outcome(how if isinstance(how, Failure) else 0.0), _plain(how))
            for candidate, how in builds.items()
        )

    def add_outcomes(self, extents: Extents, outcomes: Mapping[Candidate, Outcome]) -> None:
        """Of one instance."""
        self._write((candidate, _text(extents), outcome, "") for candidate, outcome in outcomes.items())

    def _write(self, entries: Iterable[tuple[Candidate, str, Outcome, str]]) -> None:
        rows = []
        for candidate, extents, outcome, built in entries:
            result = outcome.result
            failure = (str(result.kind), result.message, None) if isinstance(result, Failure) else ("", "", result)
            about = (self._workload.key, self._scope.device, self._versions(candidate), candidate.to_json(), extents)
            rows.append((*about, *failure, int(outcome.is_timed), built, time.time()))
        if rows:
            self._database.add_rows(self._workload, INSTANCES, rows)

    def _versions(self, candidate: Candidate) -> str:
        return f"{VERSION}/{self._scope.versions.of(candidate.family)}"


def is_current(found: str, versions: Collection[Versions]) -> bool:
    """Whether a row's versions are among those of today."""
    version, _, rest = found.partition("/")
    family = rest.rpartition("/")[2].rpartition("-")[0]
    return version == VERSION and any(rest == one.of(family) for one in versions)


def _plain(how: Mapping[str, Any] | Failure) -> str:
    return "" if isinstance(how, Failure) else json.dumps(dict(how))


def _text(extents: Extents) -> str:
    """`16,4`; `-` for a workload whose only instance has no extents."""
    return ",".join(map(str, extents)) or "-"


def _numbers(text: str) -> Extents:
    return () if text == "-" else tuple(map(int, text.split(",")))
