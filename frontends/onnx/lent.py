"""An ONNX model whose weights are in memory already, as arrays that somebody else owns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from subtune.core.reference import Reference


@dataclass(frozen=True, slots=True, eq=False)
class LentModel:
    """What `frontends.load` takes from a framework that lives in this process.

    Attributes:
        proto: each initialiser that `arrays` has says that it is external data, and has no bytes of its own.
        arrays: initialiser -> its values, in its shape and data type; nothing is copied before the importer makes its
            constants, one weight after the other.
        name: of the model.
        reference: what runs the model here, to verify against; None: default schedules do.
    """

    proto: onnx.ModelProto
    arrays: Mapping[str, np.ndarray]
    name: str
    reference: Reference | None = None
