"""Every layer compiled once for all its shapes, and for each shape alone; then raced at some of them.

One process for each framework goes from shape to shape, so that PyTorch compiles once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from subtune.artifact import manifest as manifests
from subtune.backends.base import Device
from subtune.bench.coverage.lane import Lane
from subtune.bench.dietcode.cases import LayerCase
from subtune.bench.dietcode.report import DietcodeReport, LayerRow, Point
from subtune.bench.job import BenchError, Job
from subtune.bench.op_case import TO_NHWC
from subtune.bench.peers import BUCKETS, ONE_KERNEL, STATIC, peers_of
from subtune.bench.race import cores_for, outputs_of, run_race, write_inputs
from subtune.bench.suite import Settings, reason, run_cases
from subtune.core.scratch import temporary
from subtune.database import Database
from subtune.measure import LocalMeasurer
from subtune.report.compile_report import CompileReport

AGAINST = {"cpu": ("onnxruntime", "torch", "torch-dynamic"), "cuda": ("torch-graph", "torch-dynamic")}


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A layer's artifacts: for all shapes, with one kernel for all, and by value for each alone."""

    dynamic: CompileReport
    one: CompileReport
    static: Mapping[int, CompileReport]


def run_dietcode(
    cases: Iterable[LayerCase], settings: Settings, keep: Callable[[DietcodeReport], Any] = lambda report: None
) -> DietcodeReport:
    """Compile and race every case. One that fails is a row that says why; Ctrl-C ends the suite after what is done.

    Each case is tuned from an empty database: what tuning takes is among the results.

    Args:
        keep: called with the report so far after every case.
    """
    device = device_for(settings)
    against = settings.against or AGAINST[device.backend.kind]
    settings = replace(settings, against=() if against == ("none",) else against)

    def summary(rows: list[LayerRow], is_interrupted: bool) -> DietcodeReport:
        threads = device.model.host.threads
        return DietcodeReport(threads, device.fingerprint(), settings.against, tuple(rows), is_interrupted)

    with LocalMeasurer() as measurer:  # its processes are warm for every compile: what starts them is no tuning
        return run_cases(cases, lambda case: _run(case, settings, device, measurer), summary, keep)


def device_for(settings: Settings) -> Device:
    """What the settings name, or this machine's processor. Raises BenchError for frameworks that it does not have."""
    device = settings.any_device()
    if settings.against != ("none",):
        peers_of(device.backend.kind).require(settings.against)
    return device


def _run(case: LayerCase, settings: Settings, device: Device, measurer: LocalMeasurer) -> LayerRow:
    with temporary() as scratch, Database(scratch / "tuning.db") as database:
        try:
            measurer.start(device)
            compiled = _compiled(case, replace(settings, database=database), scratch, measurer)
            points = _raced(case, compiled, settings, device, scratch)
        except Exception as e:  # whatever one case meets, the others are still to be measured
            return LayerRow(case.name, failure=reason(e))
    (layer, *_) = sorted(compiled.dynamic.dynamic, key=lambda row: -row.greatest_s)
    seconds = {value: report.seconds["tune"] for value, report in compiled.static.items()}
    return LayerRow(
        case.name,
        case.symbol,
        case.most,
        points,
        kernels=layer.kernels,
        expected_regret=layer.worst_regret,
        code_bytes=compiled.dynamic.code_bytes,
        one_bytes=compiled.one.code_bytes,
        static_bytes=sum(compiled.static[value].code_bytes for value in case.measured),
        tune_s=compiled.dynamic.seconds["tune"],
        static_s=sum(seconds[value] for value in case.measured),
        buckets_s=sum(seconds[value] for value in case.buckets),
        tried=sum(row.tried for row in compiled.dynamic.dynamic),
        failed=sum(row.failed for row in compiled.dynamic.dynamic),
    )


def _compiled(case: LayerCase, settings: Settings, scratch: Path, measurer: LocalMeasurer) -> _Compiled:
    def compiled(name: str, value: int | None = None, **more: Any) -> CompileReport:
        settings.tell(f"{case.name}: {name}")
        dynamic = {} if value else {"dynamic": {case.symbol: case.domain}}
        place = scratch / f"{name}.subtune"
        # the race compares the results
        report = settings.compile(case.model(True, value), place, False, measurer=measurer, **dynamic, **more)
        if report.is_interrupted:
            raise KeyboardInterrupt
        return report

    # The same measurements serve both. Only what is chosen of them differs.
    dynamic, one = compiled("all shapes"), compiled("one kernel", max_kernels=1)
    values = sorted({*case.measured, *case.buckets})
    return _Compiled(dynamic, one, {value: compiled(f"{case.symbol} {value}", value) for value in values})


def _raced(
    case: LayerCase, compiled: _Compiled, settings: Settings, device: Device, scratch: Path
) -> tuple[Point, ...]:
    models = {nhwc: scratch / f"model-{nhwc}.onnx" for nhwc in (False, True)}
    for nhwc, path in models.items():
        onnx.save(case.model(nhwc), path)
    points = []
    with closing(Lane(settings.pace.timeout_s, side_by_side=False)) as lane:
        for value in case.measured:
            settings.tell(f"{case.name}: time, {case.symbol} {value}")
            folder = scratch / str(value)
            folder.mkdir()
            paths = _paths(case, compiled, value)
            jobs = _jobs(case, value, paths, models, settings, device, folder)
            loaded = lane.load(jobs)
            if "subtune" in loaded.reasons:
                raise BenchError(f"subtune: {loaded.reasons['subtune']}")
            expected = outputs_of(jobs[0])
            race = run_race(list(loaded.workers.values()), list(loaded.reasons.items()), settings.pace, expected)
            points.append(Point(value, race))
            shutil.rmtree(folder)
    return tuple(points)


def _paths(case: LayerCase, compiled: _Compiled, value: int) -> dict[str, str]:
    """Artifacts, by who runs them."""
    return {
        "subtune": compiled.dynamic.path,
        STATIC: compiled.static[value].path,
        BUCKETS: compiled.static[case.bucket(value)].path,
        ONE_KERNEL: compiled.one.path,
    }


def _jobs(
    case: LayerCase,
    value: int,
    artifacts: Mapping[str, str],
    models: Mapping[bool, Path],
    settings: Settings,
    device: Device,
    folder: Path,
) -> list[Job]:
    """subtune's four ways, and the peers."""
    kind, threads = device.backend.kind, device.model.host.threads
    peers = peers_of(kind)
    precision = manifests.read(Path(artifacts["subtune"])).source.precision
    arrays = {nhwc: case.arrays(nhwc, value) for nhwc in (False, True)}
    inputs = {nhwc: write_inputs(folder / f"inputs-{nhwc}.npz", arrays[nhwc]) for nhwc in (False, True)}
    names = tuple(f"x{index}" for index in range(len(arrays[True])))
    own = {name: path for name, path in artifacts.items() if name in peers.loaders}
    jobs = []
    for framework in (*own, *settings.against):
        nhwc = framework in own or framework.startswith("torch")  # in each framework's own layout of images
        jobs.append(
            Job(
                framework,
                own.get(framework, str(models[nhwc])),
                threads,
                inputs[nhwc],
                names,
                ("float32",) * len(names),
                str(folder / f"{framework}.npz"),
                to_ours=TO_NHWC if case.layer.is_image and not nhwc else (),
                cores=cores_for(threads) if peers.is_pinned else (),
                precision=precision,
                allow_tf32=device.numerics.tf32,
                kind=kind,
            )
        )
    return jobs
