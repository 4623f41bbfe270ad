"""Op-level against subgraph-level tuning: the same policy, templates and top-k, two granularities.

Op level, as AutoTVM tunes: the anchor alone, writing its own result in its own dtype; its winner is applied to the
whole subgraph. Subgraph level: the unit that ships. Both winners are then timed on the subgraph, in turns, and the
model is built both ways. Source: AutoTVM subgraph tuning, apache/tvm#10650.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Protocol

from subtune.artifact import load
from subtune.assembly import Package, write_artifact
from subtune.backends import device_of
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.graph import Subgraph
from subtune.core.kernel import Kernel
from subtune.core.measurement import Failure, Timing
from subtune.core.progress import ProgressCallback
from subtune.core.record import Record
from subtune.core.scratch import temporary
from subtune.core.workload import Workload
from subtune.database import Database, opened
from subtune.measure import LocalMeasurer, Measurer
from subtune.options import Options
from subtune.passes.splice import splice
from subtune.pipeline import Prepared, prepare
from subtune.tuning.op_level import anchor_alone
from subtune.tuning.search import tune
from subtune.tuning.winners import applied, schedule_kernels

_ROUNDS = 5
_ROUND_S = 0.05


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
class ComparisonReport:
    """End-to-end latencies in seconds, interleaved medians; subgraphs without an epilogue are left out of `rows`."""

    rows: tuple[ComparedSubgraph, ...]
    op_model_s: float
    subgraph_model_s: float

    def to_json(self) -> str:
        rows = [{**asdict(row), "has_changed": row.has_changed} for row in self.rows]
        return json.dumps({**asdict(self), "rows": rows}, indent=2)

    def __str__(self) -> str:
        width = max([len(row.name) for row in self.rows] + [8])
        lines = [f"{'subgraph':<{width}}  uses   op-level us   subgraph us  winner"]
        for row in self.rows:
            op = f"{row.op_s * 1e6:13.1f}" if row.op_s else f"{'-':>13}"
            verdict = f"{row.op_winner} -> {row.subgraph_winner}" if row.has_changed else f"same: {row.op_winner}"
            note = f" ({row.note})" if row.note else ""
            lines.append(f"{row.name:<{width}}  {row.uses:4d} {op} {row.subgraph_s * 1e6:13.1f}  {verdict}{note}")
        changed = sum(row.has_changed for row in self.rows)
        lines.append(f"{changed} of {len(self.rows)} subgraphs with an epilogue have another winner than their op")
        lines.append(
            f"model: op level {self.op_model_s * 1e3:.3f} ms, subgraph level {self.subgraph_model_s * 1e3:.3f} ms, "
            f"ratio {self.op_model_s / self.subgraph_model_s:.3f}"
        )
        return "\n".join(lines)


class ComparableSubgraph(Protocol):
    """What `compare_subgraphs` needs to know of a subgraph."""

    @property
    def name(self) -> str: ...

    @property
    def workload(self) -> Workload: ...

    @property
    def uses(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Unit:
    """A workload to tune and how often the model runs it."""

    workload: Workload
    uses: int


def compare_model(model: Any, **given: Any) -> ComparisonReport:
    """Tune `model` at both granularities and time both outcomes; `given` are fields of `subtune.options.Options`.

    The budget is shared: half for the ops, half for the subgraphs. Ctrl-C raises KeyboardInterrupt.
    """
    options = Options(**given)
    device = device_of(options.target, options.threads, options.device_file, options.numerics)
    prepared = prepare(model, options.shapes, options.numerics, options.parameters)
    topk, budget_s, progress = options.topk, options.budget_s, options.progress
    with opened(options.database) as store, LocalMeasurer() as measurer:
        found = compare_subgraphs(prepared.subgraphs, device, store, measurer, topk, budget_s, progress)
    transferred = _transferred(prepared.subgraphs, found.ops, found.op_records, found.records, device)
    op_s, subgraph_s = _end_to_end(prepared, (transferred, _winners(prepared.subgraphs, found.records)), device)
    return ComparisonReport(found.rows, op_s, subgraph_s)


@dataclass(frozen=True, slots=True)
class ComparedUnits:
    """What tuning at both granularities found; `ops` holds the anchors alone, by their subgraphs' names."""

    rows: tuple[ComparedSubgraph, ...]
    ops: Mapping[str, Workload]
    op_records: Mapping[str, Record]
    records: Mapping[str, Record]


