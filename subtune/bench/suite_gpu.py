"""`subtune bench --suite fastdlight|tensorcore|gpu-ops`: operators on this GPU, beside dlight, cuBLAS and cuDNN.

The winner, the model's first choice, dlight's default schedule and PyTorch are timed in turns, each in its own process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from subtune import backends
from subtune.artifact.manifest import read as read_manifest
from subtune.backends.base import Device
from subtune.bench.artifact_race import bench
from subtune.bench.gpu_op import GpuOp
from subtune.bench.gpu_rows import GpuCase, Published
from subtune.bench.job import BenchError, Job
from subtune.bench.peers_cuda import AGAINST, LIBRARIES, OPERATOR
from subtune.bench.process import Worker
from subtune.bench.quality import Quality, WorkloadQuality, of_measurements, of_workloads, summarize
from subtune.bench.race import BenchRow, best_peer
from subtune.bench.source import onnx_file
from subtune.bench.suite import Settings, reason, run_cases
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Failure, Measurement, Timing
from subtune.core.scratch import temporary
from subtune.measure import LocalMeasurer, Session, halve
from subtune.measure.clock import LONG_CALL_S, SETTLE_S

_MAX_LAUNCHES = 200
_FINALISTS = 2  # of the measured ones, timed in turns with all others
_ROUNDS_APART = 2


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One case. Where `failure` says why, it was not timed. Seconds; 0.0 where there is nothing.

    Attributes:
        first_s: of the model's first choice that builds and is right: no measuring would have shipped it.
        default_s: of dlight's default schedule. library_s: of the fastest of PyTorch's ways.
        winner, first: the candidates. note: what is missing from the row, and why.
        tune_s: from the candidates to the order of those that were timed; processes were warm.
        limit_s: what the bytes take at the published bandwidth of DRAM.
    """

    name: str
    published: Published | None
    bar: float
    failure: str = ""
    best_s: float = 0.0
    first_s: float = 0.0
    default_s: float = 0.0
    library_s: float = 0.0
    tune_s: float = 0.0
    limit_s: float = 0.0
    winner: str = ""
    first: str = ""
    tried: int = 0
    failed: int = 0
    note: str = ""
    quality: tuple[WorkloadQuality, ...] = ()

    @property
    def to_default(self) -> float:
        """dlight's latency over subtune's."""
        return self.default_s / self.best_s if self.best_s else 0.0

    @property
    def to_library(self) -> float:
        return self.library_s / self.best_s if self.best_s else 0.0

    @property
    def verdict(self) -> str:
        """yes: the document's speed-up over its own rival at least, and the library's bar; "-" where not timed."""
        if not self.best_s:
            return "-"
        wanted = [not self.library_s or self.to_library >= self.bar]
        if self.published is not None and self.published.rival == "dlight":
            wanted += [self.to_default >= self.published.speedup]
        if self.published is not None and self.published.rival == "library" and self.library_s:
            wanted += [self.to_library >= 1.0]
        return "yes" if all(wanted) else "no"


@dataclass(frozen=True, slots=True)
class GpuReport:
    """`first_within`: the share of rows whose first choice is within `FIRST_BAR` of the winner."""

    suite: str
    device: str
    rows: tuple[GpuRow, ...]
    quality: Quality
    is_interrupted: bool = False

    @property
    def first_within(self) -> float:
        both = [row for row in self.rows if row.first_s and row.best_s]
        return sum(row.first_s <= FIRST_BAR * row.best_s for row in both) / len(both) if both else 0.0


FIRST_BAR = 1.15


def run_gpu(
    suite: str,
    cases: Iterable[GpuCase],
    settings: Settings,
    keep: Callable[[GpuReport], Any] = lambda report: None,
) -> GpuReport:
    """Tune and time every case; a failing one is a row that says why. Ctrl-C ends the suite after what is done."""
    device = gpu_of(settings)

    def summary(rows: list[GpuRow], is_interrupted: bool) -> GpuReport:
        quality = summarize(one for row in rows for one in row.quality)
        return GpuReport(suite, device.fingerprint(), tuple(rows), quality, is_interrupted)

    with _warm(device) as measurer:
        return run_cases(cases, lambda case: _run(case, settings, device, measurer), summary, keep)


