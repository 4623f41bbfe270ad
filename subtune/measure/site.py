"""Where candidates are checked and timed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from subtune.runtime.remote import Remote

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Site:
    """One device. By default this machine, and the first of its GPUs where one is needed."""

    remote: Remote | None = None
    """The server or tracker that has it, if it is elsewhere."""
    gpu: int | None = None
    """Its number among this machine's, or among those that CUDA_VISIBLE_DEVICES leaves."""

    shares_cores: bool = True
    """Processes that build run on the same cores."""

    def environment(self) -> Mapping[str, str]:
        """Variables of a process that sees this device alone."""
        if self.gpu is None:
            return {}
        visible = list(filter(None, os.environ.get(_VISIBLE, "").split(",")))
        return {_VISIBLE: visible[self.gpu] if self.gpu < len(visible) else str(self.gpu)}


HERE = (Site(),)
