"""What a compile did, for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from subtune.core.candidate import DEFAULT
from subtune.core.graph import InFloats
from subtune.core.html import notebook
from subtune.core.units import seconds_text, times_text
from subtune.report.dynamic_report import DynamicRow, dynamic_table, dynamic_text
from subtune.tuning.choose import Choice, MeasuredAlternative
from subtune.tuning.weights import Weights

_FAR = 5.0
"""Times its roofline: a subgraph that takes longer has no schedule that suits it."""
_HOLDS = 0.05
_SHORT_S = 20e-6
"""What takes less is bound by latency and launches, of which the roofline knows nothing."""


@dataclass(frozen=True, slots=True)
class SubgraphRow:
    """One distinct subgraph: latencies of one call in seconds, 0.0 when it was not measured.

    `predicted_s` is what the policy expects of a candidate that was taken without measuring it; else 0.0. `bound_s` is
    the roofline: what its arithmetic or its bytes take at least; 0.0 where nobody worked it out.
    """

    name: str
    uses: int
    candidate: str
    default_s: float
    tuned_s: float
    tried: int
    failed: int
    predicted_s: float = 0.0
    bound_s: float = 0.0

    @property
    def gain(self) -> float:
        return self.default_s / self.tuned_s if self.tuned_s else 1.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """What near workloads and near devices saved this run: of how many subgraphs the search began with their winners,
    those of alternatives that were not taken included; how many candidates these searches considered, and would have
    considered without; and how many they tried. The others were not hopeful after a first look.
    """

    subgraphs: int = 0
    considered: int = 0
    considered_without: int = 0
    tried: int = 0

    def __str__(self) -> str:
        return (
            f"{self.subgraphs} searches began with what won for like subgraphs or devices: {self.considered} of "
            f"{self.considered_without} candidates were considered, {self.tried} tried"
        )


@dataclass(frozen=True, slots=True)
class CompileReport:
    """`seconds` by stage; `verified` says with what the whole model was compared, "" when it was not; `memory` what the
    artifact takes when it is loaded.

    `failures` holds the workloads that could not be tuned, with the reason: they keep the default schedule.
    `precision` is what was asked for, "fp32", "bf16" or "fp16"; `products` counts matrix products and convolutions by
    the type of their operands, as they are in the artifact.
    `choices` says where more than one grouping of the ops was measured, and which was taken.
    `weights` are the bytes of the constants, and what kernels gave up to keep them within the limit.
    `in_floats` says what of a quantised model stays in floats.
    `dynamic` are the subgraphs of a model for many shapes, in the place of `rows`.
    `transfer` says what other searches saved this one.
    `code_bytes` is the size of the artifact's files without its weights.
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
    products: Mapping[str, int] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    weights: Weights | None = None
    in_floats: tuple[InFloats, ...] = ()
    dynamic: tuple[DynamicRow, ...] = ()
    code_bytes: int = 0
    transfer: Transfer = Transfer()

    @property
    def default_s(self) -> float:
        """Sum over all uses of the measured subgraphs with default schedules."""
        return sum(row.uses * row.default_s for row in self.rows)

    @property
    def tuned_s(self) -> float:
        """Sum over all uses of the measured subgraphs with the schedules that ship."""
        return sum(row.uses * row.tuned_s for row in self.rows)

    @property
    def far(self) -> tuple[SubgraphRow, ...]:
        """The subgraphs that hold some of the time and are far from their roofline: a better schedule would help."""
        return tuple(
            row
            for row in self.rows
            if row.tuned_s > max(_FAR * row.bound_s, _SHORT_S) and row.bound_s and self._counts(row)
        )

    @property
    def doubtful(self) -> tuple[SubgraphRow, ...]:
        """Those that hold some of the time, and of which the default ships or most candidates failed: something is
        wrong with how they are scheduled, whatever the time."""
        return tuple(
            row
            for row in self.rows
            if row.tried and self._counts(row) and (row.candidate == str(DEFAULT) or 2 * row.failed > row.tried)
        )

    def _counts(self, row: SubgraphRow) -> bool:
        """Whether it holds some of the time."""
        return row.uses * row.tuned_s > _HOLDS * self.tuned_s

    def to_json(self) -> str:
        found = asdict(self)
        regions = choices_json(self.choices)
        del found["choices"]
        return json.dumps(
            {
                **found,
                "default_s": self.default_s,
                "tuned_s": self.tuned_s,
                "failures": dict(self.failures),
                "regions": regions,
            },
            indent=2,
        )

    def __str__(self) -> str:
        lines = dynamic_text(self.dynamic, self.code_bytes) if self.dynamic else self._static_text()
        lines += [f"not tuned: {key}: {reason}" for key, reason in self.failures]
        lines += self.notes
        if self.precision != "fp32" or set(self.products) - {"float32"}:
            found = ", ".join(f"{count} of {dtype}" for dtype, count in self.products.items()) or "none"
            lines.append(f"precision {self.precision}: products: {found}; sums of halves in float32")
        lines += in_floats_text(self.in_floats)
        lines += [str(self.transfer)] if self.transfer.subgraphs else []
        lines += choices_text(self.choices)
        weights = str(self.weights) if self.weights and self.weights.packed_bytes != self.weights.own_bytes else ""
        lines += [line for line in (weights, self.verified, self.memory) if line]
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        lines.append(f"{stages}; wrote {self.path}")
        if self.is_interrupted:
            lines.append("interrupted: what was tuned by then is in the artifact and in the database")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: the sums, and the subgraphs that take longest first; `print` has the rest."""
        gain = f"{times_text(self.default_s / self.tuned_s)} faster than the default" if self.tuned_s else ""
        sums = f"{gain}: {seconds_text(self.default_s)} before, {seconds_text(self.tuned_s)} now" if gain else ""
        lines = (sums, self.verified, self.memory, *self.notes, f"wrote {self.path}")
        if self.dynamic:
            return notebook(Path(self.path).name, lines, *dynamic_table(self.dynamic))
        rows = [
            (
                row.name, str(row.uses), seconds_text(row.default_s), seconds_text(row.tuned_s),
                times_text(row.gain), seconds_text(row.bound_s), row.candidate,
            )
            for row in sorted(self.rows, key=lambda row: -row.uses * row.tuned_s)
        ]  # fmt: skip
        head = ("subgraph", "uses", "default", "tuned", "gain", "roofline", "schedule")
        return notebook(Path(self.path).name, lines, head, rows)

    def _static_text(self) -> list[str]:
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
        lines += [
            f"warning: {row.name} takes {row.tuned_s / row.bound_s:.0f} times its roofline, "
            f"{row.uses * row.tuned_s / self.tuned_s:.0%} of the time"
            for row in self.far
        ]
        lines += [
            f"warning: {row.name} ships {row.candidate}; of {row.tried} candidates {row.failed} failed"
            for row in self.doubtful
        ]
        return lines


SHOWN_NAMES = 3
"""Of operators that have one reason in common; the JSON has all."""


def in_floats_text(left: Sequence[InFloats]) -> list[str]:
    """A line for each kind of operator and each reason why it stays in floats."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in left:
        groups.setdefault((one.op, one.reason), []).append(one.name)
    lines = []
    for (op, reason), names in groups.items():
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        lines.append(f"in floats: {len(names)} {op} ({', '.join(names[:SHOWN_NAMES])}{more}): {reason}")
    return lines


