"""`subtune.backends.schedule` for workers, with templates that break: the default schedule behind something evil."""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload

EVIL = {"segfault": ("raise", 11), "hang": ("pause",), "abort": ("abort",)}


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    if candidate.family == "explodes":
        raise RuntimeError("this template is broken")
    if candidate.family not in EVIL:
        return backends.schedule(workload, candidate, device)
    kernel = backends.schedule(workload, DEFAULT, device)
    assert isinstance(kernel, Kernel)
    evil = tirx.Evaluate(tirx.call_extern("int32", *EVIL[candidate.family]))
    root = kernel.func.body.block
    body = SBlock(
        [], [], [], "root", tirx.SeqStmt([evil, root.body]), None, root.alloc_buffers, annotations=root.annotations
    )
    return replace(kernel, func=kernel.func.with_body(SBlockRealize([], True, body)))