def gpu_of(settings: Settings) -> Device:
    """The GPU that the settings name, or this machine's. Raises BenchError for a target that is none."""
    return settings.device("cuda", _target(settings))


def _target(settings: Settings) -> Any:
    """What the user named; this machine's GPU, where that is left to subtune."""
    target = settings.option("target") or "auto"
    return "cuda" if target == "auto" else target


@contextmanager
def _warm(device: Device) -> Iterator[LocalMeasurer]:
    """A measurer whose processes have loaded TVM: that is no part of any row's tuning."""
    tiny = GpuOp("copy", (128, 128)).workload()
    with LocalMeasurer() as measurer:
        candidates = backends.candidates(tiny, device, 20)
        with measurer.session(tiny, device) as session:
            session.build([DEFAULT, *candidates], math.inf)
            session.time(DEFAULT, 0.001, math.inf)
        yield measurer


def _run(case: GpuCase, settings: Settings, device: Device, measurer: LocalMeasurer) -> GpuRow:
    settings.tell(case.name)
    try:
        if case.op is None:
            return _network(case, settings)
        return _operator(case, case.op, settings, case.on(device), measurer)
    except Exception as e:  # whatever one row meets, the others are still to be measured
        return GpuRow(case.name, case.published, case.bar, failure=reason(e))


def _operator(case: GpuCase, op: GpuOp, settings: Settings, device: Device, measurer: LocalMeasurer) -> GpuRow:
    workload = op.workload()
    with temporary() as scratch, ThreadPoolExecutor(1) as beside, measurer.session(workload, device) as session:
        begin = time.monotonic()
        proposals = backends.candidates(workload, device, int(settings.option("topk") or 20))
        # PyTorch is loaded while kernels are built: the GPU has nothing to time yet
        peer = None if "none" in settings.against else beside.submit(_peer, op, device, settings, scratch)
        try:
            built = session.build([DEFAULT, *proposals], math.inf)
            built_s = time.monotonic() - begin
            peer_worker, note = _loaded(peer)
            begin = time.monotonic()
            outcomes: dict[Candidate, Timing | Failure] = {c: b for c, b in built.items() if isinstance(b, Failure)}
            order = halve(session, [c for c in proposals if c not in outcomes], math.inf, outcomes.__setitem__)
            tune_s = built_s + time.monotonic() - begin
            first = next((c for c in proposals if isinstance(outcomes.get(c), Timing)), DEFAULT)
            finalists = list(dict.fromkeys([*order[:_FINALISTS], first, DEFAULT]))
            samples, more = _in_turns(session, finalists, peer_worker, settings)
        finally:
            if peer is not None and not peer.exception():
                peer.result().close()
    measurements = [Measurement(c, o, 0.0) for c, o in outcomes.items() if c != DEFAULT]
    settings.database.add_measurements(workload, device.scope(), measurements)
    found = of_measurements(workload.key, measurements)
    winner = min((c for c in samples if isinstance(c, Candidate)), key=lambda c: median(samples[c]), default=DEFAULT)
    return GpuRow(
        case.name, case.published, case.bar,
        best_s=_median(samples.get(winner)),
        first_s=_median(samples.get(first)),
        default_s=_median(samples.get(DEFAULT)),
        library_s=_median(samples.get(OPERATOR)),
        tune_s=tune_s,
        limit_s=workload.nbytes / device.model.dram_bytes_per_s,
        winner=str(winner),
        first=str(first),
        tried=len(measurements),
        failed=sum(isinstance(o, Failure) for o in outcomes.values()),
        note="; ".join(filter(None, (note, *more))),
        quality=(found,) if found else (),
    )  # fmt: skip


def _peer(op: GpuOp, device: Device, settings: Settings, scratch: Path) -> Worker:
    """PyTorch's process for this operator. Raises BenchError where it has none."""
    description = scratch / "op.json"
    description.write_text(op.to_json())
    job = Job(
        OPERATOR,
        str(description),
        device.model.host.threads,
        allow_tf32=device.numerics.tf32,
        kind=device.backend.kind,
    )
    return Worker(job, settings.pace.timeout_s)