SHOWN_ALTERNATIVES = 8
"""Of a region; combinations of what is shown make up most of the rest."""


def choices_text(choices: Sequence[Choice], *, why: bool = False) -> list[str]:
    """A block of lines for each region: its alternatives, their latencies, and `>` before the one that is taken."""
    if not choices:
        return []
    saved = sum(
        choice.uses * (choice.alternatives[0].seconds - choice.chosen.seconds)
        for choice in choices
        if choice.alternatives[0].seconds
    )
    taken = sum(choice.uses for choice in choices if choice.taken)
    total = sum(choice.uses for choice in choices)
    lines = [f"regions with alternatives: {total}; another than the partition's is taken in {taken}"]
    if saved:
        lines[0] += f", which saves {saved * 1e6:.1f} us"
    width = max(len(choice.alternatives[index].name) for choice in choices for index in _shown(choice))
    for choice in choices:
        lines.append(f"  at {choice.regions[0]}" + (f", and {choice.uses - 1} more alike" if choice.uses > 1 else ""))
        for index in _shown(choice):
            alternative = choice.alternatives[index]
            mark = ">" if index == choice.taken else " "
            figure = f"{alternative.seconds * 1e6:10.1f} us" if alternative.seconds else f"{'-':>10}   "
            gain = f"  {choice.gain:.2f}x" if index == choice.taken and choice.gain > 1 else ""
            note = f"  ({alternative.note})" if alternative.note else ""
            lines.append(f"  {mark} {alternative.name:<{width}} {figure}  {_kernels(alternative)}{gain}{note}")
            if why and alternative.why:
                lines.append(f"      {alternative.why}")
        if len(choice.alternatives) > SHOWN_ALTERNATIVES:
            lines.append(
                f"    and {len(choice.alternatives) - SHOWN_ALTERNATIVES} more alternatives, slower or not measured"
            )
    return lines


def _kernels(alternative: MeasuredAlternative) -> str:
    return "1 kernel" if len(alternative.kernels) == 1 else f"{len(alternative.kernels)} kernels"


def _shown(choice: Choice) -> list[int]:
    """The partition's own, the one taken, and the fastest or else first of the others."""
    order = sorted(range(len(choice.alternatives)), key=lambda i: (i not in (0, choice.taken), *_speed(choice, i), i))
    return sorted(order[:SHOWN_ALTERNATIVES])


def _speed(choice: Choice, index: int) -> tuple[bool, float]:
    seconds = choice.alternatives[index].seconds
    return not seconds, seconds


def choices_json(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """The same for machines; latencies in seconds, 0.0 where an alternative was not measured."""
    return [{**asdict(choice), "uses": choice.uses, "gain": choice.gain} for choice in choices]
