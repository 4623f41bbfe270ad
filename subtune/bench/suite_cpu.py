"""`subtune bench --suite cpu`: the zoo at full size, compiled with the defaults and raced against the frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from subtune.artifact import manifest as manifests
from subtune.bench.artifact_race import BenchReport, bench
from subtune.bench.quality import Quality, WorkloadQuality, of_workloads, summarize
from subtune.bench.race import best_peer
from subtune.bench.source import onnx_file
from subtune.bench.suite import Settings, reason, run_cases
from subtune.core.errors import SubtuneError
from subtune.core.scratch import temporary

AGAINST = ("onnxruntime", "openvino-f32", "openvino", "torch-compile")
_F32_PEERS = ("onnxruntime", "openvino-f32", "torch-compile")
_BF16_PEERS = ("openvino",)


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A model and its bars: the ratio to the best peer that it has to reach; 0.0 where none is set.

    `bar` is for float32, `exact_bar` for `--exact`, `bf16_bar` for `--precision bf16` against OpenVINO's default.
    """

    name: str
    model: str
    bar: float = 0.0
    exact_bar: float = 0.0
    bf16_bar: float = 0.0


MODELS = (
    ModelCase("resnet18", "zoo:resnet18", 1.5, 1.0, 1.1),
    ModelCase("resnet18-b8", "zoo:resnet18?batch=8", 1.5, 1.0, 1.1),
    ModelCase("resnet50", "zoo:resnet50", 1.25),
    ModelCase("vgg16", "zoo:vgg16", 1.25),
    ModelCase("unet", "zoo:unet", 1.25),
    ModelCase("mobilenet_v2", "zoo:mobilenet_v2", 1.4),
    ModelCase("efficientnet_lite0", "zoo:efficientnet_lite0", 1.4),
    ModelCase("bert", "zoo:bert", 1.15, 0.0, 1.1),
    ModelCase("mlp", "zoo:mlp", 1.08),
    ModelCase("vit", "zoo:vit", 1.08),
    ModelCase("squeezenet", "zoo:squeezenet", 1.08),
    ModelCase("gpt2", "zoo:gpt2", 1.08),
    ModelCase("lstm", "zoo:lstm"),
)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model: what compiling it took, and the race. Where `failure` says why, there was none.

    Attributes:
        best: the fastest of the peers that the bar is about and that agree; "" if there is none.
        ratio: its latency over subtune's.
        tune_s, compile_s: seconds of tuning alone (0 from a full database), and of the whole compile.
        tried, failed: candidates of the model's subgraphs, this run's or an earlier one's.
        untuned: subgraphs that run on the default schedule because nothing was measured: the budget, or a failure.
        verified: with what the compile compared the whole model.
    """

    name: str
    failure: str = ""
    bar: float = 0.0
    best: str = ""
    ratio: float = 0.0
    tune_s: float = 0.0
    compile_s: float = 0.0
    subgraphs: int = 0
    tried: int = 0
    failed: int = 0
    untuned: int = 0
    verified: str = ""
    report: BenchReport | None = None
    quality: tuple[WorkloadQuality, ...] = ()

    @property
    def verdict(self) -> str:
        """yes or no; "-" where no bar is set, ? where no peer that counts could be timed."""
        if not self.bar:
            return "-"
        if not self.best:
            return "?"
        return "yes" if self.ratio >= self.bar else "no"


@dataclass(frozen=True, slots=True)
class CpuReport:
    """`mode`: f32, exact or bf16. An interrupted suite holds the rows that were finished."""

    mode: str
    threads: int
    device: str
    against: tuple[str, ...]
    rows: tuple[ModelRow, ...]
    quality: Quality
    is_interrupted: bool = False


def run_cpu(
    cases: Iterable[ModelCase], settings: Settings, keep: Callable[[CpuReport], Any] = lambda report: None
) -> CpuReport:
    """Compile and race every case. One that fails is a row that says why; Ctrl-C ends the suite after what is done.

    Args:
        keep: called with the report so far after every case.
    """
    return run_cases(
        cases,
        lambda case: _run(case, settings),
        lambda rows, is_interrupted: _report(rows, settings, is_interrupted),
        keep,
    )


def _run(case: ModelCase, settings: Settings) -> ModelRow:
    with temporary() as scratch:
        artifact = scratch / f"{case.name}.subtune"
        settings.tell(f"{case.name}: compile")
        try:
            compiled = settings.compile(case.model, artifact)
        except Exception as e:  # whatever one model meets, the others are still to be measured
            return ModelRow(case.name, failure=f"not compiled: {reason(e)}")
        if compiled.is_interrupted:
            raise KeyboardInterrupt
        manifest = manifests.read(artifact)
        keys = [entry.workload for entry in manifest.subgraphs]
        compile_figures: dict[str, Any] = {
            "bar": _bar(case, _mode(settings)),
            "tune_s": compiled.seconds.get("tune", 0.0),
            "compile_s": sum(compiled.seconds.values()),
            "subgraphs": len(compiled.rows),
            "tried": sum(row.tried for row in compiled.rows),
            "untuned": sum(not row.tuned_s for row in compiled.rows),
            "failed": sum(row.failed for row in compiled.rows),
            "verified": compiled.verified,
            "quality": of_workloads(settings.database, keys, manifest),
        }
        settings.tell(f"{case.name}: time")
        try:
            with onnx_file(manifest.source, scratch) as (model, limits):
                report = bench(
                    artifact,
                    model=model,
                    against=settings.against,
                    rounds=settings.pace.rounds,
                    round_s=settings.pace.round_s,
                    timeout_s=settings.pace.timeout_s,
                    limits=limits,
                )
        except SubtuneError as e:
            return ModelRow(case.name, failure=f"not timed: {e}", **compile_figures)
    best = best_peer(report.rows, _BF16_PEERS if _mode(settings) == "bf16" else _F32_PEERS)
    return ModelRow(
        case.name,
        best=best.framework if best else "",
        ratio=best.ratio if best else 0.0,
        report=report,
        **compile_figures,
    )


def _mode(settings: Settings) -> str:
    precision = settings.option("precision")
    return (
        str(precision)
        if precision not in (None, "f32", "fp32", "float32")
        else ("exact" if settings.option("exact") else "f32")
    )


def _bar(case: ModelCase, mode: str) -> float:
    return {"f32": case.bar, "exact": case.exact_bar, "bf16": case.bf16_bar}.get(mode, 0.0)


def _report(rows: list[ModelRow], settings: Settings, is_interrupted: bool) -> CpuReport:
    device = settings.device("cpu")
    quality = summarize(one for row in rows for one in row.quality)
    return CpuReport(
        _mode(settings),
        device.model.host.threads,
        device.fingerprint(),
        settings.against,
        tuple(rows),
        quality,
        is_interrupted,
    )
