"""Where an artifact comes from: its model, and for each kernel the candidate and on what grounds it was taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from subtune import frontends
from subtune.artifact import manifest as manifests
from subtune.artifact.manifest import sha256_of
from subtune.backends.base import Device
from subtune.core.graph import Subgraph
from subtune.core.manifest import KernelOrigin, Source
from subtune.report.compile_report import SubgraphRow, Transfer
from subtune.tuning.predict import BASIS
from subtune.tuning.records import Records
from subtune.tuning.roofline import position
from subtune.tuning.winners import Winners


def kernel_origins(subgraphs: Sequence[Subgraph], winners: Winners) -> tuple[KernelOrigin, ...]:
    """For the manifest, one of each subgraph."""
    origins = []
    for subgraph in subgraphs:
        key = subgraph.workload.key
        candidate, record = str(winners.candidate(key)), winners.records.get(key)
        if record is None:
            basis = BASIS if key in winners.guesses else ""
            origins.append(KernelOrigin(subgraph.name, key, candidate, basis=basis))
            continue
        times = (record.default_s, record.timing.median_s)
        origins.append(KernelOrigin(subgraph.name, key, candidate, record.func_hash, *times, basis="measured"))
    return tuple(origins)


def rows(subgraphs: Sequence[Subgraph], winners: Winners, device: Device) -> tuple[SubgraphRow, ...]:
    """For the report, one of each subgraph."""
    found = []
    for subgraph in subgraphs:
        candidate, record = winners.candidate(subgraph.workload.key), winners.records.get(subgraph.workload.key)
        about = (subgraph.name, subgraph.uses, str(candidate))
        if record is None:
            found.append(SubgraphRow(*about, 0.0, 0.0, 0, 0, candidate.predicted_s))
            continue
        times = (record.default_s, record.timing.median_s)
        bound = position(subgraph.workload, device).bound_s
        found.append(SubgraphRow(*about, *times, record.tried, record.failed, bound_s=bound))
    return tuple(found)


def failures(subgraphs: Sequence[Subgraph], reasons: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Of what ships; alternatives that failed were not taken."""
    keys = {subgraph.workload.key for subgraph in subgraphs}
    return tuple(sorted((key, reason) for key, reason in reasons.items() if key in keys))


def transfer_of(records: Records) -> Transfer:
    """Of this run, all searches together."""
    found = records.transferred
    return Transfer(
        len(found),
        sum(len(one.candidates) for one in found.values()),
        sum(one.full for one in found.values()),
        sum(len(records.outcomes.get(key, ())) for key in found),
    )


def note_of_elsewhere(device: Device, winners: Winners) -> str:
    """What the report of a model for another machine must say."""
    model = device.model
    note = (
        f"for {model.description} ({model.obstacle()}): {len(winners.guesses)} kernels are {BASIS}, "
        f"{len(winners.records)} were measured there"
    )
    if device.backend.stand_in(device) is None:
        note += "; the model was not verified, which needs the device"
    return note


def sizes(path: Path) -> dict[str, Any]:
    """Of an artifact, as a `CompileReport` has them."""
    found = manifests.read(path)
    return {"memory": found.memory_summary(), "code_bytes": found.code_bytes}


def source_of(model: Any, shapes: Mapping[str, Any] | None, precision: str) -> Source:
    """The model as it was given, so that it can be found again."""
    fixed = tuple(
        sorted(
            (name, (dims,) if isinstance(dims, int) else tuple(int(d) for d in dims))
            for name, dims in (shapes or {}).items()
        )
    )
    if isinstance(model, str) and model.startswith("zoo:"):
        return Source(model, "", fixed, precision)
    if isinstance(model, str | Path) and not frontends.is_relay_text(model):
        path = Path(model).resolve()
        return Source(str(path), sha256_of(path), fixed, precision)
    return Source("", "", fixed, precision)
