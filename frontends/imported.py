"""What every frontend gives: one Relax module with static shapes, and how it looks from outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import tvm

from subtune.core.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported model.

    Attributes:
        mod: `mod["main"]` takes the inputs, in the order of `inputs`, and gives one tensor, or a tuple in the order
            of `outputs` when there are several. Weights are constants; every shape is static.
        source: what a reference runtime can run for verification: the model's file, or its protobuf (the very object
            given to `load`, not a copy) when there is no file; None where nothing else runs such models.
        notes: what the frontend decided that a user should hear of, a line each.
    """

    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    name: str
    source: Path | onnx.ModelProto | None
    notes: tuple[str, ...] = ()
