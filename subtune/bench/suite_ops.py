"""`subtune bench --suite cpu-ops`: single operators beside other frameworks and beside the processor's own limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from subtune.artifact import manifest as manifests
from subtune.backends.cpu import limits
from subtune.bench.job import BenchError, Job
from subtune.bench.op_case import TO_NHWC, OpCase
from subtune.bench.ops_compute import COMPUTE
from subtune.bench.ops_memory import MEMORY
from subtune.bench.peers_cpu import LIMITS, OWN_ACCOUNTS
from subtune.bench.quality import Quality, WorkloadQuality, of_workloads, summarize
from subtune.bench.race import Race, best_peer, cores_for, race, write_inputs
from subtune.bench.suite import Settings, reason, run_cases
from subtune.core.manifest import Manifest
from subtune.core.scratch import temporary
from subtune.report.compile_report import CompileReport

AGAINST = ("onnxruntime", "openvino-f32", "torch", "numpy")
CASES = (*COMPUTE, *MEMORY)

_PEAK_BAR = 0.9
"""Of the multiply-adds the processor can do; being ahead of the best peer will do as well, in whole calls and, where
that is known, in operators alone."""
_COPY_BAR = 0.85
_NHWC_FRAMEWORKS = ("subtune", "torch", "torch-compile")


@dataclass(frozen=True, slots=True)
class OpRow:
    """One operator. Where `failure` says why, it was not timed.

    Attributes:
        kernel_s: sum of the medians the tuner measured, without a call's overhead; 0.0 if a kernel was not tuned.
        share, kernel_share: of the limit, which is `fma` (operations) or `copy` (bytes): of a whole call, and of the
            kernels alone, whose copy comes from L3 at best, as their arguments do. Above 1 where Winograd needs fewer
            operations, or where little of what is read is written.
        best: the fastest peer that agrees, "" if there is none; `ratio` is its latency over subtune's.
        op_ratio: of an image operator, the least time that a peer says its operators took (without its layout changes
            and without the call) over `kernel_s`; 0.0 if none says.
        verdict: yes, no, or kernel: the bar is reached by the kernels, not by a whole call.
        untuned: kernels that run on the default schedule because nothing was measured.
    """

    name: str
    failure: str = ""
    limit: str = ""
    kernel_s: float = 0.0
    share: float = 0.0
    kernel_share: float = 0.0
    best: str = ""
    ratio: float = 0.0
    op_ratio: float = 0.0
    verdict: str = ""
    winners: tuple[str, ...] = ()
    untuned: int = 0
    tune_s: float = 0.0
    race: Race | None = None
    quality: tuple[WorkloadQuality, ...] = ()


@dataclass(frozen=True, slots=True)
class OpsReport:
    """As `CpuReport`. `peak_flops` is the highest that the peak's own kernel reached in any row, 0.0 if none."""

    threads: int
    device: str
    against: tuple[str, ...]
    rows: tuple[OpRow, ...]
    quality: Quality
    peak_flops: float
    is_interrupted: bool = False


def run_ops(
    cases: Iterable[OpCase], settings: Settings, keep: Callable[[OpsReport], Any] = lambda report: None
) -> OpsReport:
    """Compile and race every case; failures and Ctrl-C as `suite_cpu.run_cpu`."""
    return run_cases(
        cases,
        lambda case: _run(case, settings),
        lambda rows, is_interrupted: _report(rows, settings, is_interrupted),
        keep,
    )


def _run(case: OpCase, settings: Settings) -> OpRow:
    with temporary() as scratch:
        artifact = scratch / "op.subtune"
        settings.tell(case.name)
        try:
            # Verification would use inputs up to 1, where the values that the case makes small grow beyond all digits;
            # the race compares outputs, too.
            compiled = settings.compile(case.model(nhwc=True), artifact, verify=case.scale == 1.0)
        except Exception as e:  # whatever one operator meets, the others are still to be measured
            return OpRow(case.name, failure=f"not compiled: {reason(e)}")
        if compiled.is_interrupted:
            raise KeyboardInterrupt
        manifest = manifests.read(artifact)
        device = settings.device("cpu")
        cpu = limits.cpu_of(device)
        library = scratch / "limit.so"
        if case.flops:
            limits.build_fma(library, cpu)
            work, most = case.flops, limits.fma_flops(cpu)
        else:
            work = _nbytes(manifest)
            most = limits.build_copy(library, cpu, int(work))
        jobs = _jobs(case, artifact, manifest, settings.against, library, scratch)
        try:
            result = race(jobs, settings.pace)
        except BenchError as e:
            return OpRow(case.name, failure=f"not timed: {e}")
        return _row(
            case,
            result,
            work,
            most,
            compiled,
            of_workloads(settings.database, [entry.workload for entry in manifest.subgraphs], manifest),
        )


