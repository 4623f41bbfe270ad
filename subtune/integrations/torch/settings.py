"""`options` of `torch.compile(model, backend="subtune", options={...})`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from subtune.core.durations import budget_seconds
from subtune.core.errors import SubtuneError

BUDGET_S = 60.0
"""Of one graph: whoever calls a model for the first time waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a user may choose; what is not explained here is as in `subtune.options.Options`."""

    budget: float | str | None = BUDGET_S
    """Of tuning, for each graph, in seconds or as `30s`; 0 takes what the database has, None sets no limit."""
    topk: int = 20
    target: Any = None
    """None: the processor, or the GPU that the tensors are on."""
    threads: int | None = None
    """None: as many as PyTorch uses when the graph is compiled."""
    precision: str = "fp32"
    exact: bool = False
    tf32: bool = False
    database: str | Path | None = None
    verify: bool = True
    cache: bool | str | Path = True
    """The directory of compiled graphs; True is the one in the user's cache directory, False keeps none."""

    @staticmethod
    def of(options: Mapping[str, Any] | None) -> Settings:
        """Raises SubtuneError: an option is unknown, or has no such value."""
        known = [field.name for field in fields(Settings)]
        for name in options or {}:
            if name not in known:
                close = difflib.get_close_matches(str(name), known, 1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise SubtuneError(f"the backend subtune has no option {name!r}{hint}; it has {', '.join(known)}")
        found = Settings(**(options or {}))
        _ = found.budget_s
        return found

    @property
    def budget_s(self) -> float | None:
        return budget_seconds(self.budget)

    def compile_options(self, target: str, threads: int) -> dict[str, Any]:
        """The keywords of `subtune.driver.compile`."""
        budget_s = self.budget_s
        return {
            "target": self.target or target,
            "threads": (self.threads or threads) if target == "auto" else None,
            "budget": budget_s or None,
            "tune": budget_s != 0,
            "topk": self.topk,
            "precision": self.precision,
            "exact": self.exact,
            "tf32": self.tf32,
            "database": self.database,
            "verify": self.verify,
        }
