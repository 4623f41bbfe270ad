"""Build a spliced module and write it as an artifact directory: all of it, or nothing.

The hash of every PrimFunc is taken after the last Relax pass, right before lowering: it proves that what was timed is
what is linked.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from subtune import runtime
from subtune.artifact import Artifact, load
from subtune.artifact import manifest as manifests
from subtune.artifact.exchange_paths import exchange
from subtune.artifact.manifest import FileEntry, KernelOrigin, Manifest, Source, SubgraphEntry, WeightEntry
from subtune.backends.cpu.device import CPUModel, Device
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.backends.cuda.building.binaries import write_binaries
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.lowering.default_schedule import default_schedule, pipeline
from subtune.backends.host.link import link_shared
from subtune.core.errors import ArtifactError
from subtune.core.memory_plan import MemoryPlan
from subtune.core.record import func_hash
from subtune.core.scratch import abandoned, scratch
from subtune.core.tensor_spec import TensorSpec
from subtune.passes.join_kernels import join_kernels
from subtune.passes.lift_constants import lift_constants
from subtune.passes.static_memory import plan_memory
from subtune.passes.straight_line import straight_line

logger = logging.getLogger(__name__)

SUFFIX = ".subtune"
STAGING = ".new"
OLD = ".old"
"""Ends of the names of hidden directories beside an artifact: what is being written, what is being replaced."""

_SHORT_S = 250e-6
"""A kernel's time below which a launch of its own counts."""

# What is left of TVM's default pipeline for a module in call_tir form: no fusion, no dispatch; legalised are only the
# ops that the partition left in main (sorts, scatters), reshapes being views. Memory is planned between the halves.
_TO_CALLS = (
    relax.backend.DispatchSortScan,
    partial(relax.transform.LegalizeOps, skip_ops=["relax.reshape"]),
    relax.transform.RewriteDataflowReshape,
    relax.transform.ToNonDataflow,
    relax.transform.RemovePurityChecking,
)
_TO_PROGRAM = (
    relax.transform.CallTIRRewrite,
    relax.transform.StaticPlanBlockMemory,
    relax.transform.LowerAllocTensor,
    relax.transform.KillAfterLastUse,
    relax.transform.LowerRuntimeBuiltin,
    relax.transform.ComputePrimValue,
    relax.transform.VMShapeLower,
    relax.transform.AttachGlobalSymbol,
)


def check_destination(path: str | os.PathLike[str]) -> Path:
    """The directory to write to. Raises ArtifactError if something is in the way that is not an artifact."""
    folder = Path(path)
    if not folder.parent.is_dir():
        raise ArtifactError(f"cannot write {folder}: the directory {folder.parent} does not exist")
    if not os.access(folder.parent, os.W_OK):
        raise ArtifactError(f"cannot write {folder}: no permission to write in {folder.parent}")
    if folder.is_dir() and not folder.is_symlink():
        if not any(folder.iterdir()) or (folder / manifests.MANIFEST_NAME).is_file():
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
    device: Device,
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
    folder = check_destination(path)
    assert len(mod["main"].params) == len(inputs), "main takes the model's inputs and nothing else"
    _recover(folder)
    try:
        place = scratch(f".{folder.name}.", STAGING, folder.parent)
    except OSError as e:
        raise _cannot_write(folder, e) from e
    staging = place.path
    try:
        try:
            _fill(staging, mod, inputs, outputs, device, kernels, source or Source(), name or _stem(folder))
            loadable = staging
            if check is not None and device.obstacle():
                assert isinstance(device, CPUModel), "what is for a GPU that is not here cannot be checked"
                loadable = staging / "here"
                loadable.mkdir()
                _fill(loadable, mod, inputs, outputs, device.stand_in(), kernels, Source(), name or _stem(folder))
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
    files = [manifests.LIBRARY_NAME, manifests.WEIGHTS_NAME]
    if isinstance(device, CUDAModel):
        from subtune.backends.cuda.building.compiler import collected

        with collected(device.exact_math) as binaries:
            hashes, memory = _build(lifted, arrays, device, staging / manifests.LIBRARY_NAME)
        write_binaries(staging / manifests.BINARIES_NAME, binaries)
        files.append(manifests.BINARIES_NAME)
    else:
        short = [kernel.name for kernel in kernels if 0.0 < kernel.tuned_s < _SHORT_S]
        offsets = [weight.offset for weight in table]
        hashes, memory = _build(lifted, arrays, device, staging / manifests.LIBRARY_NAME, short, offsets)
    _write_weights(weights, table, staging / manifests.WEIGHTS_NAME)
    manifest = Manifest(
        name=name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        target=str(device.target()),
        device=device.fingerprint(),
        features=device.features,
        threads=device.threads,
        versions=tuple(runtime.versions().items()),
        source=source,
        subgraphs=_subgraphs(hashes, kernels),
        weights=table,
        memory=memory,
        files=tuple(
            FileEntry(file, (staging / file).stat().st_size, manifests.sha256_of(staging / file)) for file in files
        ),
    )
    (staging / manifests.MANIFEST_NAME).write_text(manifest.to_json())
    staging.chmod(0o755)  # mkdtemp's is private


