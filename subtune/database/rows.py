"""Rows of the tables, and the data that they hold."""

from __future__ import annotations

import json
import time
import zlib

from subtune.core.candidate import Candidate
from subtune.core.measurement import Failure, FailureKind, Measurement, Timing
from subtune.core.record import Record
from subtune.core.versions import Scope, Versions
from subtune.core.workload import Workload
from subtune.database.statements import Row

MEASUREMENT = ("candidate", "predicted_s", "kind", "message", "median_s", "min_s", "spread", "samples", "build_s")
"""The columns that `measurement_of` reads."""
RECORD = (
    "key", "device", "candidate", "predicted_s", "median_s", "min_s", "spread", "samples",
    "default_median_s", "default_min_s", "default_spread", "default_samples", "gain", "func_hash", "topk", "tried",
    "failed", "complete", "confirmed",
)  # fmt: skip
"""The columns that `record_of` reads."""


def workload_row(workload: Workload) -> Row:
    func = zlib.compress(workload.to_json().encode(), 6)
    return workload.key, func, workload.num_outputs, time.time()


def measurement_row(workload: Workload, scope: Scope, measurement: Measurement) -> Row:
    candidate, outcome = measurement.candidate, measurement.outcome
    columns: Row = (
        (str(outcome.kind), outcome.message, None, None, None, None)
        if isinstance(outcome, Failure)
        else ("", "", outcome.median_s, outcome.min_s, outcome.spread, outcome.samples)
    )
    version = scope.versions.of(candidate.family)
    about = (workload.key, scope.device, version, candidate.to_json(), candidate.predicted_s)
    return *about, *columns, measurement.build_s, time.time()


def record_row(record: Record, versions: Versions) -> Row:
    timing, default = record.timing, record.default_timing
    return (
        record.workload_key, record.device, versions.base, record.candidate.to_json(), record.candidate.predicted_s,
        timing.median_s, timing.min_s, timing.spread, timing.samples,
        default.median_s, default.min_s, default.spread, default.samples,
        record.gain, record.func_hash, record.topk, record.tried, record.failed, int(record.complete), time.time(),
        record.confirmed, json.dumps(dict(versions.families), sort_keys=True),
    )  # fmt: skip


def measurement_of(row: tuple) -> Measurement:
    candidate, predicted_s, kind, message, median_s, min_s, spread, samples, build_s = row
    outcome = Failure(FailureKind(kind), message) if kind else Timing(median_s, min_s, spread, samples)
    return Measurement(_candidate(candidate, predicted_s), outcome, build_s)


def record_of(row: tuple) -> Record:
    key, device, candidate, predicted_s, *rest = row
    gain, func_hash, topk, tried, failed, complete, confirmed = rest[8:]
    return Record(
        key, device, _candidate(candidate, predicted_s), Timing(*rest[:4]), Timing(*rest[4:8]),
        gain, func_hash, topk, tried, failed, bool(complete), confirmed,
    )  # fmt: skip


def _candidate(text: str, predicted_s: float) -> Candidate:
    candidate = Candidate.from_json(text)
    return Candidate(candidate.family, candidate.knobs, predicted_s)
