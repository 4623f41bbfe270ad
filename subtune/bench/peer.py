"""A framework that has loaded a model, as the bench's worker process sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Peer:
    """A loaded model: `call` runs it on the inputs, `outputs` makes arrays, in the model's order, of what it gave.

    `seconds`, where there is one, makes so many calls and gives the framework's own account of each. `via` names what
    made the framework's model of the file: onnx2torch; "" where nobody had to, or the model was written for it.
    """

    call: Callable[[], Any]
    outputs: Callable[[Any], list[np.ndarray]] = list
    seconds: Callable[[int], list[float]] | None = None
    via: str = ""
