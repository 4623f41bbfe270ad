"""Which device a run on a cluster is for, and which of the cluster's can stand in for one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from subtune.backends.base import Device
from subtune.cluster.facts import Facts
from subtune.core.errors import SubtuneError, TargetError
from subtune.measure.site import Site

_MOST_NAMED = 4


def device_among(found: Sequence[Facts], target: object, own: Callable[[], Device], where: str) -> Device:
    """The device of the nodes that `target` names.

    Where they have several, as `auto` may mean, it is the driver's `own`, if that is one of them.

    Raises:
        TargetError: no node has one; or they have several, and it is not clear which is meant.
    """
    kinds = {facts.device.fingerprint(): facts.device for facts in found if facts.device is not None}
    if not kinds:
        reasons = sorted({facts.why for facts in found if facts.why})
        raise TargetError(f"no node of {where} has a device of target {target}: {'; '.join(reasons[:_MOST_NAMED])}")
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    try:
        mine = own().fingerprint()
    except SubtuneError:
        mine = ""
    if mine in kinds:
        return kinds[mine]
    names = sorted({device.model.description for device in kinds.values()})
    raise TargetError(
        f"the nodes of {where} are of {len(kinds)} kinds, whose times do not compare "
        f"({'; '.join(names[:_MOST_NAMED])}): name one with --target, or its threads with --threads"
    )


def places_for(device: Device, facts: Facts) -> Mapping[str, tuple[int, Site]]:
    """Key -> number and place on that node where kernels for `device` are measured."""
    if facts.device is None or facts.device.fingerprint() != device.fingerprint():
        return {}
    named = enumerate(zip(facts.keys, facts.places, strict=True))
    return {f"{facts.host}/{key}": (number, place) for number, (key, place) in named}


def overridden(device: Device, device_file: object, threads: int | None) -> Device:
    """With the fields of the user's file."""
    if not device_file:
        return device
    return replace(device, model=device.model.overridden(str(device_file), threads))
