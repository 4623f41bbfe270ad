"""Build a spliced module and write it as an artifact directory: all of it, or nothing.

The hash of every PrimFunc is taken after the last Relax pass, right before lowering: it proves that what was timed is
what is linked.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from subtune import runtime
from subtune.artifact import Artifact, load
from subtune.artifact import manifest as manifests
from subtune.artifact.exchange_paths import exchange
from subtune.assembly import build
from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel
from subtune.core.errors import ArtifactError
from subtune.core.manifest import (
    MANIFEST_NAME,
    WEIGHTS_NAME,
    FileEntry,
    KernelOrigin,
    Manifest,
    Source,
    SubgraphEntry,
    WeightEntry,
)
from subtune.core.scratch import abandoned, scratch
from subtune.core.tensor_spec import TensorSpec
from subtune.passes.lift_constants import lift_constants

logger = logging.getLogger(__name__)

SUFFIX = ".subtune"
STAGING = ".new"
OLD = ".old"
"""Ends of the names of hidden directories beside an artifact: what is being written, what is being replaced."""

_SHORT_S = 250e-6
"""A kernel's time below which a launch of its own counts."""


def check_destination(path: str | os.PathLike[str]) -> Path:
    """The directory to write to. Raises ArtifactError if something is in the way that is not an artifact."""
    folder = Path(path)
    if not folder.parent.is_dir():
        raise ArtifactError(f"cannot write {folder}: the directory {folder.parent} does not exist")
    if not os.access(folder.parent, os.W_OK):
        raise ArtifactError(f"cannot write {folder}: no permission to write in {folder.parent}")
    if folder.is_dir() and not folder.is_symlink():
        if not any(folder.iterdir()) or (folder / MANIFEST_NAME).is_file():
            return folder
        raise ArtifactError(f"{folder} is in the way: it is a directory, but no artifact; choose another name")
    if folder.exists() or folder.is_symlink():
        raise ArtifactError(f"{folder} is in the way: it is not an artifact; choose another name")
    return folder


def write_files(
    path: str | os.PathLike[str],
    *,
    mod: tvm.IRModule,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    device: Device | HardwareModel,
    kernels: Sequence[KernelOrigin] = (),
    source: Source | None = None,
    name: str | None = None,
    check: Callable[[Artifact], None] | None = None,
) -> Path:
    """Build `mod` for `device`, which may be another machine, and put it at `path`, replacing an artifact there.

    Args:
        mod: in call_tir form, with scheduled PrimFuncs; `main` takes the model's inputs in order, nothing else.
        kernels: where the PrimFuncs come from; those not named are recorded with their linked hash only.
        check: called with the built artifact before it appears at `path`; if it raises, nothing is written. What is
            for another machine cannot be loaded: `check` gets the same kernels, built for this one.

    Raises ArtifactError when `path` is taken by something else, the disk is full, or there is no linker.
    """
    folder, device = check_destination(path), as_device(device)
    assert len(mod["main"].params) == len(inputs), "main takes the model's inputs and nothing else"
    _recover(folder)
    try:
        place = scratch(f".{folder.name}.", STAGING, folder.parent)
    except OSError as e:
        raise _cannot_write(folder, e) from e
    staging = place.path / folder.name
    try:
        try:
            staging.mkdir()  # the place is private; this has the mode that the umask says
            _fill(staging, mod, inputs, outputs, device, kernels, source or Source(), name or _stem(folder))
            loadable = staging
            if check is not None and device.model.obstacle():
                stand_in = device.backend.stand_in(device)
                assert stand_in is not None, f"what is built for {device.model.name} cannot be checked here"
                loadable = staging / "here"
                loadable.mkdir()
                _fill(loadable, mod, inputs, outputs, stand_in, kernels, Source(), name or _stem(folder))
        except OSError as e:
            raise _cannot_write(folder, e) from e
        del mod  # its constants, if nobody else has them: the file does
        if check is not None:
            check(load(loadable, share_weights=True))
        if loadable != staging:
            shutil.rmtree(loadable)
        try:
            _replace(staging, folder)
        except OSError as e:
            raise _cannot_write(folder, e) from e
    finally:
        place.remove()
    return folder


