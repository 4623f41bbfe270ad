"""The PyTorch module of an ONNX file: the case's own function, the zoo model's twin, or what onnx2torch makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from subtune.bench.coverage.case import CASE_SUFFIX

CONVERTED = "onnx2torch"


def torch_module(path: str) -> tuple[Any, str]:
    """The module, ready for inference on a CPU, and what made it: "" where it was written for the model, or CONVERTED.

    Whatever the converter raises says what it cannot convert.
    """
    if is_case(path):
        from subtune.bench.coverage.torch_dialect import load_case

        return load_case(path), ""
    from subtune.bench.torch_model import converted

    return converted(path), CONVERTED


def is_case(path: str) -> bool:
    """Whether the ONNX file is of a case of the coverage suite."""
    return Path(path).with_suffix(CASE_SUFFIX).is_file()
