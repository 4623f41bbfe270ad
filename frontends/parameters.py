"""What a user gives with a model whose file has no weights in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parameters:
    """Attributes:
    values: name -> array, or a file that `relay.save_param_dict` or `numpy.savez` wrote, or its bytes.
    random: weights without a value get random ones.
    inputs: the names of all parameters that are inputs; None leaves it to their use.
    seed: of the random values.
    """

    values: Mapping[str, Any] | str | os.PathLike[str] | bytes | None = None
    random: bool = False
    inputs: tuple[str, ...] | None = None
    seed: int = 0

    def __bool__(self) -> bool:
        """Whether anything was given."""
        return self.values is not None or self.random or self.inputs is not None
