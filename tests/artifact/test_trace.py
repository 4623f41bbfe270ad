"""One run, kernel by kernel: every kernel in its turn, times that rise, the same outputs; and as Perfetto reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from subtune import backends, models, runtime
from subtune.artifact import Artifact, load
from subtune.artifact.account import read_account
from subtune.assembly import Package, compile_module, write_artifact
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cuda.driver import driver_device
from subtune.backends.host.export import export
from subtune.backends.host.instrument import calls_between
from subtune.core.account import Account, TunedSubgraph
from subtune.core.errors import InputError, TargetError
from subtune.core.manifest import LIBRARY_NAME, TRACE_NAME, KernelOrigin
from subtune.core.trace import Trace
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from subtune.passes.splice import splice
from subtune.pipeline import prepare
from subtune.report.traced import chrome_trace
from subtune.tuning.winners import schedule_kernels
from tests.small_model import small_onnx

LAYERS = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[4,16] x) => (float[4,8] y)
{
    u = MatMul(x, a)
    v = MatMul(u, b)
    w = MatMul(v, c)
    y = MatMul(w, d)
}
"""
ROWS = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[batch,8] x) => (float[batch,8] y)
{
    s = Softmax<axis = -1>(x)
    y = CumSum(s, axis)
}
"""
HERE = driver_device()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, device: CPUModel) -> tuple[Path, Path]:
    """Of the same model compiled without and with its library for traces: two kernels alone, two in one launch."""
    folder, prepared = tmp_path_factory.mktemp("trace"), prepare(layers())
    names, imported = [one.name for one in prepared.subgraphs], prepared.imported
    best = {one.workload.key: backends.candidates(one.workload, device, 1)[0] for one in prepared.subgraphs}
    mod = splice(prepared.mod, schedule_kernels(prepared.subgraphs, best, device))
    took = dict(zip(names, (1e-3, 1e-3, 1e-6, 1e-6), strict=True))
    origins = tuple(KernelOrigin(name, candidate="default()", default_s=2e-3, tuned_s=took[name]) for name in names)
    known = TunedSubgraph(names[0], 1, "matmul", "default()", 2e-3, 1e-3, 0.0, 1000, 100, 1e9, 1e9, 0, (), ())
    package = Package(mod, imported.inputs, imported.outputs, origins, name="m", account=Account(subgraphs=(known,)))
    plain = write_artifact(folder / "plain.subtune", package, device)
    return plain, write_artifact(folder / "traced.subtune", replace(package, is_traced=True), device)


def layers() -> onnx.ModelProto:
    """Four products: of two runs in a wrong order, the second is wrong, too."""
    model = onnx.parser.parse_model(LAYERS)
    rng = np.random.default_rng(0)
    for name, shape in {"a": (16, 24), "b": (24, 32), "c": (32, 40), "d": (40, 8)}.items():
        array = rng.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.fixture
def artifact(folders: tuple[Path, Path]) -> Artifact:
    return load(folders[1])


def test_the_models_own_library_is_the_same(folders: tuple[Path, Path]) -> None:
    plain, traced = map(load, folders)
    files = [{one.name: one.sha256 for one in each.manifest.files} for each in (plain, traced)]
    assert files[0] == {name: sha256 for name, sha256 in files[1].items() if name != TRACE_NAME}
    assert files[1].keys() - files[0].keys() == {TRACE_NAME}
    assert plain.manifest.code_bytes == traced.manifest.code_bytes == (plain.path / LIBRARY_NAME).stat().st_size


def test_every_kernel_in_its_turn(artifact: Artifact) -> None:
    """Short kernels of one launch are one slice, as they run: the time of one alone in a launch cannot be told."""
    trace = artifact.trace()
    account = read_account(artifact.path, artifact.manifest)
    assert account
    first, second, *others = account.memory.steps
    assert [one.kernels for one in trace.slices] == [(first,), (second,), tuple(others)]
    assert trace.slices[0].begin_s == 0.0
    assert all(one.end_s == other.begin_s for one, other in pairwise(trace.slices))
    assert all(one.seconds >= 0 for one in trace.slices)
    assert 0 < trace.seconds < 60
    assert trace.about["model"] == "m"


def test_the_twin_computes_what_main_does(folders: tuple[Path, Path], artifact: Artifact) -> None:
    """Bit for bit: it calls the same kernels."""
    rng = np.random.default_rng(0)
    inputs = {spec.name: rng.standard_normal(spec.sizes, dtype=np.float32) for spec in artifact.inputs}
    expected = load(folders[0]).run(inputs)
    arrays = [*inputs.values(), *(np.full_like(array, np.nan) for array in expected.values())]
    artifact.program.trace(arrays, ())
    for made, wanted in zip(arrays[len(inputs) :], expected.values(), strict=True):
        np.testing.assert_array_equal(made, wanted)


def test_what_cannot_be_traced_is_told(folders: tuple[Path, Path], artifact: Artifact) -> None:
    with pytest.raises(InputError, match=r"plain\.subtune .* `subtune compile --trace`"):
        load(folders[0]).trace()
    with pytest.raises(InputError, match="no array for x"):
        artifact.trace({})


def test_what_tvm_runs_its_own_way_is_refused(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    g (int64[4,16] x) => (int64[4,3] largest, int64[4,3] places)
    {
        k = Constant<value_ints = [3]>()
        largest, places = TopK(x, k)
    }
    """
    model = onnx.parser.parse_model(text)
    with pytest.raises(TargetError, match="an operator that TVM runs its own way, which traces do not allow"):
        compile_model(model, tmp_path / "m.subtune", tune=False, verify=False, threads=2, trace=True)


