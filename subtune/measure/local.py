"""Measuring on this machine: builder processes side by side, then one runner process with nothing beside it."""

from __future__ import annotations

import importlib
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import TracebackType

from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel
from subtune.core.candidate import Candidate
from subtune.core.errors import SubtuneError
from subtune.core.kernel import Kernel
from subtune.core.measurement import Failure
from subtune.core.measuring import Measuring
from subtune.core.scratch import TEMPORARY, TEMPORARY_END, scratch
from subtune.core.workload import Workload
from subtune.measure.fork_server import ForkedWithThreads, ForkServer
from subtune.measure.launch import Launcher, Programs
from subtune.measure.messages import ScheduleJob
from subtune.measure.pool import Build, Builders, Runner
from subtune.measure.process import Worker
from subtune.measure.protocol import Measurer
from subtune.measure.session import SCHEDULE, LocalSession, Settings
from subtune.measure.site import HERE, Site
from subtune.runtime.host import usable_cores

_MAX_BUILDERS = 16  # each holds TVM and LLVM in memory, about 150 MB
_KEPT_BYTES = 1 << 30
_KEPT_SHARE = 1 / 8
"""Of what the runner may use, for workloads to which the search may come back."""


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
    ) -> None:
        self._search_path = tuple(search_path)
        self._memory_bytes = _half_of_memory() if memory_bytes is None else memory_bytes
        kept_bytes = min(_KEPT_BYTES, int(_KEPT_SHARE * self._memory_bytes))
        self.settings = Settings(
            schedule, build_limit_s, run_limit_s, kept_bytes, gpu_mode, is_remote=sites[0].remote is not None
        )
        self._sites = tuple(sites)
        self._count = builders or min(usable_cores(), _MAX_BUILDERS)
        self._servers: dict[str, ForkServer] = {}
        self._builders: dict[str, Builders] = {}
        self._runners: dict[tuple[str, int], tuple[Runner, ...]] = {}
        try:
            self._scratch = scratch(TEMPORARY, TEMPORARY_END)
            self._kept = Path(tempfile.mkdtemp(dir=self._scratch.path))
        except OSError as e:
            raise _no_room(e) from e

    @property
    def sites(self) -> int:
        """See `Measurer`."""
        return len(self._sites)

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
        for builders in self._builders.values():
            builders.interrupt()
        for runner in self._all_runners():
            runner.interrupt()

    def _all_runners(self) -> Iterator[Runner]:
        return chain.from_iterable(self._runners.values())

    def close(self) -> None:
        for builders in self._builders.values():
            builders.close()
        for runner in self._all_runners():
            runner.close()
        for server in self._servers.values():
            server.close()
        self._scratch.remove()

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _workers(self, device: Device) -> tuple[Builders, tuple[Runner, ...]]:
        """Those that `device` needs; devices of a kind share builders, those of as many threads the sites' runners."""
        kind, threads, measuring = device.backend.kind, device.model.host.threads, device.backend.measuring
        try:
            if kind not in self._builders:
                self._builders[kind] = self._make_builders(kind, measuring)
            if (kind, threads) not in self._runners:
                self._runners[kind, threads] = tuple(self._make_runner(site, device) for site in self._sites)
            self._builders[kind].start()
            for runner in self._runners[kind, threads]:
                runner.start()
        except OSError as e:
            raise _no_room(e) from e
        return self._builders[kind], self._runners[kind, threads]

    def _make_builders(self, kind: str, measuring: Measuring) -> Builders:
        env = {**_threads(1), **measuring.builder_environment}
        niceness, modules = measuring.builder_niceness, measuring.builder_modules
        server = ForkServer(env, self._search_path, self._memory(measuring), niceness, modules)
        self._servers[kind] = server
        count = int(measuring.builders_per_core * self._count)
        return Builders([Worker(server) for _ in range(count)], measuring.grace_s)

    def _make_runner(self, site: Site, device: Device) -> Runner:
        threads, measuring = device.model.host.threads, device.backend.measuring
        launcher: Launcher
        if measuring.forks_runner:
            launcher = ForkedWithThreads(self._servers[device.backend.kind], threads)
        else:
            env = {**_threads(threads), **site.environment()}
            launcher = Programs(env, self._search_path, self._memory(measuring))
        return Runner(lambda: Worker(launcher), measuring.has_spare_runner, site)

    def _memory(self, measuring: Measuring) -> int:
        return self._memory_bytes if measuring.limits_memory else 0


def _threads(count: int) -> dict[str, str]:
    """What TVM reads before it is loaded. Bound, its pool puts a worker on the core the main thread may be on."""
    return {"TVM_NUM_THREADS": str(count), "TVM_BIND_THREADS": "0"}


def given_or_local(measurer: Measurer | None) -> AbstractContextManager[Measurer]:
    """`measurer`, which stays its owner's, or one of this machine that is closed at the end."""
    return nullcontext(measurer) if measurer is not None else LocalMeasurer()


def _no_room(error: OSError) -> SubtuneError:
    return SubtuneError(f"tuning needs room for temporary files: {error}; name another place in TMPDIR")


def _half_of_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total // 2)
