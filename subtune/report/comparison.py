"""What tuning ops alone and tuning subgraphs found, for people and for machines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ComparedSubgraph:
    """One subgraph: the winner of either granularity and its latency on the subgraph, in seconds.

    `op_s` is 0.0 where the op's winner cannot schedule the subgraph, or fails on it; `note` says so.
    """

    name: str
    uses: int
    op_winner: str
    subgraph_winner: str
    op_s: float
    subgraph_s: float
    note: str

    @property
    def has_changed(self) -> bool:
        return self.op_winner != self.subgraph_winner


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A subgraph with an epilogue of which one granularity or both did not finish: it says nothing."""

    name: str
    uses: int
    why: str


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """`rows` holds what was tuned to the end both ways; subgraphs without an epilogue are in neither list.

    The model's latencies are in seconds, interleaved medians: the two builds differ in `rows` only. Both are 0.0 where
    there is no row.
    """

    rows: tuple[ComparedSubgraph, ...]
    left_out: tuple[LeftOut, ...]
    op_model_s: float
    subgraph_model_s: float

    def to_json(self) -> str:
        rows = [{**asdict(row), "has_changed": row.has_changed} for row in self.rows]
        return json.dumps({**asdict(self), "rows": rows}, indent=2)

    def __str__(self) -> str:
        lines = [*self._table(), *(f"left out: {one.name}, {one.uses} uses: {one.why}" for one in self.left_out)]
        if not self.rows:
            lines.append("nothing to compare: no subgraph with an epilogue was tuned to the end both ways")
        return "\n".join(lines)

    def _table(self) -> list[str]:
        if not self.rows:
            return []
        width = max([len(row.name) for row in self.rows] + [8])
        lines = [f"{'subgraph':<{width}}  uses   op-level us   subgraph us  winner"]
        for row in self.rows:
            op = f"{row.op_s * 1e6:13.1f}" if row.op_s else f"{'-':>13}"
            verdict = f"{row.op_winner} -> {row.subgraph_winner}" if row.has_changed else f"same: {row.op_winner}"
            note = f" ({row.note})" if row.note else ""
            lines.append(f"{row.name:<{width}}  {row.uses:4d} {op} {row.subgraph_s * 1e6:13.1f}  {verdict}{note}")
        changed = sum(row.has_changed for row in self.rows)
        more = f"; {len(self.left_out)} were not tuned to the end both ways" if self.left_out else ""
        lines.append(
            f"{changed} of {len(self.rows)} subgraphs with an epilogue have another winner than their op{more}"
        )
        lines.append(
            f"model: op level {self.op_model_s * 1e3:.3f} ms, subgraph level {self.subgraph_model_s * 1e3:.3f} ms, "
            f"ratio {self.op_model_s / self.subgraph_model_s:.3f}"
        )
        return lines
