"""What must hold between the fields of a manifest, so that a program that follows it stays within its memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from subtune.artifact.rules_dynamic import caches_rule, domain_rule, fits_copy, greatest, room
from subtune.core.manifest import LIBRARY_NAME, WEIGHTS_NAME, Manifest, WeightEntry
from subtune.core.memory_plan import Base, View
from subtune.core.tensor_spec import TensorSpec, carrier

ALIGNMENT = 64
"""Bytes; every weight and every tensor of the arena starts on such a boundary."""

MAX_THREADS = 1024
_MAX_NBYTES = 1 << 62

_Tensor = TensorSpec | WeightEntry | View


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Everything that cannot be so, in words; nothing if all is well. Later rules rely on the earlier ones."""
    for rule in (_numbers, _names, domain_rule, caches_rule, _tensors, _files, _weights, _arena, _views, _outputs):
        found = tuple(rule(manifest))
        yield from found
        if found:
            return


def _numbers(manifest: Manifest) -> Iterator[str]:
    if not 1 <= manifest.threads <= MAX_THREADS:
        yield f"threads is {manifest.threads}, which is not between 1 and {MAX_THREADS}"
    counts = [manifest.memory.arena_nbytes, manifest.memory.bound_nbytes, manifest.memory.total_nbytes]
    counts += [entry.nbytes for entry in manifest.files]
    counts += [count for entry in manifest.weights for count in (entry.offset, entry.nbytes)]
    counts += [view.place for view in _all_views(manifest)]
    if any(not 0 <= count < _MAX_NBYTES for count in counts):
        yield "a size or an offset is negative, or larger than any memory"
    if any(entry.default_s < 0.0 or entry.tuned_s < 0.0 for entry in manifest.subgraphs):
        yield "a latency is negative"


def _names(manifest: Manifest) -> Iterator[str]:
    groups: dict[str, Iterable[str]] = {
        "inputs": [spec.name for spec in manifest.inputs],
        "outputs": [spec.name for spec in manifest.outputs],
        "files": [entry.name for entry in manifest.files],
        "subgraphs": [entry.name for entry in manifest.subgraphs],
        "versions": [name for name, _ in manifest.versions],
    }
    for what, names in groups.items():
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            yield f"two of the {what} have the name {twice[0]!r}"
    if not manifest.kind:
        yield "kind is empty"
    if not manifest.triple:
        yield "triple is empty"


def _tensors(manifest: Manifest) -> Iterator[str]:
    specs = [greatest(manifest, spec) for spec in (*manifest.inputs, *manifest.outputs)]
    tensors: tuple[_Tensor, ...] = (*specs, *manifest.weights, *_all_views(manifest))
    for tensor in tensors:
        try:
            nbytes = TensorSpec("", tensor.shape, tensor.dtype).nbytes
        except ValueError as e:
            yield str(e)
            return
        if nbytes >= _MAX_NBYTES or len(tensor.shape) > 64:
            yield f"a tensor of shape {tensor.shape} is larger than any memory"
            return


def _files(manifest: Manifest) -> Iterator[str]:
    for entry in manifest.files:
        if entry.name in ("", ".", "..") or set(entry.name) & set("/\\:\0"):
            yield f"{entry.name!r} is not the name of a file in the artifact's directory"
        if len(entry.sha256) != 64 or set(entry.sha256) - set("0123456789abcdef"):
            yield f"the SHA-256 of {entry.name} is {entry.sha256!r}"
    for name in (LIBRARY_NAME, WEIGHTS_NAME):
        if all(entry.name != name for entry in manifest.files):
            yield f"{name} is not among the files"


