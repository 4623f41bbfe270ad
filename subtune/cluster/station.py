"""On a node: ordinary worker processes, and the files they make and need."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import subtune
from subtune.backends import described
from subtune.backends.base import Device
from subtune.cluster.facts import Asked, Facts, Files, Missing
from subtune.cluster.files import contents, local, write
from subtune.core.errors import ClusterError, SubtuneError
from subtune.core.scratch import TEMPORARY, TEMPORARY_END, scratch
from subtune.measure.messages import BuildJob, Library, PrepareJob, RunJob, ScheduleJob
from subtune.measure.pool import ProcessBuilder
from subtune.measure.runner import ProcessRunner
from subtune.measure.site import HERE, Site
from subtune.measure.supply import MAX_BUILDERS, LocalSupply, here

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Station:
    """An actor: its methods are called from several threads at once, each builder and each runner by one at a time."""

    def __init__(self) -> None:
        self._scratch = scratch(TEMPORARY, TEMPORARY_END)
        self._supply: LocalSupply | None = None
        self._builders: list[ProcessBuilder] = []
        self._runners: list[ProcessRunner] = []
        self._locks: list[threading.Lock] = []
        self._given_up: dict[int, int] = {}

    def facts(self, asked: Asked) -> Facts:
        triple = described().model.host.triple
        try:
            device = described(asked.target, asked.threads, None, asked.numerics)
            why = device.model.obstacle()
        except SubtuneError as e:
            device, why = None, str(e)
        places = _places(device) if device is not None and not why else ()
        keys = tuple(str(dict(place.environment())) for place in places)
        return Facts(_host(), subtune.__version__, triple, None if why else device, why, places, keys)

    def open(self, device: Device, cpus: int, places: tuple[Site, ...], versions: Any) -> int:
        """Start to get ready for jobs of `device`. How many builders there are.

        Raises:
            SubtuneError: nothing can be built for it here, or it would be something else.
        """
        if device.backend.versions() != versions:
            raise ClusterError("it has another TVM or other families of kernels than the driver: install the same")
        device.backend.check(device, is_measured=False)
        measuring = device.backend.measuring
        self._supply = here(min(cpus, MAX_BUILDERS), places or HERE)
        self._builders = self._supply.builders(device.backend.kind, measuring)
        self._locks = [threading.Lock() for _ in self._builders]
        self._runners = [self._supply.runner(place, device) for place in places]
        for builder in self._builders:
            builder.start()
        for runner in self._runners:
            runner.start()
        return len(self._builders)

    def start(self, number: int) -> None:
        """Begin to start a builder that was given up."""
        with self._locks[number]:
            self._builders[number].start()

    def build(
        self, number: int, ticket: int, job: BuildJob | ScheduleJob, limit_s: float
    ) -> tuple[Any, dict[str, bytes]]:
        """The outcome, of which a library has its path on the driver's disk, and the library's files."""
        here = replace(job, stem=str(local(job.stem, self._scratch.path))) if isinstance(job, BuildJob) else job
        with self._locks[number]:
            outcome = self._builders[number].answer(here, limit_s, lambda: self._given_up.get(number, -1) >= ticket)
        if not isinstance(outcome, Library) or not isinstance(job, BuildJob):
            return outcome, {}
        return replace(outcome, path=f"{job.stem}{Path(outcome.path).suffix}"), contents(outcome.path)

    def give_up(self, number: int, ticket: int) -> None:
        """Nobody waits for that build of that builder's, nor for those before it."""
        self._given_up[number] = max(ticket, self._given_up.get(number, -1))

    def run(self, number: int, job: PrepareJob | RunJob, limit_s: float, files: Files) -> Any:
        """What the runner answers; or `Missing`, where this node has not built what it needs, nor got it before."""
        for path, parts in files.items():
            write(str(local(path, self._scratch.path)), parts)
        libraries = {
            field.name: value for field in fields(job) if isinstance(value := getattr(job, field.name), Library)
        }
        paths = {name: local(library.path, self._scratch.path) for name, library in libraries.items()}
        if missing := [libraries[name].path for name, path in paths.items() if not path.exists()]:
            return Missing(tuple(missing))
        found: dict[str, Any] = {name: replace(libraries[name], path=str(path)) for name, path in paths.items()}
        if isinstance(job, PrepareJob):
            assert self._supply is not None
            found["kept_bytes"] = min(job.kept_bytes, self._supply.kept_bytes)
        return self._runners[number].call(replace(job, **found), limit_s)

    def until_end(self) -> None:
        """Never answers: who waits for it learns of the end of this process."""
        threading.Event().wait()


def _places(device: Device) -> tuple[Site, ...]:
    accelerators = device.backend.accelerators()
    alike = [number for number, name in enumerate(accelerators) if name == accelerators[0]]
    return tuple(Site(gpu=number, shares_cores=False) for number in alike) or HERE


def _host() -> str:
    """Of the running kernel: two containers on one machine share its cores."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        import platform

        return platform.node()
