"""The C++ program of docs/deploying.md runs an artifact."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from subtune.artifact import load

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "run_artifact.cc"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_example_computes_what_python_does(small_artifact, tmp_path):
    folders = [Path(str(importlib.util.find_spec(name).origin)).parent for name in ("tvm_ffi", "tvm")]
    ffi, libraries = folders[0], [folder / "lib" for folder in folders]
    includes = [f"-I{path}" for path in ffi.rglob("include")]
    search = [flag for lib in libraries for flag in (f"-L{lib}", f"-Wl,-rpath,{lib}")]
    command = [
        "g++",
        "-std=c++17",
        str(EXAMPLE),
        *includes,
        *search,
        "-Wl,--no-as-needed",
        "-ltvm_runtime",
        "-ltvm_ffi",
    ]
    subprocess.run([*command, "-o", str(tmp_path / "run")], check=True)
    artifact = load(small_artifact)
    arguments = [str(tmp_path / "run"), str(small_artifact), str(artifact.manifest.memory.arena_nbytes)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    expected = artifact.run({"x": np.ones((4, 32), np.float32)})
    np.testing.assert_allclose(
        [float(word) for word in said.split()], [expected["y"][0, 0], expected["s"][0]], rtol=1e-5
    )
