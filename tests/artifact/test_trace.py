"""One run, kernel by kernel: every kernel in its turn, times that rise, the same outputs; and as Perfetto reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from subtune import models, runtime
from subtune.artifact import Artifact, load
from subtune.artifact import manifest as manifests
from subtune.artifact.account import read_account
from subtune.assembly import compile_module
from subtune.backends.cpu.device import CPUModel
from subtune.backends.host.export import export
from subtune.backends.host.instrument import calls_between
from subtune.backends.host.steps import STEPS_NAME, read_steps, write_steps
from subtune.core.errors import ArtifactError, InputError
from subtune.core.trace import Slice, Trace
from subtune.driver import compile_model
from subtune.pipeline import prepare
from subtune.report.traced import chrome_trace
from tests.small_model import small_onnx


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    compile_model(
        models.reduced("unet"), folder / "m.subtune", topk=1, verify=False, threads=2, database=folder / "t.db"
    )
    return folder / "m.subtune"


@pytest.fixture
def artifact(folder: Path) -> Artifact:
    return load(folder)


def flat(slices: Iterable[Slice]) -> list[str]:
    return [name for one in slices for name in one.kernels]


def test_every_kernel_in_its_turn(artifact: Artifact) -> None:
    trace = artifact.trace()
    account = read_account(artifact.path, artifact.manifest)
    assert account
    assert flat(trace.slices) == list(account.memory.steps)
    assert trace.slices[0].begin_s == 0.0
    assert all(one.end_s == other.begin_s for one, other in pairwise(trace.slices))
    assert all(one.seconds >= 0 for one in trace.slices)
    assert 0 < trace.seconds < 60
    assert trace.about["model"] == artifact.manifest.name


def test_the_twin_computes_what_main_does(artifact: Artifact) -> None:
    """Bit for bit: it calls the same kernels."""
    rng = np.random.default_rng(0)
    inputs = {spec.name: rng.standard_normal(spec.sizes, dtype=np.float32) for spec in artifact.inputs}
    expected = artifact.run(inputs)
    arrays = [*inputs.values(), *(np.full_like(array, np.nan) for array in expected.values())]
    artifact.program.trace(arrays, ())
    for made, wanted in zip(arrays[len(inputs) :], expected.values(), strict=True):
        np.testing.assert_array_equal(made, wanted)


def test_short_kernels_of_one_launch_are_one_slice(artifact: Artifact) -> None:
    """As they run: the time of one alone in a launch cannot be told."""
    steps = read_steps(artifact.path)
    assert any(len(names) > 1 for names in steps)
    assert [one.kernels for one in artifact.trace().slices] == list(steps)


def test_what_runs_in_tvms_machine_is_refused(folder: Path, tmp_path: Path) -> None:
    """As is an artifact without the file that names the steps."""
    shutil.copytree(folder, tmp_path / "m.subtune")
    (tmp_path / "m.subtune" / STEPS_NAME).unlink()
    manifest = manifests.read(folder)
    files = tuple(one for one in manifest.files if one.name != STEPS_NAME)
    manifests.write(tmp_path / "m.subtune", replace(manifest, files=files))
    older = load(tmp_path / "m.subtune")
    with pytest.raises(InputError, match="unet cannot be traced"):
        older.trace()


def test_steps_that_are_damaged(tmp_path: Path) -> None:
    write_steps(tmp_path, [["a", "b"], ["c"]])
    assert read_steps(tmp_path) == (("a", "b"), ("c",))
    (tmp_path / STEPS_NAME).write_text("[1")
    with pytest.raises(ArtifactError, match=r"cannot read .*steps\.json"):
        read_steps(tmp_path)


def test_perfettos_json(artifact: Artifact) -> None:
    trace = artifact.trace()
    data = json.loads(chrome_trace(artifact, trace))
    events = data["traceEvents"]
    slices = [one for one in events if one["ph"] == "X"]
    assert [one["name"] for one in slices] == [" + ".join(one.kernels) for one in trace.slices]
    assert sum(one["dur"] for one in slices) == pytest.approx(trace.seconds * 1e6, rel=1e-3)
    counters = [one["args"]["bytes"] for one in events if one["ph"] == "C"]
    assert len(counters) == len(slices)
    assert 0 < max(counters) <= artifact.manifest.memory.bound_nbytes
    single = next(one for one in slices if " + " not in one["name"] and "FLOP" in one["args"])
    assert {"schedule", "alone us", "default us", "roofline us"} <= set(single["args"])


def test_a_trace_of_nothing() -> None:
    assert Trace(()).seconds == 0.0
    assert json.loads(Trace(()).to_chrome("m", {}))["otherData"] == {}


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
