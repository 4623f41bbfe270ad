"""The suite's own processes for whoever would start some: what starts them is most of what a small compile takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest

from subtune import workplace
from subtune.dynamic import driver as dynamic_driver
from subtune.measure import LocalMeasurer, local


@contextmanager
def lent(workers: LocalMeasurer) -> Iterator[None]:
    """Compiles of this process that are given no measurer take `workers`, which stay warm."""

    def measurer(**options: Any) -> AbstractContextManager[LocalMeasurer]:
        return LocalMeasurer(**options) if any(options.values()) else nullcontext(workers)

    with pytest.MonkeyPatch.context() as patch:
        for module in (workplace, dynamic_driver, local):
            patch.setattr(module, "LocalMeasurer", measurer)
        yield
