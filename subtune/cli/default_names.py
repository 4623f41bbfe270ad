"""What a command writes where nobody says: in the working directory, named after the model."""

from __future__ import annotations

from pathlib import Path


def default_output(model: str) -> str:
    """`zoo:resnet18?batch=8` -> `resnet18.subtune`; `dir/model.onnx` -> `model.subtune`."""
    return f"{stem_of(model)}.subtune"


def stem_of(model: str) -> str:
    """`zoo:resnet18?batch=8` -> `resnet18`; `dir/model.onnx` -> `model`."""
    if model.startswith("zoo:"):
        return model.removeprefix("zoo:").partition("?")[0]
    return Path(model).stem
