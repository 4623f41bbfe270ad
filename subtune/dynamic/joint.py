"""The subgraphs of a dynamic model tuned one after the other, within the budget and until Ctrl-C."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from subtune.backends.base import Device
from subtune.core.domain import Domain
from subtune.core.errors import SubtuneError
from subtune.core.progress import Progress, ProgressCallback
from subtune.database import Database
from subtune.dynamic.serve import carried
from subtune.dynamic.workbench import Workbench
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure import LocalMeasurer
from subtune.options import Options

_log = logging.getLogger(__name__)
_Found = TypeVar("_Found")


class Joint:
    """Takes `total` subgraphs, one by one, and says of each how it is served.

    Attributes:
        is_interrupted: whether Ctrl-C ended the tuning.
        untuned: names of the subgraphs of which nothing was measured.
    """

    def __init__(
        self,
        total: int,
        domain: Domain,
        device: Device,
        measurer: LocalMeasurer,
        database: Database,
        options: Options,
    ) -> None:
        self._total, self._domain, self._device = total, domain, device
        self._measurer, self._database = measurer, database
        self._progress: ProgressCallback = options.progress or (lambda _: None)
        self._is_wanted = options.tune
        self._begin = time.monotonic()
        self._deadline = math.inf if options.budget_s is None else self._begin + options.budget_s
        self._done = 0
        self._share = 0.0
        self.is_interrupted = False
        self.untuned: set[str] = set()

    def begin(self, name: str, begin: Callable[[Workbench], object]) -> None:
        """Prepare a subgraph whose turn comes soon, if anybody wants it."""
        if self._is_going:
            begin(self._workbench(name))

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
            try:
                return tune(self._workbench(name))
            except KeyboardInterrupt:
                self.is_interrupted = True
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
            self._tell(name, tried, candidates, best_s)

        return Workbench(self._measurer, self._database, tell, is_recall)

    def _tell(self, name: str, tried: int, candidates: int, best_s: float) -> None:
        now = time.monotonic()
        share = min(1.0, (self._done + tried / max(1, candidates)) / self._total)
        # where no kernel serves all instances, others are measured in a second round
        share = self._share = max(share, self._share)
        eta_s = (now - self._begin) * (1 - share) / share if share else math.inf
        eta_s = max(0.0, min(eta_s, self._deadline - now))
        self._progress(Progress(name, self._done, self._total, tried, candidates, best_s, eta_s, share))
