"""FastDlight's interface over subtune's policies and templates: one PrimFunc, or every PrimFunc of a module.

    arch = CUDA(target)
    configs = DefaultPolicy(func=func, arch=arch).emit_config(20)
    results, best = apply_and_build(func, configs, arch, parallel_build=True)

A config is a `Candidate`, a result what became of it. Everything is timed on the GPU of this machine, checked first,
in processes of its own; without one the kernels are built, and `best` is the one predicted fastest.
Source: the FastDlight RFC (TVM discussion forum, 2024): names and usage are its.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import tirx

from subtune import backends
from subtune.backends.cuda.device import CUDA, CUDAModel
from subtune.backends.cuda.families.mma.tiling import tensor_core_obstacle
from subtune.backends.cuda.lowering.default_schedule import pipeline
from subtune.backends.cuda.source.gemm_form import widened
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from subtune.database import MetaScheduleWriter
from subtune.frontends import Parameters
from subtune.measure import LocalMeasurer, Measurer
from subtune.patterns.gemm import gemm
from subtune.pipeline import prepare
from subtune.tuning.search import Search, Single, tune

_OF_THE_RFC = Numerics(exact=True)
"""Tensor cores are for the types that they multiply: no float32 as sums of two numbers of tf32."""
_log = logging.getLogger(__name__)

_STAGES_TAG, _ASYNC_TAG, _AXES_TAG = "pipeline_stage", "use_async_copy", "tensorcore_config"


@dataclass(frozen=True, slots=True)
class DefaultPolicy:
    """Candidates for any function on CUDA cores: products, reductions, elementwise."""

    func: tirx.PrimFunc  # unscheduled, in destination-passing style
    arch: CUDAModel

    def emit_config(self, topk: int) -> list[Candidate]:
        """At most `topk`, the one predicted fastest first."""
        device = replace(backends.as_device(self.arch), numerics=Numerics(tensor_core="off"))
        return list(backends.candidates(workload_of(self.func), device, topk))


@dataclass(frozen=True, slots=True)
class TensorCorePolicy:
    """Candidates for a product on tensor cores.

    Args:
        tags: as `get_tensorized_func_and_tags` gives them. "pipeline_stage" and "use_async_copy" are the least that is
            asked for where it is possible, not the only thing that is tried.

    Raises (on `emit_config`):
        SubtuneError: the function does not qualify, and why.
    """

    func: tirx.PrimFunc
    arch: CUDAModel
    tags: Mapping[str, Any] = field(default_factory=dict)

    def emit_config(self, topk: int) -> list[Candidate]:
        """At most `topk`, the one predicted fastest first."""
        if reason := tensor_core_reason(self.func, self.arch):
            raise SubtuneError(f"the function cannot run on tensor cores: {reason}; take DefaultPolicy for it.")
        device = replace(backends.as_device(self.arch), numerics=Numerics(tensor_core="only"))
        found = backends.candidates(workload_of(self.func), device, 4 * topk)
        wanted = [c for c in found if c.family != "cuda.simt"]
        if self.tags.get(_ASYNC_TAG):
            least = int(self.tags.get(_STAGES_TAG, 2))
            wanted.sort(key=lambda c: int(c.get("stages") or least) < least)  # stable: best first within each half
        return wanted[:topk]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What became of a config: its kernel, and its `Timing` or why there is none."""

    config: Candidate
    kernel: Kernel | None
    outcome: Timing | Failure

    @property
    def latency(self) -> float:
        """Milliseconds of one call, as the RFC's tables have it; infinite where it was not timed."""
        return self.outcome.median_s * 1e3 if isinstance(self.outcome, Timing) else math.inf

    @property
    def code(self) -> str:
        """The CUDA source that ships; empty where the config does not apply."""
        return _source(self.kernel.func) if self.kernel is not None else ""

    @property
    def sch(self) -> Any:
        """The scheduled module, None where the config does not apply."""
        return tvm.IRModule({"main": self.kernel.func}) if self.kernel is not None else None


def workload_of(func: tirx.PrimFunc) -> Workload:
    """The PrimFunc as a workload. Its outputs are the parameters that it stores to, and come last.

    Sums of half precision are float32 in it, as every library has them: a sum of many halves is no reference.
    """
    import tvm_ffi

    stored: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda node: stored.append(node.buffer)))
    is_output = [any(param.same_as(buffer) for buffer in stored) for param in func.params]
    count = sum(is_output)
    if not count or not all(is_output[-count:]):
        raise SubtuneError("the function must take its inputs first and then the buffers it writes; give it that form.")
    return Workload.of(widened(func), count)


