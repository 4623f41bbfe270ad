"""In the runner process: workloads are prepared, their candidates are checked and timed."""

from __future__ import annotations

from subtune.core.measurement import Comparison, Failure, FailureKind, Timing
from subtune.core.measuring import Bench
from subtune.measure.build import load_workload
from subtune.measure.messages import CheckJob, Prepared, PrepareJob, RunJob, TimeJob, Unprepared
from subtune.runtime.remote import DeviceGone, LostInCall, SessionExpired

_REASON_CHARS = 500
_CALLS, _CONNECTIONS = 3, 30
"""To another machine, that one job may take: where they are lost while a kernel runs, and in all."""
_PREPARED: dict[str, Bench] = {}
"""The sessions this process holds ready, the one that was used last at the end."""


def handle(job: PrepareJob | RunJob) -> Prepared | Unprepared | Timing | Comparison | Failure:
    """A connection that is lost is made again; a kernel that runs each time when it is lost has crashed there."""
    calls = 0
    for _ in range(_CONNECTIONS):
        try:
            return _handled(job)
        except SessionExpired as e:
            return Failure(FailureKind.TIMEOUT, str(e))
        except DeviceGone as e:
            return Failure(FailureKind.LAUNCH, str(e)[-_REASON_CHARS:])
        except ConnectionError as e:
            lost = str(e)[-_REASON_CHARS:]
            calls += isinstance(e, LostInCall)
        if calls == _CALLS:
            return Failure(FailureKind.CRASH, f"{lost}; {_CALLS} times")
    return Failure(FailureKind.LAUNCH, f"{lost}; {_CONNECTIONS} times")


def _handled(job: PrepareJob | RunJob) -> Prepared | Unprepared | Timing | Comparison | Failure:
    if isinstance(job, PrepareJob):
        known = _PREPARED.pop(job.session, None)
        _make_room(job.device.backend.kept_bytes(job.kept_bytes))
        try:
            bench = _prepared(job, known)
        except MemoryError:
            if not _PREPARED:
                raise
            _PREPARED.clear()
            bench = _prepared(job, known)
        _PREPARED[job.session] = bench
        return Prepared(bench.default_s, bench.is_whole)
    if job.session not in _PREPARED:
        return Unprepared()
    bench = _PREPARED[job.session] = _PREPARED.pop(job.session)
    try:
        return _answered(bench, job)
    except MemoryError:
        if len(_PREPARED) == 1:
            raise
        _PREPARED.clear()
        _PREPARED[job.session] = bench
        return _answered(bench, job)


def _answered(bench: Bench, job: RunJob) -> Timing | Comparison | Failure:
    if isinstance(job, CheckJob):
        return bench.check(job)
    return bench.time(job) if isinstance(job, TimeJob) else bench.compare(job)


def _prepared(job: PrepareJob, bench: Bench | None) -> Bench:
    if bench is None:
        return _bench(job)
    bench.prepare(job.patience_s)
    return bench


def _bench(job: PrepareJob) -> Bench:
    workload = load_workload(job.workload_json, job.num_outputs)
    return job.device.backend.bench(workload, job.device, job)


def _make_room(kept_bytes: int) -> None:
    while _PREPARED and sum(bench.nbytes for bench in _PREPARED.values()) > kept_bytes:
        _PREPARED.pop(next(iter(_PREPARED)))
