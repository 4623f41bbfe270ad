"""A spliced module built and written as an artifact directory: all of it, or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import tvm

from subtune import runtime
from subtune.artifact import Artifact, load
from subtune.artifact import manifest as manifests
from subtune.artifact.account import write_account
from subtune.artifact.destination import SUFFIX, check_destination, staged, writing
from subtune.artifact.writer import laid_out, subgraph_entries, write_weights
from subtune.assembly.build import Dynamic, build
from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel
from subtune.core.account import ACCOUNT_NAME, Account
from subtune.core.cache import Cache
from subtune.core.domain import Domain
from subtune.core.manifest import STATIC, WEIGHTS_NAME, FileEntry, KernelOrigin, Manifest, Source
from subtune.core.tensor_spec import TensorSpec
from subtune.core.variants import Variants
from subtune.passes.lift_constants import lift_constants

_SHORT_S = 250e-6
"""A kernel's time below which a launch of its own counts."""


@dataclass(frozen=True, slots=True)
class Package:
    """A module in call_tir form with scheduled PrimFuncs, and what is known of it.

    `main` takes the model's inputs in order, nothing else. `kernels` say where the PrimFuncs come from. Without a
    `name` the artifact has that of its directory.
    """

    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kernels: tuple[KernelOrigin, ...] = ()
    source: Source = field(default_factory=Source)
    name: str = ""
    hides_denormals: bool = False
    """As `Planned`."""
    domain: Domain = STATIC
    """Of a dynamic model, whose greatest instance `mod` is."""
    variants: Mapping[str, Variants] = field(default_factory=dict)
    """Of a dynamic model: as `Planned`."""
    account: Account = field(default_factory=Account)
    """What there is to be looked at later; the memory's use is added."""
    caches: tuple[Cache, ...] = ()
    """Of a dynamic model: those that `mod` keeps in place."""
    is_traced: bool = False
    """As `Planned`."""


def write_artifact(
    path: str | os.PathLike[str],
    package: Package,
    device: Device | HardwareModel,
    check: Callable[[Artifact], None] | None = None,
) -> Path:
    """Build `package` for `device`, which may be another machine, and put it at `path`, replacing an artifact there.

    Args:
        check: called with the built artifact before it appears at `path`; if it raises, nothing is written. What is
            for another machine cannot be loaded: `check` gets the same kernels, built for this one.

    Raises ArtifactError when `path` is taken by something else, the disk is full, or there is no linker.
    """
    folder, device = check_destination(path), as_device(device)
    assert len(package.mod["main"].params) == len(package.inputs), "main takes the model's inputs and nothing else"
    with staged(folder) as staging:
        name = package.name or folder.name.removesuffix(SUFFIX)
        with writing(folder):
            _fill(staging, package, name, device)
            loadable = staging
            if check is not None and device.model.obstacle():
                stand_in = device.backend.stand_in(device)
                assert stand_in is not None, f"what is built for {device.model.name} cannot be checked here"
                loadable = staging / "here"
                loadable.mkdir()
                _fill(loadable, replace(package, is_traced=False), name, stand_in)
        del package  # the module's constants, if nobody else has them: the file does
        if check is not None:
            check(load(loadable, share_weights=True))
        if loadable != staging:
            shutil.rmtree(loadable)
    return folder


def _fill(folder: Path, package: Package, name: str, device: Device) -> None:
    """Write the artifact's files into the directory `folder`."""
    lifted, weights = lift_constants(package.mod)
    table, arrays = laid_out(weights), (len(package.inputs), len(package.outputs))
    short = [kernel.name for kernel in package.kernels if 0.0 < kernel.tuned_s < _SHORT_S]
    offsets = [weight.offset for weight in table]
    dynamic = Dynamic(package.domain, package.variants)
    more = (package.hides_denormals, dynamic, package.is_traced)
    hashes, memory, built, use = build(lifted, arrays, device, folder, short, offsets, *more)
    write_weights(weights, table, folder / WEIGHTS_NAME)
    write_account(folder, replace(package.account, memory=use))
    files = [*built, WEIGHTS_NAME, ACCOUNT_NAME]
    manifest = Manifest(
        name=name,
        inputs=package.inputs,
        outputs=package.outputs,
        kind=device.backend.kind,
        target=str(device.model.target()),
        triple=device.model.host.triple,
        device=device.fingerprint(),
        features=device.model.host.features,
        threads=device.model.host.threads,
        versions=tuple(runtime.versions().items()),
        source=package.source,
        subgraphs=subgraph_entries(hashes, package.kernels),
        weights=table,
        memory=memory,
        domain=package.domain,
        caches=package.caches,
        files=tuple(
            FileEntry(file, (folder / file).stat().st_size, manifests.sha256_of(folder / file)) for file in files
        ),
    )
    manifests.write(folder, manifest)
