"""What a search found."""

from __future__ import annotations

from subtune.core.candidate import Candidate
from subtune.core.measurement import Failure, Timing
from subtune.core.record import Record
from subtune.tuning.prospects import OUTRUN
from subtune.tuning.transfer import Transferred


class Records(dict[str, Record]):
    """Winners by workload key. Of workloads that are missing nothing was confirmed: the default is used.

    `interrupted` says that the user ended the run (Ctrl-C); `failures` why a workload could not be tuned at all;
    `outcomes` what became of every candidate that this run tried, by workload key; `outrun` the keys of those that
    were not worth tuning, or not to the end; `transferred` by key what near searches had to say of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = False
        self.failures: dict[str, str] = {}
        self.outcomes: dict[str, dict[Candidate, Timing | Failure]] = {}
        self.outrun: set[str] = set()
        self.transferred: dict[str, Transferred] = {}

    def reasons(self) -> dict[str, str]:
        """Why workloads were not tuned, or not to the end, by their keys."""
        return {**dict.fromkeys(self.outrun, OUTRUN), **self.failures}

    def least_s(self) -> dict[str, float]:
        """Seconds of the fastest candidate that was timed, by workload key: as `Database.least_s`."""
        timed = {
            key: [one.min_s for one in of.values() if isinstance(one, Timing)] for key, of in self.outcomes.items()
        }
        return {key: min(seconds) for key, seconds in timed.items() if seconds}
