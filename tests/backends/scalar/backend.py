"""What the core asks of the kind: its devices, its kernels, its programs."""

from __future__ import annotations

from typing import ClassVar

import tvm

from scalar.families import FAMILIES
from scalar.model import ScalarModel
from subtune.backends.base import Backend
from subtune.backends.cpu.program import load_program
from subtune.backends.cpu.timing.bench import Bench
from subtune.backends.host.export import export
from subtune.backends.host.kernel_library import write_library
from subtune.core.errors import TargetError
from subtune.core.manifest import LIBRARY_NAME

SCALAR = {"tirx.disable_vectorize": True}
"""The kind's own lowering: TVM's, with every vectorised loop as a plain one."""


class ScalarBackend(Backend):
    kind: ClassVar[str] = "scalar"
    version: ClassVar[int] = 1
    families = FAMILIES

    def is_meant_by(self, target):
        return target == "scalar" or isinstance(target, ScalarModel)

    def model(self, target, threads=None):
        return target if isinstance(target, ScalarModel) else ScalarModel.here()

    def check(self, device, is_measured):
        if device.numerics.precision != "fp32":
            raise TargetError(f"precision {device.numerics.precision} is not for a scalar thread; use fp32")

    def lower(self, func, device):
        with tvm.transform.PassContext(config=SCALAR):
            return tvm.compile(func, device.model.target()).mod

    def build(self, func, device, stem, is_optional):
        return write_library(self.lower(func, device), stem)

    def bench(self, workload, device, job):
        return Bench(workload, device.model.cpu, job.default, patience_s=job.patience_s)  # as a CPU is checked

    def executable(self, program, device):
        with tvm.transform.PassContext(config=SCALAR):
            return tvm.relax.build(program, device.model.target(), relax_pipeline=None, exec_mode="bytecode")

    def build_program(self, planned, device, folder):
        export(self.executable(planned.program, device), folder / LIBRARY_NAME, device.model.host.triple)
        return planned.memory, (LIBRARY_NAME,)

    def load_program(self, folder, manifest, threads, share_weights):
        return load_program(folder, manifest, 1, share_weights)


BACKEND = ScalarBackend()
