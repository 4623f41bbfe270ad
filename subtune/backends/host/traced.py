"""The library of an artifact that was compiled for traces. Needs TVM's runtime only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from subtune import runtime
from subtune.core.errors import InputError
from subtune.core.manifest import TRACE_NAME, Manifest

TRACED = "traced"
"""The library's function that runs the model (`host.twin`)."""
STEPS = "steps"
"""Its function that says what the steps are: copies JSON to an address, if that is not 0; its size in bytes."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A loaded library.

    Attributes:
        code: what holds `call`.
        call: `TRACED`.
        steps: the names of the kernels in each step of a run, in order.
    """

    code: Any
    call: Callable[..., Any]
    steps: tuple[tuple[str, ...], ...]


def load_traced(folder: Path, manifest: Manifest) -> Traced:
    """The library of the artifact in `folder`, whose files have been checked.

    Raises:
        InputError: it has none.
    """
    if all(entry.name != TRACE_NAME for entry in manifest.files):
        raise InputError(
            f"{folder} cannot be traced, it was compiled without --trace (in Python trace=True); compile the model "
            "again with `subtune compile --trace`"
        )
    return traced(runtime.load_library(folder / TRACE_NAME))


def traced(library: Any) -> Traced:
    """What a loaded library for traces has to offer."""
    text = np.zeros(library[STEPS](0), np.uint8)
    library[STEPS](text.ctypes.data)
    return Traced(library, library[TRACED], tuple(map(tuple, json.loads(text.tobytes()))))
