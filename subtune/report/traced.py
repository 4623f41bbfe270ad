"""A trace with what is known of its kernels: candidates, latencies alone, roofline."""

from __future__ import annotations

from typing import Any

from subtune.artifact import Artifact
from subtune.artifact.account import read_account
from subtune.core.trace import Trace


def chrome_trace(artifact: Artifact, trace: Trace) -> str:
    """`trace`, a run of `artifact`, as JSON in Chrome's trace event format."""
    manifest = artifact.manifest
    account = read_account(artifact.path, manifest)
    known = {one.name: one for one in account.subgraphs} if account else {}
    details: dict[str, dict[str, Any]] = {}
    for kernel in manifest.subgraphs:
        about: dict[str, Any] = {"schedule": kernel.candidate}
        if kernel.tuned_s:
            about |= {"alone us": round(kernel.tuned_s * 1e6, 3), "default us": round(kernel.default_s * 1e6, 3)}
        if one := known.get(kernel.name):
            about |= {"roofline us": round(one.bound_s * 1e6, 3), "FLOP": one.flops, "bytes": one.nbytes}
        details[kernel.name] = about
    live = account.memory.live_bytes if account else ()
    return trace.to_chrome(manifest.name, details, live)
