"""Which device a compile is for, and who measures kernels for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from subtune.backends import device_at, device_of
from subtune.backends.base import Device
from subtune.cluster import Stations, joined
from subtune.core.errors import TargetError
from subtune.measure import LocalMeasurer, Measurer
from subtune.measure.site import HERE, Site
from subtune.options import Options
from subtune.runtime.remote import devices_of, facts_of, read_remote


@dataclass(frozen=True, slots=True)
class Workplace:
    """For a compile under the user's options."""

    device: Device
    sites: tuple[Site, ...]
    is_elsewhere: bool
    """The device is no device on which kernels could be measured."""
    stations: Stations | None
    """Of a cluster that measures them."""

    @contextmanager
    def measurer(self, options: Options) -> Iterator[Measurer | None]:
        """The caller's; one with the cluster's processes, or with some that start while the model is read, where there
        are cores for both."""
        is_worth_it = self.device.backend.measuring.overlaps or self.stations is not None or self.sites != HERE
        if options.measurer is not None or not options.tune or self.is_elsewhere or not is_worth_it:
            yield options.measurer
            return
        with LocalMeasurer(sites=self.sites, supply=self.stations) as own:
            own.start(self.device)
            yield own


@contextmanager
def workplace(options: Options) -> Iterator[Workplace]:
    """Says before the work what cannot be compiled for, measured or verified.

    Raises:
        SubtuneError: of these, or what is elsewhere cannot be reached.
    """
    with joined(options) as stations:
        device, sites = measured_on(options) if stations is None else (stations.device, HERE)
        runs_elsewhere = bool(device.model.obstacle())
        stand_in = device.backend.stand_in(device) if runs_elsewhere else None
        if options.verify and stand_in is not None:
            try:
                stand_in.backend.check(stand_in, is_measured=False)
            except TargetError as e:
                raise TargetError(f"{e}, to verify it here; compile with --no-verify") from e
        is_measured = options.remote or stations is not None
        yield Workplace(device, sites, runs_elsewhere and not is_measured, stations)


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
    count, facts = devices_of(remote, options.insecure), facts_of(remote)
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
