"""Dynamic models for a GPU: built anywhere, and where there is one, tuned and run at every instance."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from subtune.artifact import load
from subtune.artifact import manifest as manifests
from subtune.backends import device_of
from subtune.backends.cuda.building.binaries import read_binaries
from subtune.backends.cuda.building.compiler import compiler
from subtune.backends.cuda.driver import driver_device
from subtune.backends.cuda.lowering import straight_line
from subtune.backends.cuda.lowering.flat import with_host
from subtune.backends.host import twin
from subtune.backends.host.traced import traced
from subtune.core.manifest import BINARIES_NAME, LIBRARY_NAME, TRACE_NAME
from subtune.driver import compile_model
from tests.backends.cuda import cuda_on_cpu
from tests.dynamic import models
from tests.dynamic.cuda_artifacts import domain_of, written
from tests.dynamic.emulated_program import EmulatedProgram

HERE = driver_device()
ROWS = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[batch,8] x) => (float[batch] y)
{
    s = Softmax<axis = -1>(x)
    y = ReduceMax<axes = [1], keepdims = 0>(s)
}
"""
needs_compiler = pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")


@needs_compiler
@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no CUDA headers, or no C++ compiler")
def test_a_transformer_is_built_and_its_program_is_right(tmp_path, monkeypatch):
    """The host's code runs as it ships, and launches kernels that are computed on the processor."""
    made, path, original = [], tmp_path / "m.subtune", straight_line.straight_line

    def kept(*given):
        made.append(original(*given))
        return made[-1]

    monkeypatch.setattr(straight_line, "straight_line", kept)
    device, model = device_of("A100", is_measured=False), models.block(longest=40)
    found = written(model, domain_of(seq=20), device, path, batch=2)
    assert {"cuda.fma", "cuda.mma", "cuda.rowwise", "cuda.elementwise"} <= {one.family for one in found.values()}
    manifest = manifests.read(path)
    assert manifest.memory.takes_addresses
    assert [str(spec) for spec in manifest.outputs] == ["y: float32[2, seq, 32]", "pooled: float32[2, 32]"]
    (tmp_path / "kernels").mkdir()
    program = EmulatedProgram(made[0][0], with_host(device.model.target()), path, tmp_path / "kernels")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for seq in (1, 7, 20, 2):
        inputs = {spec.name: rng.standard_normal(spec.at({"seq": seq}).sizes).astype("f4") for spec in manifest.inputs}
        got = program.run(inputs, seq=seq)
        for spec, wanted in zip(manifest.outputs, session.run(None, inputs), strict=True):
            np.testing.assert_allclose(got[spec.name], wanted, rtol=1e-4, atol=1e-5, err_msg=f"{spec.name} at {seq}")


@needs_compiler
@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no CUDA headers, or no C++ compiler")
def test_a_library_for_traces_does_one_step_after_the_other(tmp_path, monkeypatch):
    """It launches the same machine code as the model's own."""
    made, path, original = [], tmp_path / "m.subtune", twin.stepwise

    def kept(mod, names):
        made.append((original(mod, names), names))
        return made[-1][0]

    monkeypatch.setattr(twin, "stepwise", kept)
    device, model = device_of("A100", is_measured=False), onnx.parser.parse_model(ROWS)
    written(model, domain_of(batch=5), device, path, is_traced=True)
    ((mod, names),) = made
    binaries = read_binaries(path / BINARIES_NAME)
    for name in (LIBRARY_NAME, TRACE_NAME):
        assert all(key.encode() in (path / name).read_bytes() for key in binaries)
    (tmp_path / "kernels").mkdir()
    program = EmulatedProgram(mod, with_host(device.model.target()), path, tmp_path / "kernels")
    assert traced(program.library).steps == tuple(names)
    assert len(names) > 1
    x = np.random.default_rng(0).standard_normal((3, 8)).astype("f4")
    e = np.exp(x - x.max(1, keepdims=True))
    got = program.run({"x": x}, steps=len(names), batch=3)
    np.testing.assert_allclose(got["y"], (e / e.sum(1, keepdims=True)).max(1), rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str), reason=f"no GPU: {HERE}")
@pytest.mark.parametrize("tune", [False, True])
def test_a_transformer_on_a_gpu_at_every_instance(tune, tmp_path):
    """Twice each: the second run of a shape is a CUDA graph, and more shapes than are kept come between."""
    model = models.block(longest=40)
    dynamic = {"batch": "1..2", "seq": "1..40"}
    compile_model(model, tmp_path / "m.subtune", target="cuda", dynamic=dynamic, tune=tune, topk=4)
    artifact = load(tmp_path / "m.subtune")
    check(artifact, model)


def check(artifact, model: onnx.ModelProto) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for _ in range(2):
        for values, _ in artifact.manifest.domain.instances():
            rng = np.random.default_rng(sum(values.values()))
            inputs = {
                spec.name: rng.standard_normal(spec.at(values).sizes).astype(spec.dtype) for spec in artifact.inputs
            }
            for _ in range(2):
                outputs = artifact.run(inputs)
            for spec, expected in zip(artifact.outputs, session.run(None, inputs), strict=True):
                got = outputs[spec.name]
                np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3, err_msg=f"{spec.name} at {values}")
