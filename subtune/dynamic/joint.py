"""The subgraphs of a dynamic model tuned one after the other, within the budget and until Ctrl-C."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from subtune.backends.base import Device
from subtune.core.domain import Domain
from subtune.core.errors import SubtuneError
from subtune.core.progress import Progress, ProgressCallback
from subtune.database import Database
from subtune.dynamic.contest import Contest
from subtune.dynamic.serve import carried
from subtune.dynamic.workbench import Workbench
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure import LocalMeasurer
from subtune.options import Options

_log = logging.getLogger(__name__)
_Found = TypeVar("_Found")


_KERNEL_S = 0.5
"""Of a kernel, built and measured at all its instances, until it is known what they take here."""
_LEAST = 2
"""Kernels of a subgraph that has a part of the budget."""


class Joint:
    """Takes subgraphs, one by one, and says of each how it is served.

    A budget is shared out among those that are left by the root of what each counts: where a tenth of the time goes,
    more than a tenth of what can be won is found by the first few kernels.

    Args:
        counts: of all subgraphs by name, how much of a model's time is theirs, in any unit.
        contest: what was measured before, in a part of the budget.

    Attributes:
        is_interrupted: whether Ctrl-C ended the tuning.
        untuned: names of the subgraphs of which nothing was measured.
    """

    def __init__(
        self,
        counts: Mapping[str, float],
        domain: Domain,
        device: Device,
        measurer: LocalMeasurer,
        database: Database,
        options: Options,
        contest: Contest | None = None,
    ) -> None:
        self._left = {name: math.sqrt(count) for name, count in counts.items()}
        self._total, self._domain, self._device = len(counts), domain, device
        self._measurer, self._database = measurer, database
        self._progress: ProgressCallback = options.progress or (lambda _: None)
        self._is_wanted = options.tune
        self._begin = time.monotonic()
        left_s = math.inf if options.budget_s is None else options.budget_s
        self._deadline = self._begin + left_s - (contest.spent_s if contest else 0.0)
        self._done = 0
        self._share = 0.0
        self._measured, self._measured_s, self._of_last = 0, 0.0, 0
        self.is_interrupted = contest is not None and contest.is_interrupted
        self.untuned: set[str] = set()

    def begin(self, name: str, begin: Callable[[Workbench], object]) -> None:
        """Prepare a subgraph whose turn comes soon, if anybody wants it."""
        if self._is_going:
            try:
                begin(self._workbench(name))
            except KeyboardInterrupt:
                self.is_interrupted = True

    def served(
        self,
        name: str,
        workload: DynamicWorkload,
        tune: Callable[[Workbench], _Found],
        instead: Callable[[Workbench], _Found],
    ) -> _Found:
        """What `tune` finds; where nobody wants it any more, that from what is remembered, or what `instead` finds.

        Raises:
            SubtuneError: no schedule serves all instances.
            KeyboardInterrupt: a second Ctrl-C.
        """
        begin = time.monotonic()
        try:
            return self._served(name, workload, tune, instead)
        except SubtuneError as e:
            raise SubtuneError(f"{name}: {e}") from e
        finally:
            self._done += 1
            self._left.pop(name, None)
            self._tell(name, 0, 0, math.inf)
            _log.debug("%s: %.1f s", name, time.monotonic() - begin)

    def _served(
        self,
        name: str,
        workload: DynamicWorkload,
        tune: Callable[[Workbench], _Found],
        instead: Callable[[Workbench], _Found],
    ) -> _Found:
        if self._is_going:
            begin, self._of_last = time.monotonic(), 0
            try:
                return tune(self._workbench(name))
            except KeyboardInterrupt:
                self.is_interrupted = True
            finally:
                self._measured += self._of_last
                self._measured_s += time.monotonic() - begin
        recall = self._workbench(name, is_recall=True)
        greatest = carried(workload, workload.extents_at(self._domain.greatest))
        if recall.memory(greatest, self._device).has_times:
            try:
                return tune(recall)
            except SubtuneError as e:  # what is remembered does not suffice
                _log.debug("%s: %s", name, e)
        self.untuned.add(name)
        return instead(self._workbench(name))

    @property
    def _is_going(self) -> bool:
        return self._is_wanted and not self.is_interrupted and time.monotonic() < self._deadline

    def _workbench(self, name: str, is_recall: bool = False) -> Workbench:
        def tell(tried: int, candidates: int, best_s: float) -> None:
            self._of_last = candidates
            self._tell(name, tried, candidates, best_s)

        return Workbench(self._measurer, self._database, tell, is_recall, self._affordable(name))

    def _affordable(self, name: str) -> float:
        """New kernels of a subgraph for which the budget has time."""
        if math.isinf(self._deadline) or name not in self._left:
            return math.inf
        share = max(0.0, self._deadline - time.monotonic()) * self._left[name] / max(1e-30, sum(self._left.values()))
        kernel_s = self._measured_s / self._measured if self._measured else _KERNEL_S
        return max(_LEAST, share // max(1e-3, kernel_s))

    def _tell(self, name: str, tried: int, candidates: int, best_s: float) -> None:
        now = time.monotonic()
        share = min(1.0, (self._done + tried / max(1, candidates)) / self._total)
        # where no kernel serves all instances, others are measured in a second round
        share = self._share = max(share, self._share)
        eta_s = (now - self._begin) * (1 - share) / share if share else math.inf
        eta_s = max(0.0, min(eta_s, self._deadline - now))
        self._progress(Progress(name, self._done, self._total, tried, candidates, best_s, eta_s, share))