def _jobs(
    case: OpCase, artifact: Path, manifest: Manifest, against: Sequence[str], library: Path, scratch: Path
) -> list[Job]:
    """subtune, the peers, and the limit."""
    cores = cores_for(manifest.threads)
    arrays = {nhwc: write_inputs(scratch / f"inputs-{nhwc}.npz", case.arrays(nhwc)) for nhwc in (False, True)}
    models = {nhwc: scratch / f"model-{nhwc}.onnx" for nhwc in (False, True)}
    for nhwc, path in models.items():
        onnx.save(case.model(nhwc), path)
    names = tuple(spec.name for spec in manifest.inputs)
    jobs = []
    # Their word is asked where they change layouts and subtune does not.
    accounts = [OWN_ACCOUNTS[name] for name in against if name in OWN_ACCOUNTS] if case.is_image else []
    for framework in ("subtune", *against, *accounts):
        nhwc = framework in _NHWC_FRAMEWORKS
        jobs.append(
            Job(
                framework,
                str(artifact if framework == "subtune" else models[nhwc]),
                manifest.threads,
                arrays[nhwc],
                names,
                outputs=str(scratch / f"{framework}.npz"),
                target=manifest.target,
                to_ours=TO_NHWC if case.is_image and not nhwc else (),
                cores=cores,
            )
        )
    limit_names = ("fma",) if case.flops else ("copy", "copy-cold")
    return [*jobs, *(Job(name, str(library), manifest.threads, cores=cores) for name in limit_names)]


def _nbytes(manifest: Manifest) -> float:
    """Of all inputs and outputs, float32: what has to be read and written at least."""
    return sum(4.0 * math.prod(spec.sizes) for spec in (*manifest.inputs, *manifest.outputs))


def _row(
    case: OpCase, result: Race, work: float, most: float, compiled: CompileReport, quality: tuple[WorkloadQuality, ...]
) -> OpRow:
    ours = result.row("subtune")
    limit = result.row("fma" if case.flops else "copy")
    assert ours is not None
    untuned = sum(not row.tuned_s for row in compiled.rows)
    kernel_s = 0.0 if untuned else compiled.tuned_s
    # The ratio is the limit's latency over subtune's, so this is subtune's speed over the limit's.
    share = work / most * limit.ratio if limit else 0.0
    # The tuner's kernels find their arguments in L3 at best: so does the copy that they are compared with.
    cold = limit if case.flops else result.row("copy-cold")
    kernel_share = work / most * cold.median_s / kernel_s if cold and kernel_s else 0.0
    accounts = OWN_ACCOUNTS.values()
    peers = [r.framework for r in result.rows[1:] if r.framework not in (*LIMITS, *accounts)]
    best = best_peer(result.rows, (case.rival,) if case.rival else peers)
    ratio = best.ratio if best else 0.0
    said = best_peer(result.rows, tuple(accounts))
    # A call is no shorter than its kernels, whatever disturbed them while they were tuned.
    op_ratio = said.median_s / min(kernel_s, ours.median_s) if said and kernel_s else 0.0
    if case.bar:
        verdict = "yes" if ratio >= case.bar else "no"
    else:
        bar = _PEAK_BAR if case.flops else _COPY_BAR
        is_ahead = bool(case.flops) and ratio >= 1 and not 0 < op_ratio < 1
        verdict = "yes" if share >= bar or is_ahead else "kernel" if kernel_share >= bar else "no"
    # numpy is a peer where it has a function, and no loss where it has none
    failures = tuple(f for f in result.failures if not (f[0] == "numpy" and "NotImplementedError" in f[1]))
    return OpRow(
        case.name,
        limit="fma" if case.flops else "copy",
        kernel_s=kernel_s,
        share=share,
        kernel_share=kernel_share,
        best=best.framework if best else "",
        ratio=ratio,
        op_ratio=op_ratio,
        verdict=verdict,
        winners=tuple(row.candidate for row in compiled.rows),
        untuned=untuned,
        tune_s=compiled.seconds.get("tune", 0.0),
        race=Race(result.rows, failures, result.foreign_cores),
        quality=quality,
    )


def _report(rows: list[OpRow], settings: Settings, is_interrupted: bool) -> OpsReport:
    device = settings.device("cpu")
    peaks = [row.race.row("fma") for row in rows if row.race is not None]
    fastest = min((peak.median_s for peak in peaks if peak), default=0.0)
    return OpsReport(
        device.model.host.threads,
        device.fingerprint(),
        settings.against,
        tuple(rows),
        summarize(one for row in rows for one in row.quality),
        limits.fma_flops(limits.cpu_of(device)) / fastest if fastest else 0.0,
        is_interrupted,
    )
