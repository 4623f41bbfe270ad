"""An artifact in a notebook."""

from __future__ import annotations

from subtune.core.html import notebook
from subtune.core.manifest import Manifest
from subtune.core.units import seconds_text, times_text


def html(manifest: Manifest, runs_on: str) -> str:
    """What it computes, on what, and its kernels, those that gained most time first.

    Args:
        runs_on: by what it runs, as `Program` says it.
    """
    inputs, outputs = (", ".join(map(str, specs)) for specs in (manifest.inputs, manifest.outputs))
    domain = f"compiled for {manifest.domain}: {manifest.domain.size} shapes" if manifest.domain.symbols else ""
    lines = (f"{inputs} \u2192 {outputs}", domain, f"{runs_on}, {manifest.device}", manifest.memory_summary())
    rows = [
        (
            one.name,
            seconds_text(one.default_s),
            seconds_text(one.tuned_s),
            times_text(one.gain) if one.tuned_s else "-",
            one.candidate,
        )
        for one in sorted(manifest.subgraphs, key=lambda one: one.tuned_s - one.default_s)
    ]
    return notebook(manifest.name, lines, ("kernel", "default", "tuned", "gain", "schedule"), rows)
