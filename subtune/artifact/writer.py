"""The files of an artifact beside its library: weights and manifest."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from subtune import runtime
from subtune.core.manifest import KernelOrigin, SubgraphEntry, WeightEntry


def subgraph_entries(hashes: dict[str, str], kernels: Sequence[KernelOrigin]) -> tuple[SubgraphEntry, ...]:
    """One of every linked PrimFunc; those that `kernels` does not name have their hash only."""
    origins = {kernel.name: kernel for kernel in kernels}
    assert set(origins) <= set(hashes), f"kernels not in the module: {sorted(set(origins) - set(hashes))}"
    entries = []
    for name, linked in sorted(hashes.items()):
        origin = origins.get(name, KernelOrigin(name))
        assert origin.measured_hash in ("", linked), f"kernel {name} was measured as another PrimFunc than is linked"
        entries.append(
            SubgraphEntry(
                name=name,
                workload=origin.workload,
                candidate=origin.candidate,
                measured_hash=origin.measured_hash,
                linked_hash=linked,
                default_s=origin.default_s,
                tuned_s=origin.tuned_s,
                basis=origin.basis,
            )
        )
    return tuple(entries)


def laid_out(weights: Sequence[Any]) -> tuple[WeightEntry, ...]:
    """All tensors one after the other, each on a 64-byte boundary."""
    table: list[WeightEntry] = []
    end = 0
    for tensor in weights:
        shape, dtype = tuple(int(dim) for dim in tensor.shape), str(tensor.dtype)
        offset = -(-end // runtime.ALIGNMENT) * runtime.ALIGNMENT
        table.append(WeightEntry(shape, dtype, offset, _nbytes(shape, dtype)))
        end = offset + table[-1].nbytes
    return tuple(table)


def write_weights(weights: Sequence[Any], table: Sequence[WeightEntry], path: Path) -> None:
    """The tensors where the table has them; one zero byte if they have none: no system maps an empty file."""
    with path.open("wb") as f:
        for tensor, entry in zip(weights, table, strict=True):
            f.write(b"\0" * (entry.offset - f.tell()))
            f.write(_bytes_of(tensor, entry.nbytes).data)  # numpy's tofile does not notice that the disk is full
        if not f.tell():
            f.write(b"\0")


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    bits = tvm_ffi.dtype(dtype).bits
    assert bits % 8 == 0, f"weights of {dtype} are packed below a byte"
    return prod(shape) * bits // 8


def _bytes_of(tensor: Any, nbytes: int) -> np.ndarray:
    return np.from_dlpack(runtime.retyped(tensor, (nbytes,), "uint8"))
