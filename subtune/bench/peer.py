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

    `seconds`, where there is one, makes so many calls and gives the framework's own account of each.
    """

    call: Callable[[], Any]
    outputs: Callable[[Any], list[np.ndarray]] = list
    seconds: Callable[[int], list[float]] | None = None
