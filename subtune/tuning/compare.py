"""Op-level against subgraph-level tuning: the same policy, templates and top-k, two granularities.

Op level, as AutoTVM tunes: the anchor alone, writing its own result in its own dtype; its winner is applied to the
whole subgraph. Subgraph level: the unit that ships. Where both searches came to their end, both winners are timed on
the subgraph, in turns; candidates that both may take are ranked on the op alone and on the subgraph; and the model is
built both ways. Source: AutoTVM subgraph tuning, apache/tvm#10650.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

from subtune.artifact import load
from subtune.assembly import Package, write_artifact
from subtune.backends import device_of
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.graph import Subgraph
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.measurement import Failure, Timing
from subtune.core.progress import Progress, ProgressCallback
from subtune.core.record import Record
from subtune.core.scratch import temporary
from subtune.core.workload import Workload
from subtune.database import Database, opened
from subtune.measure import Measurer, given_or_local
from subtune.options import Options
from subtune.passes.splice import splice
from subtune.pipeline import Prepared, prepare
from subtune.report.comparison import OP, SUBGRAPH, ComparedSubgraph, ComparisonReport, LeftOut
from subtune.tuning.op_level import anchor_alone
from subtune.tuning.ranking import Ranking, common_candidates, measured, searched_alike
from subtune.tuning.records import Records
from subtune.tuning.roofline import Placed, position
from subtune.tuning.search import Search, tune
from subtune.tuning.winners import applied, schedule_kernels

_ROUNDS = 7
_ROUND_S = 0.05
_CLEARLY = 1.01
"""Of two winners one is faster if it is in every round, and by so much in half of them."""
_TUNING = 0.8
"""Of the budget; the rest is for rankings."""


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

    The budget is shared: two fifths for the ops at most, as much for the subgraphs and what the ops left of theirs, the
    rest for rankings. Timing the winners and the whole model comes on top. Ctrl-C raises KeyboardInterrupt.
    """
    options = Options(**given)
    device = device_of(options.target, options.threads, options.device_file, options.numerics)
    forms = device.backend.forms(device.model)
    prepared = prepare(model, options.shapes, options.numerics, options.parameters, forms=forms)
    device = device.for_working_set(prepared.working_set_bytes)
    topk, budget_s, progress = options.topk, options.budget_s, options.progress
    with opened(options.database) as store, given_or_local(options.measurer) as measurer:
        begin = time.monotonic()
        tuning_s = None if budget_s is None else _TUNING * budget_s
        found = compare_subgraphs(prepared.subgraphs, device, store, measurer, topk, tuning_s, progress)
        left_s = math.inf if budget_s is None else max((1 - _TUNING) * budget_s, budget_s - (time.monotonic() - begin))
        rows = _ranked(prepared.subgraphs, found, (device, store, measurer), left_s, progress)
    times = (0.0, 0.0)
    if rows:
        own = _winners(prepared.subgraphs, found.records)
        times = _end_to_end(prepared, (_transferred(prepared.subgraphs, found, own, device), own), device)
    name, fingerprint = prepared.imported.name, device.fingerprint()
    return ComparisonReport(rows, found.left_out, *times, found.without_op, name, fingerprint)


@dataclass(frozen=True, slots=True)
class ComparedUnits:
    """What tuning at both granularities found; `ops` holds the anchors alone, by their subgraphs' names."""

    rows: tuple[ComparedSubgraph, ...]
    left_out: tuple[LeftOut, ...]
    without_op: tuple[LeftOut, ...]
    ops: Mapping[str, Workload]
    op_records: Mapping[str, Record]
    records: Mapping[str, Record]


