"""Which device a compile is for, and where kernels are measured for it."""

from __future__ import annotations

from collections.abc import Sequence

from subtune.backends import device_at, device_of
from subtune.backends.base import Device
from subtune.core.errors import TargetError
from subtune.measure.site import HERE, Site
from subtune.options import Options
from subtune.runtime.remote import devices_of, facts_of, read_remote


def measured_on(options: Options) -> tuple[Device, tuple[Site, ...]]:
    """By the user's `target`, `devices` and `remote`.

    Raises:
        TargetError: it cannot be compiled for, or not be measured there.
        SubtuneError: what is elsewhere cannot be reached.
    """
    about = (options.target, options.threads, options.device_file, options.numerics)
    if not options.remote:
        device = device_of(*about, is_measured=False)
        return device, _numbered(device, options.devices) if options.devices else HERE
    if options.devices:
        raise TargetError("--devices are this machine's own, --remote is another: name one of them")
    remote = read_remote(options.remote, options.insecure)
    count, facts = devices_of(remote), facts_of(remote)
    return device_at(remote, facts, *about), (Site(remote, shares_cores=facts.is_here),) * count


def _numbered(device: Device, numbers: Sequence[int]) -> tuple[Site, ...]:
    here = device.backend.accelerators()
    said = f"--devices {','.join(map(str, numbers))}"
    if not here:
        raise TargetError(f"{said}: this machine has no devices of target {device.model.name} to number; leave it out")
    if len(set(numbers)) < len(numbers):
        raise TargetError(f"{said}: a device is named twice")
    if wrong := [number for number in numbers if not 0 <= number < len(here)]:
        raise TargetError(f"{said}: there is no {wrong[0]}; this machine's are 0 to {len(here) - 1}")
    if other := [number for number in numbers if here[number] != here[0]]:
        raise TargetError(f"{said}: {other[0]} is a {here[other[0]]} and 0 a {here[0]}; their times do not compare")
    return tuple(Site(gpu=number, shares_cores=False) for number in numbers)
