"""What an artifact says of itself: `manifest.json`, read and written as frozen data, and checked against the disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from subtune.core.errors import ArtifactError
from subtune.core.memory_plan import MemoryPlan
from subtune.core.tensor_spec import TensorSpec

FORMAT = 4
MANIFEST_NAME = "manifest.json"
LIBRARY_NAME = "model.so"
WEIGHTS_NAME = "weights.bin"
BINARIES_NAME = "kernels.cubin"
"""Only of an artifact for CUDA: the GPU's machine code (`subtune.backends.cuda.building.binaries`)."""

_MIB = float(1 << 20)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the artifact: its size in bytes and its SHA-256."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One tensor of weights.bin: `offset` in bytes from the file's start, a multiple of 64."""

    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class KernelOrigin:
    """Where the PrimFunc `name` of a spliced module comes from; fields as in SubgraphEntry."""

    name: str
    workload: str = ""
    candidate: str = ""
    measured_hash: str = ""
    default_s: float = 0.0
    tuned_s: float = 0.0
    basis: str = ""


@dataclass(frozen=True, slots=True)
class SubgraphEntry:
    """One kernel of the module and where it comes from.

    `linked_hash` is the structural hash of the PrimFunc that was lowered into model.so, `measured_hash` of the one
    that was timed ("" when nothing was); they are equal. Latencies in seconds of one run; 0.0 when not measured.
    `basis` says on what grounds the candidate was taken: "measured", "predicted, not measured", or "" for none.
    """

    name: str
    workload: str
    candidate: str
    measured_hash: str
    linked_hash: str
    default_s: float = 0.0
    tuned_s: float = 0.0
    basis: str = ""

    @property
    def gain(self) -> float:
        """Default latency over tuned latency; 1.0 when not measured."""
        return self.default_s / self.tuned_s if self.default_s and self.tuned_s else 1.0


@dataclass(frozen=True, slots=True)
class Source:
    """The model that was compiled: a path or `zoo:NAME`, the file's SHA-256 ("" if built in memory), fixed shapes.

    `precision` is what was asked for: "fp32", the model as it is, "bf16" or "fp16".
    """

    model: str = ""
    sha256: str = ""
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    precision: str = "fp32"


@dataclass(frozen=True, slots=True)
class Manifest:
    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kind: str
    """Of the backend whose devices run the kernels: `cpu`, `cuda`."""
    target: str
    triple: str
    """LLVM's triple of the machine that calls the kernels."""
    device: str
    features: tuple[str, ...]
    """Instruction-set extensions the code may use, in LLVM's spelling."""
    threads: int
    versions: tuple[tuple[str, str], ...]
    source: Source
    subgraphs: tuple[SubgraphEntry, ...]
    weights: tuple[WeightEntry, ...]
    memory: MemoryPlan
    files: tuple[FileEntry, ...]

    @property
    def weights_nbytes(self) -> int:
        return sum(weight.nbytes for weight in self.weights)

    def memory_summary(self) -> str:
        """One line: the memory that a loaded model takes beside its code, its inputs and its outputs."""
        plan = self.memory
        return (
            f"weights {self.weights_nbytes / _MIB:.1f} MiB; "
            f"activations {plan.arena_nbytes / _MIB:.1f} MiB in one arena "
            f"(lower bound {plan.bound_nbytes / _MIB:.1f}, without reuse {plan.total_nbytes / _MIB:.1f})"
        )

    def to_json(self) -> str:
        data = {"format": FORMAT, **asdict(self)}
        data["versions"] = dict(self.versions)
        data["memory"] = self.memory.to_dict()
        data["source"]["shapes"] = {name: list(shape) for name, shape in self.source.shapes}
        data["subgraphs"] = [{**asdict(s), "gain": round(s.gain, 4)} for s in self.subgraphs]
        return json.dumps(data, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises ValueError, KeyError or TypeError when `text` is no manifest of this format."""
        data = json.loads(text)
        source = data["source"]
        return cls(
            name=data["name"],
            inputs=tuple(_spec(d) for d in data["inputs"]),
            outputs=tuple(_spec(d) for d in data["outputs"]),
            kind=data["kind"],
            target=data["target"],
            triple=data["triple"],
            device=data["device"],
            features=tuple(data["features"]),
            threads=int(data["threads"]),
            versions=tuple(data["versions"].items()),
            source=Source(
                source["model"],
                source["sha256"],
                tuple((name, tuple(s)) for name, s in source["shapes"].items()),
                source.get("precision", "fp32"),
            ),
            subgraphs=tuple(SubgraphEntry(**{k: v for k, v in d.items() if k != "gain"}) for d in data["subgraphs"]),
            weights=tuple(WeightEntry(**{**d, "shape": tuple(d["shape"])}) for d in data["weights"]),
            memory=MemoryPlan.from_dict(data["memory"]),
            files=tuple(FileEntry(**d) for d in data["files"]),
        )


def read(path: Path) -> Manifest:
    """The manifest of the artifact directory `path`, its format and its files' presence and sizes checked."""
    if not path.exists():
        raise ArtifactError(f"there is no artifact at {path}")
    if not path.is_dir() or not (path / MANIFEST_NAME).is_file():
        raise ArtifactError(f"{path} is not an artifact: `subtune compile` writes a directory with a {MANIFEST_NAME}")
    try:
        data = json.loads((path / MANIFEST_NAME).read_text())
        found = data["format"]
        manifest = Manifest.from_json(json.dumps(data)) if found == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ArtifactError(f"{path / MANIFEST_NAME} is damaged ({e!r}); compile the model again") from e
    if manifest is None:
        raise ArtifactError(f"{path} has artifact format {found}, this subtune reads {FORMAT}; compile the model again")
    for entry in manifest.files:
        file = path / entry.name
        if not file.is_file():
            raise ArtifactError(f"{path} is incomplete: {entry.name} is missing; compile the model again")
        if (size := file.stat().st_size) != entry.nbytes:
            raise ArtifactError(
                f"{file} is damaged: it has {size} bytes and should have {entry.nbytes}; compile the model again"
            )
    return manifest


def check_hashes(path: Path, manifest: Manifest) -> None:
    """Raise ArtifactError if a file's content is not what was written."""
    for entry in manifest.files:
        if sha256_of(path / entry.name) != entry.sha256:
            raise ArtifactError(f"{path / entry.name} is damaged: its SHA-256 differs; compile the model again")


def sha256_of(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _spec(data: dict[str, Any]) -> TensorSpec:
    return TensorSpec(data["name"], tuple(int(d) for d in data["shape"]), data["dtype"])