def compare_subgraphs(
    subgraphs: Sequence[ComparableSubgraph],
    device: Device,
    database: Database,
    measurer: Measurer,
    topk: int = 20,
    budget_s: float | None = None,
    progress: ProgressCallback | None = None,
) -> ComparedUnits:
    """Tune every subgraph that has an epilogue, and its anchor alone; both winners timed in turns on the subgraph.

    Nothing is ranked. Up to half of the budget is for the ops.

    Ctrl-C raises KeyboardInterrupt: what was tuned is in the database, half a comparison says nothing.
    """
    alone = {s.name: anchor_alone(s.workload) for s in subgraphs}
    ops = {name: workload for name, workload in alone.items() if isinstance(workload, Workload)}
    units = [_Unit(ops[s.name], s.uses) for s in subgraphs if s.name in ops]
    begin = time.monotonic()
    options: dict[str, Any] = {"database": database, "measurer": measurer, "progress": progress}
    op_records = tune(units, device, Search(topk, None if budget_s is None else budget_s / 2), **options)
    if op_records.interrupted:
        raise KeyboardInterrupt
    left_s = None if budget_s is None else max(0.0, budget_s - (time.monotonic() - begin))
    records = tune(subgraphs, device, Search(topk, left_s), **options)
    if records.interrupted:
        raise KeyboardInterrupt
    rows, left_out = [], []
    for subgraph in (s for s in subgraphs if s.name in ops):
        views = ((op_records, ops[subgraph.name].key, "op"), (records, subgraph.workload.key, "subgraph"))
        op, own = (found.get(key) for found, key, _ in views)
        why = "; ".join(filter(None, (_unfinished(found, key, level, topk) for found, key, level in views)))
        if op is None or own is None or why:
            left_out.append(LeftOut(subgraph.name, subgraph.uses, why))
        else:
            rows.append(_compared(subgraph, ops[subgraph.name], op, own, (device, measurer)))
    without = [
        LeftOut(s.name, s.uses, one.reason) for s in subgraphs if isinstance(one := alone[s.name], NotApplicable)
    ]
    return ComparedUnits(tuple(rows), tuple(left_out), tuple(without), ops, op_records, records)


def _unfinished(records: Records, key: str, level: str, topk: int) -> str:
    """Why the search of one workload says nothing, "" where it came to its end."""
    record, failure = records.get(key), records.failures.get(key)
    if failure:
        return f"the {level} cannot be tuned: {failure}"
    if record is None:
        return f"the {level} was not tuned"
    if not record.complete or record.topk < topk:
        return f"the {level} was tuned in part ({record.tried} candidates)"
    return ""


def _winners(subgraphs: Sequence[Subgraph], records: Mapping[str, Record]) -> dict[str, Candidate]:
    return {s.workload.key: records[s.workload.key].candidate for s in subgraphs if s.workload.key in records}


def _transferred(
    subgraphs: Sequence[Subgraph], found: ComparedUnits, own: Mapping[str, Candidate], device: Device
) -> dict[str, Candidate]:
    """By subgraph workload: the op's winner where both were compared, else the subgraph's own."""
    chosen = dict(own)
    compared = {row.name for row in found.rows}
    for subgraph in subgraphs:
        if subgraph.name in compared:
            candidate = found.op_records[found.ops[subgraph.name].key].candidate
            applies = isinstance(applied(subgraph.workload, candidate, device), Kernel)
            chosen[subgraph.workload.key] = candidate if applies else DEFAULT
    return chosen


def _compared(
    subgraph: ComparableSubgraph, op: Workload, op_record: Record, record: Record, on: tuple[Device, Measurer]
) -> ComparedSubgraph:
    """Both winners on the subgraph, in turns."""
    device, measurer = on
    pair = (op_record.candidate, record.candidate)
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
    op_rounds, own_rounds = (samples.get(candidate, []) for candidate in pair)
    own_s = median(own_rounds) if own_rounds else 0.0
    ratios = [a / b for a, b in zip(op_rounds, own_rounds, strict=True)] if op_rounds and own_rounds else []
    return ComparedSubgraph(
        subgraph.name,
        subgraph.uses,
        op_winner=str(pair[0]),
        subgraph_winner=str(pair[1]),
        op_s=median(ratios) * own_s if ratios else median(op_rounds) if op_rounds else 0.0,
        subgraph_s=own_s,
        note=note,
        faster=_faster(ratios),
        op_placed=Placed(position(op, device), op_record.timing.median_s),
        placed=Placed(position(subgraph.workload, device), record.timing.median_s),
    )


