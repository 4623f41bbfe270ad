"""NVIDIA GPUs, through CUDA source and TVM's tirx."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from subtune.backends.base import Backend, Device, Family, HardwareModel, Problem
from subtune.backends.cuda.device import CUDA, CUDAModel, is_cuda_target
from subtune.backends.fingerprints import cuda_distance
from subtune.backends.planned import Planned
from subtune.core.candidate import Candidate
from subtune.core.errors import TargetError
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel
from subtune.core.manifest import BINARIES_NAME, LIBRARY_NAME, TRACE_NAME, Manifest
from subtune.core.measurement import Failure, FailureKind
from subtune.core.measuring import Bench, Measuring
from subtune.core.memory_plan import MemoryPlan
from subtune.core.program import Program
from subtune.core.workload import Workload

if TYPE_CHECKING:
    import tvm

    from subtune.backends.calibration import Calibration

_LINKED = {"tirx.noalias": True, "op_pattern": 8}
"""What splicing marks every kernel with; one that was written anew gets it before it is measured."""

_PLAIN_THREADS = 128
"""Of a block of a plain schedule."""
_KEPT_SHARE = 1 / 4
"""Of the GPU's memory: what is prepared again for every step of a search takes as long as all its measurements."""

_NORMED_COLUMNS = 256  # those of one multiplication of Hopper's
_WHOLE_STEP_FMAS = 1 << 29
"""About 20 us of CUDA's cores: beyond, products on tensor cores pay for the launches between them."""

_PACKED_ROWS = 16  # a warp's two products with weights that it has unpacked; beyond, halves from memory are as fast