def compare_subgraphs(
    subgraphs: Sequence[ComparableSubgraph],
    device: Device,
    database: Database,
    measurer: LocalMeasurer,
    topk: int = 20,
    budget_s: float | None = None,
    progress: ProgressCallback | None = None,
) -> ComparedUnits:
    """Tune every subgraph that has an epilogue, and its anchor alone; both winners timed in turns on the subgraph.

    Ctrl-C raises KeyboardInterrupt: what was tuned is in the database, half a comparison says nothing.
    """
    alone = {s.name: anchor_alone(s.workload) for s in subgraphs}
    ops = {name: workload for name, workload in alone.items() if isinstance(workload, Workload)}
    units = [_Unit(ops[s.name], s.uses) for s in subgraphs if s.name in ops]
    share = None if budget_s is None else budget_s / 2
    options: dict[str, Any] = {"topk": topk, "budget_s": share, "database": database, "measurer": measurer}
    op_records = tune(units, device, progress=progress, **options)
    if op_records.interrupted:
        raise KeyboardInterrupt
    records = tune(subgraphs, device, progress=progress, **options)
    if records.interrupted:
        raise KeyboardInterrupt
    rows = [
        _compared(s, op_records.get(ops[s.name].key), records.get(s.workload.key), device, measurer)
        for s in subgraphs
        if s.name in ops
    ]
    return ComparedUnits(tuple(rows), ops, op_records, records)


def _winners(subgraphs: Sequence[Subgraph], records: Mapping[str, Record]) -> dict[str, Candidate]:
    return {s.workload.key: records[s.workload.key].candidate for s in subgraphs if s.workload.key in records}


def _transferred(
    subgraphs: Sequence[Subgraph],
    ops: Mapping[str, Workload],
    op_records: Mapping[str, Record],
    records: Mapping[str, Record],
    device: Device,
) -> dict[str, Candidate]:
    """By subgraph workload: the op's winner where the subgraph has an epilogue, else the subgraph's own."""
    chosen = _winners(subgraphs, records)
    for subgraph in subgraphs:
        op = ops.get(subgraph.name)
        if op is None:
            continue
        record = op_records.get(op.key)
        candidate = record.candidate if record else DEFAULT
        applies = isinstance(applied(subgraph.workload, candidate, device), Kernel)
        chosen[subgraph.workload.key] = candidate if applies else DEFAULT
    return chosen


def _compared(
    subgraph: ComparableSubgraph, op: Record | None, own: Record | None, device: Device, measurer: Measurer
) -> ComparedSubgraph:
    """Both winners on the subgraph, in turns."""
    pair = (op.candidate if op else DEFAULT, own.candidate if own else DEFAULT)
    samples: dict[Candidate, list[float]] = {candidate: [] for candidate in pair}
    note = ""
    with measurer.session(subgraph.workload, device, math.inf) as session:
        built = session.build([DEFAULT, *(c for c in samples if c != DEFAULT)], math.inf)
        for candidate, attempt in built.items():
            if isinstance(attempt, Failure) and candidate in samples:
                note = f"{attempt.kind}: {attempt.message}"
                del samples[candidate]
        for _ in range(_ROUNDS):
            for candidate in list(samples):
                outcome = session.time(candidate, _ROUND_S, math.inf)
                if isinstance(outcome, Timing):
                    samples[candidate].append(outcome.median_s)
                else:
                    note = f"{outcome.kind}: {outcome.message}"
                    del samples[candidate]
    op_s, own_s = (median(samples[c]) if samples.get(c) else 0.0 for c in pair)
    return ComparedSubgraph(subgraph.name, subgraph.uses, str(pair[0]), str(pair[1]), op_s, own_s, note)


def _end_to_end(
    prepared: Prepared, choices: tuple[Mapping[str, Candidate], ...], device: Device
) -> tuple[float, float]:
    """Latency of the model built with each choice of candidates: medians of interleaved rounds."""
    imported = prepared.imported
    with temporary() as folder:
        artifacts = [
            load(write_artifact(folder / f"{index}.subtune", Package(mod, imported.inputs, imported.outputs), device))
            for index, chosen in enumerate(choices)
            for mod in [splice(prepared.mod, schedule_kernels(prepared.subgraphs, chosen, device))]
        ]
        rounds = [[artifact.benchmark(repeats=10) for artifact in artifacts] for _ in range(_ROUNDS)]
    first, second = (median(column) for column in zip(*rounds, strict=True))
    return first, second
