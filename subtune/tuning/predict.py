"""Kernels for a machine that is not here: the analytic policy's first candidate that builds. Nothing is timed."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable

from subtune import backends
from subtune.backends.base import Device, HardwareModel
from subtune.core.candidate import Candidate
from subtune.core.graph import Subgraph
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload

_log = logging.getLogger(__name__)

_TRIED = 5
"""Candidates, before the default schedule is taken: they are neighbours, what one fails on the next ones may, too."""

BASIS = "predicted, not measured"


def predict(
    subgraphs: Iterable[Subgraph], device: Device | HardwareModel, known: Container[str] = ()
) -> dict[str, Candidate]:
    """The candidate that the policy expects to be the fastest, of every distinct workload; none where none builds.

    Args:
        known: keys of workloads that need no prediction: they were measured on such a device.

    >>> from subtune import models
    >>> from subtune.pipeline import prepare
    >>> from subtune.backends.cpu.device import CPU
    >>> subgraphs = prepare(models.reduced("mlp")).subgraphs
    >>> {candidate.family for candidate in predict(subgraphs[:1], CPU("cortex-a76")).values()}
    {'contraction'}
    """
    device = backends.as_device(device)
    chosen: dict[str, Candidate] = {}
    done: set[str] = set()
    for subgraph in subgraphs:
        workload = subgraph.workload
        if workload.key in known or workload.key in done:
            continue
        done.add(workload.key)
        if candidate := _first_that_builds(workload, device):
            chosen[workload.key] = candidate
    return chosen


def _first_that_builds(workload: Workload, device: Device) -> Candidate | None:
    try:
        candidates = backends.candidates(workload, device, _TRIED)
    except Exception as e:  # a policy that does not foresee a workload leaves it its default schedule
        _log.warning("no candidates for workload %s: %s: %s", workload.key, type(e).__name__, e)
        return None
    for candidate in candidates:
        try:
            kernel = backends.schedule(workload, candidate, device)
            if isinstance(kernel, NotApplicable):
                _log.info("%s of workload %s: %s", candidate, workload.key, kernel.reason)
                continue
            device.backend.lower(kernel.func.with_attr("global_symbol", "main"), device)
        except Exception as e:  # as in a worker process, where it would cost the candidate only
            _log.info("%s of workload %s: %s: %s", candidate, workload.key, type(e).__name__, e)
            continue
        return candidate
    return None
