"""Exported models run without Python: the programs in C and C++ write what `Artifact.run` gives, bit for bit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subtune import runtime
from subtune.artifact import load
from subtune.core.memory_plan import Base, MemoryPlan, View
from tests.artifact.dynamic_model import arrays, write_dynamic

ROOT = Path(__file__).resolve().parents[2]
INSTANCES = [(1, 0, 1), (2, 4, 3), (4, 8, 5)]
X = {"x": np.random.default_rng(1).standard_normal((4, 32), np.float32)}


def call(*command: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command without an environment: no paths to libraries, no Python. TVM's threads do not wait by spinning: the
    tests have several processes on few cores."""
    environment = {"TVM_THREAD_POOL_SPIN_COUNT": "0"}
    return subprocess.run(list(map(str, command)), input=given, capture_output=True, env=environment)


def bits(specs: Any, values: dict[str, np.ndarray]) -> bytes:
    return b"".join(np.ascontiguousarray(values[spec.name]).tobytes() for spec in specs)


def both(artifact: Path, inputs: dict[str, np.ndarray]) -> tuple[bytes, bytes]:
    """Inputs, and the outputs of `Artifact.run`, as raw bytes."""
    loaded = load(artifact)
    return bits(loaded.inputs, inputs), bits(loaded.outputs, loaded.run(inputs))


def symbols(batch: int, past: int, seq: int) -> list[str]:
    return [f"past={past}", f"seq={seq}", f"batch={batch}"]


def test_fixed_shapes(exports, small_artifact):
    given, expected = both(small_artifact, X)
    done = call(exports / "small" / "bin" / "run", exports / "small" / "model", given=given)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.mark.parametrize("instance", INSTANCES)
def test_shapes_that_vary(exports, dynamic_artifact, instance):
    given, expected = both(dynamic_artifact, arrays(*instance))
    program, model = exports / "dynamic" / "bin" / "run", exports / "dynamic" / "model"
    done = call(program, model, *symbols(*instance), given=given)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_outputs_that_need_room_behind_them(exports, tmp_path):
    """Kernels write to the library's own memory then: nothing behind the caller's is touched."""
    y, sums = View(Base.OUTPUT, 0, (4, 13, 4), "float32"), View(Base.ARENA, 0, (4, 5), "float32")
    plan = MemoryPlan(128, 128, 128, (y, sums), ((1, y), (2, sums)), takes_addresses=True, slack=((0, 256),))
    artifact = write_dynamic(tmp_path / "dynamic.subtune", memory=plan)
    given, expected = both(artifact, arrays(2, 4, 3))
    done = call(exports / "dynamic" / "bin" / "run", artifact, *symbols(2, 4, 3), given=given)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.mark.parametrize("name", ["small", "dynamic"])
def test_many_threads(exports, small_artifact, dynamic_artifact, name):
    """8 threads run one model 1000 times each; the program compares every result with the first."""
    artifact, inputs = (small_artifact, X) if name == "small" else (dynamic_artifact, arrays(2, 4, 3))
    given, expected = both(artifact, inputs)
    options = ["--threads", 8, "--runs", 1000, exports / name / "model"]
    done = call(exports / name / "bin" / "run", *options, *(symbols(2, 4, 3) if name == "dynamic" else ()), given=given)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_nothing_else_is_loaded(exports):
    """The program's libraries are its own and the system's: no TVM, no Python."""
    said = subprocess.run(["ldd", str(exports / "small" / "bin" / "run")], capture_output=True, text=True).stdout
    assert "not found" not in said
    own = [Path(path).resolve() for path in re.findall(r"=> (\S*(?:tvm|subtune|python)\S*) ", said)]
    assert sorted(path.name for path in own) == ["libsubtune.so", "libtvm_ffi.so", "libtvm_runtime.so"]
    assert {path.parent for path in own} == {(exports / "small" / "lib").resolve()}
    shipped = sum(file.stat().st_size for file in (exports / "small").rglob("*") if file.is_file())
    assert shipped < 30 << 20


