"""What an artifact is raced against: the frameworks of each kind of device."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from subtune.bench.job import BenchError, Job
from subtune.bench.peer import Arrays, Peer

REFERENCE = "torch-reference"
"""Computes a case of the coverage suite in float64; nobody times it."""
AGREEMENT = "torch-agreement"
"""Compares a PyTorch module with its ONNX file; nobody times it."""
STATIC, BUCKETS, ONE_KERNEL = "static", "buckets", "one-kernel"
"""subtune's other ways to serve many shapes, in the suite that compares them: an artifact for each shape, some to whose
shape inputs are padded, and one without a choice among kernels."""
Loader = Callable[[Job, Arrays], Peer]
"""Loads a model into a framework."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The frameworks on one kind of device.

    Attributes:
        loaders: by the framework's name; subtune itself and what suites use are among them.
        against: those that a user may name; `default` those that are meant where he names none.
        is_pinned: each worker keeps to cores of its own, and memory is what its process holds.
        libraries: modules that a framework is made of.
        is_gpu: what the coverage suite draws for such devices is a GPU's work.
    """

    loaders: Mapping[str, Loader]
    against: tuple[str, ...]
    default: tuple[str, ...]
    is_pinned: bool = False
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_gpu: bool = False

    def require(self, frameworks: Sequence[str]) -> None:
        """Raise BenchError naming those that there are not."""
        if unknown := [name for name in frameworks if name not in self.against]:
            known = ", ".join(self.against) or "none on this kind of device"
            raise BenchError(f"unknown framework {', '.join(unknown)}; known are {known}")


_MODULES = {"cpu": "peers_cpu", "cuda": "peers_cuda"}


def peers_of(kind: str) -> Peers:
    """For a backend's kind. Where nothing else runs on such devices, there is nobody to race against."""
    if kind not in _MODULES:
        return Peers({}, (), ())
    found: Peers = importlib.import_module(f"subtune.bench.{_MODULES[kind]}").PEERS
    return found


def load(job: Job, inputs: Arrays) -> Peer:
    return peers_of(job.kind).loaders[job.framework](job, inputs)


def import_libraries(job: Job) -> None:
    """What the framework is made of, loaded ahead of the model, so that memory tells the two apart."""
    libraries = peers_of(job.kind).libraries.get(job.framework)
    if libraries is None:
        return
    if not job.framework.startswith("torch"):
        sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi imports it wherever it is installed: 200 MB
    for module in libraries:
        importlib.import_module(module)
    if job.framework in ("torch", "torch-compile", "torch-dynamic"):
        from subtune.bench.torch_source import is_converted

        if is_converted(job):
            importlib.import_module("onnx2torch")
    if job.framework in ("subtune", STATIC, BUCKETS, ONE_KERNEL):
        from subtune.runtime import load_runtime

        load_runtime()
