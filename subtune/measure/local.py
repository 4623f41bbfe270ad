"""Measuring by worker processes: builders side by side, then one runner with nothing beside it."""

from __future__ import annotations

import importlib
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel
from subtune.core.candidate import Candidate
from subtune.core.errors import SubtuneError
from subtune.core.kernel import Kernel
from subtune.core.measurement import Failure
from subtune.core.scratch import TEMPORARY, TEMPORARY_END, scratch
from subtune.core.workload import Workload
from subtune.measure.messages import ScheduleJob
from subtune.measure.pool import Build, Builders
from subtune.measure.protocol import Measurer
from subtune.measure.runner import Runner
from subtune.measure.session import SCHEDULE, LocalSession, Settings
from subtune.measure.site import HERE, Site
from subtune.measure.supply import LocalSupply, Supply


class LocalMeasurer:
    """Worker processes that start on first use and stay warm over many sessions; close it, or use `with`.

    Args:
        builders: processes that compile side by side; default: the cores this process may use.
        schedule: "module:function" with the signature of `subtune.backends.schedule`, imported by the workers.
        search_path: directories in which the workers look for that module before the installed ones.
        build_limit_s: seconds a build may take.
        run_limit_s: seconds that checking and timing a candidate may take beyond the time asked for.
        memory_bytes: address space of each worker; default: half of the machine's memory. Not for a GPU, whose driver
            reserves more than the machine has.
        gpu_mode: what a kernel on a GPU finds in L2 when it is timed (`PrepareJob.mode`).
        sites: the devices on which kernels run, of one kind; they are built here.
        supply: of worker processes elsewhere, in the place of this machine's; the measurer closes it.
    """

    def __init__(
        self,
        *,
        builders: int | None = None,
        schedule: str = SCHEDULE,
        search_path: Sequence[str] = (),
        build_limit_s: float = 30.0,
        run_limit_s: float = 5.0,
        memory_bytes: int | None = None,
        gpu_mode: str = "rotating",
        sites: Sequence[Site] = HERE,
        supply: Supply | None = None,
    ) -> None:
        self._supply = supply or LocalSupply(builders, search_path, memory_bytes, sites)
        self.settings = Settings(
            schedule,
            build_limit_s,
            run_limit_s,
            self._supply.kept_bytes,
            gpu_mode,
            is_remote=self._supply.sites[0].remote is not None,
            shares_cores=any(site.shares_cores for site in self._supply.sites),
        )
        try:
            self._scratch = scratch(TEMPORARY, TEMPORARY_END)
            self._kept = Path(tempfile.mkdtemp(dir=self._scratch.path))
        except OSError as e:
            raise _no_room(e) from e

    @property
    def sites(self) -> int:
        """See `Measurer`."""
        return len(self._supply.sites)

    def is_there(self, site: int) -> bool:
        """See `Measurer`."""
        return self._supply.is_there(site)

    def overlaps(self, device: Device) -> bool:
        """See `Measurer`."""
        return device.backend.measuring.overlaps or not self.settings.shares_cores

    def start(self, device: Device | HardwareModel) -> None:
        """Begin to start all processes; returns at once. Later calls find them warm."""
        self._workers(as_device(device))

    @contextmanager
    def session(
        self,
        workload: Workload,
        device: Device | HardwareModel,
        deadline: float = math.inf,
        schedule: str = "",
        rows_past_end: int = 0,
    ) -> Iterator[LocalSession]:
        """As `Measurer.session`; perhaps with another `schedule`, whose kernels `scheduled` finds again, and with
        memory for `Library.rows_past_end`."""
        device = as_device(device)
        builders, runners = self._workers(device)
        directory = Path(tempfile.mkdtemp(dir=self._scratch.path))
        settings = replace(self.settings, rows_past_end=rows_past_end)
        if schedule:
            settings = replace(settings, schedule=schedule, kept=str(self._kept))
        session = LocalSession(workload, device, builders, runners, settings, directory, deadline)
        try:
            yield session
        except SubtuneError:
            raise
        except BaseException:
            # Ctrl-C, most likely: whoever still works does so for nobody.
            session.runner.kill()
            raise
        finally:
            session.close()
            shutil.rmtree(directory, ignore_errors=True)

    def scheduled(
        self, wanted: Sequence[tuple[Workload, Candidate]], device: Device, schedule: str
    ) -> list[Kernel | Failure]:
        """Kernels as `schedule` ("module:function") makes them, side by side in the builders."""
        texts = {workload: workload.to_json() for workload, _ in wanted}
        kept, limit_s = str(self._kept), self.settings.build_limit_s
        builds = [
            Build(ScheduleJob(texts[one], one.num_outputs, device, candidate, schedule, kept), limit_s)
            for one, candidate in wanted
        ]
        for module in device.backend.measuring.builder_modules:  # whose operators the kernels have
            importlib.import_module(module)
        builders, _ = self._workers(device)
        builders.submit(builds)
        builders.wait(builds, math.inf, math.inf)
        return [build.outcome for build in builds]

    def interrupt(self) -> None:
        """See `Measurer`."""
        self._supply.interrupt()

    def close(self) -> None:
        self._supply.close()
        self._scratch.remove()

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _workers(self, device: Device) -> tuple[Builders, Sequence[Runner]]:
        try:
            return self._supply.workers(device)
        except OSError as e:
            raise _no_room(e) from e


def given_or_local(measurer: Measurer | None) -> AbstractContextManager[Measurer]:
    """`measurer`, which stays its owner's, or one of this machine that is closed at the end."""
    return nullcontext(measurer) if measurer is not None else LocalMeasurer()


def _no_room(error: OSError) -> SubtuneError:
    return SubtuneError(f"tuning needs room for temporary files: {error}; name another place in TMPDIR")
