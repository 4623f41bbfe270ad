"""`subtune.templates.schedule` for workers, with templates that break: the default schedule behind something evil."""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from subtune import templates
from subtune.candidate import DEFAULT, Candidate
from subtune.devices.cpu import CPUModel
from subtune.kernel import Kernel, NotApplicable
from subtune.workload import Workload

EVIL = {"segfault": ("raise", 11), "hang": ("pause",), "abort": ("abort",)}


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    if candidate.template == "explodes":
        raise RuntimeError("this template is broken")
    if candidate.template not in EVIL:
        return templates.schedule(workload, candidate, device)
    kernel = templates.schedule(workload, DEFAULT, device)
    assert isinstance(kernel, Kernel)
    evil = tirx.Evaluate(tirx.call_extern("int32", *EVIL[candidate.template]))
    root = kernel.func.body.block
    body = SBlock(
        [], [], [], "root", tirx.SeqStmt([evil, root.body]), None, root.alloc_buffers, annotations=root.annotations
    )
    return replace(kernel, func=kernel.func.with_body(SBlockRealize([], True, body)))
