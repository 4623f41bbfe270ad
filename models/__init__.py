"""The model zoo: one file per architecture, `build(...) -> onnx.ModelProto`.

Names and keyword arguments go in, ONNX models with deterministic weights come out. Importing this room,
`names()` and `describe()` do not import onnx; the other functions do.
"""

from __future__ import annotations

from subtune.models.catalog import build, describe, names, quantised_names, reduced
from subtune.models.examples import example_inputs

__all__ = ["build", "describe", "example_inputs", "names", "quantised_names", "reduced"]
