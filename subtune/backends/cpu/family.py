"""What all schedule families of a CPU have in common: words for their traits, and for what their knobs decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from subtune.backends.base import Family, Problem
from subtune.backends.cpu.device import CPUModel

CPUProblem = Problem[CPUModel]
CPUFamily = Family[CPUModel, Any]

# Traits.
SERIAL = "serial"
"""With the knob `serial`, which the backend adds where kernels are short, they run on the calling thread alone."""
STREAMED = "streamed"
"""With the knob `stream`, which the backend adds where outputs are large, they are stored past the caches."""
PER_ROW = "per row"
"""Divides by what is computed once a row: multiplying by its reciprocal is as good."""
LIBM = "libm"
"""Calls libm's functions; the kernels of all others compute polynomials, unless the user wants exact results."""
DOUBTED = "doubted"
"""The model flatters it: proposed where it is predicted to be faster than all others, and not by a little."""


def _role(name: str) -> Mapping[str, str]:
    return MappingProxyType({"role": name})


# What a knob decides, as the metadata of its field.
MODE = _role("mode")
"""How the same loops run: on one thread, past the caches, with what is read asked for ahead."""
ALGORITHM = _role("algorithm")
"""How the same tile is computed: another implementation, which gets a share of the candidates of its own."""
REGISTERS = _role("registers")
"""The tile that is kept in registers."""


def knobs_of(family: CPUFamily, *roles: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the knobs that decide one of `roles`."""
    return tuple(f.name for f in fields(family.knobs) if any(f.metadata.get("role") == role["role"] for role in roles))
