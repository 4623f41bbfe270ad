"""What every frontend gives: one Relax module with static shapes, and how it looks from outside."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from subtune.core.reference import Reference
from subtune.core.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported model.

    Attributes:
        mod: `mod["main"]` takes the inputs, in the order of `inputs`, and gives one tensor, or a tuple in the order
            of `outputs` when there are several. Weights are constants; every shape is static.
        reference: another runtime that runs the model, to verify against; None where nothing else runs such models.
        notes: what the frontend decided that a user should hear of, a line each.
    """

    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    name: str
    reference: Reference | None
    notes: tuple[str, ...] = ()
