"""Candidates for a GPU, from what each template's policy knows of it: arithmetic only."""

from __future__ import annotations

import importlib

from subtune.backends.cuda.device import CUDAModel
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.patterns.recognise import recognise

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
    anchor = recognise(workload)
    found: list[Candidate] = []
    for name in _POLICIES.get(type(anchor).__name__, ()):
        where = name if name == "memory_bound" else f"{name}.candidates"
        module = importlib.import_module(f"subtune.backends.cuda.families.{where}")
        found += getattr(module, f"{name}_candidates")(anchor, workload, device)
    ranked = sorted(found, key=lambda c: (c.predicted_s, c.family, c.knobs))
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
        seen[candidate.family] = seen.get(candidate.family, 0) + 1
        has_hope = seen[candidate.family] <= share and candidate.predicted_s <= limit_s
        (first if has_hope else rest).append(candidate)
    room = max(0, topk - len(first))
    return sorted(first + rest[:room], key=lambda c: (c.predicted_s, c.family, c.knobs)) + rest[room:]
