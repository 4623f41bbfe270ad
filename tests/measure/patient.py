"""A measurer whose outcomes are those of the candidates, however slow the machine is while a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from subtune.core.candidate import Candidate
from subtune.measure import LocalMeasurer

HANGING = ("hang", "sleeps")
"""Templates of the tests that never end."""


class PatientMeasurer(LocalMeasurer):
    """Ends what hangs after a second, and gives everything else two minutes."""

    @contextmanager
    def session(self, *args: Any, **options: Any) -> Iterator[Any]:
        with super().session(*args, **options) as session:
            run = session._run

            def run_within(candidate: Candidate, job: Any, seconds: float) -> Any:
                session._settings.run_limit_s = _limit_s(candidate)
                return run(candidate, job, seconds)

            session._run = run_within
            session._build_limit = _limit_s
            yield session


def _limit_s(candidate: Candidate) -> float:
    return 1.0 if candidate.family in HANGING else 120.0
