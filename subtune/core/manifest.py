"""What an artifact says of itself, as data; `subtune.artifact.manifest` reads, checks and writes it."""

from __future__ import annotations

from dataclasses import dataclass

from subtune.core.account import ACCOUNT_NAME
from subtune.core.cache import Cache
from subtune.core.domain import Domain
from subtune.core.memory_plan import MemoryPlan
from subtune.core.tensor_spec import TensorSpec

MANIFEST_NAME = "manifest.json"
LIBRARY_NAME = "model.so"
WEIGHTS_NAME = "weights.bin"
TRACE_NAME = "trace.so"
"""Only of an artifact that was compiled for traces: the program once more, which says when each of its kernels ran."""
BINARIES_NAME = "kernels.cubin"
"""Only of an artifact for CUDA: the GPU's machine code (`subtune.backends.cuda.building.binaries`)."""

STATIC = Domain(())
"""Of a model whose shapes are all numbers."""

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
    """Everything that loading needs to know of an artifact."""

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
    domain: Domain = STATIC
    """What the symbols in the shapes of inputs and outputs may be."""
    caches: tuple[Cache, ...] = ()
    """Inputs that outputs are in the same memory, with new rows behind them."""

    @property
    def weights_nbytes(self) -> int:
        return sum(weight.nbytes for weight in self.weights)

    @property
    def code_bytes(self) -> int:
        """Of the files beside the weights and what is there to be looked at."""
        return sum(file.nbytes for file in self.files if file.name not in (WEIGHTS_NAME, TRACE_NAME, ACCOUNT_NAME))

    def memory_summary(self) -> str:
        """One line: the memory that a loaded model takes beside its code, its inputs and its outputs."""
        plan = self.memory
        return (
            f"weights {self.weights_nbytes / _MIB:.1f} MiB; "
            f"activations {plan.arena_nbytes / _MIB:.1f} MiB in one arena "
            f"(lower bound {plan.bound_nbytes / _MIB:.1f}, without reuse {plan.total_nbytes / _MIB:.1f})"
        )
