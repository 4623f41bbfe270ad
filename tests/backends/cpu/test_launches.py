"""Several parallel loops, and several kernels, in one launch of the thread pool: the same results, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from subtune import backends, models
from subtune.artifact import load
from subtune.artifact.random_inputs import random_inputs
from subtune.assembly import Package, write_artifact
from subtune.backends.cpu.lowering import straight_line
from subtune.backends.cpu.lowering.launches import joined, steps
from subtune.backends.cpu.lowering.pipeline import PIPELINE, flat
from subtune.core.candidate import DEFAULT
from subtune.core.manifest import KernelOrigin
from subtune.passes.splice import splice
from subtune.pipeline import prepare
from subtune.tuning.winners import schedule_kernels

ROWS, COLUMNS = 7, 48


def three_stages(*parallel: str) -> tirx.PrimFunc:
    """Every stage reads rows that another thread has written in the one before: backwards, and backwards again."""
    x = te.placeholder((ROWS, COLUMNS), "float32", "x")
    doubled = te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] * 2, "doubled")
    turned = te.compute((ROWS, COLUMNS), lambda i, j: doubled[ROWS - 1 - i, j] + 1, "turned")
    again = te.compute((ROWS, COLUMNS), lambda i, j: turned[ROWS - 1 - i, j] * 3, "again")
    sch = Schedule(te.create_prim_func([x, again]))
    for name in parallel:
        sch.parallel(sch.get_loops(sch.get_sblock(name))[0])
    return sch.mod["main"]


def flattened(func: tirx.PrimFunc, device) -> tirx.PrimFunc:
    target = device.target()
    mod = tvm.IRModule({"main": func.without_attr("global_symbol")})
    return flat(tirx.transform.BindTarget(target.with_host(target))(mod))["main"]


@pytest.mark.parametrize("parallel", [("doubled", "turned", "again"), ("doubled", "again"), ("turned",), ()])
def test_loops_of_a_kernel_share_a_launch(parallel, device):
    func = three_stages(*parallel)
    once = joined(flattened(func, device))
    assert str(once).count("parallel_launch_point") == (1 if parallel else 0)
    assert str(once).count("barrier_when_finish") == {3: 2, 2: 2, 1: 2, 0: 0}[len(parallel)]
    call = tvm.compile(func.with_attr("global_symbol", "main"), target=device.target(), tir_pipeline=PIPELINE)["main"]
    x = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    for _ in range(50):
        out = tvm.runtime.tensor(np.zeros_like(x))
        call(tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), (x * 2 + 1) * 3)


def test_a_kernel_whose_parallel_loop_lies_deeper_stays_as_it_is(device):
    sch = Schedule(three_stages())
    sch.parallel(sch.get_loops(sch.get_sblock("turned"))[1])
    func = flattened(sch.mod["main"], device)
    assert steps(func) is None
    assert joined(func) is func


QUANTISED = """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (uint8[2,8,16,16] x) => (uint8[2,16,8,8] y)
<float scale = {0.1}, float fine = {0.004}, uint8 zero = {7}>
{
    s = com.microsoft.QLinearSigmoid(x, scale, zero, fine, zero)
    m = com.microsoft.QLinearMul(x, scale, zero, s, fine, zero, scale, zero)
    c = com.microsoft.QLinearConcat<axis = 1>(scale, zero, m, scale, zero, s, fine, zero)
    y = com.microsoft.QLinearAveragePool<kernel_shape = [2, 2], strides = [2, 2]>(c, scale, zero, fine, zero)
}
"""
"""Its kernels take scalars that are constants of the program."""


@pytest.mark.parametrize("name", ["mobilenet_v2", "lstm", "bert", "quantised"])
def test_joined_kernels_compute_what_they_compute_alone(name, device, tmp_path):
    prepared = prepare(onnx.parser.parse_model(QUANTISED) if name == "quantised" else models.reduced(name))
    best = {s.workload.key: next(iter(backends.candidates(s.workload, device, 1)), DEFAULT) for s in prepared.subgraphs}
    kernels = schedule_kernels(prepared.subgraphs, best, device)
    imported = prepared.imported
    artifacts = {}
    for seconds in (0.0, 1e-6):
        origins = [KernelOrigin(s.name, tuned_s=seconds) for s in prepared.subgraphs]
        package = Package(splice(prepared.mod, kernels), imported.inputs, imported.outputs, tuple(origins))
        path = write_artifact(tmp_path / f"{seconds}.subtune", package, device)
        artifacts[seconds] = load(path)
    alone, together = artifacts.values()
    size = [(a.path / "model.so").stat().st_size for a in (alone, together)]
    assert size[1] != size[0], "nothing was joined"
    inputs = random_inputs(imported.inputs)
    want = alone.run(inputs)
    for threads in (device.threads, 1):
        got = load(together.path, threads=threads).run(inputs)
        for output, array in want.items():
            np.testing.assert_array_equal(got[output], array)
    assert [e.linked_hash for e in alone.manifest.subgraphs] == [e.linked_hash for e in together.manifest.subgraphs]


def test_equal_layers_share_one_function(device, tmp_path, monkeypatch):
    """Two blocks of a transformer, alike: what was joined for the one serves the other."""
    joined_modules = []
    original = straight_line.join_kernels

    def join(mod, target, short):
        joined_modules.append((mod, original(mod, target, short)))
        return joined_modules[-1][1]

    monkeypatch.setattr(straight_line, "join_kernels", join)
    prepared = prepare(models.reduced("bert"))
    long = next(s.name for s in prepared.subgraphs if s.uses > 1)
    origins = [KernelOrigin(s.name, tuned_s=0.0 if s.name == long else 1e-6) for s in prepared.subgraphs]
    mod = splice(prepared.mod, schedule_kernels(prepared.subgraphs, {}, device))
    package = Package(mod, prepared.imported.inputs, prepared.imported.outputs, tuple(origins))
    write_artifact(tmp_path / "m.subtune", package, device)
    before, after = ([called(mod) for mod in pair] for pair in zip(*joined_modules, strict=True))
    launches = [name for name in after[0] if name.startswith("launch_")]
    assert len(after[0]) < len(before[0])
    assert 0 < len(set(launches)) < len(launches)
    assert long in after[0]


def called(mod) -> list[str]:
    calls = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [call.op.name_hint for call in calls if isinstance(getattr(call, "op", None), tvm.ir.GlobalVar)]
