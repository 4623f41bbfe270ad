"""The kernels of candidates, built when they are first asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from subtune.backends.base import Device
from subtune.core.candidate import Candidate
from subtune.core.measurement import Failure, FailureKind
from subtune.core.workload import Workload
from subtune.dynamic.serve import SCHEDULE
from subtune.dynamic.workbench import Memory, Workbench
from subtune.measure.messages import Library
from subtune.measure.session import LocalSession

_INEXACT = Failure(FailureKind.INVALID, "it computes rows past the last one, where memory is somebody else's")


class Kernels:
    """Of one dynamic workload, as `carried` has it. What is remembered of a kernel's build is not built to be known.

    With `exact_only` those that compute rows past the last one are failures.
    """

    def __init__(
        self,
        stack: ExitStack,
        whole: Workload,
        device: Device,
        measurer: Workbench,
        memory: Memory,
        exact_only: bool,
    ) -> None:
        self._stack, self._whole, self._device = stack, whole, device
        self._measurer, self._memory, self._exact_only = measurer, memory, exact_only
        self._session: LocalSession | None = None
        self._built: dict[Candidate, Library | Failure] = {}

    def facts(self, candidate: Candidate) -> Library | Failure | None:
        """What is known of its kernel: perhaps a library without a file. None: nothing."""
        found = self._built.get(candidate) or self._memory.built(candidate)
        return _INEXACT if self._exact_only and _is_inexact(found) else found

    def prefetch(self, candidates: Sequence[Candidate]) -> None:
        """Let them be built; returns at once."""
        self._builders().prefetch([one for one in candidates if one not in self._built])

    def built(self, candidates: Sequence[Candidate]) -> dict[Candidate, Library | Failure]:
        """Libraries with files, or why there are none."""
        missing = [one for one in candidates if one not in self._built]
        if missing:
            session = self._builders()
            outcomes = session.build(missing, math.inf)
            news = {one: how if isinstance(how, Failure) else session.library(one) for one, how in outcomes.items()}
            self._memory.add_builds({one: how for one, how in news.items() if self._memory.built(one) is None})
            self._built |= news
        known = {one: self.facts(one) for one in candidates}
        return {one: how for one, how in known.items() if how is not None}

    def _builders(self) -> LocalSession:
        if self._session is None:
            self._session = self._stack.enter_context(
                self._measurer.session(self._whole, self._device, schedule=SCHEDULE)
            )
        return self._session


def _is_inexact(library: Library | Failure | None) -> bool:
    """Of a kernel that knows the extents, what it multiplies ends with the last row."""
    return isinstance(library, Library) and not set(library.granules) <= {1} and not library.knows_extents