def _stem(folder: Path) -> str:
    return folder.name.removesuffix(SUFFIX)


def _cannot_write(folder: Path, error: OSError) -> ArtifactError:
    return ArtifactError(f"cannot write {folder}: {error.strerror or error}; nothing was written")


def _fill(
    staging: Path,
    mod: tvm.IRModule,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    device: Device,
    kernels: Sequence[KernelOrigin],
    source: Source,
    name: str,
) -> None:
    """Write the three files of the artifact into the directory `staging`."""
    lifted, weights = lift_constants(mod)
    table, arrays = _laid_out(weights), (len(inputs), len(outputs))
    short = [kernel.name for kernel in kernels if 0.0 < kernel.tuned_s < _SHORT_S]
    offsets = [weight.offset for weight in table]
    hashes, memory, built = build(lifted, arrays, device, staging, short, offsets)
    files = [*built, WEIGHTS_NAME]
    _write_weights(weights, table, staging / WEIGHTS_NAME)
    manifest = Manifest(
        name=name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        kind=device.backend.kind,
        target=str(device.model.target()),
        triple=device.model.host.triple,
        device=device.fingerprint(),
        features=device.model.host.features,
        threads=device.model.host.threads,
        versions=tuple(runtime.versions().items()),
        source=source,
        subgraphs=_subgraphs(hashes, kernels),
        weights=table,
        memory=memory,
        files=tuple(
            FileEntry(file, (staging / file).stat().st_size, manifests.sha256_of(staging / file)) for file in files
        ),
    )
    manifests.write(staging, manifest)


def _subgraphs(hashes: dict[str, str], kernels: Sequence[KernelOrigin]) -> tuple[SubgraphEntry, ...]:
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


def _laid_out(weights: Sequence[Any]) -> tuple[WeightEntry, ...]:
    """All tensors one after the other, each on a 64-byte boundary."""
    table: list[WeightEntry] = []
    end = 0
    for tensor in weights:
        shape, dtype = tuple(int(dim) for dim in tensor.shape), str(tensor.dtype)
        offset = -(-end // runtime.ALIGNMENT) * runtime.ALIGNMENT
        table.append(WeightEntry(shape, dtype, offset, _nbytes(shape, dtype)))
        end = offset + table[-1].nbytes
    return tuple(table)


def _write_weights(weights: Sequence[Any], table: Sequence[WeightEntry], path: Path) -> None:
    """The tensors where the table has them; one zero byte if they have none: no system maps an empty file."""
    with path.open("wb") as f:
        for tensor, entry in zip(weights, table, strict=True):
            f.write(b"\0" * (entry.offset - f.tell()))
            f.write(_bytes_of(tensor, entry.nbytes).data)  # numpy's tofile does not notice that the disk is full
        if not f.tell():
            f.write(b"\0")


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    bits = tvm.runtime.DataType(dtype).bits
    assert bits % 8 == 0, f"weights of {dtype} are packed below a byte"
    return prod(shape) * bits // 8


def _bytes_of(tensor: Any, nbytes: int) -> np.ndarray:
    return np.from_dlpack(runtime.retyped(tensor, (nbytes,), "uint8"))


def _replace(staging: Path, folder: Path) -> None:
    """Move the finished directory to its place; an artifact that is there goes only once the new one can come."""
    if not folder.exists():
        staging.rename(folder)
        return
    if exchange(staging, folder):  # the old one is what is thrown away
        return
    old = scratch(f".{folder.name}.", OLD, folder.parent)
    folder.rename(old.path / folder.name)
    try:
        staging.rename(folder)
    except OSError:
        (old.path / folder.name).rename(folder)
        raise
    finally:
        old.remove()


def _recover(folder: Path) -> None:
    """Put back the artifact that a process set aside and was killed before it put the new one in its place."""
    for old in abandoned(f".{folder.name}.", OLD, folder.parent):
        if not folder.exists() and (old / folder.name).exists():
            with suppress(OSError):
                (old / folder.name).rename(folder)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
