"""The kinds of devices, one line each, and what of them does not depend on the kind."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from subtune.backends.base import Backend, Device, HardwareModel, Problem
from subtune.backends.cpu.backend import BACKEND as CPU
from subtune.backends.cuda.backend import BACKEND as CUDA
from subtune.core.candidate import Candidate
from subtune.core.errors import ArtifactError, TargetError
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import PLAIN, Numerics
from subtune.core.workload import Workload
from subtune.runtime import triples
from subtune.runtime.remote import Facts, Remote

BACKENDS: tuple[Backend, ...] = (
    CPU,  # also asked for what no other one knows
    CUDA,
)


def candidates(workload: Workload, device: Device | HardwareModel, topk: int = 20) -> tuple[Candidate, ...]:
    """At most `topk` candidates for `workload` on `device`, the one predicted fastest first.

    The default schedule is not among them. Empty where only the default schedule applies. No build, no clock:
    the same inputs give the same candidates in the same order.

    >>> from subtune import models
    >>> from subtune.pipeline import prepare
    >>> from subtune.backends.cpu.device import CPU
    >>> first, *_ = prepare(models.reduced("mlp")).subgraphs
    >>> best, second = candidates(first.workload, CPU("auto"), topk=2)
    >>> best.predicted_s <= second.predicted_s
    True
    """
    device = as_device(device)
    return device.backend.candidates(Problem(workload, device.model, device.numerics), topk)


def schedule(workload: Workload, candidate: Candidate, device: Device | HardwareModel) -> Kernel | NotApplicable:
    """`workload` as `candidate` says, by the family that it names, or the reason why not.

    >>> from subtune import models
    >>> from subtune.core.candidate import DEFAULT
    >>> from subtune.pipeline import prepare
    >>> from subtune.backends.cpu.device import CPU
    >>> first, *_ = prepare(models.reduced("mlp")).subgraphs
    >>> type(schedule(first.workload, DEFAULT, CPU("auto"))).__name__
    'Kernel'
    >>> schedule(first.workload, Candidate("magic"), CPU("auto"))
    NotApplicable(reason="unknown family 'magic'")
    """
    device = as_device(device)
    return device.backend.kernel(Problem(workload, device.model, device.numerics), candidate)


def device_of(
    target: Any = "auto",
    threads: int | None = None,
    description: str | os.PathLike[str] | None = None,
    numerics: Numerics = PLAIN,
    is_measured: bool = True,
) -> Device:
    """The device that `target` names: text as the command line takes it, a TVM target or its fields, a hardware model.

    Args:
        threads: that the compiled model runs on, where that is a choice.
        description: a JSON file whose fields take the place of the model's own.

    Raises:
        TargetError: it is not known, or cannot be compiled for; or `is_measured`, and this machine cannot run what is
            built for it.
        ArtifactError: nothing here links for it.
    """
    device = described(target, threads, description, numerics)
    device.backend.check(device, is_measured)
    return device


def device_at(
    remote: Remote,
    facts: Facts,
    target: Any = "auto",
    threads: int | None = None,
    description: str | os.PathLike[str] | None = None,
    numerics: Numerics = PLAIN,
) -> Device:
    """As `device_of`, of a machine behind TVM's RPC, which has said itself what its processor is, and its caches.

    Raises:
        TargetError: kernels cannot be built for it from here, or not be measured there.
    """
    device = described(facts.target if target == "auto" else target, threads, None, numerics)
    if not device.backend.measures_there:
        raise TargetError(f"target {device.model.name}: kernels for it are measured on this machine, not by --remote")
    _check_same(remote, facts, device.model)
    fields: Any = device.model
    model: Any = replace(fields, **facts.caches)
    if description is not None:
        model = model.overridden(description, threads)
    if model.host.threads > facts.threads:
        raise TargetError(
            f"the server at {remote} has {facts.threads} threads, not {model.host.threads}: start it with "
            f"TVM_NUM_THREADS={model.host.threads}, or ask for fewer with --threads"
        )
    device = replace(device, model=model)
    device.backend.check(device, is_measured=False)
    return device


def _check_same(remote: Remote, facts: Facts, model: HardwareModel) -> None:
    """Whether the machine there is one that is measured on, and of the kind that kernels are built for."""
    there, wanted = str(facts.target["mtriple"]), model.host.triple
    if triples.system(there) != "linux":
        raise TargetError(f"the device at {remote} is {there}: only Linux can be measured on")
    if triples.architecture(there) != triples.architecture(wanted) or triples.system(wanted) != "linux":
        raise TargetError(
            f"target {model.name or wanted}: it is {wanted}, and the device at {remote} is {there}; leave --target "
            "out, or name a processor of that kind"
        )


def described(
    target: Any = "auto",
    threads: int | None = None,
    description: str | os.PathLike[str] | None = None,
    numerics: Numerics = PLAIN,
) -> Device:
    """As `device_of`, but whatever subtune knows of, whether or not it can compile for it from here."""
    backend = meant_by(target)
    model = backend.model(target, threads)
    if description is not None:
        model = model.overridden(description, threads)
    return Device(model, backend, numerics)


def as_device(device: Device | HardwareModel) -> Device:
    """A bare hardware model stands for itself with the default numerics."""
    return device if isinstance(device, Device) else Device(device, meant_by(device))


def meant_by(target: object) -> Backend:
    """The backend of what a target or hardware model names, known or not."""
    return next((backend for backend in BACKENDS if backend.is_meant_by(target)), BACKENDS[0])


def host_device(numerics: Numerics = PLAIN) -> Device:
    """This machine's processor, on which references are computed."""
    return Device(CPU.model("auto"), CPU, replace(numerics, tf32=False, tensor_core="auto", precision="fp32"))


def backend_of(kind: str) -> Backend:
    """The backend of an artifact's or a record's `kind`. Raises ArtifactError."""
    for backend in BACKENDS:
        if backend.kind == kind:
            return backend
    known = ", ".join(backend.kind for backend in BACKENDS)
    raise ArtifactError(f"this subtune has no backend {kind!r}: it has {known}; install the one it was compiled with")


__all__ = [
    "BACKENDS",
    "Backend",
    "Device",
    "as_device",
    "backend_of",
    "candidates",
    "described",
    "device_of",
    "host_device",
    "meant_by",
    "schedule",
]
