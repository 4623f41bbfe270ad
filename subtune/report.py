"""What a compile did, for people and for machines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class SubgraphRow:
    """One distinct subgraph: latencies of one call in seconds, 0.0 when it was not measured.

    `predicted_s` is what the policy expects of a candidate that was taken without measuring it; else 0.0.
    """

    name: str
    uses: int
    candidate: str
    default_s: float
    tuned_s: float
    tried: int
    failed: int
    predicted_s: float = 0.0

    @property
    def gain(self) -> float:
        return self.default_s / self.tuned_s if self.tuned_s else 1.0


@dataclass(frozen=True, slots=True)
class CompileReport:
    """`seconds` by stage; `verified` says with what the whole model was compared, "" when it was not; `memory` what the
    artifact takes when it is loaded.

    `failures` holds the workloads that could not be tuned, with the reason: they keep the default schedule.
    `precision` is "fp32" or "bf16".
    """

    path: str
    rows: tuple[SubgraphRow, ...]
    seconds: dict[str, float]
    verified: str
    is_interrupted: bool
    failures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    memory: str = ""
    precision: str = "fp32"

    @property
    def default_s(self) -> float:
        """Sum over all uses of the measured subgraphs with default schedules."""
        return sum(row.uses * row.default_s for row in self.rows)

    @property
    def tuned_s(self) -> float:
        """Sum over all uses of the measured subgraphs with the schedules that ship."""
        return sum(row.uses * row.tuned_s for row in self.rows)

    def to_json(self) -> str:
        return json.dumps(
            {**asdict(self), "default_s": self.default_s, "tuned_s": self.tuned_s, "failures": dict(self.failures)},
            indent=2,
        )

    def __str__(self) -> str:
        width = max([len(row.name) for row in self.rows] + [8])
        lines = [f"{'subgraph':<{width}}  uses  default us   tuned us    gain  schedule"]
        for row in sorted(self.rows, key=lambda r: -r.uses * (r.default_s or r.predicted_s)):
            if row.tuned_s:
                figures = f"{row.default_s * 1e6:10.1f} {row.tuned_s * 1e6:10.1f} {row.gain:6.1f}x"
            elif row.predicted_s:
                figures = f"predicted, not measured {row.predicted_s * 1e6:6.1f}"
            else:
                figures = f"{'-':>10} {'-':>10} {'-':>7}"
            lines.append(f"{row.name:<{width}}  {row.uses:4d}  {figures}  {row.candidate}")
        if self.tuned_s:
            gain = self.default_s / self.tuned_s
            lines.append(
                f"sum of the subgraphs: default {self.default_s * 1e3:.2f} ms, tuned {self.tuned_s * 1e3:.2f} ms, "
                f"{gain:.1f}x; {sum(row.tried for row in self.rows)} candidates, "
                f"{sum(row.failed for row in self.rows)} of them failed"
            )
        lines += [f"not tuned: {key}: {reason}" for key, reason in self.failures]
        lines += self.notes
        if self.precision != "fp32":
            lines.append(f"precision {self.precision}: products of bfloat16, sums and all else in float32")
        lines += [line for line in (self.verified, self.memory) if line]
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        lines.append(f"{stages}; wrote {self.path}")
        if self.is_interrupted:
            lines.append("interrupted: what was tuned by then is in the artifact and in the database")
        return "\n".join(lines)
