"""`bench`: the latency and the memory of one artifact beside other frameworks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from subtune.artifact import manifest as manifests
from subtune.artifact.random_inputs import random_inputs
from subtune.bench.job import BenchError, Job
from subtune.bench.peers import peers_of
from subtune.bench.race import FOREIGN_LIMIT, BenchRow, Pace, cores_for, race, shown_name, write_inputs
from subtune.bench.torch_agreement import disagreement
from subtune.bench.torch_source import is_converted
from subtune.core.manifest import Manifest
from subtune.core.scratch import temporary


@dataclass(frozen=True, slots=True)
class BenchReport:
    """`failures` holds (framework, reason) of those that could not be timed.

    `name`: the model's, and the values of its symbols.
    `foreign_cores`: cores that other processes kept busy while frameworks were timed: the figures suffer above 0.
    """

    name: str
    threads: int
    device: str
    rows: tuple[BenchRow, ...]
    failures: tuple[tuple[str, str], ...] = ()
    foreign_cores: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        return self.foreign_cores > FOREIGN_LIMIT

    def row(self, framework: str) -> BenchRow | None:
        return next((row for row in self.rows if row.framework == framework), None)

    def to_json(self) -> str:
        rows = [{**asdict(row), "model_bytes": row.model_bytes} for row in self.rows]
        return json.dumps({**asdict(self), "rows": rows, "failures": dict(self.failures)}, indent=1)

    def __str__(self) -> str:
        lines = [f"{self.name}, {self.threads} threads, {self.device}"]
        names = {row.framework: shown_name(row) for row in self.rows}
        width = max(14, *(len(name) + 2 for name in names.values()))
        lines.append(
            f"{'':<{width}}{'median ms':>12}{'min ms':>12}{'ratio':>8}{'peak MB':>10}{'model MB':>10}{'error':>10}"
        )
        for row in self.rows:
            lines.append(
                f"{names[row.framework]:<{width}}{row.median_s * 1e3:>12.3f}{row.min_s * 1e3:>12.3f}{row.ratio:>8.2f}"
                f"{row.peak_rss_bytes / 1e6:>10.0f}{row.model_bytes / 1e6:>10.1f}{row.max_rel:>10.1e}"
            )
        lines += [f"{framework:<{width}}not timed: {reason}" for framework, reason in self.failures]
        lines += [f"{row.framework} gives other outputs than subtune" for row in self.rows if not row.agrees]
        if self.is_disturbed:
            lines.append(
                f"other processes kept {self.foreign_cores:.1f} cores busy meanwhile: do not trust these figures"
            )
        return "\n".join(lines)


def bench(
    artifact: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    against: Sequence[str] | None = None,
    threads: int | None = None,
    rounds: int = 7,
    round_s: float = 0.5,
    limits: dict[str, int] | None = None,
    values: Mapping[str, int] | None = None,
    timeout_s: float = 600.0,
    torch_function: str = "",
) -> BenchReport:
    """Time the artifact and each framework of `against` in turn, `rounds` times, on the same random inputs.

    Args:
        artifact: the artifact's directory.
        model: the ONNX file it was compiled from, which the other frameworks run.
        against: their names; None for the usual ones of such devices.
        threads: for all of them; default is the artifact's own number.
        round_s: about how long a framework is timed in a round, in seconds; three calls at least.
        limits: exclusive upper bounds of integer inputs (`subtune.frontends.onnx.reference.integer_limits`).
        values: of the artifact's symbols, if it has some; None for the largest. All frameworks get the same arrays.
        torch_function: `package.module:function` that gives the nn.Module which PyTorch runs, its inputs in the file's
            order; "" for the zoo model's twin, or what onnx2torch makes of the file.

    A module that somebody wrote is raced only where its outputs are those of the file, to 1e-4 of their scale.
    """
    folder = Path(artifact)
    manifest = manifests.read(folder)
    peers = peers_of(manifest.kind)
    against = peers.default if against is None else against
    peers.require(against)
    if against and model is None:
        raise BenchError(f"{folder} can be timed against {', '.join(against)} only with its model file")
    with temporary() as scratch:
        count = threads or manifest.threads
        values = manifest.domain.greatest if values is None else values
        arrays = random_inputs(manifest.inputs, 0, limits, values)
        jobs = _jobs(folder, manifest, str(model), dict.fromkeys(against), count, arrays, scratch)
        jobs = [replace(job, torch_function=torch_function) for job in jobs]
        jobs, failures = _agreeing(jobs, timeout_s)
        result = race(jobs, Pace(rounds, round_s, timeout_s))
    failures += result.failures
    name = " ".join([manifest.name, *(f"{symbol}={value}" for symbol, value in values.items())])
    return BenchReport(name, count, manifest.device, result.rows, failures, result.foreign_cores)


def _agreeing(jobs: list[Job], timeout_s: float) -> tuple[list[Job], tuple[tuple[str, str], ...]]:
    """Without PyTorch's where the module somebody wrote computes something else than the file, and why."""
    asked = [job for job in jobs if job.framework.startswith("torch") and not is_converted(job)]
    reason = disagreement(asked[0], timeout_s) if asked else ""
    if not reason:
        return jobs, ()
    return [job for job in jobs if job not in asked], tuple((job.framework, reason) for job in asked)


def _untuned(manifest: Manifest, path: Path) -> Path:
    """The same model with the default schedules, which on CUDA are dlight's."""
    from subtune.driver import compile_model

    source = manifest.source
    options = {"shapes": dict(source.shapes), "precision": source.precision, "verify": False, "tune": False}
    compile_model(source.model, path, target=manifest.target, database=path.with_suffix(".db"), **options)  # type: ignore[arg-type]
    return path


def _jobs(
    folder: Path,
    manifest: Manifest,
    model: str,
    against: dict[str, None],
    threads: int,
    arrays: dict[str, np.ndarray],
    scratch: Path,
) -> list[Job]:
    paths = {"subtune": str(folder)}
    if "dlight" in against:
        paths["dlight"] = str(_untuned(manifest, scratch / "dlight.subtune"))
    inputs = write_inputs(scratch / "inputs.npz", list(arrays.values()))
    return [
        Job(
            framework,
            paths.get(framework, model),
            threads,
            inputs,
            tuple(arrays),
            tuple(spec.dtype for spec in manifest.inputs),
            str(scratch / f"{framework}.npz"),
            manifest.target,
            cores=cores_for(threads) if peers_of(manifest.kind).is_pinned else (),
            precision=manifest.source.precision,
            allow_tf32="/tf32" in manifest.device,
            kind=manifest.kind,
        )
        for framework in ("subtune", *against)
    ]
