"""What was exported, tried in processes of its own: its outputs are the artifact's, and come in so many seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from subtune.artifact import Artifact
from subtune.artifact.random_inputs import random_inputs
from subtune.core.errors import ArtifactError
from subtune.runtime import carried

_STARTS = 3
"""The first one reads everything from the disk."""

_IMPORTED = """
import sys, importlib, numpy as np
model = importlib.import_module(sys.argv[1]).load()
data, inputs = open(0, "rb").read(), {}
for name, shape in zip(model.inputs, eval(sys.argv[2])):
    dtype = model.inputs[name]
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    inputs[name], data = np.frombuffer(data[:nbytes], np.uint8).view(dtype).reshape(shape), data[nbytes:]
outputs = model.run(inputs)
print("first result", file=sys.stderr, flush=True)
for array in outputs.values():
    sys.stdout.buffer.write(np.ascontiguousarray(array).view(np.uint8).tobytes())
"""


def of_program(program: Path, model: Path, artifact: Artifact) -> float:
    """Seconds from the start of the program `run` to its first result, of the least instance; the least of several.

    Raises:
        ArtifactError: it fails, or its result is not the artifact's.
    """
    values = _least(artifact)
    symbols = [f"{name}={value}" for name, value in values.items()]
    return _tried([str(program), str(model), *symbols], artifact, values, dict(os.environ))


def of_package(root: Path, name: str, artifact: Artifact) -> float:
    """As `of_program`, of a Python process that imports the package `name` in `root`, and nothing of subtune's."""
    values = _least(artifact)
    shapes = [spec.at(values).sizes for spec in artifact.inputs]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    return _tried([sys.executable, "-c", _IMPORTED, name, repr(shapes)], artifact, values, environment)


def _least(artifact: Artifact) -> dict[str, int]:
    return {symbol.name: symbol.values[0] for symbol in artifact.manifest.domain.symbols}


def _tried(command: Sequence[str], artifact: Artifact, values: Mapping[str, int], environment: dict[str, str]) -> float:
    inputs = random_inputs(artifact.inputs, values=values)
    expected = artifact.run(inputs)
    wanted = b"".join(_bits(expected[spec.name]) for spec in artifact.outputs)
    seconds = []
    with tempfile.TemporaryFile() as file:
        for spec in artifact.inputs:
            file.write(_bits(inputs[spec.name]))
        for _ in range(_STARTS):
            file.seek(0)
            found, after = _run(command, file, environment)
            if found != wanted:
                raise ArtifactError("what was exported gives other outputs than the artifact; this is a bug")
            seconds.append(after)
    return min(seconds)


def _run(command: Sequence[str], inputs: IO[bytes], environment: dict[str, str]) -> tuple[bytes, float]:
    """The outputs, and seconds until the process said that it has them: that its threads stop is not timed."""
    with tempfile.TemporaryFile() as outputs:
        start = time.perf_counter()
        with subprocess.Popen(
            command, stdin=inputs, stdout=outputs, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
        ) as process:
            assert process.stderr is not None
            said = process.stderr.readline()
            after = time.perf_counter() - start
            said += process.stderr.read()
        if process.returncode:
            lines = said.strip().splitlines() or [f"exit status {process.returncode}"]
            raise ArtifactError(f"what was exported does not run: {lines[-1]}")
        outputs.seek(0)
        return outputs.read(), after


def _bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(carried(array)).tobytes()
