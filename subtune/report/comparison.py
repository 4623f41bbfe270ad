"""What tuning ops alone and tuning subgraphs found, for people and for machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from subtune.tuning.ranking import NOT_RANKED, Ranking
from subtune.tuning.roofline import Placed

OP, SUBGRAPH = "op", "subgraph"


@dataclass(frozen=True, slots=True)
class ComparedSubgraph:
    """One subgraph: the winner of either granularity and its latency on the subgraph, in seconds.

    `op_s` is 0.0 where the op's winner cannot schedule the subgraph, or fails on it; `note` says so. `faster` is the
    level whose winner was faster by more than noise, `OP` or `SUBGRAPH`, "" where neither was. `op_placed` and `placed`
    are the op alone and the subgraph under the roofline, either with its own winner.
    """

    name: str
    uses: int
    op_winner: str
    subgraph_winner: str
    op_s: float
    subgraph_s: float
    note: str
    faster: str
    op_placed: Placed
    placed: Placed
    ranking: Ranking = NOT_RANKED

    @property
    def has_changed(self) -> bool:
        return self.op_winner != self.subgraph_winner

    @property
    def lost_s(self) -> float:
        """Seconds of a run of the model that tuning at op level loses, all uses together; below 0 where it gains."""
        return self.uses * (self.op_s - self.subgraph_s) if self.op_s and self.subgraph_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        found = {**asdict(self), "has_changed": self.has_changed, "lost_s": self.lost_s}
        for name, one in (("op_placed", self.op_placed), ("placed", self.placed)):
            at = one.position
            found[name] = {
                **asdict(at), "intensity": at.intensity, "bound_s": at.bound_s, "limit": at.limit,
                "seconds": one.seconds, "reached": one.reached,
            }  # fmt: skip
        return found


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A subgraph that says nothing, and the reason."""

    name: str
    uses: int
    why: str


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """`rows` holds what was tuned to the end both ways, `left_out` what was not though it has an epilogue; `without_op`
    the subgraphs of which there is no op alone: they have no epilogue, or no single anchor.

    The model's latencies are in seconds, interleaved medians: the two builds differ in `rows` only. Both are 0.0 where
    there is no row. `device` is its fingerprint.
    """

    rows: tuple[ComparedSubgraph, ...]
    left_out: tuple[LeftOut, ...]
    op_model_s: float
    subgraph_model_s: float
    without_op: tuple[LeftOut, ...] = ()
    model: str = ""
    device: str = ""

    @property
    def changed(self) -> tuple[ComparedSubgraph, ...]:
        """The rows whose two winners differ."""
        return tuple(row for row in self.rows if row.has_changed)

    @property
    def lost_s(self) -> float:
        """Of a run of the model, in all rows together."""
        return sum(row.lost_s for row in self.rows)

    @property
    def compared_s(self) -> float:
        """What the rows take in a run of the model, each with the subgraph's own winner."""
        return sum(row.uses * row.subgraph_s for row in self.rows)

    def summary(self) -> dict[str, Any]:
        """The figures of the sentences: shares are of 1, taus medians over the rows that have one, None where none."""
        rankings = [row.ranking for row in self.rows]
        clearly_s = sum(row.lost_s for row in self.rows if row.faster)
        return {
            "subgraphs": len(self.rows),
            "changed": len(self.changed),
            "changed_share": len(self.changed) / len(self.rows) if self.rows else 0.0,
            "subgraph_faster": sum(row.faster == SUBGRAPH for row in self.rows),
            "op_faster": sum(row.faster == OP for row in self.rows),
            "op_fails": sum(not row.op_s for row in self.rows),
            "lost_s": self.lost_s,
            "clearly_lost_s": clearly_s,
            "clearly_lost_share": clearly_s / self.compared_s if self.compared_s else 0.0,
            "ranked": sum(one.tau is not None for one in rankings),
            "tau": _median(one.tau for one in rankings),
            "repeated_tau": _median(one.repeated_tau for one in rankings),
            "searched_tau": _median(one.searched_tau for one in rankings),
            "bytes_ratio": _median(row.placed.position.nbytes / row.op_placed.position.nbytes for row in self.rows),
            "other_limit": sum(row.placed.position.limit != row.op_placed.position.limit for row in self.rows),
        }

    def to_json(self) -> str:
        rows = [row.to_dict() for row in self.rows]
        return json.dumps({**asdict(self), "rows": rows, "summary": self.summary()}, indent=2)

    def __str__(self) -> str:
        lines = [*aligned(self.winners_table()), "", *aligned(self.roofline_table()), ""] if self.rows else []
        return "\n".join([*lines, *self.sentences(), *self.omissions()])

    def winners_table(self) -> list[list[str]]:
        """A header and a line for each row: the winners on the subgraph, and how alike the rankings are."""
        lines = [["subgraph", "uses", "op-level us", "subgraph us", "lost us", "faster", "tau", "winner"]]
        for row in self.rows:
            verdict = f"{row.op_winner} -> {row.subgraph_winner}" if row.has_changed else f"same: {row.op_winner}"
            note = f" ({row.note})" if row.note else ""
            tau = f"{row.ranking.tau:.2f} ({len(row.ranking.points)})" if row.ranking.tau is not None else "-"
            times = [f"{row.op_s * 1e6:.1f}" if row.op_s else "-", f"{row.subgraph_s * 1e6:.1f}"]
            lost = f"{row.lost_s * 1e6:+.1f}" if row.has_changed and row.op_s else "-"
            lines.append([row.name, str(row.uses), *times, lost, row.faster or "-", tau, f"{verdict}{note}"])
        return lines

    def roofline_table(self) -> list[list[str]]:
        """A header and a line for each row: bytes, operations per byte and the share of the roofline, on both units."""
        units = [f"{unit} {what}" for unit in (OP, SUBGRAPH) for what in ("KiB", "FLOP/B", "bound us", "of bound")]
        lines = [["subgraph", *units, "bound by"]]
        for row in self.rows:
            cells = [row.name]
            for one in (row.op_placed, row.placed):
                at = one.position
                cells += [f"{at.nbytes / 1024:.0f}", f"{at.intensity:.1f}", f"{at.bound_s * 1e6:.1f}"]
                cells.append(f"{one.reached:.0%}" if one.seconds else "-")
            limits = dict.fromkeys([row.op_placed.position.limit, row.placed.position.limit])
            lines.append([*cells, " -> ".join(limits)])
        return lines

    def sentences(self) -> list[str]:
        """What the rows come to, whichever way it goes."""
        if not self.rows:
            return ["nothing to compare: no subgraph with an epilogue was tuned to the end both ways"]
        more = f"; {len(self.left_out)} were not tuned to the end both ways" if self.left_out else ""
        ratio = self.op_model_s / self.subgraph_model_s
        changed, count = len(self.changed), len(self.rows)
        share = f"{changed / count:.0%}"
        return [
            f"{changed} of {count} subgraphs with an epilogue have another winner than their op, {share}{more}",
            *self._of_winners(),
            self._of_rankings(),
            self._of_rooflines(),
            f"model: op level {self.op_model_s * 1e3:.3f} ms, subgraph level {self.subgraph_model_s * 1e3:.3f} ms, "
            f"ratio {ratio:.3f}",
        ]

    def omissions(self) -> list[str]:
        """What `rows` does not hold, a line each."""
        unfinished = [f"left out: {one.name}, {one.uses} uses: {one.why}" for one in self.left_out]
        return unfinished + [f"no op level: {one.name}, {one.uses} uses: {one.why}" for one in self.without_op]

    def _of_winners(self) -> list[str]:
        figures = self.summary()
        if not figures["changed"]:
            return ["both levels choose the same schedules: tuning at op level loses nothing here"]
        own, op, fails = figures["subgraph_faster"], figures["op_faster"], figures["op_fails"]
        others = figures["changed"] - own - op - fails
        lines = [
            f"of the {figures['changed']}, the subgraph's winner is faster in {own}, the op's in {op}; "
            f"{others} differ by no more than noise"
        ]
        if fails:
            lines[0] += f"; {fails} winners of ops do not run on their subgraph"
        whole, share = f"{self.compared_s * 1e6:.1f} us", f"{abs(figures['clearly_lost_share']):.1%}"
        lines.append(
            f"beyond noise, tuning at op level {_loses(figures['clearly_lost_s'])} of the {whole} that these subgraphs "
            f"take in a run, {share}; all differences together, it {_loses(self.lost_s)}"
        )
        return lines

    def _of_rankings(self) -> str:
        figures = self.summary()
        reasons = Counter(row.ranking.why for row in self.rows if row.ranking.tau is None)
        missing = "; ".join(f"{count} have none: {why}" for why, count in reasons.items())
        if figures["tau"] is None:
            return f"rank correlation: {missing}"
        text = f"rank correlation (Kendall's tau) of the same candidates: {figures['tau']:.2f}, the median of "
        text += f"{figures['ranked']} subgraphs"
        if figures["repeated_tau"] is not None:
            text += f"; the same measurement repeated: {figures['repeated_tau']:.2f}"
        if figures["searched_tau"] is not None:
            text += f"; of all that both searches timed: {figures['searched_tau']:.2f}"
        return f"{text}; {missing}" if missing else text

    def _of_rooflines(self) -> str:
        figures = self.summary()
        text = f"roofline: a subgraph moves {figures['bytes_ratio']:.2f} times the bytes of its op alone (median); "
        if moved := figures["other_limit"]:
            return text + f"{moved} of {len(self.rows)} are bound by something else than their op"
        limits = Counter(row.placed.position.limit for row in self.rows)
        return (
            text + " and ".join(f"{count} are bound by {limit}" for limit, count in limits.items()) + ", as their ops"
        )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of text: the first and the last to the left, figures between them to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if index in (0, last) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _loses(seconds: float) -> str:
    return f"{'loses' if seconds >= 0 else 'gains'} {abs(seconds) * 1e6:.1f} us"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None
