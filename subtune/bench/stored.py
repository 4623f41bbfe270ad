"""Benchmark runs as data: what a run's figures are worth is said beside them, and one folder holds all of them.

A stored run is the JSON of a suite's report and one more entry, `run`: the machine, the date, the commit and the
versions of everything that was timed. `bench/render.py` makes the documentation's tables and charts of such files.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from subtune import __version__
from subtune.core.errors import SubtuneError
from subtune.runtime.host import usable_cores

_PACKAGES = ("subtune", "apache-tvm", "numpy", "onnx", "onnxruntime", "openvino", "torch", "onnx2torch")


class StoredRunError(SubtuneError):
    """A file of benchmark results cannot be read, or does not say where its figures come from."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where figures come from.

    Attributes:
        machine: the processor, how many of its cores may be used, memory, the system, and the GPU if there is one.
        date: of the end of the run, as `2026-11-23`.
        commit: of subtune's sources, with `-dirty` where they were changed since; "" where they are no checkout.
        versions: of Python and of the packages that take part, by name.
    """

    machine: str
    date: str
    commit: str
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def here(cls) -> Provenance:
        return cls(_machine(), datetime.now(UTC).date().isoformat(), _commit(), tuple(_versions()))


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One file: `name` without its ending, the suite, where the figures come from, and the report as it was written."""

    name: str
    suite: str
    run: Provenance
    report: Mapping[str, Any]


def stamped(report: str) -> str:
    """A report's JSON with the entry `run`: this machine, today, these versions. One model's suite is `model`."""
    run = asdict(Provenance.here())
    return json.dumps(
        {"suite": "model", **json.loads(report), "run": {**run, "versions": dict(run["versions"])}}, indent=1
    )


def read_run(path: Path) -> StoredRun:
    """Raises StoredRunError for a file that is no stored run."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        run = data.pop("run")
        origin = Provenance(run["machine"], run["date"], run["commit"], tuple(run["versions"].items()))
        return StoredRun(path.stem, data["suite"], origin, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise StoredRunError(f"{path} is no stored benchmark run: {type(e).__name__}: {e}") from e


def read_runs(folder: Path) -> tuple[StoredRun, ...]:
    """All of a folder, by name."""
    return tuple(read_run(path) for path in sorted(folder.glob("*.json")))


def _machine() -> str:
    from subtune.backends import BACKENDS

    parts = [_processor(), f"{usable_cores()} cores", f"{platform.system()} {platform.machine()}"]
    return ", ".join([*parts, *(backend.accelerators()[0] for backend in BACKENDS if backend.accelerators())])


def _processor() -> str:
    """As the system names it, and as LLVM does: a hypervisor may hide the first."""
    from subtune.backends.cpu.device import CPU

    shown = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = (line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model n"))
        shown = next(names, shown)
    return f"{shown} ({CPU('auto').name})"


def _commit() -> str:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        head = _git(root, "rev-parse", "--short=10", "HEAD")
        return f"{head}-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *command: str) -> str:
    return subprocess.run(("git", "-C", str(root), *command), capture_output=True, text=True, check=True).stdout.strip()


def _versions() -> Iterable[tuple[str, str]]:
    yield "python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, __version__ if package == "subtune" else metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
