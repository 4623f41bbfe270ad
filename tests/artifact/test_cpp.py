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
    x = np.random.default_rng(0).standard_normal((4, 32), np.float32)
    arguments = [str(tmp_path / "run"), str(small_artifact)]
    written = subprocess.run(arguments, input=x.tobytes(), capture_output=True, check=True).stdout
    expected = artifact.run({"x": x})
    assert written == expected["y"].tobytes() + expected["s"].tobytes()