def _weights(manifest: Manifest) -> Iterator[str]:
    end = 0
    for i, entry in enumerate(manifest.weights):
        if entry.nbytes != TensorSpec("", entry.shape, entry.dtype).nbytes:
            yield f"weights[{i}] of {entry.dtype}{list(entry.shape)} has {entry.nbytes} bytes"
        if entry.offset % ALIGNMENT or entry.offset < end:
            yield f"weights[{i}] begins at byte {entry.offset}, which is not aligned or not behind the one before it"
        end = entry.offset + entry.nbytes
    size = next(entry.nbytes for entry in manifest.files if entry.name == WEIGHTS_NAME)
    if size != max(end, 1):
        yield f"{WEIGHTS_NAME} has {size} bytes, and the weights end at {end}"


def _arena(manifest: Manifest) -> Iterator[str]:
    plan = manifest.memory
    if plan.arena_nbytes < plan.bound_nbytes:
        yield f"the arena has {plan.arena_nbytes} bytes and needs {plan.bound_nbytes}"
    if plan.arena_nbytes % ALIGNMENT or plan.bound_nbytes % ALIGNMENT:
        yield f"the arena has {plan.arena_nbytes} bytes and needs {plan.bound_nbytes}, not multiples of {ALIGNMENT}"


def _views(manifest: Manifest) -> Iterator[str]:
    """Every view lies within the memory that it looks at, and is all of it where that is a tensor."""
    owners: dict[Base, tuple[_Tensor, ...]] = {
        Base.INPUT: tuple(greatest(manifest, spec) for spec in manifest.inputs),
        Base.OUTPUT: tuple(room(manifest, place) for place in range(len(manifest.outputs))),
        Base.WEIGHT: manifest.weights,
    }
    for view in _all_views(manifest):
        nbytes = TensorSpec("", view.shape, view.dtype).nbytes
        if view.base is Base.ARENA:
            if view.place % ALIGNMENT or view.place + nbytes > manifest.memory.arena_nbytes:
                yield f"a tensor of {nbytes} bytes at byte {view.place} does not lie in the arena"
            continue
        if view.place >= len(owners[view.base]):
            yield f"there is no {view.base.value} number {view.place}"
            continue
        owner = owners[view.base][view.place]
        held = carrier(owner.dtype) if isinstance(owner, TensorSpec) else owner.dtype
        if view.dtype != held or math.prod(view.shape) != math.prod(_sizes(owner)):
            yield (
                f"{view.base.value} {view.place} is {owner.dtype}{list(owner.shape)} "
                f"and is used as {view.dtype}{list(view.shape)}"
            )


def _outputs(manifest: Manifest) -> Iterator[str]:
    """Every output is written by kernels, copied or returned: one of them, once."""
    plan, count = manifest.memory, len(manifest.outputs)
    written = {view.place for view in plan.arguments if view.base is Base.OUTPUT}
    made = [*written, *(output for output, _ in plan.copies), *plan.returned]
    if sorted(made) != list(range(count)):
        yield f"{count} outputs, and those that are made are {sorted(made)}"
        return
    for output, view in plan.copies:
        spec = manifest.outputs[output]
        is_whole = math.prod(view.shape) == math.prod(greatest(manifest, spec).sizes)
        if view.dtype != carrier(spec.dtype) or not is_whole or not fits_copy(manifest, spec, view):
            yield f"output {spec} is a copy of {view.dtype}{list(view.shape)}"
    for output, nbytes in plan.slack:
        if output not in written or not 0 < nbytes < _MAX_NBYTES:
            yield f"{nbytes} bytes behind output {output} are for a kernel that does not write it, or too many"
    fixed = [view.base.is_fixed for view in plan.arguments]
    if fixed != sorted(fixed):
        yield "an argument with a fixed address comes before one without"
    if plan.takes_addresses and plan.returned:
        yield "a program that takes addresses returns outputs"


def _sizes(tensor: _Tensor) -> tuple[int, ...]:
    return tensor.sizes if isinstance(tensor, TensorSpec) else tensor.shape


def _all_views(manifest: Manifest) -> Iterator[View]:
    yield from manifest.memory.arguments
    yield from (view for _, view in manifest.memory.copies)
