"""A spliced module into a library: TVM's last passes and the memory plan here, machine code by the backend.

The hash of every PrimFunc is taken after the last Relax pass, right before lowering: it proves that what was timed is
what is linked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel
from subtune.backends.planned import Planned
from subtune.core.account import MemoryUse
from subtune.core.domain import Domain
from subtune.core.manifest import STATIC
from subtune.core.memory_plan import MemoryPlan
from subtune.core.record import func_hash
from subtune.core.variants import Variants
from subtune.passes.run import Phase
from subtune.passes.static_memory import plan_with_lives
from subtune.pipeline import TO_CALLS, TO_PROGRAM

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """`domain` has the symbols, `variants` are as in `Planned`."""

    domain: Domain = STATIC
    variants: Mapping[str, Variants] = field(default_factory=dict)

    def past_end(self) -> dict[str, Fraction]:
        """What PrimFuncs, by name, compute past the last row: at most so large a part of the greatest instance."""
        greatest = self.domain.greatest
        most = {
            name: max((kernel.past_end([dim.at(greatest) for dim in one.extents]) for kernel in one.kernels), default=0)
            for name, one in self.variants.items()
        }
        return {name: Fraction(part) for name, part in most.items() if part}


def compile_module(mod: tvm.IRModule, device: Device | HardwareModel) -> tuple[Any, dict[str, str]]:
    """A module in call_tir form as a Relax executable, and the hash of every PrimFunc as it enters lowering.

    Its `main` takes what the module's takes, and TVM allocates.
    """
    device = as_device(device)
    lowered = _run(TO_PROGRAM, _to_calls(mod, device), device)
    return device.backend.executable(lowered, device), _hashes(lowered)


def build(
    mod: tvm.IRModule,
    arrays: tuple[int, int],
    device: Device,
    folder: Path,
    short: Collection[str] = (),
    offsets: Sequence[int] = (),
    hides_denormals: bool = False,
    dynamic: Dynamic = Dynamic(),  # frozen
    is_traced: bool = False,
) -> tuple[dict[str, str], MemoryPlan, tuple[str, ...], MemoryUse]:
    """Compile `mod`, whose `main` takes inputs and then weights, into the library of an artifact, in `folder`.

    Args:
        arrays: how many inputs and outputs there are.
        short: names of kernels that are worth joining with their neighbours.
        offsets: of the weights, in bytes from the first.
        hides_denormals: they may count as zero.
        dynamic: of a model for many shapes.
        is_traced: there is to be a library for traces, too.

    Returns the hash of every PrimFunc as it enters lowering, by name; where the tensors lie; the files' names; and when
    each tensor is needed.
    """
    start = time.perf_counter()
    calls, memory, use = plan_with_lives(_to_calls(mod, device), arrays[0], dynamic.past_end())
    program = _run(TO_PROGRAM, calls, device)
    more = (hides_denormals, dynamic.domain.names, dynamic.variants, is_traced)
    planned = Planned(calls, program, memory, arrays, frozenset(short), tuple(offsets), *more)
    hashes = _hashes(planned.program)
    memory, files = device.backend.build_program(planned, device, folder)
    logger.debug("%d kernels: %.2f s", len(hashes), time.perf_counter() - start)
    return hashes, memory, files, use


def _to_calls(mod: tvm.IRModule, device: Device) -> tvm.IRModule:
    return _run(TO_CALLS, device.backend.own_operators(mod, device), device)


def _run(phase: Phase, mod: tvm.IRModule, device: Device) -> tvm.IRModule:
    scheduled = {gvar.name_hint for gvar, func in mod.functions_items() if isinstance(func, PrimFunc)}
    with device.model.target():
        for one in phase.passes:
            mod = one(mod)
    return device.backend.schedule_rest(mod, device, keep=scheduled)


def _hashes(mod: tvm.IRModule) -> dict[str, str]:
    return {gvar.name_hint: func_hash(func) for gvar, func in mod.functions.items() if isinstance(func, PrimFunc)}
