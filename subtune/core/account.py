"""What a compile leaves in the artifact for those who look at it: `report.json`. Nothing of it is needed to run.

`subtune.report.account` makes it, `subtune.artifact.account` writes and reads it, `subtune.report.page` shows it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

ACCOUNT_NAME = "report.json"


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate that was tried. Seconds of one call; `measured_s` is 0.0 where it failed, and `failure` says how.

    `at_s` is when its outcome was stored, in seconds of tuning since the first one of the model.
    """

    schedule: str
    predicted_s: float
    measured_s: float
    failure: str
    message: str
    at_s: float


@dataclass(frozen=True, slots=True)
class TunedSubgraph:
    """A distinct subgraph: latencies of one call in seconds, 0.0 where it was not measured or not predicted.

    Attributes:
        uses: how many calls of it a run of the model has; 0 of a kernel of an alternative that was not taken.
        flops, nbytes: operations of one call, and bytes of its arguments, each counted once.
        flops_per_s, bytes_per_s: of the device, for this subgraph's data type: its roofs.
        tried: how many candidates have an outcome; `failures` counts the kinds of failures among these.
        candidates: the fastest of them, and some that failed.
    """

    name: str
    uses: int
    anchor: str
    schedule: str
    default_s: float
    tuned_s: float
    predicted_s: float
    flops: int
    nbytes: int
    flops_per_s: float
    bytes_per_s: float
    tried: int
    failures: tuple[tuple[str, int], ...]
    candidates: tuple[Tried, ...]

    @property
    def failed(self) -> int:
        return sum(count for _, count in self.failures)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def bound_s(self) -> float:
        """The roofline: it takes at least the time of its arithmetic and that of its bytes."""
        times = ((self.flops, self.flops_per_s), (self.nbytes, self.bytes_per_s))
        return max((amount / rate for amount, rate in times if rate), default=0.0)

    @property
    def limit(self) -> str:
        """Which of the two takes longer, "compute" or "memory"."""
        is_compute = self.flops * self.bytes_per_s >= self.nbytes * self.flops_per_s
        return "compute" if is_compute else "memory"

    @property
    def total_s(self) -> float:
        """Of all uses, with the schedule that ships."""
        return self.uses * self.tuned_s

    @property
    def gain(self) -> float:
        """Default latency over tuned latency; 1.0 where it was not measured."""
        return self.default_s / self.tuned_s if self.default_s and self.tuned_s else 1.0


@dataclass(frozen=True, slots=True)
class Node:
    """A group of the partition, or an op left in main.

    Attributes:
        kind: of the anchor, a value of `subtune.core.graph.Kind`.
        subgraph: the name of the group's kernel; "" of an op left in main.
        ops: the ops in order, each with its result: `conv2d_3: float32[1,56,56,64]`.
        ends: why the group ends where it does, or why the op stays in main.
        after: indices of the nodes whose results it reads.
    """

    title: str
    kind: str
    subgraph: str
    ops: tuple[str, ...]
    ends: tuple[str, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rival:
    """An alternative to a part of the partition. `seconds` of its kernels; 0.0 where `note` says why there are none."""

    name: str
    why: str
    kernels: int
    seconds: float
    note: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Between alternatives, in `uses` equal places of a model. `taken` is an index; the first is the partition's."""

    place: str
    uses: int
    taken: int
    rivals: tuple[Rival, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """A tensor in the arena: its place in bytes, and the first and the last step that need it."""

    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """`steps` are the kernels of a run in order, by name, as the memory plan counts them."""

    steps: tuple[str, ...] = ()
    lives: tuple[Life, ...] = ()

    @property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes in use during every step."""
        return tuple(
            sum(life.nbytes for life in self.lives if life.first <= step <= life.last)
            for step in range(len(self.steps))
        )


@dataclass(frozen=True, slots=True)
class ShapedKernel:
    """A kernel for many shapes: seconds of one call at each instance of its subgraph, 0.0 where it was not timed."""

    schedule: str
    ships: bool
    measured_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Values of a subgraph's only extent at which the kernel of this number is taken."""

    first: int
    last: int
    kernel: int


@dataclass(frozen=True, slots=True)
class ShapedSubgraph:
    """A subgraph of a model of many shapes: what its kernels take, and which is taken where.

    Attributes:
        extents: what varies, as polynomials of the model's symbols.
        instances: values of the extents at which kernels were timed, those of least work first.
        kernels: those that ship, and others that were timed.
        spans: of a subgraph of one extent.
        worst_regret: how much longer than the fastest of all kernels the one that is taken takes, at the worst instance
            of the domain, as a share: what the tuner expects.
    """

    name: str
    uses: int
    extents: tuple[str, ...]
    instances: tuple[tuple[int, ...], ...]
    kernels: tuple[ShapedKernel, ...]
    spans: tuple[Span, ...]
    worst_regret: float


@dataclass(frozen=True, slots=True)
class LatencyAt:
    """What the tuner expects all kernels of a run to take together, at these values of the model's symbols."""

    values: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Account:
    """`subgraphs` ship; `others` were tuned for alternatives that were not taken. `seconds` are those of the stages.

    Of a model of many shapes `subgraphs` are those of the greatest instance; `shaped` says more of each.
    """

    subgraphs: tuple[TunedSubgraph, ...] = ()
    others: tuple[TunedSubgraph, ...] = ()
    nodes: tuple[Node, ...] = ()
    decisions: tuple[Decision, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    memory: MemoryUse = field(default_factory=MemoryUse)
    shaped: tuple[ShapedSubgraph, ...] = ()
    latencies: tuple[LatencyAt, ...] = ()

    @property
    def failures(self) -> dict[str, int]:
        """Candidates by the kind of their failure, the most frequent kind first."""
        found: Counter[str] = Counter()
        for subgraph in (*self.subgraphs, *self.others):
            found.update(dict(subgraph.failures))
        return dict(found.most_common())