def changed(exports: Path, tmp_path: Path, **fields: Any) -> Path:
    model = Path(shutil.copytree(exports / "dynamic" / "model", tmp_path / "model"))
    manifest = json.loads((model / "manifest.json").read_text())
    (model / "manifest.json").write_text(json.dumps({**manifest, **fields}))
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 5}, "has artifact format 5, this library reads 7: export it again"),
        ({"kind": "cuda"}, "is for a GPU: load it from Python"),
        ({"features": ["avx9000"]}, "the model uses avx9000, which this processor lacks"),
        ({"caches": [{"input": 0}]}, "keeps caches in place: load it from Python"),
        ({"memory": {"arena_nbytes": 0, "takes_addresses": False}}, "runs in TVM's virtual machine"),
        ({"memory": []}, "manifest.json is damaged: there is no object for arena_nbytes"),
        ({"inputs": 3}, "manifest.json is damaged: there is no list"),
        ({"inputs": [{"name": 1.5}]}, "manifest.json has no dtype"),
    ],
)
def test_manifests_that_do_not_fit_are_a_sentence(exports, tmp_path, fields, message):
    done = call(exports / "dynamic" / "bin" / "run", changed(exports, tmp_path, **fields))
    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert done.stderr.decode().startswith("run: ")


def test_other_mistakes_are_a_sentence(exports, tmp_path):
    program, model = exports / "dynamic" / "bin" / "run", exports / "dynamic" / "model"
    for arguments, message in (
        ([tmp_path / "no"], f"{tmp_path}/no is no artifact"),
        ([], "give an artifact directory"),
        ([model, "sequence=3"], "give the model's symbols as SYMBOL=N"),
        ([model, "seq=3"], "there are too few bytes for all inputs"),
    ):
        done = call(program, *arguments)
        assert (done.returncode, message in done.stderr.decode()) == (2, True), done.stderr
    three = bits(load(model).inputs, arrays(3, 8, 5))
    done = call(program, model, "batch=3", given=three)
    assert "batch is 3, and the model was not compiled for that" in done.stderr.decode()
    broken = Path(shutil.copytree(model, tmp_path / "broken"))
    (broken / "manifest.json").write_text("{")
    assert "is damaged: it is no JSON" in call(program, broken).stderr.decode()
    (broken / "manifest.json").write_bytes((model / "manifest.json").read_bytes())
    (broken / "model.so").write_bytes(b"\x7fELF")
    assert "ffi.ModuleLoadFromFile failed" in call(program, broken).stderr.decode()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("g++") is None, reason="needs CMake and g++")
class TestCMake:
    def test_the_loader_is_built_again(self, exports, tmp_path, small_artifact):
        own = Path(shutil.copytree(exports / "small", tmp_path / "small"))
        self._build(own, tmp_path / "build")
        given, expected = both(small_artifact, X)
        done = call(tmp_path / "build" / "run", own / "model", given=given)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr

    def test_examples_in_cpp(self, exports, tmp_path, small_artifact, dynamic_artifact):
        """TVM's own interface; and, through the loader's, two models in one process, 8 threads each."""
        self._build(ROOT / "docs" / "examples", tmp_path, f"-DSUBTUNE_EXPORT={exports / 'small'}")
        given, expected = both(small_artifact, X)
        done = call(tmp_path / "run_artifact", small_artifact, given=given)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
        folders, wanted = [], {}
        for name, artifact, inputs in (
            ("one", small_artifact, X),
            ("two", dynamic_artifact, arrays(4, 8, 5)),
            ("three", small_artifact, {"x": -X["x"]}),
        ):
            folders.append(tmp_path / name)
            folders[-1].symlink_to(artifact)
            given, wanted[name] = both(artifact, inputs)
            (tmp_path / f"{name}.in").write_bytes(given)
        done = call(tmp_path / "run_models", 8, 1000, *folders)
        assert (done.returncode, done.stdout) == (0, b"0 runs gave something else\n"), done.stderr
        assert {name: (tmp_path / f"{name}.out").read_bytes() for name in wanted} == wanted

    def _build(self, source: Path, build: Path, *options: str) -> None:
        python = f"-DPython_EXECUTABLE={sys.executable}"
        for command in (["cmake", "-S", str(source), "-B", str(build), python, *options], ["cmake", "--build", build]):
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
            assert done.returncode == 0, done.stdout + done.stderr


def test_the_library_reads_this_format():
    from subtune.artifact.manifest import FORMAT

    header = (ROOT / "subtune" / "deploy" / "native" / "model.h").read_text()
    assert f"#define SUBTUNE_FORMAT {FORMAT} " in header


def test_what_is_shipped_is_what_runs_here(exports):
    assert (exports / "small" / "lib" / "libtvm_runtime.so").read_bytes() == runtime.runtime_path().read_bytes()
