"""In a builder process: a scheduled kernel for a GPU into a library and its machine code, which the runner loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from subtune.backends.base import Device
from subtune.backends.cuda.building.binaries import write_binaries
from subtune.backends.cuda.building.compiler import collected
from subtune.backends.cuda.building.cubin import Resources, resources
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.lowering.default_schedule import pipeline
from subtune.backends.host.link import link_shared


def build(func: Any, device: Device, stem: str) -> tuple[str, tuple[Resources, ...]]:
    """Write `stem`.so and `stem`.cubin; the library's path, and what its kernels take of a multiprocessor."""
    import tvm

    with collected(device.numerics.exact) as binaries:
        module = tvm.compile(func, device.model.target(), tir_pipeline=pipeline()).mod
    path = f"{stem}.so"
    write_binaries(binaries_of(path), binaries)
    module.export_library(path, fcompile=link_shared)
    return path, tuple(found for code in binaries.values() for found in resources(code))


def binaries_of(library: str) -> Path:
    """Where the machine code lies that belongs to a library."""
    return Path(library).with_suffix(".cubin")


def complaint(found: tuple[Resources, ...], device: CUDAModel) -> str:
    """Why a kernel cannot be launched or is not worth it, from its machine code; "" when nothing speaks against it."""
    for one in found:
        if one.shared_bytes > device.shared_per_block_bytes:
            limit = device.shared_per_block_bytes
            return f"{one.kernel} takes {one.shared_bytes} bytes of shared memory, a block has {limit}"
        if one.stack_bytes > _SPILLED:
            return f"{one.kernel} spills: {one.registers} registers and {one.stack_bytes} bytes of stack a thread"
    return ""


_SPILLED = 256
"""Bytes a thread. Less may be an array that is indexed at run time, or a few registers outside the loop."""