def tensor_core_reason(func: tirx.PrimFunc, arch: CUDAModel) -> str:
    """Why tensor cores cannot compute `func`; "" where they can."""
    form = gemm(workload_of(func))
    return form.reason if isinstance(form, NotApplicable) else tensor_core_obstacle(form, arch, _OF_THE_RFC)


def get_tensorized_func_and_tags(func: tirx.PrimFunc, target: Any) -> tuple[Any, dict[str, Any] | None]:
    """`func` and the tags for `TensorCorePolicy`, or `func` and None where tensor cores do not apply (logged why).

    The function stays as it is: the templates bring it into the form that tensor cores take.
    """
    arch = CUDA(target)
    if reason := tensor_core_reason(func, arch):
        _log.info("no tensor cores: %s", reason)
        return func, None
    rank = max(2, len(workload_of(func).args[-1].shape))
    return func, {_AXES_TAG: [rank - 2, rank - 1], _STAGES_TAG: 2, _ASYNC_TAG: 1}


def apply_and_build(
    func: tirx.PrimFunc, configs: Sequence[Candidate], arch: CUDAModel, parallel_build: bool = True
) -> tuple[list[BuildResult], BuildResult | None]:
    """Build and time `configs`; the results in their order, and the fastest (None where nothing builds).

    Args:
        parallel_build: on all cores that this process may use, or on one.
    """
    if arch.obstacle():
        return _predicted(func, configs, arch)
    with LocalMeasurer(builders=None if parallel_build else 1) as measurer:
        return _measured(func, configs, arch, measurer)


def _measured(
    func: tirx.PrimFunc, configs: Sequence[Candidate], arch: CUDAModel, measurer: Measurer
) -> tuple[list[BuildResult], BuildResult | None]:
    """By the search of `subtune.compile`; where the default wins and is no config, the fastest config is the best."""
    workload = workload_of(func)
    search = Search(max(1, len(configs)), candidates=lambda *_: configs)
    records = tune([Single(workload)], arch, search, measurer=measurer)
    if records.interrupted:
        raise KeyboardInterrupt
    if reason := records.failures.get(workload.key):
        raise SubtuneError(reason)
    record = records[workload.key]
    outcomes = {**records.outcomes[workload.key], DEFAULT: record.default_timing, record.candidate: record.timing}
    untried = Failure(FailureKind.TIMEOUT, "not built: others of its kind showed that it cannot win")
    results = [BuildResult(c, _kernel(workload, c, arch), outcomes.get(c, untried)) for c in configs]
    timed = [result for result in results if isinstance(result.outcome, Timing)]
    winner = next((result for result in timed if result.config == record.candidate), None)
    return results, winner or min(timed, key=lambda result: result.latency, default=None)


def _predicted(
    func: tirx.PrimFunc, configs: Sequence[Candidate], arch: CUDAModel
) -> tuple[list[BuildResult], BuildResult | None]:
    """Nothing can be timed: `best` is the first config that lowers."""
    _log.warning("nothing is timed: %s; the config predicted fastest is taken", arch.obstacle())
    workload = workload_of(func)
    results = []
    for config in configs:
        kernel = _kernel(workload, config, arch)
        message = f"not timed: {arch.obstacle()}" if kernel is not None else "the template does not apply"
        kind = FailureKind.LAUNCH if kernel is not None else FailureKind.INVALID
        results.append(BuildResult(config, kernel, Failure(kind, message)))
    return results, next((result for result in results if result.kernel is not None), None)


def _kernel(workload: Workload, config: Candidate, arch: CUDAModel) -> Kernel | None:
    kernel = backends.schedule(workload, config, arch)
    if isinstance(kernel, NotApplicable):
        _log.info("%s: %s", config, kernel.reason)
        return None
    return kernel


def _source(func: tirx.PrimFunc) -> str:
    target = func.attrs["target"] if func.attrs and "target" in func.attrs else CUDA("H100").target()
    lib = tvm.compile(tvm.IRModule({"main": func}), target=target, tir_pipeline=pipeline())
    return str(lib.mod.imports[0].inspect_source())


