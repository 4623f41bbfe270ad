"""Candidates for a GPU, from what each template's policy knows of it: arithmetic only."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from subtune.candidate import Candidate
from subtune.devices.cuda import CUDAModel
from subtune.forms.stages import summarise
from subtune.workload import Workload

_POLICIES: dict[str, tuple[str, ...]] = {
    "Contraction": ("wgmma", "mma", "fma", "winograd", "strassen", "simt", "gemv", "window"),
    "Window": ("window",),
    "Rowwise": ("memory_bound", "gemv_packed"),
    "Columns": ("memory_bound",),
    "Elementwise": ("memory_bound",),
    "Chain": (),
}
"""By the kind of the anchor: the modules NAME here whose `NAME_candidates(anchor, workload, device)` are asked."""

_HOPE = 2.5
"""Times the best prediction: beyond, no error of the model makes up for it."""


def candidates(workload: Workload, device: CUDAModel, topk: int = 20) -> tuple[Candidate, ...]:
    """At most `topk` candidates for `workload` on `device`, the one predicted fastest first."""
    anchor = summarise(workload).anchor
    found: list[Candidate] = []
    for name in _POLICIES.get(type(anchor).__name__, ()):
        if find_spec(f"{__name__}.{name}") is not None:
            module = importlib.import_module(f"{__name__}.{name}")
            found += getattr(module, f"{name}_candidates")(anchor, workload, device)
    ranked = sorted(found, key=lambda c: (c.predicted_s, c.template, c.knobs))
    return tuple(_every_implementation(ranked, topk)[:topk])


def _every_implementation(ranked: list[Candidate], topk: int) -> list[Candidate]:
    """`ranked`, with the best few of every implementation among the first `topk`.

    The model compares two tiles of one implementation well, and two implementations less well: each gets a share, if it
    has any hope.
    """
    share = max(1, topk // 5)
    limit_s = _HOPE * min((candidate.predicted_s for candidate in ranked), default=0.0)
    seen: dict[str, int] = {}
    first: list[Candidate] = []
    rest: list[Candidate] = []
    for candidate in ranked:
        seen[candidate.template] = seen.get(candidate.template, 0) + 1
        has_hope = seen[candidate.template] <= share and candidate.predicted_s <= limit_s
        (first if has_hope else rest).append(candidate)
    room = max(0, topk - len(first))
    return sorted(first + rest[:room], key=lambda c: (c.predicted_s, c.template, c.knobs)) + rest[room:]
