"""One run of a model, kernel by kernel, and the same as Chrome, Perfetto and Speedscope read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Slice:
    """A step of a run: the kernels that run in it, one after the other, and when, in seconds from the beginning."""

    kernels: tuple[str, ...]
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Trace:
    """`slices` in their order; `about` says how the run was made."""

    slices: tuple[Slice, ...]
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the beginning of the first kernel to the end of the last."""
        return self.slices[-1].end_s - self.slices[0].begin_s if self.slices else 0.0

    def to_chrome(self, name: str, details: Mapping[str, Mapping[str, Any]], counters: Sequence[int] = ()) -> str:
        """JSON in Chrome's trace event format: https://ui.perfetto.dev opens it.

        Args:
            name: of the model.
            details: of kernels, by their names: what is shown of a slice that is selected.
            counters: bytes of activations in use during each kernel; shown where there are as many as kernels.
        """
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}},
            {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "kernels"}},
        ]
        done = 0
        has_counters = len(counters) == sum(len(one.kernels) for one in self.slices)
        for one in self.slices:
            args: dict[str, Any] = {kernel: dict(details.get(kernel, {})) for kernel in one.kernels}
            if len(one.kernels) == 1:
                args = args[one.kernels[0]]
            title = " + ".join(one.kernels)
            about = {"name": title, "cat": "kernel", "args": args}
            events.append({"ph": "X", "pid": 1, "tid": 1, "ts": _us(one.begin_s), "dur": _us(one.seconds), **about})
            if has_counters:
                used = max(counters[done : done + len(one.kernels)])
                done += len(one.kernels)
                event = {"ph": "C", "pid": 1, "name": "activations in use", "ts": _us(one.begin_s)}
                events.append({**event, "args": {"bytes": used}})
        return json.dumps({"displayTimeUnit": "ns", "otherData": dict(self.about), "traceEvents": events}, indent=1)


def _us(seconds: float) -> float:
    """The format counts in microseconds."""
    return round(seconds * 1e6, 3)
