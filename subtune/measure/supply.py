"""What a measurer works with: builders and runners, of this machine or of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from subtune.backends.base import Device
from subtune.core.measuring import Measuring
from subtune.measure.fork_server import ForkedWithThreads, ForkServer
from subtune.measure.launch import Launcher, Programs
from subtune.measure.pool import Builders, ProcessBuilder
from subtune.measure.process import Worker
from subtune.measure.runner import ProcessRunner, Runner
from subtune.measure.site import HERE, Site
from subtune.runtime.host import usable_cores

MAX_BUILDERS = 16
"""Of one machine: each holds TVM and LLVM in memory, about 150 MB."""
_KEPT_BYTES = 1 << 30
_KEPT_SHARE = 1 / 8
"""Of what the runner may use, for workloads to which the search may come back."""


class Supply(Protocol):
    @property
    def sites(self) -> Sequence[Site]: ...

    @property
    def kept_bytes(self) -> int:
        """As `PrepareJob.kept_bytes`."""
        ...

    def is_there(self, site: int) -> bool:
        """See `Measurer`."""
        ...

    def workers(self, device: Device) -> tuple[Builders, Sequence[Runner]]:
        """Those that `device` needs, with a runner for every site; they begin to start. Warm at later calls."""
        ...

    def interrupt(self) -> None:
        """See `Measurer`."""

    def close(self) -> None: ...


class LocalSupply:
    """Processes of this machine. Arguments: see `LocalMeasurer`."""

    def __init__(
        self, builders: int | None, search_path: Sequence[str], memory_bytes: int | None, sites: Sequence[Site]
    ):
        self._search_path = tuple(search_path)
        self._memory_bytes = _half_of_memory() if memory_bytes is None else memory_bytes
        self.kept_bytes = kept_bytes(self._memory_bytes)
        self.sites = tuple(sites)
        self._count = builders or min(usable_cores(), MAX_BUILDERS)
        self._servers: dict[str, ForkServer] = {}
        self._builders: dict[str, Builders] = {}
        self._runners: dict[tuple[str, int], tuple[ProcessRunner, ...]] = {}

    def is_there(self, site: int) -> bool:
        """A process that died is made anew."""
        return True

    def workers(self, device: Device) -> tuple[Builders, Sequence[Runner]]:
        """See `Supply`. Devices of a kind share builders, those of as many threads the sites' runners."""
        kind, threads, measuring = device.backend.kind, device.model.host.threads, device.backend.measuring
        if kind not in self._builders:
            self._builders[kind] = Builders(self.builders(kind, measuring), measuring.grace_s)
        if (kind, threads) not in self._runners:
            self._runners[kind, threads] = tuple(self.runner(site, device) for site in self.sites)
        self._builders[kind].start()
        for runner in self._runners[kind, threads]:
            runner.start()
        return self._builders[kind], self._runners[kind, threads]

    def interrupt(self) -> None:
        for builders in self._builders.values():
            builders.interrupt()
        for runners in self._runners.values():
            for runner in runners:
                runner.interrupt()

    def close(self) -> None:
        for builders in self._builders.values():
            builders.close()
        for runners in self._runners.values():
            for runner in runners:
                runner.close()
        for server in self._servers.values():
            server.close()

    def builders(self, kind: str, measuring: Measuring) -> list[ProcessBuilder]:
        """New ones, as many as this machine has room for."""
        env = {**_threads(1), **measuring.builder_environment}
        niceness, modules = measuring.builder_niceness, measuring.builder_modules
        server = ForkServer(env, self._search_path, self._memory(measuring), niceness, modules)
        self._servers[kind] = server
        count = int(measuring.builders_per_core * self._count)
        return [ProcessBuilder(Worker(server)) for _ in range(count)]

    def runner(self, site: Site, device: Device) -> ProcessRunner:
        """A new one, of the same servers as `builders`."""
        threads, measuring = device.model.host.threads, device.backend.measuring
        launcher: Launcher
        if measuring.forks_runner:
            launcher = ForkedWithThreads(self._servers[device.backend.kind], threads)
        else:
            env = {**_threads(threads), **site.environment()}
            launcher = Programs(env, self._search_path, self._memory(measuring))
        return ProcessRunner(lambda: Worker(launcher), measuring.has_spare_runner, site)

    def _memory(self, measuring: Measuring) -> int:
        return self._memory_bytes if measuring.limits_memory else 0


def here(builders: int | None = None, sites: Sequence[Site] = HERE) -> LocalSupply:
    """Processes of this machine with the limits that are right for most."""
    return LocalSupply(builders, (), None, sites)


def kept_bytes(memory_bytes: int | None = None) -> int:
    """What prepared sessions may take together, of a runner that may use so much; by default of half a machine."""
    return min(_KEPT_BYTES, int(_KEPT_SHARE * (_half_of_memory() if memory_bytes is None else memory_bytes)))


def _threads(count: int) -> dict[str, str]:
    """What TVM reads before it is loaded. Bound, its pool puts a worker on the core the main thread may be on."""
    return {"TVM_NUM_THREADS": str(count), "TVM_BIND_THREADS": "0"}


def _half_of_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total // 2)
