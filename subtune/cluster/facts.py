"""What a driver asks of a node, and what it learns: plain picklable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from subtune.backends.base import Device
from subtune.core.numerics import Numerics
from subtune.measure.site import Site


@dataclass(frozen=True, slots=True)
class Asked:
    """As `subtune.backends.device_of` takes it."""

    target: Any
    threads: int | None
    numerics: Numerics


@dataclass(frozen=True, slots=True)
class Node:
    """As the cluster has it: a machine, or a part of one."""

    id: str
    """Another one after each start."""
    address: str
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node says of itself."""

    host: str
    """Equal for nodes on one machine: what one of them times is disturbed by what the others build."""
    version: str
    triple: str
    device: Device | None
    """What the target is there; None where the machine has none."""
    why: str = ""
    """It has none."""
    places: tuple[Site, ...] = ()
    """The devices there on which kernels can be measured side by side."""
    keys: tuple[str, ...] = ()
    """Of `places`: equal for equal devices of one machine, whichever node names them."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The station wants the files of these libraries with the job."""

    paths: tuple[str, ...]


Files = Mapping[str, Mapping[str, bytes]]
"""Of libraries by their paths on the driver's disk: the ends of the files' names, and what is in them."""