class CUDABackend(Backend):
    kind: ClassVar[str] = "cuda"
    version: ClassVar[int] = 8
    measuring: ClassVar[Measuring] = Measuring(
        overlaps=True,
        # half as many again: 20 candidates on 16 cores would take two rounds, the second mostly idle
        builders_per_core=1.5,
        # a builder that sees a GPU takes some of its memory
        builder_environment=MappingProxyType({"CUDA_VISIBLE_DEVICES": ""}),
        builder_niceness=5,
        builder_modules=(
            "subtune.backends.cuda.families",
            "subtune.backends.cuda.building.builder",
            "subtune.backends.cuda.lowering.pipeline",
        ),
        build_limit_s=10.0,
        limits_memory=False,  # the driver reserves more address space than the machine has memory
        has_spare_runner=True,
        grace_s=5.0,  # more processes than cores start side by side
        max_crashes=3,  # each costs seconds, and the next one would most likely crash as well
        reference=Candidate("cuda.reference"),
    )

    compares_lowered: ClassVar[bool] = False

    @property
    def families(self) -> tuple[Family[Any, Any], ...]:
        from subtune.backends.cuda import families

        return families.FAMILIES

    # -- devices

    def is_meant_by(self, target: object) -> bool:
        return is_cuda_target(target)

    def model(self, target: Any, threads: int | None = None) -> CUDAModel:
        return CUDA(target)

    def check(self, device: Device, is_measured: bool) -> None:
        from subtune.backends.cuda.building.compiler import require_compiler

        model = _model(device)
        if device.numerics.precision == "bf16" and model.capability < 80:
            raise TargetError(f"precision bf16 needs a GPU of sm_80 or newer, not {model.arch}; use fp32")
        require_compiler()
        if is_measured and (obstacle := model.obstacle()):
            raise TargetError(f"target {model.name}: {obstacle}, and kernels are timed on the GPU they are built for")

    def forms(self, model: HardwareModel) -> Forms:
        assert isinstance(model, CUDAModel)
        halves = frozenset({"float16", "bfloat16"} if model.capability >= 80 else {"float16"})
        half_flops = max(model.mma_flops("float16"), model.fma_flops())
        return Forms(
            keeps_planes=True, reads_planes=True, halves=halves, multiplies_groups=True,
            whole_step_fmas=_WHOLE_STEP_FMAS,
            ops_per_byte=model.fma_flops() / model.dram_bytes_per_s,
            half_ops_per_byte=half_flops / model.dram_bytes_per_s,
            pools_stems=model.arch == "sm_90a",
            sums_products=model.arch == "sm_90a",
            normed_columns=_NORMED_COLUMNS if model.arch == "sm_90a" else 0,
            copies_operands=model.arch == "sm_90a",
            copies_products=model.arch == "sm_90a",
            carries_norms=model.arch == "sm_90a",
            half_row=8 if model.capability >= 80 else 1,  # 16 bytes: a copy of cp.async, or a row of TMA's
            float_row=4 if model.capability >= 80 else 1,
            multiplies_float8=model.capability >= 89,
            byte_row=16 if model.capability >= 80 else 1,
            byte_word=4 if model.arch == "sm_90a" else 0,
            packed_rows=_PACKED_ROWS if model.capability >= 80 else 0,
            packed_halves=True,
            packed_floats=False,  # tensor cores multiply no float32; CUDA cores would unpack weights for every row
            packed_block=32,
        )  # fmt: skip

    def accelerators(self) -> tuple[str, ...]:
        from subtune.backends.cuda.driver import driver_devices

        here = driver_devices()
        return () if isinstance(here, str) else tuple(one.name for one in here)

    def facts(self, model: HardwareModel) -> Mapping[str, str]:
        assert isinstance(model, CUDAModel)
        found = {
            f"peak {dtype}": f"{model.mma_flops(dtype) / 1e12:.0f} TFLOP/s" for dtype, _ in model.mma_flops_per_cycle
        }
        found |= {"peak float32": f"{model.fma_flops() / 1e12:.1f} TFLOP/s"}
        found |= {"fingerprint": model.fingerprint(), "source": model.source}
        return found | ({"not here": obstacle} if (obstacle := model.obstacle()) else {})

    def calibrate(self, model: HardwareModel) -> Calibration:
        from subtune.backends.cuda.timing.calibrate import calibrate

        assert isinstance(model, CUDAModel)
        if obstacle := model.obstacle():
            raise TargetError(f"{model.name} cannot be calibrated: {obstacle}")
        return calibrate(model)

    def distance(self, own: str, other: str) -> float:
        return cuda_distance(own, other)

    # -- kernels

    def rank(self, found: Sequence[Candidate], problem: Problem[Any], topk: int) -> tuple[Candidate, ...]:
        from subtune.backends.cuda.ranking import rank

        return rank(found, topk)

    def finish(self, kernel: Kernel, family: Family[Any, Any], candidate: Candidate, problem: Problem[Any]) -> Kernel:
        return replace(kernel, func=kernel.func.with_attrs(_LINKED))

    def lower(self, func: tvm.tirx.PrimFunc, device: Device) -> Any:
        """Without CUDA's own compiler, which takes seconds: it gets what TVM's accepts."""
        import tvm

        return tvm.compile(func, target=device.model.target(), tir_pipeline=_pipeline()).mod

    def comparable(self, func: tvm.tirx.PrimFunc, device: Device) -> tvm.tirx.PrimFunc:
        """As it is: what is lowered with a number in the place of a symbol forgets comparisons that others need."""
        return func

    def plain(self, workload: Workload, is_single: bool = False) -> Kernel:
        from subtune.backends.cuda.lowering.plain import plain

        made = plain(workload, 1 if is_single else _PLAIN_THREADS)
        return replace(made, func=made.func.with_attrs(_LINKED))

    def for_many_shapes(self, problem: Problem[CUDAModel], candidate: Candidate) -> Sequence[Candidate]:
        from subtune.backends.cuda.many_shapes import for_many_shapes

        return for_many_shapes(problem, candidate)

    def build(self, func: tvm.tirx.PrimFunc, device: Device, stem: str, is_optional: bool) -> str | Failure:
        from subtune.backends.cuda.building import builder

        path, found = builder.build(func, device, stem)
        if is_optional and (reason := builder.complaint(found, _model(device))):
            return Failure(FailureKind.INVALID, reason)
        return path

    def bench(self, workload: Workload, device: Device, job: Any) -> Bench:
        from subtune.backends.cuda.timing.bench import CudaBench

        return CudaBench(workload, _model(device), device.numerics, job)

    def kept_bytes(self, of_host: int) -> int:
        from subtune.backends.cuda.driver import driver_device

        here = driver_device()
        return of_host if isinstance(here, str) else int(here.total_bytes * _KEPT_SHARE)

    # -- programs

    def own_operators(self, mod: tvm.IRModule, device: Device) -> tvm.IRModule:
        from subtune.backends.cuda.operators import own_operators

        return own_operators(mod, _model(device))

    def schedule_rest(self, mod: tvm.IRModule, device: Device, keep: Collection[str]) -> tvm.IRModule:
        from subtune.backends.cuda.lowering.default_schedule import default_schedule

        return default_schedule(mod, device.model.target(), keep=keep)

    def executable(self, program: tvm.IRModule, device: Device) -> Any:
        from tvm import relax

        target = device.model.target()
        return relax.build(program, target=target, relax_pipeline=None, tir_pipeline=_pipeline(), exec_mode="bytecode")

    def build_program(self, planned: Planned, device: Device, folder: Path) -> tuple[MemoryPlan, tuple[str, ...]]:
        """The calls stay TVM's bytecode: they are captured once. Of a dynamic model they are machine code."""
        from subtune.backends.cuda.building.binaries import write_binaries
        from subtune.backends.cuda.building.compiler import collected
        from subtune.backends.host.export import export

        memory = planned.memory
        with collected(device.numerics.exact) as binaries:
            if planned.symbols:
                libraries, memory = self._dynamic(planned, device)
            else:
                libraries = {LIBRARY_NAME: self.executable(planned.program, device)}
        for name, executable in libraries.items():
            export(executable, folder / name, device.model.host.triple)
        write_binaries(folder / BINARIES_NAME, binaries)
        return memory, (*libraries, BINARIES_NAME)

    def _dynamic(self, planned: Planned, device: Device) -> tuple[dict[str, Any], MemoryPlan]:
        """The libraries of a dynamic model by their files' names, and its memory plan."""
        import tvm

        from subtune.backends.cuda.lowering.flat import with_host
        from subtune.backends.cuda.lowering.pipeline import flat
        from subtune.backends.cuda.lowering.straight_line import names_of, straight_line
        from subtune.backends.host.twin import stepwise

        target = with_host(device.model.target())
        made = straight_line(planned, partial(flat, target=target), target.host)
        if made is None:
            raise TargetError("the model has an operator that TVM runs its own way, which dynamic shapes do not allow")
        mod, arena_nbytes = made
        memory = replace(planned.memory, arena_nbytes=arena_nbytes, takes_addresses=True)
        mods = {LIBRARY_NAME: mod}
        if planned.is_traced:
            mods[TRACE_NAME] = stepwise(mod, names_of(planned))
        return {name: tvm.compile(one, target, tir_pipeline=_pipeline()) for name, one in mods.items()}, memory

    def load_program(self, folder: Path, manifest: Manifest, threads: int, share_weights: bool) -> Program:
        from subtune.backends.cuda.program import load_program

        return load_program(folder, manifest)


def _pipeline() -> str:
    from subtune.backends.cuda.lowering.pipeline import register

    return register()


def _model(device: Device) -> CUDAModel:
    assert isinstance(device.model, CUDAModel)
    return device.model


BACKEND = CUDABackend()