def _loaded(peer: Future[Worker] | None) -> tuple[Worker | None, str]:
    """The process, or why there is none."""
    if peer is None:
        return None, ""
    try:
        return peer.result(), ""
    except BenchError as e:
        return None, str(e)


def _in_turns(
    session: Session, candidates: list[Candidate], peer: Worker | None, settings: Settings
) -> tuple[dict[Candidate | str, list[float]], list[str]]:
    """Seconds of each candidate and of PyTorch, one of every round; and why some of them are missing.

    Under its power limit a GPU's clock follows what ran before. So every other round is in reverse order, a long
    kernel's turn begins with a while that does not count, and dlight's kernel has its rounds when the others are done
    where it is a long one: whoever followed it would find a cool GPU.
    """
    samples: dict[Candidate | str, list[float]] = {c: [] for c in candidates}
    notes = []

    def time_candidate(candidate: Candidate) -> None:
        if candidate not in samples:
            return
        outcome = session.time(candidate, settings.pace.round_s, math.inf)  # settles long ones by itself
        if isinstance(outcome, Timing):
            samples[candidate].append(outcome.median_s)
        else:
            notes.append(f"{candidate}: {outcome.message}")
            del samples[candidate]

    launches = 3

    def time_peer() -> None:
        nonlocal launches
        assert peer is not None
        turn = peer.time(launches, 1, settings.pace.timeout_s)
        seconds, each_s = turn.seconds, turn.wall_s / len(turn.seconds)
        launches = max(3, min(_MAX_LAUNCHES, int(settings.pace.round_s / max(each_s, 1e-6))))
        if median(seconds) > LONG_CALL_S:
            settling = int(SETTLE_S / each_s)
            seconds = peer.time(settling + launches, 0, settings.pace.timeout_s).seconds[settling:]
        samples.setdefault(OPERATOR, []).append(median(seconds))

    time_candidate(DEFAULT)
    apart = _median(samples.get(DEFAULT)) > LONG_CALL_S
    turns: list[Callable[[], None]] = [partial(time_candidate, c) for c in candidates if not (apart and c == DEFAULT)]
    if peer is not None:
        turns.append(time_peer)
    for index in range(settings.pace.rounds):
        for turn in turns if index % 2 == 0 else reversed(turns):
            turn()
    for _ in range(_ROUNDS_APART if apart else 0):
        time_candidate(DEFAULT)
    return samples, notes


def _median(samples: list[float] | None) -> float:
    return median(samples) if samples else 0.0


def _network(case: GpuCase, settings: Settings) -> GpuRow:
    """A model, compiled with the defaults and raced as whole calls without copies from and to the host."""
    with temporary() as scratch:
        artifact = scratch / "model.subtune"
        compiled = settings.compile(case.model, artifact, precision=case.precision, target=_target(settings))
        if compiled.is_interrupted:
            raise KeyboardInterrupt
        manifest = read_manifest(artifact)
        with onnx_file(manifest.source, scratch) as (model, limits):
            report = bench(
                artifact,
                model=model,
                against=[name for name in settings.against if name in AGAINST],
                rounds=settings.pace.rounds,
                round_s=settings.pace.round_s,
                timeout_s=settings.pace.timeout_s,
                limits=limits,
            )
    rows: dict[str, BenchRow] = {row.framework: row for row in report.rows}
    ours, default = rows["subtune"], rows.get("dlight")
    library = best_peer(report.rows, LIBRARIES)
    # ratios are of rounds: what drifts between them cancels
    return GpuRow(
        case.name, case.published, case.bar,
        best_s=ours.median_s,
        default_s=ours.median_s * default.ratio if default else 0.0,
        library_s=ours.median_s * library.ratio if library else 0.0,
        tune_s=compiled.seconds.get("tune", 0.0),
        winner=f"{len(compiled.rows)} subgraphs",
        tried=sum(row.tried for row in compiled.rows),
        failed=sum(row.failed for row in compiled.rows),
        note="; ".join(f"{name}: {why}" for name, why in report.failures),
        quality=of_workloads(settings.database, [entry.workload for entry in manifest.subgraphs], manifest),
    )  # fmt: skip
