"""Which device a compile is for, and who measures kernels for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from subtune.backends.base import Device
from subtune.cluster import Stations, joined
from subtune.core.errors import TargetError
from subtune.measure import LocalMeasurer, Measurer
from subtune.measure.site import HERE, Site
from subtune.options import Options
from subtune.sites import measured_on


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