def test_perfettos_json(artifact: Artifact) -> None:
    trace = artifact.trace()
    data = json.loads(chrome_trace(artifact, trace))
    slices = [one for one in data["traceEvents"] if one["ph"] == "X"]
    assert [one["name"] for one in slices] == [" + ".join(one.kernels) for one in trace.slices]
    assert sum(one["dur"] for one in slices) == pytest.approx(trace.seconds * 1e6, rel=1e-3, abs=0.01)
    counters = [one["args"]["bytes"] for one in data["traceEvents"] if one["ph"] == "C"]
    assert len(counters) == len(slices)
    assert 0 < max(counters) <= artifact.manifest.memory.bound_nbytes
    known = {"schedule": "default()", "default us": 2000.0}
    assert slices[0]["args"] == {**known, "alone us": 1000.0, "roofline us": 1.0, "FLOP": 1000, "bytes": 100}
    assert slices[2]["args"] == {name: {**known, "alone us": 1.0} for name in trace.slices[2].kernels}
    assert Trace(()).seconds == 0.0
    assert json.loads(Trace(()).to_chrome("m", {}))["otherData"] == {}


def rows() -> onnx.ModelProto:
    model = onnx.parser.parse_model(ROWS)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(1), "axis"))
    return model


def check_rows(path: Path, target: str, measurer: LocalMeasurer) -> None:
    """A run at the largest shape, or at that of the inputs."""
    options: dict[str, Any] = {"dynamic": {"batch": range(1, 5)}, "tune": False, "trace": True, "measurer": measurer}
    compile_model(rows(), path, target=target, threads=2, **options)
    artifact = load(path)
    for count in (4, 3):
        x = np.random.default_rng(0).standard_normal((count, 8), dtype=np.float32)
        trace = artifact.trace() if count == 4 else artifact.trace({"x": x})
        kernels = [name for one in trace.slices for name in one.kernels]
        assert len(kernels) > 1
        assert set(kernels) == {one.name for one in artifact.manifest.subgraphs}
        y = np.full((100, 8), np.nan, np.float32)[:count]  # kernels may write past the last row
        artifact.program.trace([x, y], (count,))
        np.testing.assert_array_equal(y, artifact.run({"x": x})["y"])
    with pytest.raises(InputError, match="batch"):
        artifact.trace({"x": np.ones((9, 8), np.float32)})


def test_many_shapes(tmp_path: Path, workers: LocalMeasurer) -> None:
    check_rows(tmp_path / "m.subtune", "auto", workers)


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str), reason=f"no GPU: {HERE}")
def test_many_shapes_on_a_gpu(tmp_path: Path, workers: LocalMeasurer) -> None:
    check_rows(tmp_path / "m.subtune", "cuda", workers)


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str), reason=f"no GPU: {HERE}")
def test_one_shape_on_a_gpu(tmp_path: Path) -> None:
    """Its library is bytecode, which TVM's machine tells of: it needs no other."""
    compile_model(models.reduced("mlp"), tmp_path / "m.subtune", target="cuda", tune=False)
    artifact = load(tmp_path / "m.subtune")
    trace = artifact.trace()
    account = read_account(artifact.path, artifact.manifest)
    assert account
    assert [one.kernels for one in trace.slices] == [(name,) for name in account.memory.steps]
    assert all(0 <= one.begin_s < one.end_s for one in trace.slices)


def test_calls_of_a_virtual_machine(device: CPUModel, tmp_path: Path) -> None:
    """A program in bytecode, as a GPU's is: kernels by name, with a mark before and after each."""
    prepared = prepare(small_onnx())
    executable, hashes = compile_module(prepared.mod, device)
    export(executable, tmp_path / "m.so", device.host.triple)
    machine = runtime.virtual_machine(runtime.load_library(tmp_path / "m.so"))
    x = runtime.as_tensor(np.ones((4, 32), np.float32), SimpleNamespace(shape=(4, 32), dtype="float32"))
    marks: Iterator[int] = iter(range(1000))
    results: list[Any] = []
    calls = calls_between(machine, lambda: results.append(machine["main"](x)), lambda: next(marks))
    assert {name for name, _, _ in calls} == set(hashes)
    assert [mark for _, *pair in calls for mark in pair] == list(range(2 * len(calls)))
    assert results
    again = next(marks)
    machine["main"](x)
    assert next(marks) == again + 1, "nobody looks any more"
