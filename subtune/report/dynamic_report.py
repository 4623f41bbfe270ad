"""What a compile for many shapes did, subgraph by subgraph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DynamicRow:
    """One subgraph of a model with symbolic dimensions; seconds of one call, 0.0 where nothing was timed.

    Attributes:
        extents: what varies, as polynomials of the model's symbols; none where the subgraph is the same at all shapes.
        kernels: the candidates in the artifact, among which a tree of comparisons chooses.
        instances: of the extents, at which kernels were timed.
        least, greatest: extents of the smallest and the largest of those; `least_s` and `greatest_s` of the fastest
            kernel there.
        worst_regret: how much longer than the fastest of all candidates the chosen kernel takes, at the worst instance
            of the domain, as a share: what the tuner expects.
    """

    name: str
    uses: int
    extents: tuple[str, ...]
    kernels: tuple[str, ...]
    tried: int
    failed: int
    instances: int = 0
    least: tuple[int, ...] = ()
    least_s: float = 0.0
    greatest: tuple[int, ...] = ()
    greatest_s: float = 0.0
    worst_regret: float = 0.0

    @property
    def is_timed(self) -> bool:
        return self.greatest_s > 0.0


def dynamic_text(rows: Sequence[DynamicRow], code_bytes: int) -> list[str]:
    """The table of the subgraphs, those that take longest first, and a line about all."""
    head, body = dynamic_table(rows)
    cells = [head, *body]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    kernels, tried = sum(len(row.kernels) for row in rows), sum(row.tried for row in rows)
    summary = (
        f"{kernels} kernels for {len(rows)} subgraphs, code {code_bytes / 2**20:.1f} MiB; {tried} candidates, "
        f"{sum(row.failed for row in rows)} of them failed"
    )
    if any(row.is_timed for row in rows):
        least, greatest = (sum(row.uses * seconds for row, seconds in _ends(rows, end)) for end in (0, 1))
        summary += f"; sum of the subgraphs: {least * 1e3:.2f} ms at the least instance, {greatest * 1e3:.2f} ms at "
        summary += f"the greatest; worst regret {max(row.worst_regret for row in rows):.1%}"
    lines.append(summary)
    if untuned := sum(not row.is_timed for row in rows):
        lines.append(f"{untuned} of {len(rows)} subgraphs were not tuned: each has one kernel that was checked")
    return lines


def dynamic_table(rows: Sequence[DynamicRow]) -> tuple[list[str], list[list[str]]]:
    """Its header, and its rows, those that take longest first."""
    head = ["subgraph", "uses", "extents", "kernels", "least us", "greatest us", "regret", "tried", "failed"]
    return head, [_cells(row) for row in sorted(rows, key=lambda row: -row.uses * row.greatest_s)]


def _ends(rows: Sequence[DynamicRow], end: int) -> list[tuple[DynamicRow, float]]:
    return [(row, (row.least_s, row.greatest_s)[end]) for row in rows]


def _cells(row: DynamicRow) -> list[str]:
    times = [f"{seconds * 1e6:.1f}" if seconds else "-" for seconds in (row.least_s, row.greatest_s)]
    regret = f"{row.worst_regret:.1%}" if row.is_timed else "-"
    extents = ", ".join(row.extents) or "none"
    return [row.name, str(row.uses), extents, str(len(row.kernels)), *times, regret, str(row.tried), str(row.failed)]
