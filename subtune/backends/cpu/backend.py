"""CPUs, through LLVM."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from subtune.backends.base import Backend, Device, Family, HardwareModel, Problem
from subtune.backends.cpu.device import CPU, IN_L3, CPUModel
from subtune.backends.cpu.math.byte_dots import cheapest_rows
from subtune.backends.fingerprints import cpu_distance
from subtune.backends.host.link import link_command
from subtune.backends.planned import Planned
from subtune.core.candidate import Candidate
from subtune.core.errors import TargetError
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel
from subtune.core.manifest import LIBRARY_NAME, TRACE_NAME, Manifest
from subtune.core.measurement import Failure
from subtune.core.measuring import Bench, Measuring
from subtune.core.memory_plan import MemoryPlan
from subtune.core.program import Program
from subtune.core.workload import Workload
from subtune.runtime.host import usable_cores
from subtune.runtime.triples import clock_of

if TYPE_CHECKING:
    import tvm

    from subtune.backends.calibration import Calibration

_log = logging.getLogger(__name__)

_PACKED_ROWS = 16
"""So many take 2.6 ms times 4096 x 4096 weights of 4 bits, on two threads of a Zen 4: as long as the floats take to be
read. More rows would multiply those in fewer instructions.
"""
_PLANES_OF_GROUP = 64
"""The most that was measured. Alone, with the permutations that channels last takes, such convolutions are 1 to 6 times
as fast in planes on a Sapphire Rapids; those of rows of 8 to 11 elements 0.9 times, from 14 channels on.
"""


class CPUBackend(Backend):
    kind: ClassVar[str] = "cpu"
    measures_there: ClassVar[bool] = True
    version: ClassVar[int] = 4
    measuring: ClassVar[Measuring] = Measuring(
        builder_modules=("subtune.backends.cpu.families", "subtune.backends.cpu.scheduling"),
        forks_runner=True,
        reference=Candidate("reference"),
    )

    @property
    def families(self) -> tuple[Family[Any, Any], ...]:
        from subtune.backends.cpu import families

        return families.FAMILIES

    # -- devices

    def is_meant_by(self, target: object) -> bool:
        return isinstance(target, CPUModel)

    def model(self, target: Any, threads: int | None = None) -> CPUModel:
        return target if isinstance(target, CPUModel) else CPU(target, threads)

    def check(self, device: Device, is_measured: bool) -> None:
        model, numerics = _model(device), device.numerics
        if numerics.tf32 or numerics.tensor_core != "auto":
            given = "tf32" if numerics.tf32 else "tensor_core"
            raise TargetError(f"{given} means something for a GPU only, and the target is {model.name or 'a CPU'}")
        if numerics.precision == "fp16":
            raise TargetError(f"precision fp16 is for GPUs, and the target is {model.name or 'a CPU'}; use fp32")
        if numerics.precision == "bf16" and "avx512bf16" not in model.features:
            what = model.name or "this one"
            raise TargetError(f"precision bf16 needs a processor with AVX512-BF16, which {what} has not; use fp32")
        if obstacle := model.obstacle():
            if is_measured:
                raise TargetError(
                    f"target {model.name or model.triple}: {obstacle}, and kernels are timed where they are built; run "
                    "this on that machine, or name an older processor"
                )
            link_command(model.triple)  # a missing linker is better told before the work than after it
        elif model.threads > usable_cores():
            _log.warning("%d threads on %d cores will stall one another", model.threads, usable_cores())

    def forms(self, model: HardwareModel) -> Forms:
        assert isinstance(model, CPUModel)
        return Forms(
            keeps_planes=True,
            planes_of_group=_PLANES_OF_GROUP,
            halves=frozenset({"bfloat16"} if "avx512bf16" in model.features else ()),
            multiplies_groups=model.has_tiles,
            pools_images=True,
            folds_heads=True,
            sorts_computed=True,
            byte_rows=cheapest_rows(model.features, model.lanes()),
            packed_rows=_PACKED_ROWS,
            pads_lengths=True,
            keeps_caches=True,
        )

    def stand_in(self, device: Device) -> Device | None:
        return replace(device, model=_model(device).stand_in())

    def facts(self, model: HardwareModel) -> Mapping[str, str]:
        assert isinstance(model, CPUModel)
        return {
            "peak GFLOP/s": f"{model.peak_flops() / 1e9:.0f}",
            "fingerprint": model.fingerprint(),
            "source": model.source,
        }

    def calibrate(self, model: HardwareModel) -> Calibration:
        from subtune.backends.cpu.timing.calibrate import calibrate

        assert isinstance(model, CPUModel)
        if obstacle := model.obstacle():
            raise TargetError(f"{model.description} cannot be calibrated: {obstacle}")
        return calibrate(model)

    def distance(self, own: str, other: str) -> float:
        return cpu_distance(own, other, (IN_L3,))

    # -- kernels

    def rank(self, found: Sequence[Candidate], problem: Problem[Any], topk: int) -> tuple[Candidate, ...]:
        from subtune.backends.cpu import ranking

        return ranking.rank(found, self.families, problem, topk)

    def finish(self, kernel: Kernel, family: Family[Any, Any], candidate: Candidate, problem: Problem[Any]) -> Kernel:
        from subtune.backends.cpu import scheduling

        return scheduling.finish(kernel, family, candidate, problem)

    def lower(self, func: tvm.tirx.PrimFunc, device: Device) -> Any:
        import tvm

        from subtune.backends.cpu.lowering.pipeline import PIPELINE
        from subtune.backends.host.conversions import without_conversions

        return tvm.compile(without_conversions(func), device.model.target(), tir_pipeline=PIPELINE).mod

    def comparable(self, func: tvm.tirx.PrimFunc, device: Device) -> Any:
        """Lowered to loops over flat buffers."""
        from subtune.backends.cpu.lowering.pipeline import bound, looped

        return looped(bound({"main": func}, device.model.target()))["main"]

    def completed(self, func: tvm.tirx.PrimFunc, device: Device) -> Any:
        """With what is to be unrolled unrolled: once, in place of at every instance that is compared."""
        from subtune.backends.cpu.lowering.launches import asserts, joined
        from subtune.backends.cpu.lowering.pipeline import FLAT, bound, unrolled

        whole = joined(unrolled(bound({"main": func}, device.model.target()))["main"])
        return whole if asserts(whole) else whole.with_attr(FLAT, True)

    def for_many_shapes(self, problem: Problem[CPUModel], candidate: Candidate) -> Sequence[Candidate]:
        from subtune.backends.cpu.many_shapes import for_many_shapes

        return for_many_shapes(problem, candidate, self.families)

    def plain(self, workload: Workload, is_single: bool = False) -> Kernel:
        from subtune.backends.cpu.lowering.plain import plain

        return plain(workload, is_single)

    def build(self, func: tvm.tirx.PrimFunc, device: Device, stem: str, is_optional: bool) -> str | Failure:
        from subtune.backends.host.kernel_library import write_library

        return write_library(self.lower(func, device), stem)

    def build_to_send(self, func: tvm.tirx.PrimFunc, device: Device, stem: str, is_optional: bool) -> str | Failure:
        from subtune.backends.cpu.lowering.ring import ring, write
        from subtune.backends.host.conversions import without_conversions

        model, path = _model(device), Path(f"{stem}.so")
        write(ring(without_conversions(func), model.target()), model, path)
        return str(path)

    def bench(self, workload: Workload, device: Device, job: Any) -> Bench:
        from subtune.backends.cpu.timing.bench import Bench
        from subtune.backends.cpu.timing.there import there

        model = _model(device)
        place = there(job.remote, model) if job.remote else None
        return Bench(workload, model, job.default, job.reference, job.patience_s, job.rows_past_end, place)

    # -- programs

    def own_operators(self, mod: tvm.IRModule, device: Device) -> tvm.IRModule:
        from subtune.backends.cpu.operators import own_operators

        return own_operators(mod, _model(device))

    def executable(self, program: tvm.IRModule, device: Device) -> Any:
        return _relax_build(program, device, "bytecode")

    def build_program(self, planned: Planned, device: Device, folder: Path) -> tuple[MemoryPlan, tuple[str, ...]]:
        """The calls are machine code, too, and without Relax's virtual machine where they are a straight line.

        TVM's bytecode costs more for each of them than a small kernel takes.
        """
        import tvm

        from subtune.backends.cpu.lowering.bounded import write_in_time
        from subtune.backends.cpu.lowering.denormals import flushing
        from subtune.backends.cpu.lowering.join_kernels import join_kernels
        from subtune.backends.cpu.lowering.pipeline import PIPELINE
        from subtune.backends.cpu.lowering.straight_line import straight_line
        from subtune.backends.host.twin import timed

        target, memory, library = device.model.target(), planned.memory, folder / LIBRARY_NAME
        if planned.hides_denormals and _model(device).has_costly_denormals:
            planned = replace(planned, calls=flushing(planned.calls), program=flushing(planned.program))
        dynamic = (planned.symbols, planned.variants)
        line = straight_line(planned.calls, target, planned.short, memory, planned.offsets, *planned.arrays, *dynamic)
        if not line and planned.symbols:
            raise TargetError("the model has an operator that TVM runs its own way, which dynamic shapes do not allow")
        if not line and planned.is_traced:
            raise TargetError("the model has an operator that TVM runs its own way, which traces do not allow")
        if line:
            compiled = partial(tvm.compile, target=target, tir_pipeline=PIPELINE)
            write_in_time(compiled, line.mod, target, library)
            memory = replace(memory, takes_addresses=True)
            if planned.is_traced:
                write_in_time(compiled, timed(line.mod, line.names, _clock(device)), target, folder / TRACE_NAME)
                return memory, (LIBRARY_NAME, TRACE_NAME)
        else:
            joined = join_kernels(planned.program, target, planned.short)
            write_in_time(partial(_relax_build, device=device, mode="compiled"), joined, target, library)
        return memory, (LIBRARY_NAME,)

    def load_program(self, folder: Path, manifest: Manifest, threads: int, share_weights: bool) -> Program:
        from subtune.backends.cpu.program import load_program

        return load_program(folder, manifest, threads, share_weights)


def _relax_build(mod: tvm.IRModule, device: Device, mode: str) -> Any:
    from tvm import relax

    from subtune.backends.cpu.lowering.pipeline import PIPELINE

    return relax.build(mod, target=device.model.target(), relax_pipeline=None, tir_pipeline=PIPELINE, exec_mode=mode)


def _clock(device: Device) -> int:
    triple = device.model.host.triple
    if (clock := clock_of(triple)) is None:
        raise TargetError(f"nothing is known of the clock of {triple}, which traces read; compile without --trace")
    return clock


def _model(device: Device) -> CPUModel:
    assert isinstance(device.model, CPUModel)
    return device.model


BACKEND = CPUBackend()