def apply_opt_before_tuning(relay_mod: Any, params: Any, target: Any) -> Any:
    """A Relay model as the Relax module that `ApplyFastTuning` takes: imported, normalised, fused, one unscheduled
    PrimFunc per subgraph, the weights constants.

        relax_mod = apply_opt_before_tuning(relay_mod_text, params, target)
        relax_mod = ApplyFastTuning(topk=20, target=target)(relax_mod)

    Args:
        relay_mod: Relay's text or JSON, or a path to it.
        params: name -> array, or the file or bytes that `relay.save_param_dict` wrote; None: random weights.
        target: what is tuned for next; the module is the same for all GPUs.

    Raises ModelError (`frontends.load`), TargetError.
    """
    CUDA(target)
    return prepare(relay_mod, parameters=Parameters(params, params is None)).mod


@tvm.transform.module_pass(opt_level=0, name="ApplyFastTuning")  # type: ignore[untyped-decorator]
class ApplyFastTuning:
    """Tune every PrimFunc of a Relax module that is not scheduled yet: a module pass.

    Equal functions are tuned once. Where a function's default schedule is the fastest it stays unscheduled.

    Args:
        topk: candidates per function. target: anything `CUDA` takes. parallel_build: on all cores.
        meta_database_dir: where a MetaSchedule database of the winners is written, for
            `relax.transform.MetaScheduleApplyDatabase`; None: none. Winners that are no trace of their function are not
            in it: the pass logs which, and why. Kernels on tensor cores need subtune's TIR pipeline
            (`subtune.backends.cuda.lowering.default_schedule.pipeline()`) as the argument `tir_pipeline` of
            `relax.build`.
    """

    def __init__(
        self, topk: int = 20, target: Any = "auto", parallel_build: bool = True, meta_database_dir: str | None = None
    ) -> None:
        self.topk = topk
        self.arch = CUDA(target)
        self.parallel_build = parallel_build
        self.meta_database_dir = meta_database_dir

    def transform_module(self, mod: Any, _context: Any) -> Any:
        tuned: dict[str, BuildResult | None] = {}
        records = []
        made = mod.clone()
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc) or (func.attrs and "tirx.is_scheduled" in func.attrs):
                continue
            try:
                workload = workload_of(func)
            except SubtuneError as e:
                _log.info("%s is left as it is: %s", gvar.name_hint, e)
                continue
            if workload.key not in tuned:
                started = time.monotonic()
                tuned[workload.key] = best = self._tune(workload)
                _log.info("%s: %s in %.1f s", gvar.name_hint, best and best.config, time.monotonic() - started)
                if best is not None and best.kernel is not None:
                    records.append((gvar.name_hint, func, best))
            best = tuned[workload.key]
            if best is None or best.kernel is None or best.config == DEFAULT:
                continue
            attrs = {"global_symbol": gvar.name_hint, "tirx.is_scheduled": True}
            made.update_func(gvar, best.kernel.func.with_attr(attrs))
        if self.meta_database_dir is not None:
            _write_database(records, self.arch, self.meta_database_dir)
        return made

    def _tune(self, workload: Workload) -> BuildResult | None:
        found = backends.candidates(workload, self.arch, self.topk)
        # a packed constant needs the constant: in a PrimFunc alone there is none
        configs = [config for config in found if not config.get("pack")]
        if not self.arch.obstacle():
            configs.append(DEFAULT)
        _, best = apply_and_build(workload.func, configs, self.arch, self.parallel_build)
        return best


def _write_database(records: Sequence[tuple[str, Any, BuildResult]], arch: CUDAModel, directory: str) -> None:
    out = MetaScheduleWriter(directory, arch.target())
    for name, func, best in records:
        seconds = best.outcome.median_s if isinstance(best.outcome, Timing) else best.config.predicted_s
        is_same = widened(func).same_as(func)
        if reason := out.add(func, best.kernel, seconds) if is_same else "its sums of halves are wider":
            _log.warning(
                "%s: the winner %s is no trace of its function (%s): not in %s", name, best.config, reason, directory
            )


__all__ = [
    "ApplyFastTuning", "BuildResult", "DefaultPolicy", "TensorCorePolicy", "apply_and_build",
    "apply_opt_before_tuning", "get_tensorized_func_and_tags", "tensor_core_reason", "workload_of",
]  # fmt: skip