def compile_module(mod: tvm.IRModule, device: Device) -> tuple[Any, dict[str, str]]:
    """A module in call_tir form as a Relax executable, and the hash of every PrimFunc as it enters lowering.

    Its `main` takes what the module's takes, and TVM allocates.
    """
    return _compile(_run_passes(_TO_CALLS, mod, device), device)


def _run_passes(passes: Sequence[Callable[[], Any]], mod: tvm.IRModule, device: Device) -> tvm.IRModule:
    scheduled = {gvar.name_hint for gvar, func in mod.functions_items() if isinstance(func, PrimFunc)}
    with device.target():
        made = tvm.transform.Sequential([make() for make in passes])(mod)
    # what TVM legalises has no thread bindings; a CPU needs none
    return default_schedule(made, device.target(), keep=scheduled) if isinstance(device, CUDAModel) else made


def _compile(mod: tvm.IRModule, device: Device) -> tuple[Any, dict[str, str]]:
    lowered = _run_passes(_TO_PROGRAM, mod, device)
    return _program(lowered, device, "bytecode"), _hashes(lowered)


def _program(lowered: tvm.IRModule, device: Device, mode: str) -> Any:
    lowering = pipeline() if isinstance(device, CUDAModel) else PIPELINE
    return relax.build(lowered, target=device.target(), relax_pipeline=None, tir_pipeline=lowering, exec_mode=mode)


def _hashes(mod: tvm.IRModule) -> dict[str, str]:
    return {gvar.name_hint: func_hash(func) for gvar, func in mod.functions.items() if isinstance(func, PrimFunc)}


def _build(
    mod: tvm.IRModule,
    arrays: tuple[int, int],
    device: Device,
    library: Path,
    short: Collection[str] = (),
    offsets: Sequence[int] = (),
) -> tuple[dict[str, str], MemoryPlan]:
    """Compile `mod`, whose `main` takes inputs and then weights, into the shared library.

    Args:
        arrays: how many inputs and outputs there are.
        short: names of kernels that are worth joining with their neighbours.
        offsets: of the weights, in bytes from the first.

    Returns the hash of every PrimFunc as it enters lowering, by name, and where the tensors lie. The calls are machine
    code, too, and without Relax's VM where they are a straight line: TVM's bytecode costs more for each of them than a
    small kernel takes. Not those of a GPU: they are captured once.
    """
    start = time.perf_counter()
    planned, memory = plan_memory(_run_passes(_TO_CALLS, mod, device), arrays[0])
    lowered = _run_passes(_TO_PROGRAM, planned, device)
    if isinstance(device, CUDAModel):
        executable = _program(lowered, device, "bytecode")
    elif line := straight_line(planned, device.target(), short, memory, offsets, *arrays):
        executable = tvm.compile(line, device.target(), tir_pipeline=PIPELINE)
        memory = replace(memory, arguments=(), takes_addresses=True)
    else:
        executable = _program(join_kernels(lowered, device.target(), short), device, "compiled")
    hashes = _hashes(lowered)
    built = time.perf_counter()
    with _object_files(library.parent) as folder:
        link = partial(link_shared, triple=device.triple)
        executable.export_library(str(library), fcompile=link, workspace_dir=str(folder))
    logger.debug("%d kernels: build %.2f s, export %.2f s", len(hashes), built - start, time.perf_counter() - built)
    return hashes, memory


@contextmanager
def _object_files(parent: Path) -> Iterator[Path]:
    """A directory for `export_library`'s object files, which lie in memory where the system can do that.

    LLVM ends the whole process when it cannot write an object file (a full disk); memory does not fill up so. What the
    linker writes is safe: it is a process of its own, and its failure an exit code.
    """
    folder = Path(tempfile.mkdtemp(prefix="objects.", dir=parent))
    descriptors = []
    try:
        if hasattr(os, "memfd_create"):
            for name in ("lib0.o", "devc.o"):  # export_library's names for the kernels and for the VM's program
                descriptors.append(os.memfd_create(name))
                (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{descriptors[-1]}")
        yield folder
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


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
    """The tensors where the table has them; one zero byte if there are none."""
    with path.open("wb") as f:
        for tensor, entry in zip(weights, table, strict=True):
            f.write(b"\0" * (entry.offset - f.tell()))
            _bytes_of(tensor, entry.nbytes).tofile(f)
        if not table:
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