def _faster(ratios: Sequence[float]) -> str:
    """As `ComparedSubgraph.faster`, from the op's winner's time over the subgraph's own, by rounds.

    A machine may be slower from one second to the next: pairs of a round say more than medians of either.
    """
    if not ratios:
        return ""
    if min(ratios) > 1 and median(ratios) > _CLEARLY:
        return SUBGRAPH
    return OP if max(ratios) < 1 and median(ratios) < 1 / _CLEARLY else ""


def _ranked(
    subgraphs: Sequence[Subgraph],
    found: ComparedUnits,
    on: tuple[Device, Database, Measurer],
    left_s: float,
    progress: ProgressCallback | None,
) -> tuple[ComparedSubgraph, ...]:
    """The rows with their rankings: those first that take longest, as long as there is time."""
    device, store, measurer = on
    begin, workloads = time.monotonic(), {s.name: s.workload for s in subgraphs}
    rankings: dict[str, Ranking] = {}
    for row in sorted(found.rows, key=lambda row: -row.uses * row.subgraph_s):
        units = (found.ops[row.name], workloads[row.name])
        outcomes = [store.outcomes(unit, device.scope()) for unit in units]
        winners = [found.op_records[units[0].key].candidate, found.records[units[1].key].candidate]
        if progress:
            progress(_progress(units[1].key, len(rankings), len(found.rows), time.monotonic() - begin))
        candidates = common_candidates(winners, outcomes)
        ranking = measured(units, candidates, device, measurer, begin + left_s)
        searched, tau = searched_alike(*outcomes)
        rankings[row.name] = replace(ranking, searched=searched, searched_tau=tau)
    return tuple(_with_ranking(row, rankings[row.name]) for row in found.rows)


def _with_ranking(row: ComparedSubgraph, ranking: Ranking) -> ComparedSubgraph:
    """The row, its places under the roofline by what the ranking timed in turns: searches are minutes apart."""
    op_s = next((point.op_s for point in ranking.points if point.candidate == row.op_winner), 0.0)
    own_s = next((point.subgraph_s for point in ranking.points if point.candidate == row.subgraph_winner), 0.0)
    row = replace(row, ranking=ranking)
    if not (op_s and own_s):
        return row
    return replace(row, op_placed=replace(row.op_placed, seconds=op_s), placed=replace(row.placed, seconds=own_s))


def _progress(key: str, done: int, total: int, passed_s: float) -> Progress:
    left_s = passed_s / done * (total - done) if done else math.inf
    return Progress(key, done, total, 0, 0, math.inf, left_s, done / total)


def _end_to_end(
    prepared: Prepared, choices: tuple[Mapping[str, Candidate], Mapping[str, Candidate]], device: Device
) -> tuple[float, float]:
    """Latency of the model built with each choice of candidates, once where they are equal: interleaved medians."""
    imported = prepared.imported
    distinct = choices[:1] if choices[0] == choices[1] else choices
    with temporary() as folder:
        artifacts = [
            load(write_artifact(folder / f"{index}.subtune", Package(mod, imported.inputs, imported.outputs), device))
            for index, chosen in enumerate(distinct)
            for mod in [splice(prepared.mod, schedule_kernels(prepared.subgraphs, chosen, device))]
        ]
        rounds = [[artifact.benchmark(repeats=10) for artifact in artifacts] for _ in range(_ROUNDS)]
    medians = [median(column) for column in zip(*rounds, strict=True)]
    return medians[0], medians[-1]
